"""Which trial is exported, where it ran, what is said of it, and what is refused."""

import json
import re
from dataclasses import replace

import pytest
from support.exports import planned, written
from support.named import CPU, PD, SPLIT_OR_STORED
from support.objectives import H100, SLOTS, objective

from tuner.configuration import Configuration
from tuner.deployment import vllm
from tuner.deployment.spec import Address, masked, resolve
from tuner.errors import InputError
from tuner.export import FORMATS, export
from tuner.export.container import project_name
from tuner.export.formats import render
from tuner.export.places import imagined, recover
from tuner.slo import Engine

STORED = {"kv_store": "mooncake", "kv_store_ram_gib": 16}
TWO_KINDS = (H100, replace(H100, name="l40s", device="L40S"))


def specs_of(name):
    """Processes of a named deployment."""
    made, knobs = SPLIT_OR_STORED[name]
    return vllm.specs(Configuration(knobs), objective(**made))


def measured_at(specs, hosts):
    """Addresses as a placer gives them: ports without order, directories of any name, a host each."""
    found = imagined(specs)
    return {
        spec.name: Address(
            host=hosts[place % len(hosts)],
            ports={name: 60_000 - 7 * (port - 8000) for name, port in found[spec.name].ports.items()},
            gpus=found[spec.name].gpus,
            cores=found[spec.name].cores,
            directory=f"/scratch/tuner-{spec.name}-x7",
        )
        for place, spec in enumerate(specs)
    }


@pytest.mark.parametrize("name", SPLIT_OR_STORED)
def test_addresses_come_back_from_measured_commands(name):
    """Hosts, ports, GPUs and cores that the placer chose are read from commands.json alone."""
    specs = specs_of(name)
    addresses = measured_at(specs, ("10.0.0.1", "node-b.internal"))
    commands = json.loads(json.dumps([masked(resolve(spec, addresses)) for spec in specs]))
    found = recover(specs, commands)
    for spec in specs:
        assert found[spec.name].host == addresses[spec.name].host
        assert found[spec.name].ports == addresses[spec.name].ports
        assert (found[spec.name].gpus, found[spec.name].cores) == (
            addresses[spec.name].gpus,
            addresses[spec.name].cores,
        )


def test_templates_have_no_addresses():
    """A simulated trial's commands name no place."""
    specs = specs_of("split-with-a-store")
    assert recover(specs, [masked(spec) for spec in reversed(specs)]) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda commands: commands[0]["argv"].__setitem__(2, "another/model"), "another/model"),
        (lambda commands: commands[0]["argv"].append("--enforce-eager"), "tokens"),
        (lambda commands: commands[0]["env"].__setitem__("MORE", "1"), "env"),
        (lambda commands: commands.pop(), "processes"),
        (lambda commands: commands.clear(), "none"),
    ],
    ids=["token", "more-tokens", "env", "process", "nothing"],
)
def test_commands_of_another_version_are_refused(change, said):
    """What was measured and what would be written must be the same to the last token, or nothing is written."""
    specs = specs_of("split-1p1d-nixl")
    commands = json.loads(json.dumps([masked(resolve(spec, imagined(specs))) for spec in specs]))
    change(commands)
    with pytest.raises(InputError, match=said):
        recover(specs, commands)


def test_a_port_that_two_processes_see_differently_is_refused():
    """Addresses must be one deployment's: the router's idea of an engine's port is the engine's own."""
    specs = specs_of("split-1p1d-nixl")
    commands = json.loads(json.dumps([masked(resolve(spec, imagined(specs))) for spec in specs]))
    router = next(command for command in commands if command["role"] == "router")
    router["argv"] = [token.replace(":8000", ":9999") for token in router["argv"]]
    with pytest.raises(InputError, match="9999"):
        recover(specs, commands)


# -- which trial -----------------------------------------------------------------------------------------------------


def test_a_simulated_winner_says_so_loudly(tmp_path):
    """First words, warnings and data of each format: no engine ran."""
    study = written(tmp_path, source="simulated")
    for form in FORMATS:
        found = export(study, form)
        assert "SIMULATED: no engine ran" in found.text
        assert found.warnings[0].startswith("simulated")
        assert found.as_json(None)["provenance"]["source"] == "simulated"


def test_figures_come_with_n_and_whether_they_are_verified(tmp_path):
    """The head of an export tells trial, promise, figures, how many requests, and how sure."""
    study = written(tmp_path, source="simulated")
    result = json.loads((study / "result.json").read_text())
    head = export(study, "shell").text
    assert f"Trial {result['winner']['trial']} (winner) of study" in head
    assert f"n = {result['winner']['n']:,} requests; verified on fresh schedules" in head
    assert "TTFT p99 ≤ 2,000 ms" in head
    assert export(study, "shell", "0").plan.origin.role == "baseline"
    assert "requests; not verified" in export(study, "shell", "4").text


@pytest.mark.parametrize(
    ("trial", "said"),
    [
        ("99", "no finished trial 99"),
        ("first", "winner, baseline or the number"),
        ("-1", "winner, baseline or the number"),
        ("5", "only what served"),
    ],
)
def test_wrong_trials_are_input_errors(tmp_path, trial, said):
    """A trial that is not there, or never served, is named with the rule."""
    with pytest.raises(InputError, match=said):
        export(written(tmp_path, source="simulated"), "shell", trial)


