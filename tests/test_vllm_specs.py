"""Configurations become commands."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import golden
from support.named import AGGREGATED
from support.objectives import H100, SLOTS, objective

from tuner.configuration import Configuration
from tuner.deployment import vllm
from tuner.deployment.spec import Address, core_list, environment, literal, masked, resolve
from tuner.errors import InputError
from tuner.slo import Engine


def _specs(knobs, **settings):
    return vllm.specs(Configuration(knobs), objective(**settings))


def _addresses(specs):
    return {
        spec.name: Address(
            host="127.0.0.1",
            ports={need.name: 8000 + 100 * number + place for place, need in enumerate(spec.ports)},
            gpus=tuple(str(gpu) for gpu in range(number * spec.units, (number + 1) * spec.units)),
            cores=tuple(range(number * spec.units * spec.cores, (number + 1) * spec.units * spec.cores)),
            directory=f"/run/{spec.name}",
        )
        for number, spec in enumerate(specs)
    }


@pytest.mark.parametrize("name", AGGREGATED)
def test_named_deployments_match_their_golden_files(name):
    """Argv, env, order, ports and readiness of each process are exactly as reviewed."""
    goal, knobs = AGGREGATED[name]
    specs = vllm.specs(Configuration(knobs), goal)
    addresses = _addresses(specs)
    text = [
        {
            **masked(resolve(spec, addresses)),
            "order": spec.order,
            "units": spec.units,
            "cores": spec.cores,
            "pool": spec.pool,
            "ports": {need.name: need.count for need in spec.ports},
            "ready": spec.ready.kind,
            "endpoint": spec.endpoint,
        }
        for spec in specs
    ]
    golden.check(f"{name}.json", json.dumps(text, indent=1) + "\n")


def test_one_replica_is_the_endpoint_itself():
    """Without replicas there is no router."""
    (engine,) = _specs({"replicas": 1})
    assert (engine.name, engine.endpoint) == ("engine-0", True)


def test_replicas_stand_behind_one_router_that_starts_last():
    """The router alone is the endpoint, holds no unit, and knows every engine."""
    *engines, router = _specs({"replicas": 3})
    assert [engine.endpoint for engine in engines] == [False] * 3
    assert router.endpoint
    assert router.units == 0
    assert router.order > max(engine.order for engine in engines)
    assert [token for token in router.argv if "${url" in token] == [f"${{url:engine-{index}}}" for index in range(3)]


def test_false_true_and_null_are_three_different_commands():
    """CFG-05: false is --no-x, true is --x, null is absent."""
    argvs = [_specs({"enable_prefix_caching": value})[0].argv for value in (True, False, None)]
    assert "--enable-prefix-caching" in argvs[0]
    assert "--no-enable-prefix-caching" in argvs[1]
    assert not any("prefix-caching" in token for token in argvs[2])


@given(st.dictionaries(st.sampled_from(["max_num_seqs", "block_size", "seed"]), st.integers(1, 10_000)))
def test_equal_configurations_give_equal_commands(knobs):
    """The order in which knobs are named does not show."""
    backwards = dict(reversed(knobs.items()))
    assert vllm.specs(Configuration(knobs), objective()) == vllm.specs(Configuration(backwards), objective())


def test_a_flag_of_the_file_and_of_the_space_is_an_error():
    """CFG-06: a key given twice is refused rather than one of the two winning silently."""
    with pytest.raises(InputError, match=r"max_num_seqs.*one of the two"):
        _specs({"max_num_seqs": 8}, engine=Engine(flags={"max_num_seqs": 16}))


def test_parallelism_hidden_in_engine_flags_is_an_error():
    """COST-01: units that the configuration does not know of would not be paid for."""
    with pytest.raises(InputError, match="tensor_parallel_size"):
        _specs({}, engine=Engine(flags={"tensor_parallel_size": 2}))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"host": "0.0.0.0"}, "host"),  # noqa: S104
        ({"max_num_seqs": "8 --host 0.0.0.0"}, "further flags"),
        ({"dtype": "--config=/etc/passwd"}, "dash"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"hf_overrides": '{"a":{"trust_remote_code":true}}'}, "trust_remote_code"),
        ({"middleware": "evil.module"}, "middleware"),
        ({"api_key": "canary3"}, "api_key"),
        ({"dtype": "half\nbfloat16"}, "line breaks"),
    ],
    ids=["host", "second-flag", "dash", "remote-code", "smuggled", "middleware", "key-in-argv", "newline"],
)
def test_flags_cannot_smuggle(knobs, message):
    """SEC-03: nothing that a file says becomes another flag, code, or a listener."""
    with pytest.raises(InputError, match=message):
        _specs(knobs)


def test_a_model_that_looks_like_a_flag_is_refused():
    """SEC-03: `--config=…` in place of a model never reaches the command line."""
    with pytest.raises(InputError, match="dash"):
        _specs({}, model="--config=/etc/passwd")


def test_shell_syntax_is_only_text():
    """SEC-03: dollar signs and semicolons arrive as they are written; they are no templates and no shell."""
    model = "/models/$(touch pwned); ${host} ${port:http}"
    (spec,) = _specs({}, model=model)
    command = resolve(spec, _addresses([spec]))
    assert [token for token in command.argv if "pwned" in token] == [model, model]


def test_dev_mode_is_for_loopback_only():
    """SEC-04: routes without a key exist only where nobody else reaches them."""
    assert _specs({})[0].env["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in _specs({}, bind="node")[0].env


def test_every_engine_sees_its_own_units_only():
    """RAY-03: GPU ids are a template that the placer fills, and so are the cores of CPU slots."""
    assert _specs({})[0].env["CUDA_VISIBLE_DEVICES"] == "${gpus}"
    cpu = _specs({"tensor_parallel_size": 2}, pools=(replace(SLOTS, cores=2),), max_gpus=2)[0]
    address = Address(host="127.0.0.1", ports={"http": 1}, cores=(0, 1, 4, 5))
    assert resolve(cpu, {"engine-0": address}).env["VLLM_CPU_OMP_THREADS_BIND"] == "0-1|4-5"


def test_secrets_stay_names_until_launch():
    """SEC-01: the value is in none of spec, command and commands.json; only the launch environment has it."""
    env = {"HF_TOKEN": "$MY_TOKEN", "A_PASSWORD": "written down", "VLLM_MAX_TOKENS_PER_EXPERT": "163840"}
    (spec,) = _specs({}, engine=Engine(env=env))
    command = resolve(spec, _addresses([spec]))
    shown = {"HF_TOKEN": "$MY_TOKEN", "A_PASSWORD": "***", "VLLM_MAX_TOKENS_PER_EXPERT": "163840"}
    assert masked(command)["env"] | shown == masked(command)["env"]
    assert environment(command, {"MY_TOKEN": "hf_canary1"})["HF_TOKEN"] == "hf_canary1"
    assert "hf_canary1" not in repr((spec, command, masked(command)))
    with pytest.raises(InputError, match="export MY_TOKEN"):
        environment(command, {})


def test_files_are_templates_beside_their_process():
    """A configuration file is written under the process's directory, and argv can name its path."""
    (spec,) = _specs({})
    spec = replace(spec, argv=("store", "--config", "${file:store.json}"), files={"store.json": '{"host":"${host}"}'})
    command = resolve(spec, _addresses([spec]))
    assert command.argv[-1] == "/run/engine-0/store.json"
    assert command.files == {"/run/engine-0/store.json": '{"host":"127.0.0.1"}'}


@given(st.text())
def test_literal_text_survives_templates(text):
    """Whatever the text, its literal resolves to itself."""
    (spec,) = _specs({})
    spec = replace(spec, argv=(literal(text),))
    assert resolve(spec, _addresses([spec])).argv == (text,)


@pytest.mark.parametrize(("cores", "text"), [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((5, 0, 1), "0-1,5")], ids=repr)
def test_core_lists_are_ranges(cores, text):
    """As Linux writes them."""
    assert core_list(cores) == text


def test_a_pool_is_chosen_by_name():
    """A role runs on the first pool unless the knob says another; an unknown name is an error."""
    pools = (H100, replace(H100, name="second"))
    assert [_specs(knobs, pools=pools)[0].pool for knobs in ({}, {"pool": "second"})] == ["h100", "second"]
    with pytest.raises(InputError, match="third"):
        _specs({"pool": "third"}, pools=pools)
