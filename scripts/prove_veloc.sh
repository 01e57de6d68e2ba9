#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles programs that call VELOC, unchanged, against the installed component `veloc`, and runs them under mpirun: to the end;
# once more from the last checkpoint; without the scratch; and one whose last rank ends the job in the middle. Says for each
# whether it passed.
#
# usage: scripts/prove_veloc.sh [SOURCE_FOLDER]
#   SOURCE_FOLDER   has VELOC's heatdis_mem.c, heatdis_file.c, heatdis_fault.cpp and heatdis.h, itself or in test/
#                   (default: tests/bindings/veloc/heat.c, in the same three ways)
# With FRESHET_BUILD_DIR the library built in that folder is installed; otherwise it is built. RANKS=N: so many (default: 4).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ranks=${RANKS:-4}

fail() {
  echo "prove_veloc: $*" >&2
  exit 1
}

[ $# -le 1 ] || { sed -n 's/^# \{0,1\}//; /^usage/,/^With/p' "$0" >&2; exit 2; }
for tool in mpicc mpicxx mpirun cmake; do command -v "$tool" > /dev/null || fail "needs $tool (openmpi-bin, libopenmpi-dev)"; done
if [ $# -eq 1 ]; then
  sources=$(cd "$1" && pwd)
  [ -f "$sources/heatdis_mem.c" ] || sources=$sources/test
  for name in heatdis_mem.c heatdis_file.c heatdis_fault.cpp heatdis.h; do
    [ -f "$sources/$name" ] || fail "$1 has no $name, and $1/test has none"
  done
fi
if [ -z "${FRESHET_BUILD_DIR:-}" ]; then
  "$root/scripts/build.sh" freshet_veloc >&2
  FRESHET_BUILD_DIR=$root/build
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/freshet-prove-veloc.XXXXXX")
trap 'rm -rf "$folder"' EXIT
prefix=$folder/prefix
cmake --install "$FRESHET_BUILD_DIR" --component veloc --prefix "$prefix" > "$folder/install.log" 2>&1 ||
  fail "the component does not install: $(cat "$folder/install.log")"
library=$(dirname "$(find "$prefix" -name libfreshet_veloc.so)")
[ -f "$prefix/include/veloc.h" ] && [ -f "$library/libfreshet_veloc.so" ] ||
  fail "the component has no include/veloc.h and libfreshet_veloc.so"
link=(-I "$prefix" -I "$prefix/include" -L "$library" "-Wl,-rpath,$library")

# compile WAY NAME: a program NAME.
compile() {
  local way=$1 name=$2
  if [ -z "${sources:-}" ]; then
    mpicc -O2 -std=c99 -Wall "-DWAY=$way" "$root/tests/bindings/veloc/heat.c" -o "$folder/$name" "${link[@]}" -lfreshet_veloc -lm
  elif [ -f "$sources/$name.cpp" ]; then
    mpicxx -O2 -w "$sources/$name.cpp" -o "$folder/$name" "${link[@]}" -lfreshet_veloc -lm
  else
    mpicc -O2 -w "$sources/$name.c" -o "$folder/$name" "${link[@]}" -lfreshet_veloc -lm
  fi
}

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_plm=isolated
export OMPI_MCA_btl_vader_single_copy_mechanism=none

# run NAME LOG: under mpirun, in folders of its own.
run() {
  local name=$1 log=$2
  printf 'scratch = %s\npersistent = %s\nmode = async\n' "$folder/$name.scratch" "$folder/$name.persistent" > "$folder/$name.cfg"
  mpirun -np "$ranks" "$folder/$name" 2 "$folder/$name.cfg" > "$log" 2>&1
}

has() { grep -q "$2" "$1"; }
last_error() { grep '^Step : ' "$1" | tail -n 1; }

# Each says on its standard output why it did not pass.
ends_and_goes_on() {
  local name=$1 log=$folder/$1.log
  run "$name" "$log.1" || { echo "the first run ended with $?"; return; }
  has "$log.1" 'Execution finished' || { echo "the first run did not come to its end"; return; }
  has "$log.1" 'iteration [0-9]' && { echo "the first run says that it goes on"; return; }
  run "$name" "$log.2" || { echo "the second run ended with $?"; return; }
  has "$log.2" 'iteration 600' || { echo "the second run does not go on from its last checkpoint"; return; }
  has "$log.2" 'Execution finished' || { echo "the second run did not come to its end"; return; }
  rm -rf "$folder/$name.scratch"
  run "$name" "$log.3" || { echo "the run without a scratch ended with $?"; return; }
  has "$log.3" 'iteration 600' || echo "the run without a scratch does not go on from the persistent checkpoint"
}

is_aborted_and_goes_on() {
  local name=$1 log=$folder/$1.log code=0
  run "$name" "$log.1" || code=$?
  [ $code -ne 0 ] || { echo "the first run was to be aborted"; return; }
  has "$log.1" 'Execution finished' && { echo "the first run came to its end"; return; }
  run "$name" "$log.2" || { echo "the second run ended with $?"; return; }
  has "$log.2" 'iteration 200' || { echo "the second run does not go on from its last checkpoint"; return; }
  has "$log.2" 'Execution finished' || { echo "the second run did not come to its end"; return; }
  [ "$(last_error "$log.2")" = "$(last_error "$folder/heatdis_mem.log.1")" ] ||
    echo "it ends with \"$(last_error "$log.2")\", the run without a fault with \"$(last_error "$folder/heatdis_mem.log.1")\""
}

failures=0
prove() {
  local way=$1 name=$2 check=$3 why
  if ! compile "$way" "$name" > "$folder/$name.compile" 2>&1; then
    why="it does not compile: $(tail -n 3 "$folder/$name.compile")"
  else
    why=$("$check" "$name")
  fi
  if [ -z "$why" ]; then
    echo "passed: $name"
    return
  fi
  echo "FAILED: $name: $why"
  for log in "$folder/$name.log."*; do [ ! -f "$log" ] || tail -n 5 "$log" >&2; done
  failures=$((failures + 1))
}
prove 1 heatdis_mem ends_and_goes_on
prove 2 heatdis_file ends_and_goes_on
prove 3 heatdis_fault is_aborted_and_goes_on
[ $failures -eq 0 ]
