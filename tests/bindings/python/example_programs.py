# SPDX-License-Identifier: Apache-2.0
"""How the tests start a program of examples/python."""
import importlib.util
import os
import subprocess
import sys

import pytest

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "examples", "python")


def start(name, *arguments, **environment):
    return subprocess.Popen([sys.executable, "-W", "ignore", os.path.join(EXAMPLES, name), *arguments], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=dict(os.environ, OMP_NUM_THREADS="1", **environment))


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"without {module}")
