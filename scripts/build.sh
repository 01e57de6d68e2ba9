#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what a build needs and builds the release: programs into build/bin/, benchmarks into build/bin/benchmarks/.
#
# usage: scripts/build.sh [TARGET…]     (default: every program and benchmark, no tests)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$root/scripts/install_dependencies.sh"
build_preset release "${@:-programs}"

# What the benchmarks measure Freshet against. A benchmark that lacks one skips it and says so.
if [ $# -eq 0 ]; then
  { "$root/scripts/install_dependencies.sh" peers && "$root/benchmarks/update_latency/peers/make_venv.sh" "$root/build/peers"; } \
    || echo "build: some peers of the benchmarks are missing; everything else is there" >&2
fi
