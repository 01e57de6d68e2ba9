#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves `pip install .`, by hand: a copy of the committed tree, a venv that has nothing, and the README's first lines with what
# came of it. scripts/python.sh makes its wheel by pip too, but of libraries that are built already; here all of it is compiled
# as pip asks for it. With a compiler's cache that has the release preset's objects this takes two minutes, else ten and more.
#
# usage: scripts/prove_pip_install.sh [--keep]
#   --keep    leaves the folder with tree and venv, and names it
#
# FRESHET_PYTHON: the interpreter, instead of Debian's. Packages come from PyPI by pip.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

keep=
case "${1:-}" in
  "") ;;
  --keep) keep=yes ;;
  *) echo "usage: $0 [--keep]" >&2; exit 2 ;;
esac

folder=$(mktemp -d "${TMPDIR:-/tmp}/freshet-pip.XXXXXX")
trap '[ -n "$keep" ] || rm -rf "$folder"' EXIT
tree="$folder/tree"
mkdir "$tree"
git -C "$root" archive HEAD | tar -x -C "$tree"
"${FRESHET_PYTHON:-/usr/bin/python3}" -m venv "$folder/venv"

# In a folder of the tree, as the presets have theirs: so what the cache knows has the same paths.
export CCACHE_BASEDIR="$tree" CMAKE_BUILD_PARALLEL_LEVEL="$jobs"
start=$SECONDS
(cd "$tree" && "$folder/venv/bin/pip" install --disable-pip-version-check -q --config-settings=build-dir=build .) \
  > "$folder/pip.log" 2>&1 || { tail -n 30 "$folder/pip.log" >&2; echo "prove_pip_install: pip install . failed" >&2; exit 1; }
installed=$((SECONDS - start))

# From another folder, with nothing of this shell's that Python would look at.
prove() {
  (cd "$folder" && env -u PYTHONPATH -u PYTHONHOME FRESHET_RUN_DIR="$folder/run" "$folder/venv/bin/$1" "${@:2}")
}
mkdir -m 700 "$folder/run"  # Of a folder that others may read the package wants no part.
rm -rf "$tree"
prove freshet --version
prove python - << 'END'
import subprocess, sys
import freshet, numpy as np

assert freshet.__file__.startswith(sys.prefix), freshet.__file__
server = """
import freshet
with freshet.Subscriber("digits") as sub:
    sub.wait_for(timeout=60)
    with sub.snapshot() as s:
        print(s.version, s["w"].shape, s.metrics["loss"])
"""
with freshet.Publisher("digits") as pub:
    pub.publish({"w": np.zeros((64, 10), np.float32)}, step=1, metrics={"loss": 2.3})
    assert subprocess.check_output([sys.executable, "-c", server], text=True) == "1 (64, 10) 2.3\n"
with freshet.Repository("runs/") as repo:
    assert repo.put("net", {"w": np.ones(3)}) == "net@1"
    assert repo.get("net")["w"].tolist() == [1, 1, 1]
END
[ -z "$keep" ] || echo "prove_pip_install: $folder"
echo "proved: pip install . took $installed s, and the README's first lines work"
