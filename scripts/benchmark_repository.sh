#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the tables of every benchmark of the repository, as the pages beside them have them. Run it on a machine that does
# nothing else.
#
# usage: scripts/benchmark_repository.sh [--quick] [--docs] [BENCHMARK…]
#   --quick     smaller sizes, about a minute for each
#   --docs      put the tables into benchmarks/NAME/README.md, and the summary into docs/benchmarks.md
#   BENCHMARK   repo_put large_file match store_load concurrency nas provenance candidate_graph repo_open checkpoint
#               (default: all)
# match asks graphs of published networks too, from vision-model-graphs.jsonl.gz in the folder FRESHET_CORPORA (default:
# shared/corpora beside the checkout), where that is.
# With FRESHET_BIN the programs in that folder are taken; otherwise they are built.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/benchmark_tables.sh"

all=(repo_put large_file match store_load concurrency nas provenance candidate_graph repo_open checkpoint)
also=()
corpus=

arguments_of() {
  local packed="${FRESHET_CORPORA:-$root/../shared/corpora}/vision-model-graphs.jsonl.gz"
  [ "$1" = match ] || return 0
  if [ ! -r "$packed" ]; then
    echo "$me: no $(basename "$packed") in ${FRESHET_CORPORA:-shared/corpora beside the checkout}: published networks are skipped" >&2
    return 0
  fi
  corpus=$(mktemp "${TMPDIR:-/tmp}/freshet-corpus.XXXXXX")
  trap 'rm -f "$corpus"' EXIT
  gzip -dc "$packed" > "$corpus"
  arguments=(--corpus "$corpus")
}

print_tables "$@"
