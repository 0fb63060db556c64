#!/usr/bin/env bash
# Trial 7 (winner) of study chat-h100, exported by tuner.
# model: Qwen/Qwen3-8B; vLLM 0.32.0; source: live
# configuration: kv_store=lmcache, kv_store_ram_gib=64, lmcache_mode=in_process, mode=disaggregated, prefill_replicas=2
# promised: TTFT p99 ≤ 2,000 ms; attainment ≥ 99 %
# measured: 0.123 USD per 1,000 good requests; goodput 8.97 requests/s; TTFT p99 1,710 ms; n = 640 requests; verified on fresh schedules
#
#   ./deploy.sh                   starts every process here, waits until it serves, and stops all of it when it is ended
#   ./deploy.sh NAME [NAME ...]   starts these processes alone; the others are expected at their addresses
#
# Processes: prefill-0 prefill-1 decode-0 router-0
# The variables below can be set from outside. LOGS=DIR writes one log a process instead of the terminal.
# Needs bash 4.4, curl and setsid.
# shellcheck disable=SC2329
set -euo pipefail

PREFILL_0_HOST=${PREFILL_0_HOST:-127.0.0.1}
PREFILL_0_PORT=${PREFILL_0_PORT:-8000}
PREFILL_0_SIDE_CHANNEL_PORT=${PREFILL_0_SIDE_CHANNEL_PORT:-8001}
PREFILL_0_GPUS=${PREFILL_0_GPUS:-0}
PREFILL_1_HOST=${PREFILL_1_HOST:-127.0.0.1}
PREFILL_1_PORT=${PREFILL_1_PORT:-8100}
PREFILL_1_SIDE_CHANNEL_PORT=${PREFILL_1_SIDE_CHANNEL_PORT:-8101}
PREFILL_1_GPUS=${PREFILL_1_GPUS:-1}
DECODE_0_HOST=${DECODE_0_HOST:-127.0.0.1}
DECODE_0_PORT=${DECODE_0_PORT:-8200}
DECODE_0_SIDE_CHANNEL_PORT=${DECODE_0_SIDE_CHANNEL_PORT:-8201}
DECODE_0_GPUS=${DECODE_0_GPUS:-2}
ROUTER_0_HOST=${ROUTER_0_HOST:-127.0.0.1}
ROUTER_0_PORT=${ROUTER_0_PORT:-8300}
ROUTER_0_PROMETHEUS_PORT=${ROUTER_0_PROMETHEUS_PORT:-8301}

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
    case $name in prefill-0|prefill-1|decode-0|router-0) ;; *) die "there is no process $name; there are prefill-0 prefill-1 decode-0 router-0" ;; esac
