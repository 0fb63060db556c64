"""Space files: what they may say, and where the fault is when they say something else."""

from pathlib import Path

import pytest

from tuner import space_file
from tuner.errors import FileError
from tuner.space import Condition

SHIPPED = sorted((Path(__file__).parents[1] / "search_spaces").glob("*.yaml"))


def _load(tmp_path, text):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return space_file.load(path)


def test_every_kind_of_knob(tmp_path):
    """Int, log int, stepped and continuous float, choices with null, JSON choices, conditions, fixed values."""
    space = _load(
        tmp_path,
        """
description: all kinds
knobs:
  router_policy: {choices: [round_robin, cache_aware], when: {replicas: [2, 3]}}
  replicas: {type: int, low: 1, high: 3, source: the cluster}
  max_num_seqs: {type: int, low: 16, high: 1e3, log: true}
  gpu_memory_utilization: {type: float, low: 0.8, high: 9e-1, step: 0.05}
  watermark: {type: float, low: 1e-3, high: 0.5, log: true}
  enable_prefix_caching: {choices: [true, false, null]}
  compilation_config: {choices: [null, {mode: 3, cudagraph_mode: FULL}]}
fixed: {enforce_eager: true}
""",
    )
    knobs = space.by_name
    assert [knob.name for knob in space.knobs].index("replicas") < [knob.name for knob in space.knobs].index(
        "router_policy"
    )
    assert knobs["router_policy"].when == (Condition("replicas", (2, 3)),)
    assert (knobs["replicas"].source, knobs["replicas"].flag) == ("the cluster", None)
    assert (knobs["max_num_seqs"].low, knobs["max_num_seqs"].high, knobs["max_num_seqs"].log) == (16, 1000, True)
    assert knobs["gpu_memory_utilization"].grid() == (0.8, 0.85, 0.9)
    assert knobs["watermark"].low == 0.001
    assert knobs["enable_prefix_caching"].options == (True, False, None)
    assert knobs["compilation_config"].options == (None, '{"cudagraph_mode":"FULL","mode":3}')
    assert knobs["enforce_eager"].options == (True,)
    assert space.name == "space"


@pytest.mark.parametrize(
    ("knobs", "at", "message"),
    [
        ("max_num_seqs: {type: int, low: 9, high: 8}", "9, high", "above high"),
        ("max_num_seqs: {type: int, low: 8, high: 64, step: 0}", "0}", "at least 1"),
        ("max_num_seqs: {type: int, low: 8, high: 64, step: -8}", "-8}", "at least 1"),
        ("max_num_seqs: {type: int, low: 0, high: 64, log: true}", "0, high", "above 0"),
        ("max_num_seqs: {type: int, low: 1, high: 64, log: true, step: 2}", "2}", "no step"),
        ("max_num_seqs: {type: int, low: 11500, high: 96000, step: 1024}", "96000", "write high: 95468"),
        ("watermark: {type: float, low: 0.8, high: 0.93, step: 0.05}", "0.93", "write high: 0.9"),
        ("max_num_seqs: {type: int, low: 8, high: '64'}", "'64'", "without quotes"),
        ("max_num_seqs: {type: int, low: 8.5, high: 64}", "8.5", "whole number"),
        ("watermark: {type: float, low: 0, high: .inf}", ".inf", "number"),
        ("max_num_seqs: {type: integer, low: 8, high: 64}", "integer", "one of int, float"),
        ("max_num_seqs: {low: 8, high: 64}", "{low", "'type' is missing"),
        ("max_num_seqs: {type: int, low: 8, hihg: 64}", "hihg", "did you mean 'high'"),
    ],
)
def test_impossible_ranges_are_refused_at_their_place(tmp_path, knobs, at, message):
    """CFG-08: a range whose end is not reached, or that cannot be walked, names the remedy."""
    with pytest.raises(FileError, match=message) as error:
        _load(tmp_path, f"knobs:\n  {knobs}\n")
    column = f"  {knobs}".index(at) + 1
    assert str(error.value).startswith(f"{tmp_path}/space.yaml:2:{column}: knobs.")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ("[true, 1]", "takes a value"),
        ('["1", 1]', "same choice"),
        ("[8192, 8192]", "same choice"),
        ("[8, 8.0]", "same choice"),
        ("[null, null]", "same choice as null"),
        ("[[1, 2], [3]]", "got a list"),
        ("[]", "at least one"),
        ("[0x10, 16]", "same choice"),
        ("[010]", "quote it"),
    ],
)
def test_choices_that_would_be_confused_are_refused(tmp_path, choices, message):
    """CFG-09: equal after their types are taken off, or of a type that no flag takes."""
    with pytest.raises(FileError, match=message):
        _load(tmp_path, f"knobs:\n  max_num_seqs: {{choices: {choices}}}\n")


