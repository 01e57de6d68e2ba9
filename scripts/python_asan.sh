#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package's tests that need no framework, with the extension under the address and undefined-behaviour
# sanitizers, by hand: the library is built anew in build-asan, which takes minutes. Needs the venv of scripts/python.sh.
# Files that begin with a framework are left out, since the frameworks' libraries were built without the sanitizer;
# test_types and test_wheel look at the package from outside.
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

tests=()
for name in "${slice[@]}"; do tests+=("$root/tests/bindings/python/$name.py"); done
# The interpreter was not built with the sanitizer, so that its library comes first; what Python keeps until its end is no leak.
export PYTHONPATH="$folder/python" PYTHONDONTWRITEBYTECODE=1
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:alloc_dealloc_mismatch=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
run_in asan-ubsan env LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)" \
  "$venv/bin/python" -m pytest -p no:cacheprovider -q "${tests[@]}" "$@"
