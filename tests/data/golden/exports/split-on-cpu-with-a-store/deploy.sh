#!/usr/bin/env bash
# Trial 7 (winner) of study chat-h100, exported by tuner.
# model: /models/tiny; vLLM 0.32.0; source: live
# configuration: kv_store=mooncake, kv_store_ram_gib=1, mode=disaggregated
# promised: TTFT p99 ≤ 2,000 ms; attainment ≥ 99 %
# measured: 0.123 USD per 1,000 good requests; goodput 8.97 requests/s; TTFT p99 1,710 ms; n = 640 requests; verified on fresh schedules
#
#   ./deploy.sh                   starts every process here, waits until it serves, and stops all of it when it is ended
#   ./deploy.sh NAME [NAME ...]   starts these processes alone; the others are expected at their addresses
#
# Processes: store-0 store-1 prefill-0 decode-0 router-0
# The variables below can be set from outside. LOGS=DIR writes one log a process instead of the terminal.
# Needs bash 4.4, curl and setsid, taskset.
# shellcheck disable=SC2329
set -euo pipefail

STORE_0_HOST=${STORE_0_HOST:-127.0.0.1}
STORE_0_PORT=${STORE_0_PORT:-8000}
STORE_0_RPC_PORT=${STORE_0_RPC_PORT:-8001}
STORE_0_METADATA_PORT=${STORE_0_METADATA_PORT:-8002}
STORE_1_HOST=${STORE_1_HOST:-127.0.0.1}
STORE_1_PORT=${STORE_1_PORT:-8100}
PREFILL_0_HOST=${PREFILL_0_HOST:-127.0.0.1}
PREFILL_0_PORT=${PREFILL_0_PORT:-8200}
PREFILL_0_SIDE_CHANNEL_PORT=${PREFILL_0_SIDE_CHANNEL_PORT:-8201}
PREFILL_0_CORES=${PREFILL_0_CORES:-0}
DECODE_0_HOST=${DECODE_0_HOST:-127.0.0.1}
DECODE_0_PORT=${DECODE_0_PORT:-8300}
DECODE_0_SIDE_CHANNEL_PORT=${DECODE_0_SIDE_CHANNEL_PORT:-8301}
DECODE_0_CORES=${DECODE_0_CORES:-1}
ROUTER_0_HOST=${ROUTER_0_HOST:-127.0.0.1}
ROUTER_0_PORT=${ROUTER_0_PORT:-8400}
ROUTER_0_PROMETHEUS_PORT=${ROUTER_0_PROMETHEUS_PORT:-8401}

work=$(mktemp -d "${TMPDIR:-/tmp}/tuner-XXXXXX")
chosen=("$@")
started=()
declare -A pids=()

