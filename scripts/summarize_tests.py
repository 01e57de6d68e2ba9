#!/usr/bin/env python3
"""Adds up JUnit files: shows how the first failures ended, lists failures and skips with their reasons, and ends with
"N passed, M failed, K skipped".

usage: summarize_tests.py NAME=FILE.xml ...
"""
import re
import sys
import xml.etree.ElementTree as ElementTree

FAILURES_SHOWN = 3
LINES_SHOWN = 25
LINE_CHARACTERS_MAX = 400


def reason_of_skip(case):
    """What GTEST_SKIP() said, or the reason that the test runner gives."""
    output = case.findtext("system-out") or ""
    said = re.search(r": Skipped\n(?!\n|\[)(.+?)\n(?:\n|\[)", output, re.DOTALL)
    if said:
        return " ".join(said.group(1).split())
    message = case.find("skipped").get("message") if case.find("skipped") is not None else "disabled"
    return "no reason given" if message.startswith("SKIP_") else message


def outcome_of(case):
    skipped, status = case.find("skipped"), case.get("status")
    if case.find("failure") is not None or case.find("error") is not None or status == "fail":
        return "failed"
    # ctest calls a test skipped, too, whose program is missing; only what the test said itself is a skip.
    if status == "notrun" and not (skipped is not None and skipped.get("message", "").startswith("SKIP_")):
        return "failed"
    return "skipped" if skipped is not None or status == "disabled" else "passed"


def cases_of(path):
    """The test cases of a JUnit file; nothing when there is no such file, or it is broken."""
    try:
        return list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []


def end_of(case):
    """The last lines of what a test printed: enough to see why it failed when nothing else was kept."""
    lines = (case.findtext("system-out") or "no output").rstrip().splitlines()
    return "\n".join(line[:LINE_CHARACTERS_MAX] for line in lines[-LINES_SHOWN:])


def main(arguments):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    outcomes = []
    for argument in arguments:
        suite, _, path = argument.partition("=")
        cases = cases_of(path)
        if not cases:
            counts["failed"] += 1
            outcomes.append(f"failed: {suite}: left no results (its build or its runner failed)")
        for case in cases:
            outcome = outcome_of(case)
            counts[outcome] += 1
            if outcome == "failed":
                outcomes.append(f"failed: {suite}: {case.get('name')}")
                if counts["failed"] <= FAILURES_SHOWN:
                    print(f"-- {suite}: {case.get('name')} ended with\n{end_of(case)}")
            elif outcome == "skipped":
                outcomes.append(f"skipped: {suite}: {case.get('name')}: {reason_of_skip(case)}")
    for line in outcomes:
        print(line)
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
