#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the path through GPUs in pieces, and prints last what ran and every ratio that was measured. scripts/test_gpu.sh starts it
# here, and packs it as run.sh for a machine that has only a driver. The real device comes first, since its minutes are short; each
# piece has a time limit of its own, prints at once, and may fail or hang without harm to the others. The last one pins the most
# host memory. FRESHET_GPU_SEED chooses the orders of the host device.
#
# usage: run.sh [--folder FOLDER] [--seconds N] [PIECE…]
#   --folder FOLDER   has tests/, bin/benchmarks/ and, in a kit, lib/ and python/ (default: where this script lies)
#   --seconds N       in all, at most (default: 230)
#   PIECE…            these alone, in this order; the names stand in the list below
# Logs lie in FOLDER/gpu-results. Exit code 0: nothing failed.
set -uo pipefail

pieces=(conformance check rows frameworks torch-quick sanitizer host torch)
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=230
while [ $# -gt 0 ]; do
  case "$1" in
    --folder) folder=$(cd "${2:?}" && pwd) || exit 2; shift 2 ;;
    --seconds) [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || { echo "run.sh: --seconds takes a number of seconds" >&2; exit 2; }; seconds=$2; shift 2 ;;
    -*) echo "usage: run.sh [--folder FOLDER] [--seconds N] [PIECE…]; pieces: ${pieces[*]}" >&2; exit 2 ;;
    *) break ;;
  esac
done
for piece in "$@"; do
  [[ " ${pieces[*]} " == *" $piece "* ]] || { echo "run.sh: there is no piece $piece; pieces: ${pieces[*]}" >&2; exit 2; }
done
[ $# -eq 0 ] || pieces=("$@")

results="$folder/gpu-results"
mkdir -p "$results"
rm -f "$results"/*.log
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
python=python3
if [ -d "$folder/python" ]; then
  export PYTHONPATH="$folder/python${PYTHONPATH:+:$PYTHONPATH}"
elif [ -x "$folder/venv/bin/python" ]; then
  python="$folder/venv/bin/python"
fi

lines=() failed=0 limit=0
ratio_line='^[a-z][a-z0-9_]+ [0-9]+\.[0-9]+$'  # What the benchmarks say of each row at once.
# bounded COMMAND…: within the piece's time. A command that outlasts it is ended with what it started.
bounded() {
  local rest=$((end - SECONDS))
  [ "$rest" -gt 0 ] || return 124
  timeout -k 5 "$rest" "$@"
}
# A program of C++, with the kit's libraries. Python has the machine's own: its frameworks were built for these.
program() {
  if [ -d "$folder/lib" ]; then
    bounded env LD_LIBRARY_PATH="$folder/lib:$folder/lib/cxx${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"
  else
    bounded "$@"
  fi
}

# cases FILTER [COMMAND…]: every test program's cases that FILTER names, under COMMAND.
cases() {
  local filter=$1 test code=0
  shift
  for test in "$folder"/tests/gpu_*_tests "$folder"/tests/gpu_tests; do
    [ -x "$test" ] || continue
    program "$@" "$test" --gtest_filter="$filter" --gtest_color=no 2>&1 |
      grep --line-buffered -vE '^\[ RUN|^\[---|^\[===|^\[  PASSED|^Note:|^Running main|^$|tests?, listed below:$|^\[  (FAILED|SKIPPED) +\] [^ ]*$'
    [ "${PIPESTATUS[0]}" -eq 0 ] || { code=1; echo "${test##*/} --gtest_filter='$filter': failed, or stopped"; }
  done
  return "$code"
}

has_python() {
  command -v "$python" > /dev/null || { echo "skipped: there is no python3 here"; return 1; }
  local why
  why=$(cd / && "$python" -c 'import freshet' 2>&1) || { echo "skipped: $("$python" -V 2>&1) has no package freshet: $(tail -n 1 <<< "$why")"; return 1; }
}

