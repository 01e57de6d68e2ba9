#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the protocol simulator on new seeds for a while (default: ten minutes). A failure prints the seed that repeats it.
# usage: scripts/soak.sh [SECONDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-600}
[[ $seconds =~ ^[0-9]+$ ]] || { echo "usage: scripts/soak.sh [SECONDS]" >&2; exit 2; }
simulator=${FRESHET_BUILD_DIR:-build}/tests/sim_tests
[[ -x $simulator ]] || { echo "$simulator is not there: run scripts/test.sh, or build sim_tests" >&2; exit 1; }
seed=${FRESHET_SIM_SEED:-$(($(date +%s) * 100000))}
runs=${FRESHET_SIM_RUNS:-1000}
end=$((SECONDS + seconds))
while ((SECONDS < end)); do
  if ! output=$(FRESHET_SIM_SEED=$seed FRESHET_SIM_RUNS=$runs "$simulator" --gtest_filter='*Storm' 2>&1); then
    echo "$output" >&2
    exit 1
  fi
  grep '^seeds ' <<<"$output"
  seed=$((seed + runs))
done
