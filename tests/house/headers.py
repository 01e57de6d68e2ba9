#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every header must bring what it needs. One that a source file includes first has shown it by having been built; the others
are compiled alone here, except those of tests, which their tests alone include. Prints what the compiler says of those that
do not, and exits with 1.

usage: headers.py ROOT BUILD-FOLDER COMPILER [OPTION...]
The compiler may be called through ccache: each header gets a source of its own in BUILD-FOLDER/headers-alone, where the
cache finds it again.
"""
import concurrent.futures
import os
import re
import subprocess
import sys

import tree


def check(compiler, folder, header):
    """What the compiler says against a file that includes `header` only; empty when it is content."""
    source = os.path.join(folder, header.replace("/", "-") + ".cc")
    # Twice, so that a header without a guard is seen too.
    text = f'#include "{header}"\n#include "{header}"\n'
    if not os.path.exists(source):  # One that stays as it was lets the compiler's cache look at the header alone.
        with open(source, "w", encoding="utf-8") as file:
            file.write(text)
    ran = subprocess.run([*compiler, "-c", source, "-o", source[:-len("cc")] + "o"], text=True, capture_output=True)
    return "" if ran.returncode == 0 else f"{header}: {ran.stderr}"


def included_first(root, paths):
    """The headers that some source file includes before anything else."""
    firsts = (re.search(r'^#include\s+(\S+)', tree.text(root, path) or "", re.MULTILINE) for path in paths)
    return {first[1].strip('"') for first in firsts if first}


def violations(root, folder, compiler):
    paths = tree.files(root)
    shown = included_first(root, [path for path in paths if path.endswith(".cc")])
    headers = [path for path in paths if path.endswith(".h") and path not in shown and not tree.is_of_tests(path)]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        return [complaint for complaint in pool.map(lambda header: check(compiler, folder, header), headers) if complaint]


if __name__ == "__main__":
    root, build, *compiler = sys.argv[1:]
    alone = os.path.join(build, "headers-alone")
    os.makedirs(alone, exist_ok=True)
    complaints = violations(root, alone, [*compiler, "-I", root, "-I", os.path.join(build, "generated")])
    print("\n".join(complaints) or "every header stands alone")
    sys.exit(1 if complaints else 0)
