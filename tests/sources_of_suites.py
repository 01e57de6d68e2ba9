#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints those of some test sources that have a suite that is wanted: what a build compiles that runs a few suites alone.

A source whose suites cannot be told is printed, too.

usage: sources_of_suites.py --only REGEX… [--but REGEX]… FILE…
  --only   suites that are wanted: a regex of the whole name, as ctest has it (`PREFIX/SUITE` for parameters)
  --but    suites that are not wanted though --only says so
"""
import argparse
import re
import sys

TEST = re.compile(r"^(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+)", re.MULTILINE)
INSTANCE = re.compile(r"^INSTANTIATE_(TYPED_)?TEST_SUITE_P\(\s*(\w+)\s*,\s*(\w+)", re.MULTILINE)


def is_wanted(suite, only, but):
    return any(re.fullmatch(regex, suite) for regex in only) and not any(re.fullmatch(regex, suite) for regex in but)


def names_of(kind, suite, prefixes):
    """What ctest calls the suite. A typed suite's name ends with the number of its type."""
    if kind in ("TEST", "TEST_F"):
        return [suite]
    end = "/0" if kind.startswith("TYPED") else ""
    if kind == "TYPED_TEST":
        return [suite + end]
    return [f"{prefix}/{suite}{end}" for prefix in prefixes.get(suite, [])]


def wanted_sources(texts, only, but):
    """The names of {name: text} that have a wanted suite, in their order."""
    prefixes = {}
    for text in texts.values():
        for _, prefix, suite in INSTANCE.findall(text):
            prefixes.setdefault(suite, []).append(prefix)
    wanted = []
    for name, text in texts.items():
        found = [names_of(kind, suite, prefixes) for kind, suite in TEST.findall(text)]
        found += [[f"{prefix}/{suite}{'/0' if typed else ''}"] for typed, prefix, suite in INSTANCE.findall(text)]
        if not found or any(not names or any(is_wanted(one, only, but) for one in names) for names in found):
            wanted.append(name)
    return wanted


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", required=True)
    parser.add_argument("--but", action="append", default=[])
    parser.add_argument("files", nargs="*")
    options = parser.parse_args(arguments)
    texts = {}
    for path in options.files:
        with open(path, encoding="utf-8") as file:
            texts[path] = file.read()
    for path in wanted_sources(texts, options.only, options.but):
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
