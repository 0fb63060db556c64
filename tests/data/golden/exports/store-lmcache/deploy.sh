#!/usr/bin/env bash
# Trial 7 (winner) of study chat-h100, exported by tuner.
# model: Qwen/Qwen3-8B; vLLM 0.32.0; source: live
# configuration: enable_prefix_caching=on, kv_store=lmcache, kv_store_ram_gib=64
# promised: TTFT p99 ≤ 2,000 ms; attainment ≥ 99 %
# measured: 0.123 USD per 1,000 good requests; goodput 8.97 requests/s; TTFT p99 1,710 ms; n = 640 requests; verified on fresh schedules
#
#   ./deploy.sh                   starts every process here, waits until it serves, and stops all of it when it is ended
#   ./deploy.sh NAME [NAME ...]   starts these processes alone; the others are expected at their addresses
#
# Processes: store-0 engine-0
# The variables below can be set from outside. LOGS=DIR writes one log a process instead of the terminal.
# Needs bash 4.4, curl and setsid.
# shellcheck disable=SC2329
set -euo pipefail

STORE_0_HOST=${STORE_0_HOST:-127.0.0.1}
STORE_0_PORT=${STORE_0_PORT:-8000}
STORE_0_RPC_PORT=${STORE_0_RPC_PORT:-8001}
STORE_0_PROMETHEUS_PORT=${STORE_0_PROMETHEUS_PORT:-8002}
ENGINE_0_HOST=${ENGINE_0_HOST:-127.0.0.1}
ENGINE_0_PORT=${ENGINE_0_PORT:-8100}
ENGINE_0_GPUS=${ENGINE_0_GPUS:-0}

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
    case $name in store-0|engine-0) ;; *) die "there is no process $name; there are store-0 engine-0" ;; esac
done
((${#chosen[@]})) || chosen=(store-0 engine-0)

if mine store-0; then
    place store-0 "${STORE_0_HOST}" "${STORE_0_PORT}" "${STORE_0_RPC_PORT}" "${STORE_0_PROMETHEUS_PORT}"
    start store-0 \
        env \
        CUDA_VISIBLE_DEVICES= \
        LMCACHE_TRACK_USAGE=false \
        PYTHONHASHSEED=0 \
        /lm/bin/lmcache \
        server \
        --host \
        "${STORE_0_HOST}" \
        --port \
        "${STORE_0_RPC_PORT}" \
        --http-port \
        "${STORE_0_PORT}" \
        --prometheus-port \
        "${STORE_0_PROMETHEUS_PORT}" \
        --l1-size-gb \
        64 \
        --l1-init-size-gb \
        64 \
        --eviction-policy \
        LRU \
        --chunk-size \
        256 \
        --hash-algorithm \
        blake3 \
        --max-workers \
        2 \
        --supported-transfer-mode \
        auto
fi

ready store-0 120 tcp "${STORE_0_HOST}" "${STORE_0_RPC_PORT}"

if mine engine-0; then
    place engine-0 "${ENGINE_0_HOST}" "${ENGINE_0_PORT}"
    start engine-0 \
        env \
        CUDA_VISIBLE_DEVICES="${ENGINE_0_GPUS}" \
        PYTHONHASHSEED=0 \
        VLLM_NO_USAGE_STATS=1 \
        vllm \
        serve \
        Qwen/Qwen3-8B \
        --host \
        "${ENGINE_0_HOST}" \
        --port \
        "${ENGINE_0_PORT}" \
        --served-model-name \
        Qwen/Qwen3-8B \
        --enable-prefix-caching \
        --kv-transfer-config \
        "{\"kv_connector\":\"LMCacheMPConnector\",\"kv_connector_extra_config\":{\"lmcache.mp.host\":\"tcp://${STORE_0_HOST}\",\"lmcache.mp.port\":\"${STORE_0_RPC_PORT}\"},\"kv_role\":\"kv_both\"}"
fi

ready engine-0 1800 token "http://${ENGINE_0_HOST}:${ENGINE_0_PORT}" '{"model": "Qwen/Qwen3-8B", "prompt": "Hello", "max_tokens": 1}'
if mine engine-0; then say serving at "http://${ENGINE_0_HOST}:${ENGINE_0_PORT}/v1"; fi
# Nothing but an end ends it.
wait -n || true
alive
die "a process has ended"
