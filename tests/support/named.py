"""Named deployments: what golden files are made of. Each is an objective's settings and the knobs of one point."""

from dataclasses import replace

from support.objectives import H100, SLOTS, objective

from tuner.slo import Engine

CPU_ENGINE = Engine(
    command=("/venv/bin/vllm", "serve"),
    env={"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    flags={"enforce_eager": True, "load_format": "dummy", "max_model_len": 8192},
)
AGGREGATED = {
    "one-gpu-defaults": (objective(), {"tensor_parallel_size": 1, "replicas": 1}),
    "tensor-parallel-4": (
        objective(model="meta-llama/Llama-3.1-70B"),
        {
            "tensor_parallel_size": 4,
            "replicas": 1,
            "max_num_batched_tokens": 4096,
            "gpu_memory_utilization": 0.1 + 0.75,
        },
    ),
    "two-replicas-behind-a-router": (objective(), {"tensor_parallel_size": 2, "replicas": 2, "max_num_seqs": 128}),
    "cpu-demo": (
        objective(model="/models/tiny 8x512", pools=(SLOTS,), max_gpus=2, engine=CPU_ENGINE),
        {"replicas": 2, "max_num_batched_tokens": 256, "block_size": 32, "router_policy": "random"},
    ),
    "false-null-and-json": (
        objective(engine=Engine(env={"HF_TOKEN": "$HF_TOKEN"}, flags={"async_scheduling": False, "seed": None})),
        {
            "enable_prefix_caching": False,
            "enable_chunked_prefill": True,
            "max_num_seqs": None,
            "compilation_config": '{"mode":3}',
        },
    ),
    "revision-and-node-address": (
        objective(model_revision="abc123", bind="node", engine=Engine(trust_remote_code=True)),
        {"tensor_parallel_size": 1},
    ),
}


PD = {"mode": "disaggregated"}
TWO_POOLS = {"pools": (H100, replace(H100, name="l40s", device="L40S", price_per_hour=1.0)), "max_gpus": 16}
CPU = {
    "model": "/models/tiny",
    "pools": (replace(SLOTS, per_node=4),),
    "max_gpus": 4,
    "engine": Engine(
        command=("/venv/bin/vllm", "serve"),
        router=("/venv/bin/vllm-router",),
        stores={"mooncake": ("/venv/bin/mooncake_master",)},
        env={"VLLM_CPU_KVCACHE_SPACE": "1"},
        flags={"enforce_eager": True, "load_format": "dummy", "max_model_len": 2048},
        connector_module="tuner_cpu_connectors",
    ),
}
SPLIT_OR_STORED = {
    "split-1p1d-nixl": ({}, PD),
    "split-2p2d-nixl-tp2": ({}, {**PD, "tensor_parallel_size": 2, "prefill_replicas": 2, "decode_replicas": 2}),
    "split-1p3d-sides-differ": (
        TWO_POOLS,
        {
            **PD,
            "prefill_tensor_parallel_size": 4,
            "decode_replicas": 3,
            "decode_pool": "l40s",
            "prefill_max_num_batched_tokens": 16384,
            "decode_max_num_seqs": 64,
            "decode_gpu_memory_utilization": 0.95,
            "block_size": 32,
            "router_policy": "power_of_two",
        },
    ),
    "split-1p2d-mooncake": ({}, {**PD, "kv_transfer": "mooncake", "decode_replicas": 2, "tensor_parallel_size": 2}),
    "split-across-nodes": (
        {"bind": "node", "pools": (replace(H100, nodes=2),), "max_gpus": 16},
        {**PD, "prefill_tensor_parallel_size": 8, "decode_data_parallel_size": 8},
    ),
    "store-mooncake-two-replicas": ({}, {"replicas": 2, "kv_store": "mooncake", "kv_store_ram_gib": 64}),
    "store-mooncake-ssd": (
        {"engine": Engine(env={"MC_TCP_BIND_ADDRESS": "10.0.0.1", "OTHER": "1"})},
        {"kv_store": "mooncake", "kv_store_ram_gib": 16, "kv_store_ssd_gib": 500},
    ),
    "store-lmcache": (
        {"engine": Engine(stores={"lmcache": ("/lm/bin/lmcache", "server")})},
        {"kv_store": "lmcache", "kv_store_ram_gib": 64, "enable_prefix_caching": True},
    ),
    "store-lmcache-blending": (
        {"engine": Engine(env={"LMCACHE_LOG_LEVEL": "INFO"}, flags={"enforce_eager": True})},
        {
            "replicas": 2,
            "tensor_parallel_size": 2,
            "kv_store": "lmcache",
            "kv_store_ram_gib": 64,
            "lmcache_blending": True,
            "enable_prefix_caching": False,
        },
    ),
    "store-lmcache-in-process": (
        {},
        {
            "replicas": 2,
            "tensor_parallel_size": 2,
            "kv_store": "lmcache",
            "lmcache_mode": "in_process",
            "kv_store_ram_gib": 100,
            "kv_store_ssd_gib": 800,
        },
    ),
    "store-cpu-offload": (
        {},
        {"replicas": 2, "data_parallel_size": 2, "kv_store": "cpu_offload", "kv_store_ram_gib": 64},
    ),
    "split-with-a-store": ({}, {**PD, "decode_replicas": 2, "kv_store": "mooncake", "kv_store_ram_gib": 32}),
    "split-with-lmcache-in-process": (
        {},
        {**PD, "prefill_replicas": 2, "kv_store": "lmcache", "lmcache_mode": "in_process", "kv_store_ram_gib": 64},
    ),
    "split-on-cpu-with-a-store": (CPU, {**PD, "kv_store": "mooncake", "kv_store_ram_gib": 1}),
}
