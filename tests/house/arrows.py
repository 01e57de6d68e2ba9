#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes go one way: core <- transport <- repo, core <- predictor <- scheduler, all of them <- bindings <-
examples. Prints each include that does not, and exits with 1.

usage: arrows.py ROOT
"""
import re
import sys

import tree

SEES = {
    "core": {"core"},
    "transport": {"core", "transport"},
    "repo": {"core", "transport", "repo"},
    "predictor": {"core", "predictor"},
    "scheduler": {"core", "predictor", "scheduler"},
    "bindings": {"core", "transport", "repo", "predictor", "scheduler", "bindings"},
    "examples": {"core", "transport", "repo", "predictor", "scheduler", "bindings", "examples"},
}
# Tests and benchmarks may look at anything but each other, with two exceptions: the lab of network namespaces and the slow
# folder serve both, and the tests of a benchmark or an example (benchmarks/tests, examples/*/tests) see what it sees.
LABS = ("tests/support/net/lab/", "tests/support/slow_folder/")
ROOMS = set(SEES)
SEES["tests"] = ROOMS | {"tests"}
SEES["benchmarks"] = ROOMS | {"benchmarks"}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def violations(root):
    paths = tree.files(root)
    known = set(paths)
    found = []
    for path in paths:
        room = path.split("/")[0]
        sees = SEES.get(room, set()) | ({"tests"} if tree.is_of_tests(path) else set())
        if room not in SEES or not path.endswith(tree.CODE):
            continue
        for included in INCLUDE.findall(tree.text(root, path) or ""):
            schema = re.sub(r"_generated\.h$", ".fbs", included)
            if included not in known and schema not in known:
                found.append(f'{path}: "{included}" is no path from the root of the tree')
            elif included.startswith(LABS) and room == "benchmarks":
                continue
            elif included.split("/")[0] not in sees:
                found.append(f'{path}: {room} must not see "{included}"')
    return found


if __name__ == "__main__":
    lines = violations(sys.argv[1])
    print("\n".join(lines) or "every include goes the right way")
    sys.exit(1 if lines else 0)
