#!/usr/bin/env python3
"""Every header must bring what it needs. One that a source file includes first has shown it by having been built; the others
are compiled alone here. Prints what the compiler says of those that do not, and exits with 1.

usage: headers.py ROOT FOLDER-OF-GENERATED-HEADERS COMPILER [OPTION...]
"""
import concurrent.futures
import re
import subprocess
import sys

import tree


def check(compiler, header):
    """What the compiler says against a file that includes `header` only; empty when it is content."""
    # Twice, so that a header without a guard is seen too.
    source = f'#include "{header}"\n#include "{header}"\n'
    ran = subprocess.run([*compiler, "-fsyntax-only", "-x", "c++", "-"], input=source, text=True, capture_output=True)
    return "" if ran.returncode == 0 else f"{header}: {ran.stderr}"


def included_first(root, paths):
    """The headers that some source file includes before anything else."""
    firsts = (re.search(r'^#include\s+(\S+)', tree.text(root, path) or "", re.MULTILINE) for path in paths)
    return {first[1].strip('"') for first in firsts if first}


def violations(root, compiler):
    paths = tree.files(root)
    shown = included_first(root, [path for path in paths if path.endswith(".cc")])
    headers = [path for path in paths if path.endswith(".h") and path not in shown]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        return [complaint for complaint in pool.map(lambda header: check(compiler, header), headers) if complaint]


if __name__ == "__main__":
    root, generated, *compiler = sys.argv[1:]
    complaints = violations(root, [*compiler, "-I", root, "-I", generated])
    print("\n".join(complaints) or "every header stands alone")
    sys.exit(1 if complaints else 0)
