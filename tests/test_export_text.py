"""Whatever a configuration or a token holds, an export says exactly that, or is refused in one line."""

import json
import random
import subprocess
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from support.exports import planned
from support.objectives import H100, SLOTS, objective

from tuner import presets, space_file
from tuner.deployment.spec import literal
from tuner.errors import InputError
from tuner.export import FORMATS
from tuner.export.formats import render
from tuner.export.places import Ref
from tuner.export.shell import quoted
from tuner.export.yamltext import dump
from tuner.slo import Engine

#: What may stand in an argument: anything but the character that ends it.
TOKENS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=40)
NASTY = [
    "$HOME",
    "$(touch pwned)",
    "`id`",
    'a "b" c',
    "it's",
    "a\nb",
    "\\",
    "!!",
    "*",
    "${X:-y}",
    "$$",
    "",
    " ",
    "-x",
    "~",
]
READ_AS_ELSE = [
    "no",
    "on",
    "y",
    "null",
    "~",
    "1e3",
    "012",
    "12:30:00",
    "0x1F",
    ".5",
    "- a",
    "a: b",
    "# c",
    "&a",
    "*a",
    "",
    "\t",
]


def drawn(path, count):
    """Configurations of a space, always the same ones."""
    space = space_file.load(path)
    rng = random.Random(path.stem)
    for _ in range(count):
        knobs = {}
        for knob in space.knobs:
            if knob.active(knobs):
                knobs[knob.name] = rng.choice(knob.grid())
        yield knobs


def either(plan, form):
    """The text, or why there is none; one of the two is empty."""
    try:
        return render(plan, form, rdma="rdma/hca" if form == "kubernetes" else None).text, ""
    except InputError as error:
        return "", str(error)


@pytest.mark.parametrize("space", presets.list_spaces())
def test_any_point_of_a_shipped_space_is_exported_or_refused(space):
    """Configurations of each space in each format: a whole text, or one line that names the format."""
    pool = SLOTS if "cpu" in space else H100
    goal = objective(pools=(pool,), max_gpus=64)
    for knobs in drawn(presets.space_path(space), 25):
        try:
            plan = planned(goal, knobs)
        except InputError:
            continue  # no deployment at all, which is no export's fault
        for form in FORMATS:
            text, refusal = either(plan, form)
            assert "\n" not in refusal
            assert refusal.startswith(f"{form}: ") or all(spec.name in text for spec in plan.specs)


def evaluated(words):
    """What bash makes of these words."""
    script = "ENGINE_0_HOST='the host'\nprintf '%s\\0' " + " ".join(words)
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@given(st.lists(TOKENS, min_size=1, max_size=20))
@settings(max_examples=40)
def test_tokens_survive_bash(tokens):
    """Alone and beside a variable, each argument arrives as it was."""
    host = Ref("host", "engine-0")
    tokens = [*tokens, *NASTY]
    assert evaluated([quoted((token,)) for token in tokens]) == tokens
    beside = [quoted((token, host, token)) for token in tokens]
    assert evaluated(beside) == [f"{token}the host{token}" for token in tokens]


@given(st.lists(TOKENS, max_size=20))
@settings(max_examples=60)
def test_texts_survive_yaml(texts):
    """Read by YAML 1.1's and 1.2's rules, every text is the same text again."""
    texts = [*texts, *READ_AS_ELSE, *NASTY]
    document = {"values": texts, "names": {f"K{place}": text for place, text in enumerate(texts)}}
    written = dump([document], ["a head"])
    for version in ("1.1", "1.2"):
        yaml = YAML(typ="safe", pure=True)
        yaml.version = version
        assert yaml.load(StringIO(written)) == document


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("form", ["compose", "kubernetes"])
def test_dollars_are_nobodys_variables(form, text):
    """Compose and Kubernetes put back what was measured: `$$` is how both write a dollar."""
    plan = planned(objective(engine=Engine(env={"ODD": f"a{text}b"})), {})
    (found,) = [value for value in _values(render(plan, form).text) if value.startswith("a") and value.endswith("b")]
    assert found.replace("$$", "$") == f"a{text}b"
    assert found.count("$") == 2 * text.count("$")


def test_arguments_with_dollars_stay_whole():
    """A literal `${…}` in a template is no template, and no variable of Compose's either."""
    template = literal('{"a":"${host} $(POD_IP)"}')
    plan = planned(objective(engine=Engine(flags={"hf_overrides": template.replace("$$", "$")})), {})
    texts = {form: render(plan, form).text for form in FORMATS}
    assert '\'{"a":"${host} $(POD_IP)"}\'' in texts["shell"]
    for form in ("compose", "kubernetes"):
        assert json.dumps('{"a":"$${host} $$(POD_IP)"}') in texts[form]


def _values(text):
    """Every text value in it."""
    todo, found = list(YAML(typ="safe").load_all(text)), []
    while todo:
        match todo.pop():
            case dict() as members:
                todo += members.values()
            case list() as members:
                todo += members
            case str() as value:
                found.append(value)
    return found
