#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package's tests that need no framework, with the extension under the address and undefined-behaviour
# sanitizers, by hand: the library is built anew in build-asan, which takes minutes. Needs the venv of scripts/python.sh.
# Left out: files that begin with a framework, since the frameworks' libraries were built without the sanitizer; test_types
# and test_wheel, which look at the package from outside; and the tests that `without` names. A test that forks may leave
# its child in a lock of the sanitizer's for ever, which a thread of the parent held. The others need the installed wheel,
# a framework, or a limit of memory that the sanitizer exceeds.
#
# usage: scripts/python_asan.sh [PYTEST ARGUMENTS]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

slice=(test_arrays test_writes test_stream test_repository test_sink test_state_dicts test_checkpointer test_processes
  test_ctrl_c test_tier test_properties)
venv="$(folder_of release)/venv"
folder=$(folder_of asan-ubsan)
[ -x "$venv/bin/python" ] || { echo "python_asan.sh: no $venv; scripts/python.sh makes it" >&2; exit 1; }

configure asan-ubsan -DFRESHET_PYTHON=ON -DPython_EXECUTABLE="$venv/bin/python" \
  -Dnanobind_DIR="$("$venv/bin/python" -m nanobind --cmake_dir)" > /dev/null
run_in asan-ubsan cmake --build "$folder" --parallel "$jobs" --target _core

package="$folder/python/freshet"
rm -rf "$folder/python"
mkdir -p "$package"
cp "$root"/bindings/python/freshet/*.py* "$folder"/bindings/python/_core.*.so "$package"

without="not fork and not cannot_be_mapped and not wheel and not in_a_run_a_dataset"
# The interpreter was not built with the sanitizer, so that its library comes first; what Python keeps until its end is no leak.
export PYTHONPATH="$folder/python" PYTHONDONTWRITEBYTECODE=1
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:alloc_dealloc_mismatch=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)"
failed=()
for name in "${slice[@]}"; do  # Each in a process of its own, as the suite runs them.
  run_in asan-ubsan env LD_PRELOAD="$preload" "$venv/bin/python" -m pytest -p no:cacheprovider -q -k "$without" \
    "$root/tests/bindings/python/$name.py" "$@" || [ $? -eq 5 ] || failed+=("$name")  # 5: -k chose none of its tests.
done
[ ${#failed[@]} -eq 0 ] || { echo "python_asan.sh: failed: ${failed[*]}" >&2; exit 1; }
