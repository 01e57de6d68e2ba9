#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the live run once for each schedule, and prints what each cost: `online` first, then `every:N` with N chosen so
# that it publishes as often as `online` did, then `epoch`. Real processes, a real model, measured losses.
#
# usage: scripts/compare_schedules.sh [--seconds S] [ARG…]     (arguments of live_run; default: 30 seconds each)
# With FRESHET_BIN the program in that folder is taken; otherwise it is built.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

seconds=30
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --seconds) seconds=$2; shift 2 ;;
    *) arguments+=("$1"); shift ;;
  esac
done

if [ -z "${FRESHET_BIN:-}" ]; then
  "$root/scripts/build.sh" live_run >&2
  FRESHET_BIN="$root/build/bin"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/freshet-compare.XXXXXX")
trap 'rm -rf "$work"' EXIT

run() {
  mkdir -m 700 "$work/host"
  echo "compare_schedules: $1, $seconds s" >&2
  FRESHET_RUN_DIR="$work/host" "$FRESHET_BIN/live_run" --seconds "$seconds" --schedule "$1" --json \
    --report "$work/report-${1/:/-}" "${arguments[@]}" > "$work/output"
  tail -n 1 "$work/output" > "$work/${1/:/-}.json"
  rm -rf "$work/host" "$work/report-${1/:/-}/repository"
}

run online
interval=$(python3 -c '
import json, sys
run = json.load(open(sys.argv[1]))
print(max(1, round(run["steps"] / max(1, run["versions_published"] - 1))))' "$work/online.json")
run "every:$interval"
run epoch

python3 - "$work" online "every-$interval" epoch << 'PYTHON'
import json, sys
folder, names = sys.argv[1], sys.argv[2:]
print("| schedule | steps | publishes | requests | cumulative loss | a request | training stood still | of the time |")
print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
for name in names:
    run = json.load(open(f"{folder}/{name}.json"))
    loss, requests = run["cumulative_inference_loss"], max(1, run["requests"] - run["failed_requests"])
    still = run["blocked_ms_total"]
    print(f"| {name.replace('-', ':')} | {run['steps']} | {run['versions_published']} | {requests} | {loss:.1f} | "
          f"{loss / requests:.4f} | {still:.0f} ms | {still / run['seconds'] / 10:.2f} % |")
PYTHON
