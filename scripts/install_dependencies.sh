#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian 12 packages that building, testing and running Freshet need, those that are missing only: a second
# run asks no package source and needs no network.
#
# usage: scripts/install_dependencies.sh [peers] [tidy] [ceph] [debugger]
#   peers      also what the benchmarks measure Freshet against
#   tidy       also what the preset `tidy` needs
#   ceph       also the daemons of Ceph that the tests of its backend start
#   debugger   also what shows where a test hangs
set -euo pipefail

packages=(
  # The build.
  g++ cmake ninja-build pkg-config ccache mold
  # Libraries.
  libfmt-dev libexpected-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev
  libflatbuffers-dev flatbuffers-compiler
  libxxhash-dev libsodium-dev libzstd-dev
  libzmq3-dev cppzmq-dev libucx-dev libhiredis-dev
  librocksdb-dev librados-dev libisal-dev libeigen3-dev libcurl4-openssl-dev libexpat1-dev
  # The tests and benchmarks.
  libgtest-dev libgmock-dev libbenchmark-dev python3 redis-server libhdf5-dev
  iproute2 iptables
  libfuse3-dev fuse3
  # VELOC's C interface, and its tests.
  libopenmpi-dev openmpi-bin
  # The Python package; the rest of what it is built with comes from PyPI.
  python3-dev python3-venv
  # The live run's plots.
  gnuplot-nox
)
for group in "$@"; do
  case "$group" in
    peers) packages+=(ucx-utils rsync libsqlite3-dev) ;;  # Their Python parts: benchmarks/update_latency/peers/make_venv.sh
    tidy) packages+=(clang-14 clang-tidy-14 clang-format-14) ;;
    ceph) packages+=(ceph-mon ceph-osd ceph-common) ;;
    debugger) packages+=(gdb procps) ;;
    *) echo "usage: $0 [peers] [tidy] [ceph] [debugger]" >&2; exit 2 ;;
  esac
done

fail() {
  echo "install_dependencies: $*" >&2
  exit 1
}

command -v dpkg-query > /dev/null || fail "this needs Debian 12 (no dpkg here); elsewhere install these yourself: ${packages[*]}"

installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2> /dev/null |
  awk '$2 == "installed" { print $1 }' || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF -- "$package" <<< "$installed" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo > /dev/null || fail "missing packages: ${missing[*]}; run this as root, or install sudo"
  as_root=(sudo)
fi

log=$(mktemp "${TMPDIR:-/tmp}/freshet-apt.XXXXXX")
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::http::Timeout=30 -o Acquire::Retries=2 \
    -o DPkg::Lock::Timeout=300 "$@" < /dev/null >> "$log" 2>&1
}

# A package list that is there already may do; only when it does not is a new one fetched.
echo "install_dependencies: installing ${#missing[@]} packages: ${missing[*]}" >&2
if ! apt install --no-install-recommends "${missing[@]}"; then
  if ! { apt update && apt install --no-install-recommends "${missing[@]}"; }; then
    reason=$(grep -E '^(E|Err):? ?' "$log" | tail -n 1 || true)
    fail "cannot install ${missing[*]}: ${reason:-apt-get failed} (no network, or no Debian 12 package source?)"
  fi
fi
