#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is needed, builds, and runs the tests. Ends with the line "N passed, M failed, K skipped" over everything
# that ran, each skip with its reason above it, and above these where the time went. Exit code 0 when nothing failed.
#
# usage: scripts/test.sh [--all | --quick | --label NAME]
#   (nothing)      the tests of the release build, but for the suites with the label long
#   --all          every test; compiles the benchmarks and the kernels for NVIDIA's devices, too; then the tests with the
#                  address and undefined-behaviour sanitizers and with the thread sanitizer
#   --quick        only tests that start no program, simulate no storm and take no second: what one runs while working
#   --label NAME   only tests with that label: a room (core, transport, repo …), or quick, storm, process, net, service,
#                  house, python, gpu, slow, long
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  echo "usage: $0 [--all | --quick | --label NAME]" >&2
  exit 2
}

presets=(release)
label=
case "${1:-}" in
  "") [ $# -eq 0 ] || usage ;;
  --all) presets+=(asan-ubsan tsan) ;;
  --quick) label=quick ;;
  --label) label=${2:-}; shift ;;
  *) usage ;;
esac
[ $# -le 1 ] && [[ "$label" =~ ^[a-z_]*$ ]] || usage

# Which of a preset's tests run.
chosen=()
if [ -n "$label" ]; then
  chosen=(-L "^$label\$")
elif [ ${#presets[@]} -eq 1 ]; then
  chosen=(-LE '^long$')
fi

# What runs beside this script ends with it, and so does what that started.
times= next_log= frameworks_log= next_build= frameworks_made= watcher=
end_job() {
  local child
  for child in $(cat /proc/"$1"/task/*/children 2> /dev/null); do end_job "$child"; done
  kill "$1" 2> /dev/null || true
}
end() {
  local job
  for job in $(cat /proc/$$/task/*/children 2> /dev/null); do end_job "$job"; done
  rm -f "$times" "$next_log" "$frameworks_log"
}
trap end EXIT

seconds_of() { awk -v from="$1" -v to="$(date +%s.%N)" 'BEGIN { printf "%.1f\n", to - from }'; }

times=$(mktemp "${TMPDIR:-/tmp}/freshet-times.XXXXXX")
started=$(date +%s.%N)
begin=$started
"$root/scripts/install_dependencies.sh"
if [ ${#presets[@]} -gt 1 ]; then
  "$root/scripts/install_dependencies.sh" ceph debugger || echo "test.sh: without Ceph's daemons, whose tests are skipped, or a debugger, that shows where a test hangs" >&2
fi
echo "packages install $(seconds_of "$begin")" >> "$times"
if [ ${#presets[@]} -gt 1 ]; then
  begin=$(date +%s.%N)
  "$root/scripts/cuda_compiler.sh" || echo "test.sh: without NVIDIA's compiler: the build has no kernels for devices, and their tests are skipped" >&2
  echo "nvcc install $(seconds_of "$begin")" >> "$times"
fi

# Some tests wait for what takes its time, so one more than there are processors runs at once.
at_once=$((jobs + 1))

build() {
  local preset=$1 begin targets=(test_programs)
  [ "$preset" = release ] && targets+=(user_programs)
  [ "$preset" = release ] && [ ${#presets[@]} -gt 1 ] && targets+=(benchmarks_compile)
  begin=$(date +%s.%N)
  build_preset "$preset" "${targets[@]}" || { echo "== $preset: the build failed" >&2; return 1; }
  echo "$preset build $(seconds_of "$begin")" >> "$times"
}

# The next preset is built beside the tests of this one, which wait more than they compute. It comes second, and what it
# prints is shown when its turn comes.
next_log=$(mktemp "${TMPDIR:-/tmp}/freshet-build.XXXXXX")

# Nothing else is left to do: what was built beside tests gets its priority back, where the machine lets us.
hurry() {
  local child
  renice -n 0 -p "$1" > /dev/null 2>&1 || true
  for child in $(cat /proc/"$1"/task/*/children 2> /dev/null); do hurry "$child"; done
}

# Every suite leaves a JUnit file; whatever else can write one (pytest --junitxml) joins by adding NAME=FILE here. A file
# that was not written counts as a failure.
suites=()
stuck=()

# With --all the package's tests meet the frameworks, which are fetched beside the first build.
frameworks_log=$(mktemp "${TMPDIR:-/tmp}/freshet-frameworks.XXXXXX")
free_gigabytes=$(df -Pk "$root" | awk 'NR == 2 { print int($4 / 1048576) }')
if [ ${#presets[@]} -gt 1 ] && [ "$free_gigabytes" -lt 20 ]; then
  echo "test.sh: without the frameworks, whose tests are skipped: $free_gigabytes GB are free here, and with all builds they take 15" >&2
elif [ ${#presets[@]} -gt 1 ]; then
  (renice -n 10 "$BASHPID" > /dev/null 2>&1
    begin=$(date +%s.%N)
    "$root/scripts/python.sh" --frameworks --only-venv
    echo "frameworks install $(seconds_of "$begin")" >> "$times") > "$frameworks_log" 2>&1 &
  frameworks_made=$!
fi

# Where the machine lacks what the Python package needs, its tests say so as skips; one that cannot be built is a failure.
make_python_package() {
  local begin
  echo "== $preset: Python package"
  begin=$(date +%s.%N)
  if [ -n "$frameworks_made" ]; then
    hurry "$frameworks_made"
    wait "$frameworks_made" || true
    frameworks_made=
    cat "$frameworks_log"
  fi
  if ! "$root/scripts/python.sh" --if-needed && [ ! -f "$folder/venv.why_not" ]; then
    rm -rf "$folder/venv"
    suites+=("python=$folder/no-python-package.xml")
  fi
  echo "$preset wheel $(seconds_of "$begin")" >> "$times"
}

for i in "${!presets[@]}"; do
  preset=${presets[i]}
  folder=$(folder_of "$preset")
  results="$folder/test-results.xml"
  suites+=("$preset=$results")
  rm -rf "$results" "$folder/test-results"
  echo "== $preset: build"
  built=0
  if [ -n "$next_build" ]; then
    hurry "$next_build"
    wait "$next_build" || built=1
    next_build=
    cat "$next_log"
  else
    build "$preset" || built=1
  fi
  if [ "$built" -eq 0 ] && [ "$preset" = release ] && { [ -z "$label" ] || [ "$label" = python ]; }; then
    make_python_package
  fi
  if [ $((i + 1)) -lt ${#presets[@]} ]; then
    # Low priority goes to its children, too.
    (renice -n 10 "$BASHPID" > /dev/null 2>&1; build "${presets[i + 1]}") > "$next_log" 2>&1 &
    next_build=$!
  fi
  [ "$built" -eq 0 ] || continue
  echo "== $preset: test"
  begin=$(date +%s.%N)
  mkdir -p "$folder/test-results"
  "$root/scripts/show_stuck_tests.sh" "$folder" 300 > "$folder/stuck-tests.txt" &
  watcher=$!
  # The thread sanitizer makes ten of one: there, what waits for a peer must not wait for a processor too.
  [ "$preset" != tsan ] || at_once=$jobs
  (cd "$folder" && run_in "$preset" ctest --parallel "$at_once" --output-on-failure --no-tests=error \
    "${chosen[@]}" --output-junit "$results") || true
  end_job "$watcher"
  wait "$watcher" || true
  watcher=
  stuck+=("$folder/stuck-tests.txt")
  echo "$preset tests $(seconds_of "$begin")" >> "$times"
done
echo "everything took $(seconds_of "$started")" >> "$times"

if [[ " ${chosen[*]} " == *" -LE "* ]] && [ -f "$folder/CTestTestfile.cmake" ]; then
  left_out=$(cd "$folder" && ctest -N -L '^long$' 2> /dev/null | sed -n 's/^ *Test *#[0-9]*: //p' | paste -sd ' ')
  echo "left to --all, or to --label long: $left_out"
fi

# Near the end, where a log that was cut still has it.
head -q -n 60 "${stuck[@]}" < /dev/null

python3 "$root/scripts/summarize_tests.py" --times "$times" --budget "$root/scripts/test_budget.json" "${suites[@]}"
