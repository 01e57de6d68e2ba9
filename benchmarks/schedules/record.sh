#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Records learning curves again by training: runs the command that data/README.md has for each and writes
# data/NAME.csv. A few minutes for each text curve, seconds for the others.
#
# usage: benchmarks/schedules/record.sh NAME…     (--all for every one)
# The Python environment (numpy, scikit-learn) is made in build/record on first use; FRESHET_BIN names the folder of
# programs when it is not build/bin.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
programs=${FRESHET_BIN:-$root/build/bin}/benchmarks
python=${FRESHET_RECORD_PYTHON:-$root/build/record/bin/python}

[ $# -gt 0 ] || { sed -n 's/^# \{0,1\}//; /^usage/,/^build/p' "${BASH_SOURCE[0]}" >&2; exit 2; }
if [ "$1" = --all ]; then
  mapfile -t names < <(sed -n 's/^    \([a-z_0-9]*\): record_.*/\1/p' "$here/data/README.md")
  set -- "${names[@]}"
fi

# One thread: sums are then added in one order.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# The texts that the commands name; word splitting is wanted there.
export LC_ALL=C
licences=$(find /usr/share/common-licenses -type f | sort)
modules=$(ls /usr/lib/python3.11/*.py)
headers=$(ls /usr/include/c++/12/bits/*.h)
export licences modules headers

record_text() { "$programs/record_text" "$@"; }

record_classic() {
  if [ ! -x "$python" ]; then
    python3 -m venv "$root/build/record" >&2
    "$python" -m pip install -q numpy==2.4.6 scikit-learn==1.9.1 >&2
  fi
  "$python" "$here/record_classic.py" "$@"
}

for name in "$@"; do
  command=$(sed -n "s/^    $name: \(record_.*\)/\1/p" "$here/data/README.md")
  [ -n "$command" ] || { echo "record: data/README.md has no command for '$name'" >&2; exit 2; }
  echo "record: $name: $command" >&2
  eval "$command" > "$here/data/$name.csv.new"
  mv "$here/data/$name.csv.new" "$here/data/$name.csv"
done
