# SPDX-License-Identifier: Apache-2.0
"""The blocks of a page of docs/python: its programs, written as files, and its commands, run in a shell."""
import os
import re
import subprocess
import sys

from conftest import PATIENCE

PAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "python")
TOOLS = os.path.dirname(sys.executable)


def blocks_of(page):
    """The page's blocks of code: (language, the file that the text names just before it, text)."""
    with open(os.path.join(PAGES, page), encoding="utf-8") as file:
        parts = re.split(r"^```(\w*)\n(.*?)^```\n", file.read(), flags=re.MULTILINE | re.DOTALL)
    return [(parts[i + 1], (re.findall(r"`(\w+\.py)`[^#]*$", parts[i]) or [None])[-1], parts[i + 2]) for i in range(0, len(parts) - 2, 3)]


def files_of(page, folder, port=8000):
    """Writes the page's programs, and returns its commands. Blocks without a file's name are parts of programs."""
    commands = []
    for language, name, text in blocks_of(page):
        if language == "python" and name is not None:
            with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
                file.write(text.replace("8000", str(port)))
        elif language == "sh":
            commands += text.splitlines()
    return commands


def in_shell(line, folder, address):
    """A line of the page, with the server where it is here."""
    line = line.replace("http://127.0.0.1:8000", address)
    ran = subprocess.run(["bash", "-c", 'images="[[$(seq -s, 64)]]"\n' + line], cwd=folder, text=True, capture_output=True,
                         timeout=PATIENCE, env=dict(os.environ, PATH=TOOLS + os.pathsep + os.environ["PATH"]))
    assert ran.returncode == 0, f"{line}\n{ran.stderr}"
    return ran.stdout
