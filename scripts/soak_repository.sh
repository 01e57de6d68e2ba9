#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Walks a repository in memory, and one on the disk, through random steps of put, match, read, pin, retire, gc and restart, each answer compared
# with a model that looks at everything (default: a million steps, and a hundredth of them on the disk). A failure prints the seed that repeats it.
# usage: scripts/soak_repository.sh [STEPS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
steps=${1:-1000000}
[[ $steps =~ ^[1-9][0-9]*$ ]] || { echo "usage: scripts/soak_repository.sh [STEPS]" >&2; exit 2; }
tests=${FRESHET_BUILD_DIR:-build}/tests/repo_tests
[[ -x $tests ]] || { echo "$tests is not there: run scripts/test.sh, or build repo_tests" >&2; exit 1; }
export FRESHET_REPOSITORY_STEPS=$steps FRESHET_REPOSITORY_DISK_STEPS=$((steps / 100 + 1))
export FRESHET_REPOSITORY_SEED=${FRESHET_REPOSITORY_SEED:-$(date +%s)}
echo "seed $FRESHET_REPOSITORY_SEED"
"$tests" --gtest_filter='RepositorySteps.*'
