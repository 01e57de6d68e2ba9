#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the tables of docs/schedules.md: every schedule on every learning curve, over the best that was possible. A few
# seconds; no measured time is in them.
#
# usage: scripts/benchmark_schedules.sh [--docs] [--live]
#   --docs   put the tables between the `<!-- schedules -->` lines of docs/schedules.md, and draw docs/schedules/*.svg
#   --live   real live runs as well, some ten minutes; with --docs between the `<!-- live -->` lines
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

docs=0 live=0
for argument in "$@"; do
  case "$argument" in
    --docs) docs=1 ;;
    --live) live=1 ;;
    -h | --help) sed -n 's/^# \{0,1\}//; /^usage/,/^With/p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "benchmark_schedules: no option '$argument'" >&2; exit 2 ;;
  esac
done

if [ -z "${FRESHET_BIN:-}" ]; then
  "$root/scripts/build.sh" schedules live_run >&2
  FRESHET_BIN="$root/build/bin"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/freshet-schedules.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$FRESHET_BIN/benchmarks/schedules" --series "$work/series" > "$work/output"
grep -v '^{' "$work/output" | tee "$work/tables"
if [ $live = 1 ]; then
  python3 "$root/benchmarks/schedules/live.py" "$FRESHET_BIN/live_run" | tee "$work/live"
fi
[ $docs = 1 ] || exit 0

# put_between NAME FILE: what stands between `<!-- NAME -->` and `<!-- end of NAME -->` becomes the file's text.
put_between() {
  python3 - "$root/docs/schedules.md" "$1" "$2" << 'PYTHON'
import sys
path, name, text = sys.argv[1], sys.argv[2], open(sys.argv[3]).read().strip()
before, mark, rest = open(path).read().partition(f"<!-- {name} -->\n")
_, end, after = rest.partition(f"<!-- end of {name} -->\n")
if not mark or not end:
    sys.exit(f"benchmark_schedules: docs/schedules.md lacks its lines <!-- {name} -->")
open(path, "w").write(before + mark + text + "\n" + end + after)
PYTHON
}
put_between schedules "$work/tables"
[ $live = 0 ] || put_between live "$work/live"
mkdir -p "$root/docs/schedules"
gnuplot -e "series='$work/series'; out='$root/docs/schedules'" "$root/benchmarks/schedules/plots.gp"
