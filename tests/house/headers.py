#!/usr/bin/env python3
"""Compiles every header alone: each must bring what it needs. Prints what the compiler says of those that do not, and
exits with 1.

usage: headers.py ROOT FOLDER-OF-GENERATED-HEADERS COMPILER [OPTION...]
"""
import concurrent.futures
import subprocess
import sys

import tree


def check(compiler, header):
    """What the compiler says against a file that includes `header` only; empty when it is content."""
    # Twice, so that a header without a guard is seen too.
    source = f'#include "{header}"\n#include "{header}"\n'
    ran = subprocess.run([*compiler, "-fsyntax-only", "-x", "c++", "-"], input=source, text=True, capture_output=True)
    return "" if ran.returncode == 0 else f"{header}: {ran.stderr}"


def violations(root, compiler):
    headers = [path for path in tree.files(root) if path.endswith(".h") and not path.startswith("tests/house/")]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        return [complaint for complaint in pool.map(lambda header: check(compiler, header), headers) if complaint]


if __name__ == "__main__":
    root, generated, *compiler = sys.argv[1:]
    complaints = violations(root, [*compiler, "-I", root, "-I", generated])
    print("\n".join(complaints) or "every header stands alone")
    sys.exit(1 if complaints else 0)
