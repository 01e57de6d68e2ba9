#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tiering under 1,000 real kills of programs and keepers, while the source changes in between, and a folder of 100,000 files; every byte
# that a program reads is compared. About twenty minutes.
#
# usage: scripts/soak_tiering.sh [--kills N] [--files N] [--seed N] [--folder DIR]
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${FRESHET_BIN:-}" ]; then
  "$root/scripts/build.sh" freshet >&2
  "$root/scripts/build.sh" slow_folder >&2 || echo "soak_tiering: there is no slow folder in this build" >&2
  FRESHET_BIN="$root/build/bin"
fi
exec python3 "$root/tests/repo/tier/soak.py" "$FRESHET_BIN" "$@"
