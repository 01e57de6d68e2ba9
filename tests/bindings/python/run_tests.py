#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one file of tests in the venv, and leaves a JUnit file with its cases. Without a venv that has the package: exits with
77, and leaves a skip with the reason, which scripts/python.sh wrote down. A file whose framework is not there: likewise.

usage: run_tests.py FILE --venv FOLDER --results FILE.xml
"""
import argparse
import ast
import os
import subprocess
import sys
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

SKIPPED = 77
NO_TESTS = 5  # What pytest ends with also when a whole file was skipped: a framework is not there.


def was_skipped(results):
    """Whether the file left skips, and not merely nothing. The reason of a whole file's skip stands in its text, the last of three
    values; it goes where the reason of a test's skip is."""
    tree = ElementTree.parse(results)
    skips = list(tree.iter("skipped"))
    for skip in skips:
        if skip.get("message") == "collection skipped" and skip.text:
            skip.set("message", ast.literal_eval(skip.text)[-1])
    tree.write(results, encoding="utf-8", xml_declaration=True)
    return bool(skips)


def reason_of(venv):
    """Why the tests cannot run; empty when they can."""
    python = os.path.join(venv, "bin", "python")
    try:
        with open(venv + ".why_not", encoding="utf-8") as file:
            return " ".join(file.read().split())
    except OSError:
        pass
    if not os.path.exists(python):
        return "no venv with the package; scripts/python.sh makes it"
    ran = subprocess.run([python, "-c", "import freshet, pytest"], text=True, capture_output=True)
    return "" if ran.returncode == 0 else (ran.stderr.strip().splitlines() or ["the package cannot be imported"])[-1]


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--venv", required=True)
    parser.add_argument("--results", required=True)
    options = parser.parse_args(arguments)
    os.makedirs(os.path.dirname(options.results), exist_ok=True)
    reason = reason_of(options.venv)
    if reason:
        name = os.path.splitext(os.path.basename(options.file))[0]
        with open(options.results, "w", encoding="utf-8") as file:
            file.write(f'<testsuite><testcase classname="python" name={quoteattr(name)} time="0">'
                       f"<skipped message={quoteattr(reason)}/></testcase></testsuite>\n")
        print(reason)
        return SKIPPED
    code = subprocess.run([os.path.join(options.venv, "bin", "python"), "-m", "pytest", "-p", "no:cacheprovider",
                           "--junitxml", options.results, options.file],
                          env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1")).returncode
    return SKIPPED if code == NO_TESTS and was_skipped(options.results) else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