say() { printf 'deploy: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

stop() {
    local code=$? name pid place wait_s
    trap - EXIT
    trap '' INT TERM HUP
    for ((place = ${#started[@]} - 1; place >= 0; place--)); do
        name=${started[place]} pid=${pids[${started[place]}]}
        kill -TERM "$pid" 2>/dev/null || true
        for ((wait_s = 0; wait_s < 150; wait_s++)); do
            kill -0 -- "-$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL -- "-$pid" 2>/dev/null && say "$name had to be killed"
        pkill -KILL -s "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf -- "$work"
    exit "$code"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mine() {
    local name
    for name in "${chosen[@]}"; do [[ $name == "$1" ]] && return 0; done
    return 1
}

alive() {
    local name
    for name in "${started[@]}"; do kill -0 "${pids[$name]}" 2>/dev/null || die "$name has ended"; done
}

# place NAME HOST PORT...: a directory of its own, and ports that nobody listens on
place() {
    local name=$1 host=$2 port
    shift 2
    for port in "$@"; do tcp "$host" "$port" && die "$name: port $port of $host is in use already"; done
    mkdir -p -- "$work/$name"
}

# start NAME COMMAND...: in a session of its own, so that all of it can be ended
start() {
    local name=$1
    shift
    if [[ -n ${LOGS:-} ]]; then
        mkdir -p -- "$LOGS"
        (cd -- "$work/$name" && exec setsid "$@") >"$LOGS/$name.log" 2>&1 &
    else
        (cd -- "$work/$name" && exec setsid "$@") &
    fi
    pids[$name]=$!
    started+=("$name")
    say "$name started, pid ${pids[$name]}"
}

# ready NAME SECONDS CHECK...: nothing that is left to be started here waits for a process of another machine
ready() {
    local name=$1 limit=$2 end=$((SECONDS + $2))
    shift 2
    mine "$name" || ((${#started[@]} < ${#chosen[@]})) || return 0
    until "$@"; do
        alive
        ((SECONDS < end)) || die "$name was not ready within $limit s"
        sleep 1
    done
    alive
    say "$name is ready"
}

tcp() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }
# In the background, so that a signal is heard at once.
ask() {
    curl --noproxy '*' -fs -o /dev/null "$@" &
    wait "$!"
}
http() { ask --max-time 10 "$1"; }
token() { ask --max-time 120 -H 'Content-Type: application/json' --data "$2" "$1/v1/completions"; }

for name in "${chosen[@]}"; do
    case $name in store-0|store-1|prefill-0|decode-0|router-0) ;; *) die "there is no process $name; there are store-0 store-1 prefill-0 decode-0 router-0" ;; esac
done
((${#chosen[@]})) || chosen=(store-0 store-1 prefill-0 decode-0 router-0)

if mine store-0; then
    place store-0 "${STORE_0_HOST}" "${STORE_0_PORT}" "${STORE_0_RPC_PORT}" "${STORE_0_METADATA_PORT}"
    start store-0 \
        env \
        CUDA_VISIBLE_DEVICES= \
        PYTHONHASHSEED=0 \
        /venv/bin/mooncake_master \
        "--rpc_address=${STORE_0_HOST}" \
        "--rpc_port=${STORE_0_RPC_PORT}" \
        "--metrics_host=${STORE_0_HOST}" \
        "--metrics_port=${STORE_0_PORT}" \
        --enable_http_metadata_server=true \
        "--http_metadata_server_host=${STORE_0_HOST}" \
        "--http_metadata_server_port=${STORE_0_METADATA_PORT}"
fi

ready store-0 120 http "http://${STORE_0_HOST}:${STORE_0_PORT}/metrics"

if mine store-1; then
    place store-1 "${STORE_1_HOST}" "${STORE_1_PORT}"
    printf '%s' 'import sys

from aiohttp import web

address = sys.argv.pop(1)
site = web.TCPSite
web.TCPSite = lambda runner, _everywhere, port: site(runner, address, port)

from mooncake.mooncake_store_service import sync_main

sys.exit(sync_main())
' >"$work/store-1/segment.py"
    printf '%s' "{\"device_name\":\"\",\"global_segment_size\":1073741824,\"local_buffer_size\":67108864,\"local_hostname\":\"${STORE_1_HOST}\",\"master_server_address\":\"${STORE_0_HOST}:${STORE_0_RPC_PORT}\",\"metadata_server\":\"http://${STORE_0_HOST}:${STORE_0_METADATA_PORT}/metadata\",\"protocol\":\"tcp\"}" >"$work/store-1/segment.json"
    start store-1 \
        env \
        CUDA_VISIBLE_DEVICES= \
        PYTHONHASHSEED=0 \
        /venv/bin/python3 \
        "$work/store-1/segment.py" \
        "${STORE_1_HOST}" \
        "--config=$work/store-1/segment.json" \
        "--port=${STORE_1_PORT}"
fi

ready store-1 120 tcp "${STORE_1_HOST}" "${STORE_1_PORT}"

if mine prefill-0; then
    place prefill-0 "${PREFILL_0_HOST}" "${PREFILL_0_PORT}" "${PREFILL_0_SIDE_CHANNEL_PORT}"
    printf '%s' "{\"device_name\":\"\",\"global_segment_size\":0,\"local_buffer_size\":67108864,\"master_server_address\":\"${STORE_0_HOST}:${STORE_0_RPC_PORT}\",\"metadata_server\":\"http://${STORE_0_HOST}:${STORE_0_METADATA_PORT}/metadata\",\"mode\":\"standalone-store\",\"protocol\":\"tcp\"}" >"$work/prefill-0/mooncake.json"
    start prefill-0 \
        taskset --cpu-list "${PREFILL_0_CORES//|/,}" \
        env \
        CUDA_VISIBLE_DEVICES= \
        MOONCAKE_CONFIG_PATH="$work/prefill-0/mooncake.json" \
        PYTHONHASHSEED=0 \
        UCX_NET_DEVICES=lo \
        VLLM_CPU_KVCACHE_SPACE=1 \
        VLLM_CPU_OMP_THREADS_BIND="${PREFILL_0_CORES}" \
        VLLM_HOST_IP="${PREFILL_0_HOST}" \
        VLLM_NIXL_SIDE_CHANNEL_HOST="${PREFILL_0_HOST}" \
        VLLM_NIXL_SIDE_CHANNEL_PORT="${PREFILL_0_SIDE_CHANNEL_PORT}" \
        VLLM_NO_USAGE_STATS=1 \
        /venv/bin/vllm \
        serve \
        /models/tiny \
        --host \
        "${PREFILL_0_HOST}" \
        --port \
        "${PREFILL_0_PORT}" \
        --served-model-name \
        /models/tiny \
        --enforce-eager \
        --load-format \
        dummy \
        --max-model-len \
        2048 \
        --kv-transfer-config \
        '{"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[{"kv_buffer_device":"cpu","kv_connector":"NixlConnector","kv_connector_module_path":"tuner_cpu_connectors","kv_load_failure_policy":"fail","kv_role":"kv_producer"},{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both"}]},"kv_load_failure_policy":"fail","kv_role":"kv_producer"}'
fi

if mine decode-0; then
    place decode-0 "${DECODE_0_HOST}" "${DECODE_0_PORT}" "${DECODE_0_SIDE_CHANNEL_PORT}"
    start decode-0 \
        taskset --cpu-list "${DECODE_0_CORES//|/,}" \
        env \
        CUDA_VISIBLE_DEVICES= \
        PYTHONHASHSEED=0 \
        UCX_NET_DEVICES=lo \
        VLLM_CPU_KVCACHE_SPACE=1 \
        VLLM_CPU_OMP_THREADS_BIND="${DECODE_0_CORES}" \
        VLLM_NIXL_SIDE_CHANNEL_HOST="${DECODE_0_HOST}" \
        VLLM_NIXL_SIDE_CHANNEL_PORT="${DECODE_0_SIDE_CHANNEL_PORT}" \
        VLLM_NO_USAGE_STATS=1 \
        /venv/bin/vllm \
        serve \
        /models/tiny \
        --host \
        "${DECODE_0_HOST}" \
        --port \
        "${DECODE_0_PORT}" \
        --served-model-name \
        /models/tiny \
        --enforce-eager \
        --load-format \
        dummy \
        --max-model-len \
        2048 \
        --kv-transfer-config \
        '{"kv_buffer_device":"cpu","kv_connector":"NixlConnector","kv_connector_module_path":"tuner_cpu_connectors","kv_load_failure_policy":"fail","kv_role":"kv_consumer"}'
fi

ready prefill-0 1800 token "http://${PREFILL_0_HOST}:${PREFILL_0_PORT}" '{"model": "/models/tiny", "prompt": "Hello", "max_tokens": 1}'
ready decode-0 1800 token "http://${DECODE_0_HOST}:${DECODE_0_PORT}" '{"model": "/models/tiny", "prompt": "Hello", "max_tokens": 1}'

if mine router-0; then
    place router-0 "${ROUTER_0_HOST}" "${ROUTER_0_PORT}" "${ROUTER_0_PROMETHEUS_PORT}"
    start router-0 \
        env \
        CUDA_VISIBLE_DEVICES= \
        PYTHONHASHSEED=0 \
        /venv/bin/vllm-router \
        --host \
        "${ROUTER_0_HOST}" \
        --port \
        "${ROUTER_0_PORT}" \
        --vllm-pd-disaggregation \
        --kv-connector \
        nixl \
        --prefill \
        "http://${PREFILL_0_HOST}:${PREFILL_0_PORT}" \
        --decode \
        "http://${DECODE_0_HOST}:${DECODE_0_PORT}" \
        --policy \
        round_robin \
        --prometheus-host \
        127.0.0.1 \
        --prometheus-port \
        "${ROUTER_0_PROMETHEUS_PORT}" \
        --worker-startup-check-interval \
        1
fi

ready router-0 180 token "http://${ROUTER_0_HOST}:${ROUTER_0_PORT}" '{"model": "/models/tiny", "prompt": "Hello", "max_tokens": 1}'
if mine router-0; then say serving at "http://${ROUTER_0_HOST}:${ROUTER_0_PORT}/v1"; fi
# Nothing but an end ends it.
wait -n || true
alive
die "a process has ended"
