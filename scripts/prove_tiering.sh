#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a training set and a slow folder that shows it, trains an unchanged program on it for three epochs without Freshet and with it
# (there it is killed half-way and goes on), and prints losses, operations, bytes and times side by side. Fails unless the losses are
# equal to the last bit.
#
# The slow folder is a FUSE file system of this repository: 2 ms for each operation, 200 MB/s in all. Where FUSE is not to be had the
# set is read where it lies; then the times say what tiering costs, not what it saves.
#
# usage: scripts/prove_tiering.sh [FILES]     (default 1000, of about 110 KB)
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
count=${1:-1000}
[[ "$count" =~ ^[1-9][0-9]*$ ]] || { echo "usage: $0 [FILES]" >&2; exit 2; }
if [ -z "${FRESHET_BIN:-}" ]; then
  "$root/scripts/build.sh" freshet >&2
  "$root/scripts/build.sh" slow_folder >&2 || echo "prove_tiering: there is no slow folder in this build" >&2
  FRESHET_BIN="$root/build/bin"
fi
exec python3 "$root/tests/repo/tier/prove.py" "$FRESHET_BIN" "$count"
