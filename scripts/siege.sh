#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Hostile peers beside a live run: fuzzed frames at every port, floods, resets, slow readers, messages and topics without end,
# other users. It is good when no request failed, no answer was torn, nobody died or grew past the bound, nothing was had that is
# nobody's to have, and the training loop's p99.9 is at most twice what it is beside as many processes that only burn processor time.
# One line of JSON on stdout; what did not hold, a line each on stderr; exit code 0 or 1. As root, it tries another account, too.
#
# usage: scripts/siege.sh [SECONDS] [--seed N] [--no-loop] [--only ATTACK,…] [--spare KIND,…] [--keep] [ARG…]
#   SECONDS          how long (default: 600); the run that the loop is compared with takes a quarter more
#   --seed N         of everything that is random (default: drawn, and printed)
#   --no-loop        does not compare the training loop's times
#   --only ATTACK,…  these attacks alone (tests/siege/attacks.py)
#   --spare KIND,…   leaves such ports alone (control, news, data, raw, repository, answers, door, curve)
#   --keep           leaves the folder with all output
#   ARG…             further arguments of live_run
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

case "${1:-}" in
  -h | --help) sed -n 's/^# \{0,1\}//; /^usage/,/^With/p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
seconds=600
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi
if [ -z "${FRESHET_BIN:-}" ]; then
  "$root/scripts/build.sh" live_run freshet >&2
  FRESHET_BIN="$root/build/bin"
fi
PYTHONDONTWRITEBYTECODE=1 exec python3 "$root/tests/siege/siege.py" --bin "$FRESHET_BIN" --seconds "$seconds" "$@"
