"""Split deployments and KV stores become commands."""

import json

import pytest
from support import golden
from support.named import PD, SPLIT_OR_STORED
from support.objectives import objective

from tuner.configuration import Configuration
from tuner.deployment import stores, vllm
from tuner.deployment.spec import START_ORDER, Address, masked, resolve
from tuner.errors import InputError
from tuner.slo import Engine


def _specs(name):
    settings, knobs = SPLIT_OR_STORED[name]
    return vllm.specs(Configuration(knobs), objective(**settings))


def _addresses(specs):
    """Each process with a hundred ports of its own."""
    found = {}
    for number, spec in enumerate(specs):
        ports, at = {}, 8000 + 100 * number
        for need in spec.ports:
            ports[need.name] = at
            at += need.count
        units = range(number * spec.units, (number + 1) * spec.units)
        found[spec.name] = Address(
            host="127.0.0.1",
            ports=ports,
            gpus=tuple(map(str, units)),
            cores=tuple(units) if spec.cores else (),
            directory=f"/run/{spec.name}",
        )
    return found


def _commands(name):
    specs = _specs(name)
    addresses = _addresses(specs)
    return {spec.name: resolve(spec, addresses) for spec in specs}


def _connector(command):
    return json.loads(command.argv[command.argv.index("--kv-transfer-config") + 1])


@pytest.mark.parametrize("name", SPLIT_OR_STORED)
def test_named_deployments_match_their_golden_files(name):
    """Argv, env, files, order, ports and readiness of engines, router and store are exactly as reviewed."""
    specs = _specs(name)
    addresses = _addresses(specs)
    text = [
        {
            **masked(resolve(spec, addresses)),
            "order": spec.order,
            "units": spec.units,
            "pool": spec.pool,
            "ports": {need.name: need.count for need in spec.ports},
            "ready": [spec.ready.kind, spec.ready.port],
            "endpoint": spec.endpoint,
        }
        for spec in specs
    ]
    golden.check(f"{name}.json", json.dumps(text, indent=1) + "\n")


@pytest.mark.parametrize("name", SPLIT_OR_STORED)
def test_every_deployment_is_whole(name):
    """One endpoint, names and templates that resolve, stores before engines before the router."""
    specs = _specs(name)
    assert [spec.endpoint for spec in specs].count(True) == 1
    assert len({spec.name for spec in specs}) == len(specs)
    order = [START_ORDER["engine"] if spec.units else spec.order for spec in sorted(specs, key=lambda spec: spec.order)]
    assert order == sorted(order)
    for spec in specs:
        if spec.role == "store":
            assert spec.order < START_ORDER["engine"]
        assert not any("${" in token for token in resolve(spec, _addresses(specs)).argv)


@pytest.mark.parametrize("name", SPLIT_OR_STORED)
def test_one_hash_seed_for_every_process(name):
    """KV-01: engines, router and stores hash prefixes alike."""
    assert {command.env["PYTHONHASHSEED"] for command in _commands(name).values()} == {"0"}


def test_port_blocks_are_per_rank():
    """PD-03: base to base + ranks − 1 for each engine."""
    needs = {spec.name: {need.name: need.count for need in spec.ports} for spec in _specs("split-2p2d-nixl-tp2")}
    assert all(
        needs[f"{side}-{index}"] == {"http": 1, "side_channel": 2} for side in ("prefill", "decode") for index in (0, 1)
    )
    needs = {spec.name: {need.name: need.count for need in spec.ports} for spec in _specs("split-across-nodes")}
    assert needs["decode-0"]["side_channel"] == 8


def test_a_failed_transfer_is_never_computed_again_in_silence():
    """PD-01: the policy is stated; prefill produces and decode consumes."""
    commands = _commands("split-1p1d-nixl")
    configs = {name: _connector(commands[name]) for name in ("prefill-0", "decode-0")}
    assert {config["kv_load_failure_policy"] for config in configs.values()} == {"fail"}
    assert (configs["prefill-0"]["kv_role"], configs["decode-0"]["kv_role"]) == ("kv_producer", "kv_consumer")


