#!/usr/bin/env bash
# Installs what is needed, builds, and runs the tests. Ends with the line "N passed, M failed, K skipped" over everything
# that ran, each skip with its reason above it. Exit code 0 when nothing failed.
#
# usage: scripts/test.sh [--all]
#   --all   also the tests built with the address and undefined-behaviour sanitizers, and with the thread sanitizer
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

presets=(release)
for argument in "$@"; do
  case "$argument" in
    --all) presets+=(asan-ubsan tsan) ;;
    *) echo "usage: $0 [--all]" >&2; exit 2 ;;
  esac
done

"$root/scripts/install_dependencies.sh"
if [ ${#presets[@]} -gt 1 ]; then
  "$root/scripts/install_dependencies.sh" ceph debugger || echo "test.sh: without Ceph's daemons, whose tests are skipped, or a debugger, that shows where a test hangs" >&2
fi

# Every suite leaves a JUnit file; whatever else can write one (pytest --junitxml) joins by adding NAME=FILE here. A file
# that was not written counts as a failure.
suites=()
stuck=()
for preset in "${presets[@]}"; do
  folder=$(folder_of "$preset")
  results="$folder/test-results.xml"
  suites+=("$preset=$results")
  rm -f "$results"
  echo "== $preset: build"
  build_preset "$preset" all || { echo "== $preset: the build failed" >&2; continue; }
  echo "== $preset: test"
  "$root/scripts/show_stuck_tests.sh" "$folder" 180 > "$folder/stuck-tests.txt" &
  watcher=$!
  (cd "$folder" && run_in "$preset" ctest --parallel "$jobs" --output-on-failure --output-junit "$results") || true
  kill "$watcher" 2> /dev/null && wait "$watcher" || true
  stuck+=("$folder/stuck-tests.txt")
done

# Near the end, where a log that was cut still has it.
head -q -n 60 "${stuck[@]}" < /dev/null

exec python3 "$root/scripts/summarize_tests.py" "${suites[@]}"
