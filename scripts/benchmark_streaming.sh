#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the tables of every streaming benchmark, as the pages beside them have them. Run it on a machine that does nothing
# else, as root: the hosts are network namespaces.
#
# usage: scripts/benchmark_streaming.sh [--quick] [--docs] [BENCHMARK…]
#   --quick     smaller sizes, a minute at most for each
#   --docs      put the tables into benchmarks/NAME/README.md, and the summary into docs/benchmarks.md
#   BENCHMARK   delta remote thin_link fanout catch_up rollback pauses notify many_tensors viper_modes (default: all)
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/benchmark_tables.sh"

all=(delta remote thin_link fanout catch_up rollback pauses notify many_tensors viper_modes)
also=(live_run)
print_tables "$@"