def test_a_store_beside_a_transfer_is_the_prefill_engines():
    """Prefill has both, the transfer first; decode has what it needs to take over and no more."""
    commands = _commands("split-with-a-store")
    both = _connector(commands["prefill-0"])
    inner = [each["kv_connector"] for each in both["kv_connector_extra_config"]["connectors"]]
    assert (both["kv_connector"], inner) == ("MultiConnector", ["NixlConnector", "MooncakeStoreConnector"])
    assert _connector(commands["decode-1"])["kv_connector"] == "NixlConnector"
    assert "MOONCAKE_CONFIG_PATH" not in commands["decode-1"].env


def test_host_memory_is_divided_among_engines_and_ranks():
    """KV-02: 64 GiB over 2 replicas of 2 data-parallel ranks are 16 GiB each."""
    config = _connector(_commands("store-cpu-offload")["engine-1"])
    assert config["kv_connector_extra_config"]["cpu_bytes_to_use"] == 16 * 2**30


def test_lmcache_in_process_divides_memory_and_ssd_among_the_ranks():
    """100 GiB and 800 GiB over 2 engines of 2 ranks; files lie in the engine's own directory, and no server runs."""
    commands = _commands("store-lmcache-in-process")
    assert set(commands) == {"engine-0", "engine-1", "router-0"}
    engine = commands["engine-1"]
    assert _connector(engine) == {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    assert {name: value for name, value in engine.env.items() if name.startswith("LMCACHE_")} == {
        "LMCACHE_CHUNK_SIZE": "256",
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_LOCAL_DISK": "/run/engine-1/lmcache",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "25",
        "LMCACHE_MAX_LOCAL_DISK_SIZE": "200",
        "LMCACHE_TRACK_USAGE": "false",
    }


def test_lmcache_in_process_beside_a_transfer_is_the_prefill_engines():
    """The transfer first; 64 GiB over two prefill engines, and nothing of LMCache at decode."""
    commands = _commands("split-with-lmcache-in-process")
    inner = _connector(commands["prefill-1"])["kv_connector_extra_config"]["connectors"]
    assert [each["kv_connector"] for each in inner] == ["NixlConnector", "LMCacheConnectorV1"]
    assert commands["prefill-1"].env["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "32"
    assert not any(name.startswith("LMCACHE_") for name in commands["decode-0"].env)


def test_a_transfer_that_the_router_cannot_drive_is_refused():
    """LMCache's transfer waits for addresses in each request, which no command line can give."""
    with pytest.raises(InputError, match="disagg_spec"):
        vllm.specs(Configuration({**PD, "kv_transfer": "lmcache"}), objective())


def test_engines_and_store_mean_the_same_master():
    """Addresses in files and flags are those at which the master listens; engines lend no memory."""
    commands = _commands("store-mooncake-two-replicas")
    master = commands[stores.MOONCAKE_MASTER].argv
    engine = json.loads(commands["engine-1"].files["/run/engine-1/mooncake.json"])
    segment = json.loads(commands[stores.MOONCAKE_SEGMENT].files[f"/run/{stores.MOONCAKE_SEGMENT}/segment.json"])
    where = engine["master_server_address"]
    assert where == segment["master_server_address"]
    assert f"--rpc_port={where.rpartition(':')[2]}" in master
    assert (engine["global_segment_size"], segment["global_segment_size"]) == (0, 64 * 2**30)


def test_nothing_listens_everywhere():
    """SEC-04: wherever a program can be told an address, it is told one."""
    for name in SPLIT_OR_STORED:
        for command in _commands(name).values():
            assert "0.0.0.0" not in json.dumps(masked(command))  # noqa: S104


@pytest.mark.parametrize("name", ["kv_transfer_config", "kv_offloading_size"])
def test_connectors_of_the_users_are_not_overwritten(name):
    """CFG-06: a second connector is an error rather than one of the two winning silently."""
    with pytest.raises(InputError, match="one of the two"):
        vllm.specs(Configuration(PD), objective(engine=Engine(flags={name: "1"})))


def test_blending_lives_in_the_engines():
    """CacheBlend: no server, the in-process connector, an equal share of the memory for every rank."""
    commands = _commands("store-lmcache-blending")
    assert set(commands) == {"engine-0", "engine-1", "router-0"}
    engine = commands["engine-1"]
    assert _connector(engine) == {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    assert engine.env["LMCACHE_ENABLE_BLENDING"] == "True"
    assert engine.env["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "16"
