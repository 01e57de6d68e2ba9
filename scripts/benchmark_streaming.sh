#!/usr/bin/env bash
# Prints the tables of every streaming benchmark, as docs/benchmarks.md has them. Run it on a machine that does nothing
# else, as root: the hosts are network namespaces.
#
# usage: scripts/benchmark_streaming.sh [--quick] [--docs] [BENCHMARK…]
#   --quick     smaller sizes, a minute at most for each
#   --docs      put the tables into docs/benchmarks.md, each below its `<!-- NAME -->` line
#   BENCHMARK   delta remote thin_link fanout catch_up rollback notify many_tensors viper_modes (default: all)
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

all=(delta remote thin_link fanout catch_up rollback notify many_tensors viper_modes)
quick=() docs=0 wanted=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) quick=(--quick) ;;
    --docs) docs=1 ;;
    -h | --help) sed -n 's/^# \{0,1\}//; /^usage/,/^With/p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *)
      [[ " ${all[*]} " == *" $1 "* ]] || { echo "benchmark_streaming: no benchmark '$1'" >&2; exit 2; }
      wanted+=("$1")
      ;;
  esac
  shift
done
[ ${#wanted[@]} -gt 0 ] || wanted=("${all[@]}")

if [ -z "${FRESHET_BIN:-}" ]; then
  "$root/scripts/install_dependencies.sh" peers >&2 || echo "benchmark_streaming: some peers are missing" >&2
  "$root/scripts/build.sh" "${wanted[@]}" live_run >&2
  FRESHET_BIN="$root/build/bin"
fi

# Replaces what stands between `<!-- NAME -->` and the next heading.
put_into_docs() {
  python3 - "$root/docs/benchmarks.md" "$1" "$2" << 'PYTHON'
import re, sys
path, name, table = sys.argv[1], sys.argv[2], open(sys.argv[3]).read().strip()
text = open(path).read()
mark = f"<!-- {name} -->\n"
if mark not in text:
    sys.exit(f"benchmark_streaming: docs/benchmarks.md has no line {mark.strip()}")
before, after = text.split(mark, 1)
heading = re.search(r"^#", after, re.MULTILINE)
rest = after[heading.start():] if heading else ""
open(path, "w").write(before + mark + table + "\n" + ("\n" + rest if rest else ""))
PYTHON
}

failed=0
output=$(mktemp "${TMPDIR:-/tmp}/freshet-benchmark.XXXXXX")
trap 'rm -f "$output"' EXIT
for name in "${wanted[@]}"; do
  program="$FRESHET_BIN/benchmarks/$name"
  echo "## $name"
  echo
  if [ -x "$program" ] && "$program" "${quick[@]}" > "$output"; then
    grep -v '^{' "$output" > "$output.table" || true
    cat "$output.table"
    [ $docs = 0 ] || put_into_docs "$name" "$output.table"
    rm -f "$output.table"
  else
    echo "(failed)"
    failed=1
  fi
done
exit $failed
