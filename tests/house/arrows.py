#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes go one way: core <- transport <- repo, core <- predictor <- scheduler, all of them <- bindings <-
examples; and that folders inside these rooms do not include each other in a circle. Prints each include that does not, and
exits with 1.

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
# Tests and benchmarks may look at anything but each other, with two exceptions: the lab of network namespaces, the slow
# folder and the cluster of Ceph serve both, and the tests of a benchmark or an example (benchmarks/tests, examples/*/tests)
# see what it sees.
LABS = ("tests/support/net/lab/", "tests/support/slow_folder/", "tests/support/ceph_cluster.h")
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


def part_of(path, outer):
    """The folder of a file. One with folders inside is two: its headers, which those implement, and its sources, which put
    them together. So does a header with the folder's name (repo/repo.h), which only includes."""
    folder, name = path.rsplit("/", 1)
    builds = name.endswith(".cc") or name == folder.rsplit("/", 1)[-1] + ".h"
    return folder + "/*.cc" if folder in outer and builds else folder


def includes_between_parts(root):
    """{folder: {folder that it includes: (file, included)}} inside of the rooms."""
    paths = [path for path in tree.files(root) if path.split("/")[0] in ROOMS and not tree.is_of_tests(path)]
    outer = {"/".join(path.split("/")[:depth]) for path in paths for depth in range(1, path.count("/"))}
    graph = {}
    for path in paths:
        if not path.endswith(tree.CODE):
            continue
        for included in INCLUDE.findall(tree.text(root, path) or ""):
            if "/" in included and included.split("/")[0] in ROOMS:
                graph.setdefault(part_of(path, outer), {}).setdefault(part_of(included, outer), (path, included))
    return graph


def circle_through(graph, start):
    """The shortest way from `start` back to it, as its includes; empty if there is none."""
    ways = {start: []}
    waiting = [start]
    for part in waiting:
        for other, include in graph.get(part, {}).items():
            if other == start and part != start:
                return [*ways[part], include]
            if other not in ways:
                ways[other] = [*ways[part], include]
                waiting.append(other)
    return []


def circles(root):
    graph = includes_between_parts(root)
    found = []
    seen = set()
    for part in sorted(graph):
        circle = circle_through(graph, part)
        if circle and not seen.intersection(circle):
            found.append("folders include each other: " + ", ".join(f'{path} "{included}"' for path, included in circle))
        seen.update(circle)
    return found


if __name__ == "__main__":
    lines = violations(sys.argv[1]) + circles(sys.argv[1])
    print("\n".join(lines) or "every include goes the right way")
    sys.exit(1 if lines else 0)