on_real='Driver/*:*/driver:GpuDriver.*'
# piece NAME: prints, and answers whether nothing failed. "skipped: WHY" alone on a line is a skip.
piece() {
  case "$1" in
    conformance) cases "$on_real" ;;
    check) program "$folder/bin/benchmarks/gpu" --check ;;
    rows) program "$folder/bin/benchmarks/gpu" ;;
    frameworks)
      has_python || return 0
      bounded "$python" "$folder/bin/benchmarks/gpu_torch" --check || return 1
      [ -d "$folder/tests/python" ] || return 0
      bounded "$python" -m pytest -p no:cacheprovider -q -rs "$folder/tests/python" ;;
    torch-quick) has_python || return 0; bounded "$python" "$folder/bin/benchmarks/gpu_torch" --quick ;;
    torch) has_python || return 0; bounded "$python" "$folder/bin/benchmarks/gpu_torch" ;;
    sanitizer)
      command -v compute-sanitizer > /dev/null || { echo "skipped: there is no compute-sanitizer here"; return 0; }
      program compute-sanitizer --tool memcheck --error-exitcode 9 "$folder/bin/benchmarks/gpu" --check &&
        cases 'Driver/GpuDigests.Equal*:Driver/GpuConformance.A*Kernel*:Driver/GpuConformance.ATable*' \
          compute-sanitizer --tool memcheck --error-exitcode 9 &&
        program compute-sanitizer --tool racecheck --error-exitcode 9 "$folder/bin/benchmarks/gpu" --check ;;
    host) cases "-$on_real" ;;
  esac
}
# Seconds of each piece, at most.
limit_of() {
  case "$1" in
    conformance | rows | torch-quick) echo 60 ;;
    check | sanitizer) echo 40 ;;
    frameworks | torch) echo 90 ;;
    host) echo 50 ;;
  esac
}

if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=name,uuid,driver_version,memory.free --format=csv || true
else
  echo "no nvidia-smi here"
fi

for name in "${pieces[@]}"; do
  rest=$((seconds - SECONDS))
  if [ "$rest" -lt 5 ]; then
    lines+=("$name: not run, the $seconds seconds are over")
    failed=1
    continue
  fi
  limit=$(limit_of "$name")
  [ "$limit" -le "$rest" ] || limit=$rest
  begin=$SECONDS end=$((SECONDS + limit)) log="$results/$name.log"
  echo "== $name, up to $limit s"
  piece "$name" 2>&1 | tee "$log"
  code=${PIPESTATUS[0]} took=$((SECONDS - begin))
  count() { grep -cE "^\[ +$1 \] .* ms\)\$" "$log"; }
  cases='' what=passed
  if grep -qE '^\[ +(OK|FAILED|SKIPPED) ' "$log"; then
    cases=", $(count OK) passed, $(count FAILED) failed, $(count SKIPPED) skipped"
    [ "$(count OK)" -gt 0 ] || what=skipped
  fi
  unmeasured=$(grep -cE '^skipped [a-z0-9_]+: not measured: ' "$log")
  if [ "$unmeasured" -gt 0 ]; then
    cases=", $unmeasured rows not measured"
    grep -qE "$ratio_line" "$log" || what="nothing was measured"
  fi
  ! why=$(grep -m 1 '^skipped: ' "$log") || what=$why
  if [ "$code" -ne 0 ]; then
    failed=1
    [ "$took" -lt "$limit" ] && what=failed || what="stopped after $limit s"
  fi
  lines+=("$name: $what$cases, $took s")
done

declare -A goals=([diff_pack_vs_copy_1pct]=0.8 [diff_pack_vs_copy_8pct]=0.65 [fused_vs_copy]=0.58 [apply_vs_copy_1pct]=1.5
  [apply_vs_copy_8pct]=0.65 [digest_vs_copy]=1.2 [ipc_vs_local]=0.95 [capture_vs_pinned]=0.9 [update_vs_torch_ipc]=2.2
  [update_1pct_vs_torch_ipc]=2.3 [update_vs_torch_save]=35 [blocked_ms]="at most 1" [step_vs_none]=0.98)
echo "== ratios (larger is better; blocked_ms are milliseconds)"
for name in rows torch-quick torch; do
  [ -f "$results/$name.log" ] || continue
  while read -r ratio value; do
    echo "$name: $ratio $value (goal: ${goals[$ratio]:-none})"
  done < <(grep -E "$ratio_line" "$results/$name.log")
  sed -n 's/^skipped \([a-z0-9_]*: not measured: .*\)/'"$name"': \1/p' "$results/$name.log"
done
printf '== %s\n' "${lines[@]}"
exit "$failed"
