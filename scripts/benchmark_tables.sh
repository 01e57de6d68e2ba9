# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts share that print benchmarks' tables. A script sources this, says in `all` which benchmarks it runs
# and in `also` which programs they need beside them, and calls print_tables "$@". It may have a function
# arguments_of NAME, which puts into `arguments` what a benchmark is called with.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
me=$(basename "$0" .sh)

# Replaces what stands in the benchmark's page (benchmarks/NAME/README.md) between `<!-- NAME -->` and the next heading: put_into_docs NAME TABLE-FILE
put_into_docs() {
  python3 - "$root/benchmarks/$1/README.md" "$1" "$2" << 'PYTHON'
import re, sys
path, name, table = sys.argv[1], sys.argv[2], open(sys.argv[3]).read().strip()
text = open(path).read()
mark = f"<!-- {name} -->\n"
if mark not in text:
    sys.exit(f"{path} has no line {mark.strip()}")
before, after = text.split(mark, 1)
heading = re.search(r"^#", after, re.MULTILINE)
rest = after[heading.start():] if heading else ""
open(path, "w").write(before + mark + table + "\n" + ("\n" + rest if rest else ""))
PYTHON
}

print_tables() {
  local quick=() docs=0 wanted=() arguments=() name program output failed=0
  while [ $# -gt 0 ]; do
    case "$1" in
      --quick) quick=(--quick) ;;
      --docs) docs=1 ;;
      -h | --help) sed -n 's/^# \{0,1\}//; /^usage/,/^With/p' "$0"; exit 0 ;;
      *)
        [[ " ${all[*]} " == *" $1 "* ]] || { echo "$me: no benchmark '$1'" >&2; exit 2; }
        wanted+=("$1")
        ;;
    esac
    shift
  done
  [ ${#wanted[@]} -gt 0 ] || wanted=("${all[@]}")

  # Programs that somebody else built run beside the same peers.
  "$root/scripts/install_dependencies.sh" peers >&2 || echo "$me: some peers are missing" >&2
  if [ -z "${FRESHET_BIN:-}" ]; then
    "$root/scripts/build.sh" "${wanted[@]}" "${also[@]}" >&2
    FRESHET_BIN="$root/build/bin"
  fi

  output=$(mktemp "${TMPDIR:-/tmp}/freshet-benchmark.XXXXXX")
  for name in "${wanted[@]}"; do
    program="$FRESHET_BIN/benchmarks/$name"
    echo "## $name"
    echo
    arguments=()
    if declare -F arguments_of > /dev/null; then arguments_of "$name"; fi
    if [ -x "$program" ] && "$program" "${quick[@]}" "${arguments[@]}" > "$output"; then
      grep -v '^{' "$output" > "$output.table" || true
      cat "$output.table"
      [ $docs = 0 ] || put_into_docs "$name" "$output.table" || failed=1
    else
      echo "(failed)"
      failed=1
    fi
  done
  rm -f "$output" "$output.table"
  [ $docs = 0 ] || "$root/scripts/summarize_benchmarks.py" || failed=1
  exit $failed
}
