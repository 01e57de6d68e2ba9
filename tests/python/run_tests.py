#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one file of tests in the venv, and leaves a JUnit file with its cases. Without a venv that has the package: exits with
77, and leaves a skip with the reason, which scripts/python.sh wrote down.

usage: run_tests.py FILE --venv FOLDER --results FILE.xml
"""
import argparse
import os
import subprocess
import sys
from xml.sax.saxutils import quoteattr

SKIPPED = 77


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
    return subprocess.run([os.path.join(options.venv, "bin", "python"), "-m", "pytest", "-p", "no:cacheprovider",
                           "--junitxml", options.results, options.file],
                          env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1")).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
