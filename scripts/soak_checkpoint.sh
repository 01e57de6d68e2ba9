#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints of many ranks under faults, for as long as it is told: ranks killed at each durable step or at any moment, stopped,
# hosts that lose their disks, other numbers of ranks; every byte that a rank restores is compared with what it has to be.
#
# usage: scripts/soak_checkpoint.sh [SECONDS] [--seed N]     (default: 600)
# With FRESHET_BIN the program in that folder is taken; otherwise it is built.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${FRESHET_BIN:-}" ]; then
  "$root/scripts/build.sh" checkpoint_ranks >&2
  FRESHET_BIN="$root/build/bin"
fi
seconds=${1:-600}
[ $# -eq 0 ] || shift
exec python3 "$root/tests/repo/levels/soak.py" "$FRESHET_BIN/checkpoint_ranks" "$seconds" "$@"
