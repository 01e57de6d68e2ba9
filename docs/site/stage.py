#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lays the site's pages into a folder, for mkdocs: each Markdown page of the tree at its own place, so that links between pages stay as
they are; the files that pages link to; and a page for each public module of the Python package, whose text mkdocstrings fills in.

usage: stage.py ROOT FOLDER
"""
import ast
import os
import re
import shutil
import sys

SKIPPED = re.compile(r"^(build.*|\.git|\.venv|\.cache|\.pytest_cache|\.mypy_cache|__pycache__|corpus|live_run_report.*)$")
LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
PACKAGE = os.path.join("bindings", "python", "freshet")
MODULES = {"freshet": "__init__.py", "freshet.keras": "keras.py", "freshet.torch": "torch.py", "freshet.deephyper": "deephyper.py",
           "freshet.onnx": "onnx.py", "freshet.serving": "serving/__init__.py", "freshet.tier": "tier.py",
           "freshet.triton": "triton/__init__.py"}
# What calls return, and what a module fetches only when it is asked for: neither stands among a module's own names.
MORE = {"freshet": ["freshet.publisher.Bound", "freshet.subscriber.Update", "freshet.repository.Match", "freshet.repository.Lineage",
                    "freshet.repository.Diff", "freshet.repository.Resumed", "freshet.repository.Sink"],
        "freshet.tier": ["freshet.tier.follow", "freshet.tier.upcoming"]}
LATE = {"CheckpointCallback": "freshet._keras_checkpoints", "Checkpoints": "freshet._torch_checkpoints",
        "StorageReader": "freshet._torch_storage", "StorageWriter": "freshet._torch_storage",
        "retire_checkpoint": "freshet._torch_storage", "Model": "freshet.triton.model"}


def pages(root):
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not SKIPPED.match(name))
        yield from (os.path.relpath(os.path.join(folder, name), root) for name in sorted(names) if name.endswith(".md"))


def linked(page, text):
    """The files of the tree that a page links to."""
    for link in LINK.findall(CODE.sub("", text)):
        path = os.path.normpath(os.path.join(os.path.dirname(page), link))
        if ":" not in link and not path.startswith(".."):
            yield path


def public_names(root, module):
    """What a module's __all__ has, each with the module that defines it."""
    with open(os.path.join(root, PACKAGE, MODULES[module]), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    package = module if MODULES[module].endswith("__init__.py") else "freshet"
    home = {}
    names = []
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.level == 1:
            home.update({(name.asname or name.name): f"{package}.{statement.module}" for name in statement.names})
        elif isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "__all__":
            names = ast.literal_eval(statement.value)
    return [f"{LATE.get(name) or home.get(name, module)}.{name}" for name in names]


def stage(root, into):
    shutil.rmtree(into, ignore_errors=True)
    for page in pages(root):
        with open(os.path.join(root, page), encoding="utf-8") as file:
            text = file.read()
        for path in [page, *linked(page, text)]:  # mkdocs complains of one that is not there.
            if os.path.isfile(os.path.join(root, path)):
                os.makedirs(os.path.dirname(os.path.join(into, path)), exist_ok=True)
                shutil.copyfile(os.path.join(root, path), os.path.join(into, path))
    os.makedirs(os.path.join(into, "api"))
    for module in MODULES:
        told = [f"# {module}\n", f"::: {module}\n    options:\n      members: false\n      show_root_heading: false\n"]
        told += [f"::: {name}\n" for name in public_names(root, module) + MORE.get(module, [])]
        with open(os.path.join(into, "api", f"{module}.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(told))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    stage(*sys.argv[1:])
