"""Objective files: what they say, what they refuse, and what is written back."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import objective_file, objective_text, objective_warnings
from tuner.errors import FileError, InputError
from tuner.slo import (
    Arrivals,
    Budget,
    Cache,
    Cluster,
    Engine,
    Limit,
    Load,
    Measure,
    Objective,
    Pool,
    Prices,
    Prompts,
    RequestLimits,
    Search,
    Slo,
    Synthetic,
    Timeouts,
    Trace,
    Verification,
    Workload,
)
from tuner.space import Knob, Space

ROOT = Path(__file__).parent.parent
BASE = {
    "model": "Qwen/Qwen3-32B",
    "slo": "{ttft: {p99: 2s}, itl: {p99: 60ms}}",
    "workload": "{source: {synthetic: {input_tokens: 100, output_tokens: 10}}}",
    "cluster": "{gpu: H100-80GB, nodes: 1, gpus_per_node: 4}",
    "prices": "{currency: USD, gpu_hour: 3.99}",
    "search": "{space: ./space.yaml}",
}
SYNTHETIC = "source: {synthetic: {input_tokens: 100, output_tokens: 10}}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what objective files may name."""
    path = tmp_path_factory.mktemp("objective")
    (path / "space.yaml").write_text("knobs: {}\n")
    (path / "trace.jsonl").write_text('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}\n')
    (path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    (path / "prompts.jsonl").write_text('{"prompt": "x", "output_tokens": 1}\n')
    return path


@pytest.fixture(scope="module")
def read(folder):
    """Reads a file of the base's blocks, some replaced; None leaves a block out."""

    def read_blocks(overrides=None, /, **blocks):
        return objective_file.loads(text(**blocks), folder / "slo.yaml", overrides=overrides)

    return read_blocks


def text(**blocks):
    """The blocks as a file, one in a line."""
    return "".join(f"{name}: {block}\n" for name, block in (BASE | blocks).items() if block is not None)


def refused(read, pattern, **blocks):
    """The file is refused at a place, in one line that has the pattern."""
    with pytest.raises(FileError, match=pattern) as caught:
        read(**blocks)
    assert re.match(r".*slo\.yaml:\d+:\d+: ", str(caught.value))
    assert "\n" not in str(caught.value)


def test_a_short_file_has_every_default(read, folder):
    """What is not said is what the contract says: cold cache, Poisson, find the capacity, 40 trials."""
    objective = read()
    assert objective == Objective(
        path=str(folder / "slo.yaml"),
        model="Qwen/Qwen3-32B",
        slo=Slo((Limit("ttft", "p99", 2.0), Limit("itl", "p99", 0.06))),
        workload=Workload(Synthetic(100, 10)),
        cluster=Cluster((Pool("h100-80gb", "gpu", "H100-80GB", 1, 4, 3.99),), max_gpus=4),
        prices=Prices("USD"),
        search=Search(str(folder / "space.yaml")),
    )
    assert (objective.workload.cache, objective.workload.arrivals) == (Cache("cold"), Arrivals("poisson"))


FULL = """
model: ./weights
model_revision: v1.2
slo:
  ttft: {p50: 0.2s, p99.9: 1234ms, max: 20s}
  chunk_gap: {mean: 17ms}
  e2el: {p95: 1min}
  request: {ttft: 3s, tpot: 50ms, e2el: 1h, itl_max: 500ms}
  attainment: 99%
workload:
  source: {trace: trace.jsonl, scale_length: 25e-2, scale_time: 2, start: 0, rows: 1_000, grid: 3s, max_input_tokens: 9}
  arrivals: replay
  load: {rate: 240/min}
  measure: {warmup: 0s, duration: 1min, min_requests: 1000}
  timeout: {first_token: 10s, between_tokens: 5s, total: 10min}
  api: chat
  cache: {warm: 200}
  demand: 12/s
cluster:
  pools:
    - {name: big, gpu: H100-80GB, nodes: 1, per_node: 4, price: 4/h}
    - {gpu: L40S-48GB, nodes: 2, per_node: 2, memory: 45 GiB}
    - {cpu: slot, cores: 2, price: 0.10/h}
  max_gpus: 5
  interconnect: 100 Gbit/s
  bind: node
  placement: {prefill: pack, decode: spread}
prices:
  currency: JPY
  gpu_second: {L40S-48GB: 0.28}
  charge: whole_server
  kv_store: {ram_gib_hour: 0.004, ssd_gib_hour: 2e-4}
  network: {gbit_hour: 0.01}
objective: goodput
search:
  space: space.yaml
  trials: 12
  budget: [6 gpu-hours, 2h, 50 JPY]
  min_gain: 2%
  sampler: gp
  max_levels: 4
  resolution: 10%
  first_guess: 2/s
  verify: {finalists: 1, repeats: 3, min_requests: 500}
  divide_counts: 3
backend: local
engine:
  command: [./bin/vllm, serve]
  env: {HF_TOKEN: $HF_TOKEN, HF_HUB_OFFLINE: "1"}
  flags: {max_model_len: 8192, enforce_eager: true, enable_prefix_caching: false, seed: null}
  router: [vllm-router, --policy, round_robin]
  stores: {mooncake: [mooncake_master]}
  start_timeout: 5min
  trust_remote_code: true
baseline: {tensor_parallel_size: 2, replicas: 2, mode: aggregated}
"""


@pytest.mark.parametrize(
    ("written", "spread"),
    [
        ("pack", ()),
        ("spread", ("engine", "prefill", "decode")),
        ("{decode: spread, engine: pack}", ("decode",)),
        ("{decode: pack}", ()),
    ],
)
def test_placement_is_a_word_for_all_roles_or_one_for_each(folder, written, spread):
    """What is read is written back so that it is read again; the default changes no fingerprint of an older study."""
    cluster = f"{{gpu: H100-80GB, nodes: 2, bind: node, placement: {written}}}"
    found = objective_file.loads(text(cluster=cluster), folder / "slo.yaml")
    assert found.cluster.spread == spread
    again = objective_file.loads(objective_file.dump(found), folder / "slo.yaml")
    assert again.cluster == found.cluster
    without = objective_file.loads(text(cluster="{gpu: H100-80GB, nodes: 2, bind: node}"), folder / "slo.yaml")
    same = objective_file.fingerprint(found) == objective_file.fingerprint(without)
    assert same == (not spread)


def test_every_key_reaches_its_value(folder):
    """A file that says everything: exactly 1234 ms and 17 ms come out, in seconds, and each price in its own unit."""
    assert objective_file.loads(FULL, folder / "slo.yaml") == Objective(
        path=str(folder / "slo.yaml"),
        model=str(folder / "weights"),
        model_revision="v1.2",
        slo=Slo(
            (
                Limit("ttft", "p50", 0.2),
                Limit("ttft", "p99.9", 1.234),
                Limit("ttft", "max", 20),
                Limit("chunk_gap", "mean", 0.017),
                Limit("e2el", "p95", 60),
            ),
            RequestLimits(3, 0.05, 3600, 0.5),
            0.99,
        ),
        workload=Workload(
            Trace(str(folder / "trace.jsonl"), "mooncake", 0.25, 2.0, 0, 1000, 3.0, 9, None),
            Arrivals("replay"),
            Load("rate", rate_rps=4.0),
            Measure(0, 60, 1000),
            Timeouts(10, 5, 600),
            "chat",
            Cache("warm", 200),
            12.0,
        ),
        cluster=Cluster(
            (
                Pool("big", "gpu", "H100-80GB", 1, 4, 4.0),
                Pool("l40s-48gb", "gpu", "L40S-48GB", 2, 2, 1008.0, memory_gib=45),
                Pool("cpu", "cpu", "slot", 1, 1, 0.1, cores=2),
            ),
            5,
            12.5e9,
            "node",
            ("decode",),
        ),
        prices=Prices("JPY", "whole_server", 0.004, 0.0002, 0.01),
        objective="goodput",
        search=Search(
            str(folder / "space.yaml"),
            Budget(12, 7200, 6, 50),
            0.02,
            "gp",
            4,
            0.1,
            2,
            Verification(1, 3, 500),
            3,
        ),
        backend="local",
        engine=Engine(
            (str(folder / "bin/vllm"), "serve"),
            {"HF_TOKEN": "$HF_TOKEN", "HF_HUB_OFFLINE": "1"},
            {"max_model_len": 8192, "enforce_eager": True, "enable_prefix_caching": False, "seed": None},
            ("vllm-router", "--policy", "round_robin"),
            {"mooncake": ("mooncake_master",)},
            300,
            trust_remote_code=True,
        ),
        baseline={"tensor_parallel_size": 2, "replicas": 2, "mode": "aggregated"},
    )


def test_the_template_runs_as_it_is(folder):
    """What `tuner init` writes loads without a fault or a warning, and names every block."""
    template = objective_file.template()
    objective = objective_file.loads(template.replace("space: vllm ", "space: ./space.yaml "), folder / "slo.yaml")
    assert objective_file.warnings(objective) == []
    assert (objective.model, objective.cluster.max_gpus) == ("meta-llama/Llama-3.1-8B-Instruct", 4)
    for key in objective_file.KEYS[""]:
        assert f"{key}:" in template


def test_a_time_without_unit_is_an_error_at_its_place(read):
    """500ms and 0.5s are the same; 0.5 could be either, so the line, the rule and the remedy are shown."""
    assert read(slo="{ttft: {p99: 500ms}}").slo == read(slo="{ttft: {p99: 0.5s}}").slo
    with pytest.raises(FileError) as caught:
        read(slo="{ttft: {p99: 0.5}}")
    assert str(caught.value).endswith("slo.yaml:2:19: slo.ttft.p99: got 0.5: a time needs a unit; write 500ms or 2s")


@pytest.mark.parametrize(
    ("blocks", "pattern"),
    [
        ({"slo": "{tfft: {p99: 2s}}"}, "did you mean 'ttft'"),
        ({"slo": "{tfft_p99: 500ms}"}, "did you mean ttft: {p99: 500ms}"),
        ({"slo": "{ttft_p99_ms: 500}"}, "did you mean ttft: {p99: 500ms}"),
        ({"slo": "{ttft: {p9: 2s}}"}, "unknown statistic 'p9'"),
        ({"slo": "{ttft: {p100: 2s}}"}, "write p50 … p99.9"),
        ({"slo": "{ttft: {p99: 2s, p99.0: 3s}}"}, "limited twice"),
        ({"slo": "{ttft: {p99: 0s}}"}, "must be above 0"),
        ({"slo": "{ttft: {p99: -1s}}"}, "cannot be negative"),
        ({"slo": "{ttft: {}}"}, "no limit is given"),
        ({"slo": "{ttft: 2s}"}, "a mapping of keys to values"),
        ({"slo": "{}"}, "nothing is promised"),
        ({"slo": None}, "the key 'slo' is missing"),
        ({"slo": "{request: {ttft: 1s}}"}, "no limit is given"),
        ({"slo": "{attainment: 99}"}, "write 99%"),
        ({"slo": "{attainment: 0%}"}, "must be above 0"),
        ({"slo": "{request: {itl: 1s}, attainment: 99%}"}, "did you mean 'itl_max'"),
        ({"slo": "{ttft: {p99.9: 2s}}"}, "raise workload.measure.min_requests to at least 1000"),
        ({"workload": f"{{{SYNTHETIC}, measure: {{min_requests: 99}}}}"}, "cannot decide p99: .* at least 100"),
        ({"workload": "{}"}, "the key 'source' is missing"),
        ({"workload": "{source: {}}"}, "give exactly one of synthetic"),
        ({"workload": "{source: {sintetic: {}}}"}, "did you mean 'synthetic'"),
        ({"workload": "{source: {trace: trace.csv, prompts: prompts.jsonl}}"}, "several sources"),
        ({"workload": "{source: {synthetic: {input_tokens: 100}}}"}, "'output_tokens' is missing"),
        ({"workload": "{source: {synthetic: {input_tokens: 0, output_tokens: 1}}}"}, "must be at least 1"),
        (
            {"workload": "{source: {synthetic: {input_tokens: 10, output_tokens: 9, shared_prefix_tokens: 11}}}"},
            "at most input_tokens = 10",
        ),
        ({"workload": "{source: {synthetic: {input_tokens: 10, output_tokens: 1}}}"}, "have no gaps to limit"),
        ({"workload": "{source: {trace: none.csv}}"}, "no such trace .*relative to the objective file"),
        ({"workload": "{source: {trace: space.yaml}}"}, "give format: mooncake"),
        ({"workload": "{source: {trace: trace.csv, format: azrue}}"}, "did you mean 'azure'"),
        ({"workload": "{source: {prompts: none.jsonl}}"}, "no such file of prompts"),
        ({"workload": f"{{{SYNTHETIC}, arrivals: replay}}"}, "replay needs the gaps of a trace"),
        ({"workload": f"{{{SYNTHETIC}, arrivals: gamma}}"}, "burstiness"),
        ({"workload": f"{{{SYNTHETIC}, arrivals: {{gamma: {{burstiness: 0}}}}}}"}, "at least 0.01"),
        ({"workload": f"{{{SYNTHETIC}, arrivals: {{poisson: {{}}, constant: {{}}}}}}"}, "give exactly one of"),
        ({"workload": f"{{{SYNTHETIC}, arrivals: {{poisson: {{rate: 4/s}}}}}}"}, "unknown key 'rate'"),
        ({"workload": f"{{{SYNTHETIC}, arrivals: possion}}"}, "did you mean 'poisson'"),
        ({"workload": f"{{{SYNTHETIC}, arrivals: poisson, load: {{concurrency: 32}}}}"}, "remove this key"),
        ({"workload": f"{{{SYNTHETIC}, arrivals: closed_loop, load: {{rate: 4/s}}}}"}, "a closed loop has no rate"),
        ({"workload": f"{{{SYNTHETIC}, load: {{rate: 4}}}}"}, "a rate needs a unit"),
        ({"workload": f"{{{SYNTHETIC}, load: {{rate: 0/s}}}}"}, "must be above 0"),
        ({"workload": f"{{{SYNTHETIC}, load: {{rate: 4/s, concurrency: 3}}}}"}, "exactly one of"),
        ({"workload": f"{{{SYNTHETIC}, load: {{concurrency: 0}}}}"}, "at least 1"),
        ({"workload": f"{{{SYNTHETIC}, load: capacity}}"}, "write find_capacity"),
        ({"workload": f"{{{SYNTHETIC}, measure: {{duration: 60}}}}"}, "a time needs a unit"),
        ({"workload": f"{{{SYNTHETIC}, measure: {{duration: 0s}}}}"}, "must be above 0"),
        ({"workload": f"{{{SYNTHETIC}, cache: worm}}"}, "write cold, steady or {warm: 200}"),
        ({"workload": f"{{{SYNTHETIC}, cache: {{warm: 0}}}}"}, "at least 1"),
        ({"workload": f"{{{SYNTHETIC}, api: chatt}}"}, "did you mean 'chat'"),
        ({"workload": f"{{{SYNTHETIC}, demand: 0/s}}"}, "must be above 0"),
        ({"cluster": "{nodes: 1}"}, "give exactly one of gpu"),
        ({"cluster": "{gpu: H100-80GB, cpu: slot}"}, "give exactly one of gpu"),
        ({"cluster": "{gpu: H100-80GB, cores: 3}"}, "for CPU slots only"),
        ({"cluster": "{gpu: H100-80GB, nodes: 0}"}, "at least 1"),
        ({"cluster": "{gpu: H100-80GB, gpus_per_node: 4, per_node: 4}"}, "keep one of them"),
        ({"cluster": "{gpu: H100-80GB, gpus_per_node: 4, max_gpus: 5}"}, "the cluster has 4"),
        ({"cluster": "{gpu: H100-80GB, interconnect: 50}"}, "a bandwidth needs a unit"),
        ({"cluster": "{gpu: H100-80GB, bind: 0.0.0.0}"}, "one of loopback, node"),
        ({"cluster": "{gpu: H100-80GB, bind: node, placement: packed}"}, "did you mean 'pack'"),
        ({"cluster": "{gpu: H100-80GB, bind: node, placement: {router: spread}}"}, "unknown key 'router'"),
        ({"cluster": "{gpu: H100-80GB, placement: spread}"}, "add bind: node, or remove spread"),
        ({"cluster": "{pools: []}"}, "an empty list"),
        ({"cluster": "{pools: [{gpu: H100-80GB}], nodes: 2}"}, "nodes belongs into an element of pools"),
        ({"cluster": "{pools: [{gpu: H100-80GB}, {gpu: H100-80GB}]}"}, "another pool is named 'h100-80gb'"),
        ({"cluster": "{cpu: slot}"}, "the CPU slots have no price"),
        ({"search": "{space: nowhere}"}, "no search space of this name ships.* write|written ./nowhere.yaml"),
        ({"search": "{space: ./nowhere.yaml}"}, "no such search space"),
        ({"search": "{space: ./space.yaml, trials: 0}"}, "at least 1"),
        ({"search": "{space: ./space.yaml, budget: 40}"}, "a budget is written"),
        ({"search": "{space: ./space.yaml, budget: []}"}, "an empty list"),
        ({"search": "{space: ./space.yaml, budget: [2h, 3h]}"}, "given twice"),
        ({"search": "{space: ./space.yaml, trials: 4, budget: 5 trials}"}, "given twice"),
        ({"search": "{space: ./space.yaml, budget: 50 EUR}"}, "prices are in USD; write 50 USD"),
        ({"search": "{space: ./space.yaml, resolution: 0}"}, "between 0.1% and 50%"),
        ({"search": "{space: ./space.yaml, sampler: cmaes}"}, "one of tpe, random, gp"),
        ({"search": "{space: ./space.yaml, verify: {finalists: 0}}"}, "at least 1"),
        ({"search": "{space: ./space.yaml, first_guess: 4}"}, "a rate needs a unit"),
        (
            {
                "search": "{space: ./space.yaml, first_guess: 4/s}",
                "workload": f"{{{SYNTHETIC}, load: {{concurrency: 3}}}}",
            },
            "no rate to begin with",
        ),
        ({"backend": "simulate"}, "did you mean 'simulated'"),
        ({"objective": "cost"}, "one of cost_per_goodput, goodput_per_gpu, goodput"),
        ({"modell": "x"}, "did you mean 'model'"),
        ({"model": "no"}, 'quote it: "no"'),
        ({"model": "--config=/etc/passwd"}, "a model is a name such as"),
        ({"model": "'x; touch pwned'"}, "a model is a name such as"),
        ({"model": "$(touch pwned)"}, "a model is a name such as"),
        ({"model": "a/b/c"}, r"begins with \./"),
        ({"model": '"./a\\nb"'}, "line breaks"),
        ({"model_revision": '"--x"'}, "a branch, a tag or a commit"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_meant_is_refused_at_its_place(read, blocks, pattern):
    """Each rule has its line, its message and its remedy."""
    refused(read, pattern, **blocks)


@pytest.mark.parametrize(
    ("cluster", "prices", "pattern"),
    [
        ("{gpu: H100-80GB}", "{currency: USD}", "H100-80GB has no price"),
        (
            "{gpu: L40S, price: 1/h}",
            "{currency: USD, gpu_hour: {L40S: 4}}",
            "no pool uses this price, each has its own",
        ),
        ("{gpu: L40S}", "{currency: USD, gpu_hour: {L40S: 1, H100: 4}}", "no pool of type 'H100' needs this price"),
        ("{pools: [{gpu: H100}, {gpu: L40S}]}", "{currency: USD, gpu_hour: {H100: 4}}", "L40S has no price"),
        ("{gpu: H100}", "{currency: USD, gpu_hour: -3}", "must be above 0"),
        ("{gpu: H100}", "{currency: USD, gpu_hour: 0}", "must be above 0"),
        ("{gpu: H100}", "{currency: USD, gpu_hour: {H100: 0}}", "must be above 0"),
        ("{gpu: H100}", "{currency: USD, gpu_hour: 3.00 USD}", "a number is needed"),
        ("{gpu: H100, price: 3.00 USD}", "{currency: USD}", "the currency stands in prices.currency"),
        ("{gpu: H100, price: 3.99}", "{currency: USD}", "a price needs a unit"),
        ("{gpu: H100, price: -1/h}", "{currency: USD}", "cannot be negative"),
        ("{gpu: H100, price: 0/h}", "{currency: USD}", "must be above 0"),
        ("{gpu: H100, price: 1/h}", "{currency: USD, gpu_hour: 3}", "no pool uses this price"),
        ("{gpu: H100}", "{gpu_hour: 3}", "'currency' is missing"),
        ("{gpu: H100}", "{currency: dollars, gpu_hour: 3}", "three capital letters"),
        ("{gpu: H100}", "{currency: USD, gpu_hour: 3, gpu_second: 1}", "keep one of them"),
        ("{gpu: H100}", "{currency: USD, server_month: 100}", "'gpus' is missing"),
        ("{gpu: H100}", "{currency: USD, gpu_hour: 3, gpus: 8}", "belongs to server_month"),
        ("{gpu: H100, price: {server_month: 100}}", "{currency: USD}", "'gpus' is missing"),
        ("{gpu: H100}", "{currency: USD, gpu_hour: 3, kv_store: {ram_gib_hour: -1}}", "at least 0"),
        ("{gpu: H100}", "{currency: USD, gpu_hour: 3, charge: all}", "one of used, whole_server"),
    ],
)
def test_missing_and_wrong_prices_are_refused(read, cluster, prices, pattern):
    """A type of GPU without a price is named; zero, negative and mixed prices are no prices."""
    refused(read, pattern, cluster=cluster, prices=prices)


def test_prices_are_given_for_each_pool_or_for_all(read):
    """H100 at 4.00 and L40S at 1.00; a server of 8 GPUs at 14600 a month is 2.50 an hour for each."""
    both = read(
        cluster="{pools: [{gpu: H100, per_node: 2}, {gpu: L40S, per_node: 4}]}",
        prices="{currency: USD, gpu_hour: {H100: 4.00, L40S: 1.00}}",
    )
    assert [pool.price_per_hour for pool in both.cluster.pools] == [4.0, 1.0]
    month = "{server_month: 14600, gpus: 8}"
    assert read(prices="{currency: USD, server_month: 14600, gpus: 8}").cluster.pools[0].price_per_hour == 2.5
    own = read(cluster=f"{{gpu: H100, price: {month}}}", prices="{currency: USD}")
    assert own.cluster.pools[0].price_per_hour == 2.5
    assert read(prices="{currency: USD, gpu_hour: 1.5e0}").cluster.pools[0].price_per_hour == 1.5


def test_a_concurrency_is_a_closed_loop(read):
    """Nobody has to say it twice; `find_capacity` may search over the concurrency as well."""
    fixed = read(workload=f"{{{SYNTHETIC}, load: {{concurrency: 32}}}}").workload
    assert (fixed.arrivals.process, fixed.load) == ("closed_loop", Load("concurrency", concurrency=32))
    searched = read(workload=f"{{{SYNTHETIC}, arrivals: {{closed_loop: {{}}}}}}").workload
    assert (searched.arrivals.process, searched.load.kind) == ("closed_loop", "find_capacity")


def test_a_budget_alone_has_no_limit_on_trials(read):
    """The default of 40 trials stands for files that limit nothing themselves."""
    assert read(search="{space: ./space.yaml}").search.budget == Budget(trials=40)
    assert read(search="{space: ./space.yaml, budget: 2h}").search.budget == Budget(wall_s=7200)
    assert read(search="{space: ./space.yaml, budget: 9 trials}").search.budget == Budget(trials=9)


def test_a_model_is_a_name_or_a_path(read, folder):
    """A path begins with a dot, a slash or a tilde, and may contain blanks; it counts from the file's folder."""
    assert read(model="../my models/x").model == str(folder.parent / "my models" / "x")
    assert read(model="~/x").model == str(Path.home() / "x")
    assert read(model="gpt2").model == "gpt2"


@pytest.mark.parametrize(
    ("engine", "pattern"),
    [
        ("{flags: {host: 0.0.0.0}}", "host may not be set here"),
        ("{flags: {port: 80}}", "port may not be set"),
        ("{flags: {hos: x}}", "may be read as host"),
        ("{flags: {api_key: x}}", "secret"),
        ("{flags: {ssl_keyfile: x}}", "ssl_keyfile may not"),
        ("{flags: {chat_template: x}}", "chat_template may not"),
        ("{flags: {middleware: x}}", "middleware may not"),
        ("{flags: {log_config_file: x}}", "log_config_file may not"),
        ("{flags: {tool_parser_plugin: ./x.py}}", "tool_parser_plugin may not"),
        ("{flags: {trust_remote_code: true}}", "set engine.trust_remote_code: true"),
        ("{flags: {hf_overrides: '{\"trust_remote_code\": true}'}}", "'trust_remote_code' inside a value"),
        ('{flags: {kv_transfer_config: \'{"kv_connector_module_path": "x"}\'}}', "module_path"),
        ("{flags: {max_num_seqs: 8 --host 0.0.0.0}}", "may not carry further flags"),
        ("{flags: {quantization: '--trust-remote-code'}}", "begin with a dash"),
        ('{flags: {quantization: "a\\nb"}}', "line breaks"),
        ("{flags: {quantization: on}}", "read this differently"),
        ("{flags: {Bad-Flag: 1}}", "max_num_seqs"),
        ("{flags: {'--x': 1}}", "max_num_seqs"),
        ("{flags: {max_model_len: [1, 2]}}", "one value"),
        ("{env: {LD_PRELOAD: ./x.so}}", "LD_PRELOAD may not be set"),
        ("{env: {PATH: /x}}", "PATH may not be set"),
        ("{env: {PYTHONSTARTUP: x}}", "PYTHONSTARTUP may not be set"),
        ("{env: {PYTHONPATH: x}}", "PYTHONPATH may not be set"),
        ("{env: {HF_TOKEN: hf_canary}}", r"write \$HF_TOKEN"),
        ("{env: {DB_URL: 'postgres://u:canary@h/db'}}", r"write \$DB_URL"),
        ("{env: {X: '${HOME}'}}", "name of a variable"),
        ("{env: {'A B': x}}", "no name of an environment variable"),
        ("{env: {VLLM_CPU_KVCACHE_SPACE: 1}}", 'quote it: "1"'),
        ("{command: vllm serve}", "a command is a list"),
        ("{command: []}", "an empty list"),
        ("{command: [--x]}", "the first word is the program"),
        ("{command: [vllm, serve, --host, 0.0.0.0]}", "host may not be set"),
        ("{command: [vllm, serve, --trust-remote-code]}", "trust_remote_code may not be set"),
        ("{command: [vllm, serve, --api-key=canary]}", "secret"),
        ("{router: [vllm-router, --prometheus-host, 0.0.0.0]}", "prometheus_host may not be set"),
        ("{stores: {redis: [redis-server]}}", "unknown key 'redis'"),
        ("{start_timeout: 5}", "a time needs a unit"),
        ("{trust_remote_code: yes}", "write true or false"),
    ],
)
def test_a_file_cannot_open_or_subvert_the_engine(read, engine, pattern):
    """Flags, variables and words of commands that listen, load code or carry secrets are refused with the remedy."""
    refused(read, pattern, engine=engine)


def test_a_refused_secret_is_not_repeated(read):
    """The message does not carry the value into a log."""
    with pytest.raises(FileError) as caught:
        read(engine="{env: {OPENAI_API_KEY: sk-canary}}")
    assert "canary" not in str(caught.value)


def test_other_connectors_are_for_tests_alone(read, monkeypatch):
    """SEC-03: a module of connectors is code; the switch of the tests alone lets a file name one, by its name."""
    monkeypatch.delenv("TUNER_TEST_CONNECTORS", raising=False)
    with pytest.raises(FileError, match=r"connector_module.*load code"):
        read(engine="{connector_module: tuner_cpu_connectors}")
    monkeypatch.setenv("TUNER_TEST_CONNECTORS", "1")
    found = read(engine="{connector_module: tuner_cpu_connectors}")
    assert found.engine.connector_module == "tuner_cpu_connectors"
    assert "connector_module: tuner_cpu_connectors" in objective_text.dump(found)
    with pytest.raises(FileError, match=r"named like package\.module"):
        read(engine="{connector_module: ../evil}")
    with pytest.raises(FileError, match="module_path"):
        read(engine='{flags: {kv_transfer_config: \'{"kv_connector_module_path":"evil"}\'}}')


def test_a_baseline_may_be_split(read):
    """A flag of one side obeys the rules of that flag."""
    found = read(baseline="{mode: disaggregated, decode_replicas: 3, decode_max_num_seqs: 64}")
    assert found.baseline == {"mode": "disaggregated", "decode_replicas": 3, "decode_max_num_seqs": 64}
    with pytest.raises(FileError, match="may not be set"):
        read(baseline="{mode: disaggregated, decode_api_key: x}")


def test_host_memory_of_a_pool_bounds_stores(read):
    """It is read as a size, and written back."""
    found = read(cluster="{gpu: H100-80GB, nodes: 1, gpus_per_node: 4, host_memory: 512 GiB}")
    assert found.cluster.pools[0].host_memory_gib == 512
    assert "host_memory: 512" in objective_text.dump(found)
    with pytest.raises(FileError, match="above 0"):
        read(cluster="{gpu: H100-80GB, nodes: 1, gpus_per_node: 4, host_memory: 0 GiB}")


def test_a_baseline_obeys_the_rules_of_flags(read):
    """The incumbent may set shapes and flags, but no more than a file may."""
    assert read(baseline="{mode: aggregated, max_num_seqs: 64}").baseline == {"mode": "aggregated", "max_num_seqs": 64}
    refused(read, "trust_remote_code", baseline="{trust_remote_code: true}")
    refused(read, "did you mean 'max_num_seqs'", baseline="{max_num_seq: 64}")
    refused(read, "replicas", baseline="{replicas: many}")


def test_options_replace_values_of_the_file(read, folder, monkeypatch):
    """What the command line says wins, obeys the same rules, and is blamed as an option, not as a line."""
    overrides = {"search.trials": 7, "search.budget": "2h", "backend": "local", "search.verify.repeats": 1}
    search = read(overrides).search
    assert (search.budget, search.verify) == (Budget(7, 7200), Verification(repeats=1))
    assert read(overrides).backend == "local"
    with pytest.raises(InputError, match=r"^search.budget, given as an option: got 2: a budget is written"):
        read({"search.budget": "2"})
    monkeypatch.chdir(folder)
    assert read({"search.space": "space.yaml"}, search=None).search.space == str(folder / "space.yaml")


def test_a_name_is_a_shipped_file_only_where_no_such_file_exists(folder, monkeypatch):
    """A file of one's own named `chat` goes first."""
    monkeypatch.chdir(folder)
    (folder / "chat").write_text(text(model="own"))
    assert objective_file.load("chat").model == "own"
    (folder / "chat").unlink()
    with pytest.raises(InputError, match="no such file"):
        objective_file.load("chatt")


@pytest.mark.parametrize(
    ("blocks", "pattern"),
    [
        ({"slo": "{ttft: {p99: 0.5ms}}"}, "slo.ttft.p99 is 0.0005s, usual is 0.001s to 600s: is the unit right"),
        ({"slo": "{itl: {p99: 60s}}"}, "slo.itl.p99 is 60s"),
        ({"slo": "{ttft: {p50: 3s, p99: 2s}}"}, "slo.ttft.p50 can never break before p99 does"),
        ({"slo": "{ttft: {p99: 100s}}"}, "workload.timeout.first_token"),
        ({"slo": "{attainment: 99.9%}"}, "at least 1000 tell more"),
        ({"slo": "{request: {ttft: 1s}, ttft: {p99: 1s}}"}, "nothing asks for a share"),
        ({"search": "{space: ./space.yaml, verify: {repeats: 1, min_requests: 300}}"}, "ttft_p99 .*598 can"),
        ({"model": "./nowhere"}, "no directory"),
        ({"engine": "{trust_remote_code: true}"}, "pin model_revision"),
        ({"cluster": "{gpu: H100-80GB, bind: node}"}, "reached from the network"),
    ],
)
def test_what_only_looks_odd_is_a_warning(read, blocks, pattern):
    """The file is taken, and the sentence names the key."""
    assert any(re.search(pattern, warning) for warning in objective_file.warnings(read(**blocks)))


STORES = Knob("kv_store", "categorical", options=("none", "lmcache", "mooncake"))


@pytest.mark.parametrize(
    ("knobs", "prices", "keys"),
    [
        ((STORES,), {}, ["ram_gib_hour"]),
        ((STORES, Knob("kv_store_ssd_gib", "int", 0, 500)), {}, ["ram_gib_hour", "ssd_gib_hour"]),
        ((STORES,), {"ram_gib_hour": 0.004}, []),
        ((Knob("kv_store", "categorical", options=("none",)),), {}, []),
        ((Knob("kv_store", "categorical", options=(None, "cpu_offload")),), {}, ["ram_gib_hour"]),
        ((), {}, []),
    ],
)
def test_a_store_that_costs_nothing_is_a_warning(read, knobs, prices, keys):
    """A space with stores beside a file without their price would buy memory for nothing."""
    goal = read()
    goal = replace(goal, prices=replace(goal.prices, **prices))
    found = objective_warnings.of_space(goal, Space("s", knobs))
    assert [re.match(r"prices.kv_store.(\w+) is 0", warning).group(1) for warning in found] == keys


@pytest.mark.parametrize(
    ("source", "rest", "needed", "how"),
    [
        ("trace: trace.jsonl", "measure: {min_requests: 600}", 600, "with fresh prompts"),
        ("trace: trace.jsonl", "load: {rate: 10/s}, measure: {duration: 70s, min_requests: 100}", 700, "fresh prompts"),
        ("prompts: prompts.jsonl", "measure: {min_requests: 600}", 600, "so that prefix caches know its prompts"),
    ],
)
def test_a_source_that_ends_before_a_level_is_told_with_both_counts(read, source, rest, needed, how):
    """One that is as long as a level is no news, and nor is one that is made up."""
    objective = read(workload=f"{{source: {{{source}}}, {rest}}}")
    (said,) = objective_file.warnings(objective, rows=599)
    assert f"has 599 requests to use and a level measures at least {needed}" in said
    assert how in said
    assert objective_file.warnings(objective, rows=needed) == objective_file.warnings(objective) == []


def test_a_usual_file_has_no_warnings(read):
    """Silence is worth something only if it is the rule."""
    assert objective_file.warnings(read()) == []


def test_a_resolved_file_reads_back_as_the_same_objective(folder):
    """Everything is said, in seconds, requests per second and currency per hour."""
    objective = objective_file.loads(FULL, folder / "slo.yaml")
    resolved = objective_file.dump(objective)
    assert objective_file.loads(resolved, objective.path) == objective
    assert "p99.9: 1.234s" in resolved
    assert "price: 1008/h" in resolved


def test_fingerprints_name_what_changed(read, folder):
    """Another limit changes `slo` alone; budgets, spaces and the file's place change nothing."""
    one = objective_file.fingerprint(read())
    other = objective_file.fingerprint(read(slo="{ttft: {p99: 2s}, itl: {p99: 61ms}}"))
    assert {name for name in one if one[name] != other[name]} == {"slo"}
    dearer = objective_file.fingerprint(read(prices="{currency: USD, gpu_hour: 4}"))
    assert {name for name in one if one[name] != dearer[name]} == {"cluster"}
    same = replace(read(search="{space: ./space.yaml, trials: 3, sampler: random}"), path="/elsewhere.yaml")
    assert objective_file.fingerprint(same) == one


def test_a_fingerprint_knows_a_trace_by_its_content(read, folder):
    """A copy elsewhere is the same trace; an edited one is another."""
    workload = "{source: {trace: %s, format: azure}}"
    (folder / "copy.csv").write_bytes((folder / "trace.csv").read_bytes())
    one = objective_file.fingerprint(read(workload=workload % "trace.csv"))
    assert objective_file.fingerprint(read(workload=workload % "copy.csv")) == one
    (folder / "copy.csv").write_text("TIMESTAMP\n")
    assert objective_file.fingerprint(read(workload=workload % "copy.csv"))["workload"] != one["workload"]


# Any objective can be written and read back.

_TIME = st.floats(1e-6, 1e6) | st.integers(1, 10_000).map(lambda value: value / 1000)
_PRICE = st.floats(1e-6, 1e7)
_COUNT = st.integers(1, 100_000)
_SCALAR = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6).filter(lambda x: x != 0)
_WORD = st.text(st.characters(min_codepoint=32, exclude_categories=["C", "Z"]), min_size=1, max_size=12).filter(
    lambda word: word[0] not in "-$" and "://" not in word
)
_METRICS = ("ttft", "itl", "chunk_gap", "tpot", "e2el")
_STATISTICS = ("p50", "p90", "p99", "p99.9", "mean", "max")


def _optional(values):
    return st.none() | values


_LIMITS = st.lists(
    st.tuples(st.sampled_from(_METRICS), st.lists(st.sampled_from(_STATISTICS), min_size=1, unique=True), _TIME),
    min_size=1,
    max_size=4,
    unique_by=lambda row: row[0],
).map(lambda rows: tuple(Limit(metric, each, seconds) for metric, several, seconds in rows for each in several))
_POOLS = st.lists(
    st.builds(
        lambda name, cpu, nodes, per_node, price, cores, memory: Pool(
            name,
            "cpu" if cpu else "gpu",
            "slot" if cpu else "H100 x",
            nodes,
            per_node,
            price,
            cores=cores if cpu else 1,
            memory_gib=memory,
        ),
        st.from_regex(r"[A-Za-z][a-z0-9-]{0,5}", fullmatch=True),
        st.booleans(),
        st.integers(1, 99),
        st.integers(1, 16),
        _PRICE,
        st.integers(1, 64),
        _optional(_PRICE),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda pool: pool.name,
).map(tuple)
_ENGINES = st.builds(
    Engine,
    command=st.lists(_WORD.filter(lambda word: "/" not in word), min_size=1, max_size=3).map(tuple),
    env=st.dictionaries(
        st.from_regex(r"X_[A-Z]{1,6}Q", fullmatch=True), _WORD | st.just("$Y") | st.just(""), max_size=3
    ),
    flags=st.dictionaries(st.sampled_from(["x_one", "x_two", "x_three"]), _SCALAR | _WORD),
    router=st.just(("router",)),
    stores=st.dictionaries(st.sampled_from(["lmcache", "mooncake"]), st.just(("a", "b c"))),
    start_timeout_s=_TIME,
    trust_remote_code=st.booleans(),
)
_SEARCHES = st.builds(
    Search,
    space=st.just("space.yaml"),
    budget=st.builds(Budget, _COUNT, _optional(_TIME), _optional(_PRICE), _optional(_PRICE)),
    min_gain=st.floats(0, 1),
    sampler=st.sampled_from(["tpe", "random", "gp"]),
    max_levels=st.integers(1, 1000),
    resolution=st.floats(0.001, 0.5),
    verify=st.builds(Verification, _COUNT, _COUNT, _optional(_COUNT)),
    divide_counts=st.floats(1, 1000),
)
_WORKLOADS = st.builds(
    Workload,
    source=st.builds(Synthetic, _COUNT, st.integers(2, 9999), st.just(0) | st.just(1), _COUNT)
    | st.builds(Prompts, st.just("prompts.jsonl"), _optional(_COUNT))
    | st.builds(
        Trace,
        st.just("trace.jsonl"),
        st.sampled_from(["mooncake", "azure"]),
        st.floats(1e-3, 1e3),
        st.floats(1e-3, 1e3),
        st.integers(0, 99),
        _optional(_COUNT),
        st.floats(0, 10),
        _optional(_COUNT),
        _optional(_COUNT),
    ),
    arrivals=st.builds(Arrivals, st.just("gamma"), st.floats(0.01, 1000)) | st.builds(Arrivals, st.just("constant")),
    load=st.just(Load()) | st.builds(Load, st.just("rate"), rate_rps=_TIME),
    measure=st.builds(Measure, st.floats(0, 100), _TIME, st.integers(1000, 10_000)),
    timeout=st.builds(Timeouts, _TIME, _TIME, _TIME),
    api=st.sampled_from(["chat", "completions"]),
    cache=st.sampled_from([Cache("cold"), Cache("steady"), Cache("warm", 7)]),
    demand_rps=_optional(_TIME),
)


_PARTS = st.fixed_dictionaries(
    {
        "slo": st.builds(
            Slo,
            _LIMITS,
            st.builds(RequestLimits, _optional(_TIME), _optional(_TIME), _optional(_TIME), _optional(_TIME)),
            _optional(st.floats(0.01, 1)),
        ),
        "workload": _WORKLOADS,
        "cluster": _POOLS.map(lambda pools: Cluster(pools, max_gpus=1)),
        "prices": st.builds(Prices, st.just("EUR"), st.sampled_from(["used", "whole_server"]), _PRICE, _PRICE, _PRICE),
        "engine": _ENGINES,
        "search": _SEARCHES,
        "baseline": _optional(
            st.fixed_dictionaries(
                {},
                optional={
                    "mode": st.sampled_from(["aggregated", "disaggregated"]),
                    "replicas": st.integers(1, 99),
                    "gpu_memory_utilization": st.floats(0.1, 0.9),
                    "enable_prefix_caching": st.booleans() | st.none(),
                },
            )
        ),
        "model_revision": _optional(st.just("v1")),
    }
)


@given(_PARTS)
def test_any_objective_reads_back_equal(folder, parts):
    """Written in canonical units and read again, nothing is lost or changed, to the last bit."""
    source = parts["workload"].source
    if not isinstance(source, Synthetic):
        parts["workload"] = replace(parts["workload"], source=replace(source, path=str(folder / source.path)))
    parts["search"] = replace(parts["search"], space=str(folder / "space.yaml"))
    objective = Objective(path=str(folder / "slo.yaml"), model="Qwen/Qwen3-32B", **parts)
    assert objective_file.loads(objective_file.dump(objective), objective.path) == objective


# Whatever is put where, the answer is an objective or one line about the file.

_ODD = st.sampled_from(
    [
        "",
        "~",
        "{}",
        "[]",
        "[[]]",
        "{x: 1}",
        "no",
        "1e3",
        "-1",
        "0",
        "1e999",
        ".nan",
        "99%",
        "5ms",
        "'--x'",
        '"\\0"',
        "[1, a]",
        "p99",
        "{p99: 1s}",
        "{trace: .}",
        "{rate: 1/s}",
        "{{}: 1}",
        "2024-01-01",
        "x" * 300,
        "9" * 70,
        '"\\n"',
        "/",
        "../..",
        "~",
    ]
)
_BLOCKS = st.sampled_from(sorted(objective_file.KEYS[""]))


@st.composite
def _spoilt(draw):
    """The full file with one or two values, keys or characters replaced."""
    lines = FULL.splitlines()
    for _ in range(draw(st.integers(1, 2))):
        number = draw(st.integers(0, len(lines) - 1))
        places = [match.span() for match in re.finditer(r"[\w./$-]+", lines[number])]
        if places:
            start, end = draw(st.sampled_from(places))
            lines[number] = lines[number][:start] + draw(_ODD | st.text(max_size=5)) + lines[number][end:]
    return "\n".join(lines)


@given(_spoilt() | st.dictionaries(_BLOCKS, _ODD, max_size=6).map(lambda blocks: text(**blocks)))
def test_no_file_makes_a_traceback(folder, spoilt):
    """Every file is an objective, or is refused in one line; what is read, can be judged and written back."""
    try:
        objective = objective_file.loads(spoilt, folder / "slo.yaml")
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017  most files are refused
    else:
        objective_file.warnings(objective)
        assert objective_file.loads(objective_file.dump(objective), objective.path) == objective


def test_every_key_is_documented_and_no_other():
    """docs/objective-file.md and the parser agree, block by block."""
    documented = {}
    block = None
    for line in (ROOT / "docs" / "objective-file.md").read_text(encoding="utf-8").splitlines():
        if line.startswith(("## ", "### ")):
            title = line.lstrip("# ")
            block = "" if title == "The file" else title
        elif line.startswith("| `"):
            documented.setdefault(block, []).extend(re.findall(r"`([^`]+)`", line.split("|")[1]))
    assert {block: sorted(keys) for block, keys in documented.items()} == {
        block: sorted(keys) for block, keys in objective_file.KEYS.items()
    }
