#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the tables of the benchmark of tiering, as the page beside it has them. Run it on a machine that does nothing else.
#
# usage: scripts/benchmark_tiering.sh [--quick] [--docs] [BENCHMARK…]
#   --quick     smaller sizes, two minutes
#   --docs      put the tables into benchmarks/NAME/README.md, and the summary into docs/benchmarks.md
#   BENCHMARK   tiering (default: all)
# With FRESHET_MONARCH, MONARCH's library as somebody has built it, that is measured too.
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/benchmark_tables.sh"

all=(tiering)
also=(freshet)

arguments_of() {
  [ -z "${FRESHET_MONARCH:-}" ] || arguments=(--monarch "$FRESHET_MONARCH")
}

print_tables "$@"
