#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints of up to six ranks under faults, for as long as it is told: ranks killed at each durable step or at any moment, one,
# several or all; stopped, for ever or for a while; hosts that lose their disks; other numbers of ranks; every byte that a rank
# restores is compared with what it has to be. As root the ranks stand in three network namespaces, with keys, and cables are cut
# and healed; else all are on loopback.
#
# usage: scripts/soak_checkpoint.sh [SECONDS] [--seed N] [--folder DIR]     (default: 600)
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${FRESHET_BIN:-}" ]; then
  "$root/scripts/build.sh" checkpoint_ranks freshet net_lab >&2
  FRESHET_BIN="$root/build/bin"
fi
seconds=${1:-600}
[ $# -eq 0 ] || shift
soak=(python3 "$root/tests/repo/levels/soak.py" "$FRESHET_BIN/checkpoint_ranks" "$seconds" "$@")
lab=("$FRESHET_BIN/lab/net_lab" --host host0 --host host1 --host host2 --loss 0 --)
if why=$("${lab[@]}" true 2>&1); then
  exec "${lab[@]}" "${soak[@]}"
fi
echo "soak_checkpoint: on loopback alone: $why" >&2
exec "${soak[@]}"
