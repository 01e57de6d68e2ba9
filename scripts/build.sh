#!/usr/bin/env bash
# Installs what a build needs and builds the release: programs into build/bin/, benchmarks into build/bin/benchmarks/.
#
# usage: scripts/build.sh [TARGET…]     (default: every program and benchmark, no tests)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$root/scripts/install_dependencies.sh"
build_preset release "${@:-programs}"