def test_no_winner_names_what_there_is_instead(tmp_path):
    """A study without a gain has a best candidate; it has to be asked for by its number."""
    with pytest.raises(InputError, match=r"has none \(no_gain\); --trial \d+ is its best candidate"):
        export(written(tmp_path, source="simulated", status="no_gain"), "shell")


def test_a_live_trial_without_addresses_is_refused(tmp_path):
    """Templates in a live study mean that the trial never ran."""
    with pytest.raises(InputError, match="never started"):
        export(written(tmp_path, source="live"), "shell")


# -- what cannot be said ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "settings", "knobs", "said"),
    [
        ("kubernetes", {"pools": (SLOTS,)}, {}, "CPU cores by number"),
        ("kubernetes", {"model": "/models/mine"}, {}, "path of the measured machine"),
        ("kubernetes", {"engine": Engine(env={"HF_HOME": "/data/hub"})}, {}, "/data/hub"),
        ("kubernetes", {}, STORED, "--rdma"),
        ("kubernetes", {"pools": TWO_KINDS}, {**PD, "decode_pool": "l40s"}, None),
        ("kubernetes", CPU, PD, "stand-in for tests"),
        ("compose", CPU, PD, "stand-in for tests"),
        ("compose", {"engine": Engine(command=("./engine", "serve"))}, {}, "engine.command"),
        ("compose", {"engine": Engine(command=("vllm", "serve", "--x"))}, {}, "engine.command"),
        ("compose", {"engine": Engine(router=("my-router",))}, {"replicas": 2}, "engine.router"),
        ("compose", {"engine": Engine(stores={"mooncake": ("my-master",)})}, STORED, "engine.stores.mooncake"),
        ("compose", {"pools": (replace(H100, nodes=2),), "max_gpus": 16}, {"replicas": 16}, "several machines"),
        ("compose", {"pools": TWO_KINDS}, {**PD, "decode_pool": "l40s"}, "several machines"),
    ],
)
def test_what_a_format_cannot_say_is_refused(form, settings, knobs, said):
    """One line that names the format, the reason and another way; nothing is left out in silence."""
    plan = planned(objective(**settings), knobs)
    if said is None:
        assert "slo-tuner/pool" in render(plan, form).text
        return
    with pytest.raises(InputError, match=said) as caught:
        render(plan, form)
    assert str(caught.value).startswith(f"{form}: ")
    assert "\n" not in str(caught.value)


def test_a_development_version_has_no_image():
    """Images exist of releases; a local build's label is dropped from a release's number."""
    with pytest.raises(InputError, match="releases alone"):
        render(planned(objective(), {}, engine_version="0.32.1.dev7+gabc"), "compose")
    assert (
        "vllm/vllm-openai:v0.32.0}" in render(planned(objective(), {}, engine_version="0.32.0+cu130"), "compose").text
    )


def test_shared_memory_over_machines_is_refused():
    """LMCache's server hands blocks on in one machine's memory."""
    made = objective(pools=(replace(H100, nodes=2),), max_gpus=16)
    plan = planned(made, {"replicas": 16, "kv_store": "lmcache", "kv_store_ram_gib": 16})
    with pytest.raises(InputError, match="memory of one machine"):
        render(plan, "kubernetes")


def test_lmcache_in_process_shares_no_memory_over_machines():
    """Each engine has a store of its own: no node's IPC namespace, and its share of RAM and SSD is asked for."""
    made = objective(pools=(replace(H100, nodes=2),), max_gpus=16)
    knobs = {"replicas": 16, "kv_store": "lmcache", "lmcache_mode": "in_process"}
    text = render(planned(made, {**knobs, "kv_store_ram_gib": 64, "kv_store_ssd_gib": 160}), "kubernetes").text
    assert "hostIPC" not in text
    assert text.count('memory: "4Gi"') == text.count('ephemeral-storage: "10Gi"') == 16


def test_rdma_is_for_kubernetes_alone(tmp_path):
    """An option without a meaning is no option."""
    with pytest.raises(InputError, match="--rdma"):
        export(written(tmp_path, source="simulated"), "shell", rdma="rdma/hca")


# -- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_no_secret_is_written(form):
    """SEC-01: references by name, to a variable or a Secret; a value that was written down does not appear either."""
    env = {"HF_TOKEN": "$MY_TOKEN", "A_PASSWORD": "canary-written-down"}
    text = render(planned(objective(engine=Engine(env=env)), {}), form).text
    assert "canary" not in text
    assert "A_PASSWORD" in text
    if form == "kubernetes":
        assert '"chat-h100-secrets"' in text
        assert "MY_TOKEN" not in text
    else:
        assert "${MY_TOKEN:?" in text
        assert "${A_PASSWORD:?" in text


def test_keyless_routes_are_not_exported():
    """SEC-04: what the tuner needs between levels is no part of serving, and its absence is stated."""
    for form in FORMATS:
        assert "VLLM_SERVER_DEV_MODE" not in render(planned(objective(), {}), form).text


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("study", ["chat-h100", "Chat_H100.v2", "7b", "x" * 80, "a" * 39 + "-b", "1"])
def test_any_study_gives_a_valid_name(study):
    """A DNS label with room for a process behind it; another study of a similar name has another one."""
    name = project_name(study)
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert len(f"{name}-prefill-15") <= 63
    assert project_name(study + "_") != name


def test_nothing_in_a_head_leaves_its_line():
    """A model's name with control characters is text in a comment, whatever reads it."""
    text = render(planned(objective(model="a\nb\x1b\u2028c"), {}), "compose").text
    assert "# model: a b c; vLLM 0.32.0; source: live\n" in text
