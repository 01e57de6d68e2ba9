#!/usr/bin/env bash
# Prints the tables of every benchmark of the repository, as docs/benchmarks.md has them. Run it on a machine that does
# nothing else.
#
# usage: scripts/benchmark_repository.sh [--quick] [--docs] [BENCHMARK…]
#   --quick     smaller sizes, about a minute for each
#   --docs      put the tables into docs/benchmarks.md, each below its `<!-- NAME -->` line
#   BENCHMARK   repo_put match store_load concurrency nas provenance candidate_graph (default: all)
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/benchmark_tables.sh"

all=(repo_put match store_load concurrency nas provenance candidate_graph)
also=()
print_tables "$@"
