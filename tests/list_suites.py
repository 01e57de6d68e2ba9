#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks a test program for its suites and writes the ctest file that runs each suite as one process.

A process costs 20 ms, and half a second with a sanitizer; most cases take less. So cases share the process of their suite,
and what each did stands in the file that GoogleTest leaves: RESULTS/NAME.SUITE.xml. A suite longer than the others
gets several processes (--parts).

usage: list_suites.py --program FILE --name NAME --out FILE.cmake --results FOLDER --room NAME… [--is LABEL=REGEX]… [--parts REGEX=N]…
       [--only REGEX]… [--but REGEX]… [--property "NAME VALUE"]…
  --room    labels of every suite here
  --is      the label of those suites whose whole name REGEX matches; a suite without any such label is `quick`
  --parts   runs a suite in N processes, each with every Nth case
  --only    the other suites are left out
  --but     these are left out, too
A regex that means no suite is an error: a suite may have another name by now.
"""
import argparse
import os
import re
import subprocess
import sys

from sources_of_suites import is_wanted

# What ctest begins with: a suite that takes a minute must not be the last one, for which everything waits.
COSTS = {"service": 60, "net": 50, "process": 40, "storm": 30, "slow": 20}


def suites_of(listing):
    """{suite: [case]} of what --gtest_list_tests printed."""
    suites = {}
    for line in listing.splitlines():
        name = line.split("#")[0].rstrip()
        if line.startswith("  "):
            suites[suite].append(name.strip())
        elif name.endswith("."):
            suite = name[:-1]
            suites[suite] = []
    return suites


def parts_of(suite, cases, parts):
    """[(name of the ctest, filter)]: one, or several that share the cases."""
    if parts <= 1:
        return [(suite, f"{suite}.*")]
    return [(f"{suite}-{part + 1}of{parts}", ":".join(f"{suite}.{case}" for case in cases[part::parts]))
            for part in range(parts) if cases[part::parts]]


def rules_of(words):
    rules = [word.split("=", 1) for word in words]
    return [(left, re.compile(right)) for left, right in rules]


def labels_of(suite, rooms, rules):
    labels = [label for label, matches in rules if matches.fullmatch(suite)]
    return [*rooms, *(labels or ["quick"])]


def unmeant(suites, regexes):
    """Those of the regexes that mean no suite."""
    return [regex for regex in regexes if not any(re.fullmatch(regex, suite) for suite in suites)]


def cost_of(labels):
    return max(COSTS.get(label, 0) for label in labels)


def quoted(text):
    return f"[==[{text}]==]"


def ctest_file(program, suites, options):
    lines = []
    rules = rules_of(options.is_)
    counts = [(re.compile(regex), int(count)) for regex, count in (word.rsplit("=", 1) for word in options.parts)]
    for suite, cases in suites.items():
        if options.only and not is_wanted(suite, options.only, options.but):
            continue
        parts = next((count for matches, count in counts if matches.fullmatch(suite)), 1)
        for part, cases_filter in parts_of(suite, cases, parts):
            name = f"{options.name}.{part}"
            results = os.path.join(options.results, name.replace("/", "-") + ".xml")
            command = [program, f"--gtest_filter={cases_filter}", f"--gtest_output=xml:{results}"]
            lines.append(f"add_test({quoted(name)} {' '.join(quoted(word) for word in command)})")
            labels = labels_of(suite, options.room, rules)
            properties = [f"LABELS {quoted(';'.join(labels))}", f"COST {cost_of(labels)}",
                          f"WORKING_DIRECTORY {quoted(os.path.dirname(options.out))}", *options.property]
            lines.append(f"set_tests_properties({quoted(name)} PROPERTIES {' '.join(properties)})")
    return "\n".join(lines) + "\n"


def main(arguments):
    parser = argparse.ArgumentParser()
    for name in ("program", "name", "out", "results"):
        parser.add_argument(f"--{name}", required=True)
    for name, field in (("room", "room"), ("is", "is_"), ("parts", "parts"), ("property", "property"), ("only", "only"),
                        ("but", "but")):
        parser.add_argument(f"--{name}", dest=field, action="append", default=[])
    options = parser.parse_args(arguments)
    asked = subprocess.run([options.program, "--gtest_list_tests"], text=True, stdout=subprocess.PIPE, timeout=120)
    if asked.returncode != 0:
        sys.exit(f"{options.program} --gtest_list_tests: exit code {asked.returncode}")
    suites = suites_of(asked.stdout)
    # A build that leaves suites out has not all that its labels mean.
    labelled = [word.split("=", 1)[1] for word in options.is_] + [word.rsplit("=", 1)[0] for word in options.parts]
    for regex in unmeant(suites, options.only or labelled):
        sys.exit(f"{options.program}: no suite is called {regex}, which its CMakeLists.txt names")
    os.makedirs(options.results, exist_ok=True)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(ctest_file(options.program, suites, options))


if __name__ == "__main__":
    main(sys.argv[1:])
