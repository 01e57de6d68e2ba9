#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the tables of the benchmarks of the Python package and of servers, as the pages beside them have them. Run it on a machine
# that does nothing else.
#
# usage: scripts/benchmark_python.sh [--quick] [--docs] [python | serving]
#   --quick     smaller models and fewer requests, about a minute each
#   --docs      put the tables into benchmarks/python/README.md and benchmarks/serving/README.md, and the summary into docs/benchmarks.md
# Makes the venv of scripts/python.sh --frameworks first.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/benchmark_tables.sh"
all=(python serving)
also=()
if [ -z "${FRESHET_BIN:-}" ]; then
  "$root/scripts/install_dependencies.sh" >&2
  "$root/scripts/python.sh" --frameworks --if-needed >&2
  cmake --build "$root/build" --parallel 2 --target python_peer >&2 # C++'s side of it.
  FRESHET_BIN="$root/build/bin"
fi
print_tables "$@"
