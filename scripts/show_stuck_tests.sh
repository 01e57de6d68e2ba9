#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Watches the test programs of a build folder until it is ended, and writes down once of each that has run for longer than
# any should what its threads are doing: a test that is killed at its time limit leaves nothing else to look at.
#
# usage: scripts/show_stuck_tests.sh FOLDER SECONDS   (prints to its standard output)
set -uo pipefail

# A small machine may have no list of its processes.
command -v pgrep > /dev/null && command -v ps > /dev/null || exit 0

folder=$1
seconds=$2
declare -A shown

show() {
  local pid=$1
  echo "stuck after $(ps -o etimes= -p "$pid" | tr -d ' ') s: $(tr '\0' ' ' < "/proc/$pid/cmdline")"
  local task
  for task in "/proc/$pid/task"/*; do
    echo "  thread ${task##*/} $(cat "$task/comm") $(awk '/^State|^TracerPid/ { printf "%s ", $0 }' "$task/status")$(cat "$task/wchan")"
  done
  # Not of one that is traced already, as the leak checker traces its own threads.
  command -v gdb > /dev/null || return 0
  timeout 60 gdb -p "$pid" -batch -nx -ex 'set width 160' -ex 'thread apply all backtrace 9' 2>&1 |
    grep -E '^(Thread|#)|race|ermitted' | cut -c 1-160 | head -n 50
}

while sleep 5; do
  for pid in $(pgrep -f -- "^$folder/tests/[a-z_]*_tests "); do
    age=$(ps -o etimes= -p "$pid" | tr -d ' ')
    [ "${age:-0}" -gt "$seconds" ] && [ -z "${shown[$pid]:-}" ] || continue
    shown[$pid]=yes
    show "$pid" 2> /dev/null
  done
done
