# SPDX-License-Identifier: Apache-2.0
"""The documentation's site: scripts/docs_site.sh builds it of the tree, and refuses links that lead nowhere."""
import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings_handlers.python")

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")


def built(root, site):
    return subprocess.run([os.path.join(root, "scripts", "docs_site.sh"), site], text=True, capture_output=True,
                          env=dict(os.environ, FRESHET_VENV=sys.prefix))


def test_the_site_has_every_page_and_every_public_name(folder):
    ran = built(ROOT, f"{folder}/site")
    assert ran.returncode == 0, ran.stderr
    with open(f"{folder}/site/index.html", encoding="utf-8") as file:
        navigation = re.findall(r'class="caption-text">([^<]*)<|href="(docs/tutorials/[^"]*)"', file.read())
    assert [caption for caption, _ in navigation if caption][0] == "Tutorials" and len({link for _, link in navigation if link}) == 3
    for page in ("index.html", "docs/python/keras.html", "docs/tutorials/search.html", "benchmarks/python/index.html", "CONTRIBUTING.html",
                 "examples/python/torch_server.py", "docs/schedules/curves.svg"):
        assert os.path.isfile(f"{folder}/site/{page}"), page
    for module in ("freshet", "freshet.keras", "freshet.torch", "freshet.deephyper", "freshet.onnx", "freshet.serving"):
        with open(f"{folder}/site/api/{module}.html", encoding="utf-8") as file:
            page = file.read()
        with open(importlib.util.find_spec(module).origin, encoding="utf-8") as file:  # Not imported: its framework may lack.
            names = ast.literal_eval(re.search(r"^__all__ = (\[[^]]*\])", file.read(), re.MULTILINE)[1])
        assert names and all(f'.{name}"' in page for name in names), [name for name in names if f'.{name}"' not in page]
    with open(f"{folder}/site/api/freshet.html", encoding="utf-8") as file:
        assert re.search(r"<li>\s*(<p>)?<code>keep_versions</code>: so many", file.read()), "parameters are a list"


def test_a_link_that_leads_nowhere_is_refused(folder):
    shutil.copytree(ROOT, f"{folder}/tree", ignore=shutil.ignore_patterns(
        "build*", "live_run_report*", ".git", ".venv", "corpus", "__pycache__"))  # What commands leave in a tree is no page.
    with open(f"{folder}/tree/docs/glossary.md", "a", encoding="utf-8") as file:
        file.write("\n[one](nothing.md), [another](benchmarks.md#nowhere)\n")
    ran = built(f"{folder}/tree", f"{folder}/site")
    assert ran.returncode == 1 and "nothing.md" in ran.stderr and "nowhere" in ran.stderr and "glossary.md" in ran.stderr, ran.stderr
