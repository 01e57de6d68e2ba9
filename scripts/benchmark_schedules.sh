#!/usr/bin/env bash
# Prints the tables of docs/schedules.md: every schedule on every learning curve, over the best that was possible. A few
# seconds, the same figures on every machine.
#
# usage: scripts/benchmark_schedules.sh [--docs]
#   --docs   put the tables between the `<!-- schedules -->` lines of docs/schedules.md, and draw docs/schedules/*.svg
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

docs=0
for argument in "$@"; do
  case "$argument" in
    --docs) docs=1 ;;
    -h | --help) sed -n 's/^# \{0,1\}//; /^usage/,/^With/p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "benchmark_schedules: no option '$argument'" >&2; exit 2 ;;
  esac
done

if [ -z "${FRESHET_BIN:-}" ]; then
  "$root/scripts/build.sh" schedules >&2
  FRESHET_BIN="$root/build/bin"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/freshet-schedules.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$FRESHET_BIN/benchmarks/schedules" --series "$work/series" > "$work/output"
grep -v '^{' "$work/output" | tee "$work/tables"
[ $docs = 1 ] || exit 0

python3 - "$root/docs/schedules.md" "$work/tables" << 'PYTHON'
import sys
path, tables = sys.argv[1], open(sys.argv[2]).read().strip()
before, mark, rest = open(path).read().partition("<!-- schedules -->\n")
_, end, after = rest.partition("<!-- end of schedules -->\n")
if not mark or not end:
    sys.exit("benchmark_schedules: docs/schedules.md lacks its <!-- schedules --> lines")
open(path, "w").write(before + mark + tables + "\n" + end + after)
PYTHON
mkdir -p "$root/docs/schedules"
gnuplot -e "series='$work/series'; out='$root/docs/schedules'" "$root/benchmarks/schedules/plots.gp"