def test_true_and_one_are_confused_by_samplers(tmp_path):
    """CFG-09: even for a flag that nobody knows."""
    with pytest.raises(FileError, match="same choice as true"):
        _load(tmp_path, "knobs:\n  flag_of_a_newer_engine: {choices: [true, 1]}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("knobs:\n  enable_prefix_caching: {choices: [on, off, auto]}\n", "quote it"),
        ("knobs:\n  seed: {choices: [1]}\n  seed: {choices: [2]}\n", "given twice"),
        ("knobs:\n  seed: {choices: [1]}\nfixed: {seed: 2}\n", "searched too"),
        ("knobs:\n  max_num_seq: {choices: [1]}\n", "did you mean 'max_num_seqs'"),
        ("knobs:\n  max-num-seqs: {choices: [1]}\n", "write max_num_seqs"),
        ("knobs:\n  host: {choices: [x]}\n", "may not be set"),
        ("knobs:\n  trust_remote_code: {choices: [true, false]}\n", "trust_remote_code"),
        ("knobs:\n  chat_template: {choices: [a.jinja]}\n", "may not be set"),
        ("knobs:\n  max_num_seqs: {choices: ['8 --host 0.0.0.0']}\n", "further flags"),
        ("knobs:\n  tensor_parallel_size: {choices: [0, 1]}\n", "above 0"),
        ("knobs:\n  tensor_parallel_size: {type: int, low: 0, high: 4}\n", "above 0"),
        ("knobs:\n  mode: {choices: [agregated]}\n", "aggregated"),
        ("knobs:\n  seed: {choices: [1], when: {replica: 2}}\n  replicas: {choices: [1, 2]}\n", "'replicas'"),
        ("knobs:\n  seed: {choices: [1], when: {replicas: 3}}\n  replicas: {choices: [1, 2]}\n", "never has this"),
        ("knobs:\n  seed: {choices: [1, 2], when: {seed: 1}}\n", "circle"),
        ("knobs:\n  seed: {choices: [1], when: {x: 1}}\n  x: {type: float, low: 0, high: 1}\n", "continuous"),
        ("fixed: {seed: null}\n", "needs a value"),
        ("description: nothing\n", "at least one knob"),
        ("knob:\n  seed: {choices: [1]}\n", "did you mean 'knobs'"),
        ("knobs:\n  seed: {choices: [1, 2]}\nfirst: [{seed: 3}]\n", "one of 1, 2"),
        ("knobs:\n  seed: {choices: [1, 2]}\nfirst: [{sed: 1}]\n", "did you mean 'seed'"),
        ("knobs:\n  seed: {choices: [1, 2]}\nfirst: [{}]\n", "missing: seed"),
    ],
)  # fmt: skip
def test_what_a_space_may_not_say(tmp_path, text, message):
    """CFG-02, CFG-06, SEC-02, SEC-03, OPT-09: each fault has a place and a remedy."""
    with pytest.raises(FileError, match=message):
        _load(tmp_path, text)


def test_first_points_are_complete_and_checked(tmp_path):
    """Points to try first carry every active knob, fixed ones included."""
    space = _load(
        tmp_path, "knobs:\n  seed: {choices: [1, 2]}\nfixed: {enforce_eager: true}\nfirst: [{seed: 2}, {seed: 1}]\n"
    )
    assert space.first == ({"seed": 2, "enforce_eager": True}, {"seed": 1, "enforce_eager": True})


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_spaces_are_finite_and_sourced(path):
    """Every knob of a shipped space says where its range comes from."""
    space = space_file.load(path)
    assert space.size() == sum(1 for _ in space.points())
    assert all(len(knob.source) > 20 for knob in space.knobs)


def test_the_documented_example_is_a_space(tmp_path):
    """What docs/search-space.md shows can be loaded as it stands."""
    page = (Path(__file__).parents[1] / "docs" / "search-space.md").read_text()
    space = _load(tmp_path, page.split("```yaml\n")[1].split("```")[0])
    assert space.first[0]["dtype"] == "bfloat16"
