# SPDX-License-Identifier: Apache-2.0
"""The source tree as the house tests see it: every file that people wrote, as text. A fuzz corpus is data, and a report is the
live run's."""
import os
import re

SKIPPED_FOLDERS = re.compile(r"^(build.*|\.git|\.venv|\.cache|\.pytest_cache|\.mypy_cache|__pycache__|corpus|live_run_report.*)$")
CODE = (".h", ".cc", ".cu")


def is_of_tests(path):
    """Tests of the rooms stand in tests/, those of an example or a benchmark in a folder `tests` beside it."""
    return "tests" in path.split("/")[:-1]


def files(root):
    """Paths relative to `root`, sorted."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not SKIPPED_FOLDERS.match(name)]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(path for path in found if os.path.isfile(os.path.join(root, path)))


def text(root, path):
    """The file's text, or None when it is not text (a corpus file, a picture)."""
    with open(os.path.join(root, path), "rb") as file:
        raw = file.read()
    try:
        return None if b"\0" in raw else raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
