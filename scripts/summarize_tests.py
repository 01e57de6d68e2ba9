#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up what test runners wrote: shows how the first failures ended, lists failures and skips with their reasons, says
where the time went, and ends with "N passed, M failed, K skipped".

A runner leaves a JUnit file. ctest's has a test per suite, and GoogleTest's own file beside it, test-results/SUITE.xml, has
the cases; a suite that died leaves no such file, and counts as one failure.

usage: summarize_tests.py [--times FILE] [--budget FILE] NAME=FILE.xml ...
  --times    lines `NAME PHASE SECONDS`: what each phase of a suite took; `everything took SECONDS` says how long all of them
             did, some of them beside others
  --budget   JSON: {"minutes": {NAME: most minutes}, "test_seconds": most seconds of one test}; more is a warning. The name
             `everything` has the whole
"""
import argparse
import collections
import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

FAILURES_SHOWN = 3
LINES_SHOWN = 25
LINE_CHARACTERS_MAX = 400
LONGEST_SHOWN = 20

Case = collections.namedtuple("Case", "name outcome seconds output reason")


def tests_in(path):
    """The <testcase> elements of a JUnit file; none when there is no such file, or it is broken."""
    try:
        return list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []


def reason_of_skip(test):
    """What GTEST_SKIP() said, or the reason that the test runner gives."""
    skipped = test.find("skipped")
    message = (skipped.get("message") or "") if skipped is not None else "disabled"
    said = message if "\n" not in message else message.split("\n", 1)[1]  # GoogleTest's begins with a line of its source.
    return "no reason given" if message.startswith("SKIP_") or not said.strip() else " ".join(said.split())


def outcome_of(test):
    skipped, status = test.find("skipped"), test.get("status")
    if test.find("failure") is not None or test.find("error") is not None or status == "fail":
        return "failed"
    # ctest calls a test skipped, too, whose program is missing; only what the test said itself is a skip.
    if test.get("result") == "suppressed":
        return "disabled"
    if status == "notrun" and test.get("result") is None and skipped is not None and \
            not skipped.get("message", "").startswith("SKIP_"):
        return "failed"
    return "skipped" if skipped is not None or status == "disabled" else "passed"


def output_of_case(name, output):
    """What a case printed, of what its whole process printed."""
    begin = output.find(f"[ RUN      ] {name}\n")
    if begin < 0:
        return output
    end = re.compile(r"^\[  (FAILED  |SKIPPED |     OK )\] ", re.MULTILINE).search(output, begin)
    return output[begin:end.end() if end else None]


def cases_of_suite(test, results):
    """The cases of one of ctest's tests: those that GoogleTest wrote down, or the test itself."""
    output = test.findtext("system-out") or "no output"
    outcome = outcome_of(test)
    whole = Case(test.get("name"), outcome, float(test.get("time") or 0), output, reason_of_skip(test))
    cases = []
    for case in tests_in(os.path.join(results, test.get("name").replace("/", "-") + ".xml")):
        name = f"{case.get('classname')}.{case.get('name')}"
        if outcome_of(case) == "disabled":
            continue
        cases.append(Case(name, outcome_of(case), float(case.get("time") or 0), output_of_case(name, output),
                          reason_of_skip(case)))
    if not cases:
        return [whole]
    if outcome == "failed" and not any(case.outcome == "failed" for case in cases):
        cases.append(whole._replace(seconds=0.0))  # It fell over when its cases were done.
    return cases


def end_of(case):
    """The last lines of what a test printed: enough to see why it failed when nothing else was kept."""
    lines = case.output.rstrip().splitlines()
    return "\n".join(line[:LINE_CHARACTERS_MAX] for line in lines[-LINES_SHOWN:])


def times_in(path):
    """{suite: {phase: seconds}}, in the file's order."""
    times = {}
    if path:
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, phase, seconds = line.split()
                times.setdefault(name, {})[phase] = float(seconds)
    return times


def where_the_time_went(times, cases, budget):
    """Lines: the phases of each suite, the longest tests, what is over its budget."""
    minutes, over = budget.get("minutes", {}), []
    everything = times.get("everything", {}).get("took")
    for name, phases in times.items():
        total = sum(phases.values())
        most = minutes.get(name)
        said = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in phases.items())
        if name != "everything":
            yield f"time: {name}: {said}" + (f" (budget {most * 60:.0f} s)" if most else "")
        if most and total > 60 * most:
            over.append(f"warning: {name} took {total / 60:.1f} minutes, its budget is {most:g}")
    if times:
        total = everything or sum(sum(phases.values()) for phases in times.values())
        yield f"time: in all {total / 60:.1f} minutes"
    longest = sorted(cases, key=lambda one: -one[1].seconds)[:LONGEST_SHOWN]
    for suite, case in longest:
        yield f"longest: {case.seconds:6.1f} s {suite}: {case.name}"
    most = budget.get("test_seconds")
    over += [f"warning: {suite}: {case.name} took {case.seconds:.0f} s, the budget of one test is {most:g}"
             for suite, case in longest if most and case.seconds > most]
    yield from over


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--times")
    parser.add_argument("--budget")
    parser.add_argument("suites", nargs="+")
    options = parser.parse_args(arguments)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    outcomes, all_cases = [], []
    for argument in options.suites:
        suite, _, path = argument.partition("=")
        tests = tests_in(path)
        if not tests:
            counts["failed"] += 1
            outcomes.append(f"failed: {suite}: left no results (its build or its runner failed)")
        results = os.path.join(os.path.dirname(path), "test-results")
        for case in (case for test in tests for case in cases_of_suite(test, results)):
            all_cases.append((suite, case))
            counts[case.outcome] += 1
            if case.outcome == "failed":
                outcomes.append(f"failed: {suite}: {case.name}")
                if counts["failed"] <= FAILURES_SHOWN:
                    print(f"-- {suite}: {case.name} ended with\n{end_of(case)}")
            elif case.outcome == "skipped":
                outcomes.append(f"skipped: {suite}: {case.name}: {case.reason}")
    budget = {}
    if options.budget:
        with open(options.budget, encoding="utf-8") as file:
            budget = json.load(file)
    for line in [*where_the_time_went(times_in(options.times), all_cases, budget), *outcomes]:
        print(line)
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