done
((${#chosen[@]})) || chosen=(prefill-0 prefill-1 decode-0 router-0)

if mine prefill-0; then
    place prefill-0 "${PREFILL_0_HOST}" "${PREFILL_0_PORT}" "${PREFILL_0_SIDE_CHANNEL_PORT}"
    start prefill-0 \
        env \
        CUDA_VISIBLE_DEVICES="${PREFILL_0_GPUS}" \
        LMCACHE_CHUNK_SIZE=256 \
        LMCACHE_LOCAL_CPU=True \
        LMCACHE_MAX_LOCAL_CPU_SIZE=32 \
        LMCACHE_TRACK_USAGE=false \
        PYTHONHASHSEED=0 \
        VLLM_NIXL_SIDE_CHANNEL_HOST="${PREFILL_0_HOST}" \
        VLLM_NIXL_SIDE_CHANNEL_PORT="${PREFILL_0_SIDE_CHANNEL_PORT}" \
        VLLM_NO_USAGE_STATS=1 \
        vllm \
        serve \
        Qwen/Qwen3-8B \
        --host \
        "${PREFILL_0_HOST}" \
        --port \
        "${PREFILL_0_PORT}" \
        --served-model-name \
        Qwen/Qwen3-8B \
        --kv-transfer-config \
        '{"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_load_failure_policy":"fail","kv_role":"kv_producer"},{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}]},"kv_load_failure_policy":"fail","kv_role":"kv_producer"}'
fi

if mine prefill-1; then
    place prefill-1 "${PREFILL_1_HOST}" "${PREFILL_1_PORT}" "${PREFILL_1_SIDE_CHANNEL_PORT}"
    start prefill-1 \
        env \
        CUDA_VISIBLE_DEVICES="${PREFILL_1_GPUS}" \
        LMCACHE_CHUNK_SIZE=256 \
        LMCACHE_LOCAL_CPU=True \
        LMCACHE_MAX_LOCAL_CPU_SIZE=32 \
        LMCACHE_TRACK_USAGE=false \
        PYTHONHASHSEED=0 \
        VLLM_NIXL_SIDE_CHANNEL_HOST="${PREFILL_1_HOST}" \
        VLLM_NIXL_SIDE_CHANNEL_PORT="${PREFILL_1_SIDE_CHANNEL_PORT}" \
        VLLM_NO_USAGE_STATS=1 \
        vllm \
        serve \
        Qwen/Qwen3-8B \
        --host \
        "${PREFILL_1_HOST}" \
        --port \
        "${PREFILL_1_PORT}" \
        --served-model-name \
        Qwen/Qwen3-8B \
        --kv-transfer-config \
        '{"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_load_failure_policy":"fail","kv_role":"kv_producer"},{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}]},"kv_load_failure_policy":"fail","kv_role":"kv_producer"}'
fi

if mine decode-0; then
    place decode-0 "${DECODE_0_HOST}" "${DECODE_0_PORT}" "${DECODE_0_SIDE_CHANNEL_PORT}"
    start decode-0 \
        env \
        CUDA_VISIBLE_DEVICES="${DECODE_0_GPUS}" \
        PYTHONHASHSEED=0 \
        VLLM_NIXL_SIDE_CHANNEL_HOST="${DECODE_0_HOST}" \
        VLLM_NIXL_SIDE_CHANNEL_PORT="${DECODE_0_SIDE_CHANNEL_PORT}" \
        VLLM_NO_USAGE_STATS=1 \
        vllm \
        serve \
        Qwen/Qwen3-8B \
        --host \
        "${DECODE_0_HOST}" \
        --port \
        "${DECODE_0_PORT}" \
        --served-model-name \
        Qwen/Qwen3-8B \
        --kv-transfer-config \
        '{"kv_connector":"NixlConnector","kv_load_failure_policy":"fail","kv_role":"kv_consumer"}'
fi

ready prefill-0 1800 token "http://${PREFILL_0_HOST}:${PREFILL_0_PORT}" '{"model": "Qwen/Qwen3-8B", "prompt": "Hello", "max_tokens": 1}'
ready prefill-1 1800 token "http://${PREFILL_1_HOST}:${PREFILL_1_PORT}" '{"model": "Qwen/Qwen3-8B", "prompt": "Hello", "max_tokens": 1}'
ready decode-0 1800 token "http://${DECODE_0_HOST}:${DECODE_0_PORT}" '{"model": "Qwen/Qwen3-8B", "prompt": "Hello", "max_tokens": 1}'

if mine router-0; then
    place router-0 "${ROUTER_0_HOST}" "${ROUTER_0_PORT}" "${ROUTER_0_PROMETHEUS_PORT}"
    start router-0 \
        env \
        CUDA_VISIBLE_DEVICES= \
        PYTHONHASHSEED=0 \
        vllm-router \
        --host \
        "${ROUTER_0_HOST}" \
        --port \
        "${ROUTER_0_PORT}" \
        --vllm-pd-disaggregation \
        --kv-connector \
        nixl \
        --prefill \
        "http://${PREFILL_0_HOST}:${PREFILL_0_PORT}" \
        --prefill \
        "http://${PREFILL_1_HOST}:${PREFILL_1_PORT}" \
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

ready router-0 180 token "http://${ROUTER_0_HOST}:${ROUTER_0_PORT}" '{"model": "Qwen/Qwen3-8B", "prompt": "Hello", "max_tokens": 1}'
if mine router-0; then say serving at "http://${ROUTER_0_HOST}:${ROUTER_0_PORT}/v1"; fi
# Nothing but an end ends it.
wait -n || true
alive
die "a process has ended"
