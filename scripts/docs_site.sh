#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the documentation as a site, build/site: the tree's pages, and the Python package, call by call, out of its docstrings. A link
# that leads nowhere is an error. Read it with: python3 -m http.server --directory build/site
#
# usage: scripts/docs_site.sh [FOLDER]     (default: build/site)
# Needs mkdocs and mkdocstrings, which scripts/python.sh puts into build/venv; FRESHET_VENV names another venv.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -le 1 ] || { echo "usage: $0 [FOLDER]" >&2; exit 2; }
site=$(realpath -m "${1:-$root/build/site}")
python="${FRESHET_VENV:-$root/build/venv}/bin/python"
"$python" -c 'import mkdocs, mkdocstrings_handlers.python' 2> /dev/null ||
  { echo "docs_site.sh: $python has no mkdocs and mkdocstrings: scripts/python.sh makes a venv that has them" >&2; exit 1; }
FRESHET_SITE_SOURCE=$(mktemp -d "${TMPDIR:-/tmp}/freshet-site.XXXXXX")
export FRESHET_SITE_SOURCE
trap 'rm -rf "$FRESHET_SITE_SOURCE" "$FRESHET_SITE_SOURCE.log"' EXIT
"$python" "$root/docs/site/stage.py" "$root" "$FRESHET_SITE_SOURCE"
cd "$root" # The configuration names files from here.
# Not --quiet: a warning that is not shown does not count for --strict.
"$python" -m mkdocs build --strict --config-file docs/site/mkdocs.yml --site-dir "$site" 2> "$FRESHET_SITE_SOURCE.log" ||
  { grep -v '^INFO' "$FRESHET_SITE_SOURCE.log" >&2; echo "docs_site.sh: mend the pages above" >&2; exit 1; }
echo "$site/index.html"
