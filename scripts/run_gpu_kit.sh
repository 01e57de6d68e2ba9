#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the test programs of the path through GPUs and its benchmarks, and prints last what ran where. scripts/test_gpu.sh starts
# it here, and packs it as run.sh for a machine that has only a driver. The real device comes first, since its minutes are short.
# The environment variable FRESHET_GPU_SEED chooses the orders of the host device.
#
# usage: run.sh                      what lies beside it, in tests/, bin/benchmarks/ and lib/
#        run.sh FOLDER PROGRAM…      these programs in FOLDER/tests, and FOLDER/bin/benchmarks
set -uo pipefail

if [ $# -gt 0 ]; then
  folder=$1
  shift
  programs=("$@")
else
  folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  mapfile -t programs < <(cd "$folder/tests" && ls)
fi

# A program that hangs must not take all the time that there is.
seconds_max=150
log=$(mktemp "${TMPDIR:-/tmp}/freshet-gpu-log.XXXXXX")
trap 'rm -f "$log"' EXIT

if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=name,uuid,driver_version,memory.free --format=csv || true
else
  echo "no nvidia-smi here"
fi

failed=0
# run WHERE FILTER: every test program's cases that FILTER names.
run() {
  local where=$1 filter=$2 program code begin=$SECONDS
  : > "$log"
  for program in "${programs[@]}"; do
    [[ "$program" == *_tests ]] && [ -x "$folder/tests/$program" ] || continue
    timeout "$seconds_max" "$folder/tests/$program" --gtest_filter="$filter" --gtest_color=no 2>&1 | tee -a "$log" |
      grep -vE '^\[ RUN|^\[---|^\[===|^\[  PASSED|^Note:|^Running main|^$|tests?, listed below:$|^\[  (FAILED|SKIPPED) +\] [^ ]*$'
    code=${PIPESTATUS[0]}
    if [ "$code" -ne 0 ]; then
      failed=1
      [ "$code" -ne 124 ] || echo "$program: stopped after $seconds_max seconds"
      echo "$program --gtest_filter='$filter': exit code $code"
    fi
  done
  count() { grep -cE "^\[ +$1 \] .* ms\)\$" "$log"; }
  lines+=("$where: $(count OK) passed, $(count FAILED) failed, $(count SKIPPED) skipped, $((SECONDS - begin)) s")
}

lines=()
run "real device" 'Driver/*:*/driver:GpuDriver.*'
# Without a device, or what else a row needs, it says why it was not measured.
for benchmark in gpu gpu_torch; do
  if [ "$benchmark" = gpu_torch ] && ! command -v python3 > /dev/null; then
    lines+=("benchmark gpu_torch: not run, there is no python3 here")
    continue
  fi
  if ! timeout "$seconds_max" "$folder/bin/benchmarks/$benchmark"; then
    failed=1
    lines+=("benchmark $benchmark: failed, or stopped after $seconds_max seconds")
  fi
done
run "host device and the rest" '-Driver/*:*/driver:GpuDriver.*'
printf '== %s\n' "${lines[@]}"
exit "$failed"
