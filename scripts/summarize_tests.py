#!/usr/bin/env python3
"""Adds up JUnit files: lists failures and skips with their reasons, and ends with "N passed, M failed, K skipped".

usage: summarize_tests.py NAME=FILE.xml ...
"""
import re
import sys
import xml.etree.ElementTree as ElementTree


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


def main(arguments):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for argument in arguments:
        suite, _, path = argument.partition("=")
        cases = cases_of(path)
        if not cases:
            counts["failed"] += 1
            print(f"failed: {suite}: left no results (its build or its runner failed)")
        for case in cases:
            outcome = outcome_of(case)
            counts[outcome] += 1
            if outcome == "failed":
                print(f"failed: {suite}: {case.get('name')}")
            elif outcome == "skipped":
                print(f"skipped: {suite}: {case.get('name')}: {reason_of_skip(case)}")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
