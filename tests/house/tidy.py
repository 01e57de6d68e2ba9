#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what STYLE asks of every file and no compiler sees. Prints each finding as path:line: what, and exits with 1.

usage: tidy.py ROOT
"""
import collections
import re
import sys

import tree

LINES_MAX = 500
# Source files side by side in a folder of a room: with more of them a listing shows no rooms.
FILES_MAX = 26
# Calls of one interface (its destructor not counted).
VIRTUALS_MAX = 28
TEXT = tree.CODE + (".py", ".sh", ".cmake", ".txt", ".md", ".fbs", ".json", ".in", ".toml")

# Pattern, what is wrong with it, and where it may stand all the same. The class after a first letter keeps this list from
# finding itself.
BANNED = [
    (r"/[w]ork/|/[r]oot/|/[h]ome/[a-z]", "a path of one machine", r"^(scripts/prove_fresh\.sh|tests/house/)"),
    (r"\bstd::[m]utex\b|\bstd::[c]ondition_variable\b", "use core/base/mutex.h, which the analysis sees",
     r"^core/base/mutex\.h$|\.md$"),
    (r"\bstd::[f]ormat\(|<[f]ormat>", "use core/base/format.h", r"\.md$"),
    (r"\bstd::[e]xpected\b|<[e]xpected>", "use core/base/result.h", r"\.md$"),
    (r"\b[F]IXME\b|\b[X]XX\b", "write TODO(kind): what", None),
    (r"\b[T]ODO\b(?!\([a-z]+\): \S)", "write TODO(kind): what", r"^CONTRIBUTING\.md$|^tests/house/"),
    (r"(?i)\b[b]lazing|\b[s]eamless|\b[c]utting-edge|\b[s]tate-of-the-art|\b[u]tili[sz]e[sd]?\b", "say what it does", None),
    (r"(?i)\bas an ai\b|\bcha[t]gpt\b|\bcl[a]ude\b|\bcop[i]lot\b|\bthe [b]rief\b", "the tree speaks of Freshet alone", None),
]
BANNED = [(re.compile(pattern), why, re.compile(where) if where else None) for pattern, why, where in BANNED]


def line_findings(path, lines):
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            yield number, "white space at the end of the line"
        if "\t" in line:
            yield number, "a tab"
        for pattern, why, where in BANNED:
            if pattern.search(line) and not (where and where.search(path)):
                yield number, f"{pattern.search(line).group(0)!r}: {why}"


def folders_of_tests(path):
    """The folders whose program may have this test: from its own up to a room's, or to an example's `tests`."""
    names = path.split("/")[:-1]
    top = names.index("tests") + 1 if "tests" in names else 0
    return ["/".join(names[:count]) for count in range(len(names), max(top, 2) - 1, -1)]


def file_findings(path, lines, paths):
    if path.endswith(tree.CODE) and len(lines) > LINES_MAX:
        yield len(lines), f"longer than {LINES_MAX} lines: is there a second noun in it?"
    licensed = path.endswith((*tree.CODE, ".py", ".sh", ".cmake", ".fbs")) or path.rsplit("/", 1)[-1] == "CMakeLists.txt"
    if licensed and not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2]):
        yield 1, "no line SPDX-License-Identifier: Apache-2.0 at its begin"
    if path.endswith(".h") and "#pragma once" not in lines[:3]:
        yield 1, "a header begins with #pragma once"
    if path.endswith("_test.cc") and not any(folder + "/CMakeLists.txt" in paths for folder in folders_of_tests(path)):
        yield 1, "no CMakeLists.txt beside or above it: this test is never built"


def folder_findings(paths):
    sources = collections.Counter(path.rsplit("/", 1)[0] for path in paths if path.endswith((*tree.CODE, ".fbs")))
    for folder, count in sorted(sources.items()):
        if count > FILES_MAX:
            yield f"{folder}: {count} source files side by side, more than {FILES_MAX}: which of them are a room of their own?"


def interface_findings(lines):
    """Classes whose own virtual calls are too many: one face has one kind of reader."""
    name, line, calls = "", 0, 0
    for number, text in enumerate([*lines, "class end {"], 1):
        begun = re.match(r"(?:class|struct) (?:\[\[\w+\]\] )?(\w+)[^;]*{", text)
        if begun:
            if calls > VIRTUALS_MAX:
                yield line, f"{name} has {calls} virtual calls, more than {VIRTUALS_MAX}: are there two kinds of readers?"
            name, line, calls = begun.group(1), number, 0
        calls += bool(re.match(r"  virtual (?!~)", text))


def violations(root):
    paths = tree.files(root)
    found = list(folder_findings(paths))
    for path in paths:
        if not path.endswith(TEXT) and "." in path.rsplit("/", 1)[-1]:
            continue
        content = tree.text(root, path)
        if content is None or path == "LICENSE":
            continue
        lines = content.split("\n")
        if lines[-1] == "":
            lines.pop()
        elif lines:
            found.append(f"{path}:{len(lines)}: no newline at the end")
        interfaces = interface_findings(lines) if path.endswith(".h") else []
        for number, what in [*line_findings(path, lines), *file_findings(path, lines, set(paths)), *interfaces]:
            found.append(f"{path}:{number}: {what}")
    return found


if __name__ == "__main__":
    lines = violations(sys.argv[1])
    print("\n".join(lines) or "tidy")
    sys.exit(1 if lines else 0)
