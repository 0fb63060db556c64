#!/usr/bin/env bash
# Debian packages that tests and the CPU engine use: a browser and fonts to look at reports, a C compiler for the
# known-timing server and vLLM's kernels, NUMA for vLLM's thread binding, RDMA libraries for the Mooncake connector.
#
#   tools/system_deps.sh        installs what is missing when run as root; otherwise prints the line to run
set -euo pipefail

packages=(chromium fonts-dejavu-core gcc g++ libc6-dev libibverbs1 libnuma1 librdmacm1)

command -v dpkg-query >/dev/null || { echo "system_deps: not a Debian system; install by hand: ${packages[*]}" >&2; exit 0; }

missing=()
for package in "${packages[@]}"; do
  state="$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)"
  [[ "$state" == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

if [[ "$(id -u)" -ne 0 ]]; then
  echo "system_deps: missing ${missing[*]}; run: sudo apt-get update && sudo apt-get install --yes --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet --quiet
apt-get install --yes --quiet --quiet --no-install-recommends "${missing[@]}"
