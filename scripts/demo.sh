#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Freshet and runs the live workflow: a model is trained in one process, served in others, every version kept.
#
# usage: scripts/demo.sh [ARG…]     (arguments of live_run, see scripts/demo.sh --help)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

"$root/scripts/build.sh" live_run freshet >&2
exec "$root/build/bin/live_run" "$@"
