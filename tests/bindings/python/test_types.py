# SPDX-License-Identifier: Apache-2.0
"""What the package says of its types is so."""
import os
import subprocess
import sys

import pytest

import freshet

PACKAGE = os.path.dirname(freshet.__file__)


def run(*arguments, cwd):
    ran = subprocess.run([sys.executable, "-m", *arguments], text=True, capture_output=True, cwd=cwd)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_stub_is_the_extensions(folder):
    pytest.importorskip("nanobind")
    stub = os.path.join(folder, "_core.pyi")
    run("nanobind.stubgen", "-q", "-m", "freshet._core", "-o", stub, cwd=folder)
    with open(stub, encoding="utf-8") as made, open(os.path.join(PACKAGE, "_core.pyi"), encoding="utf-8") as kept:
        assert made.read() == kept.read(), f"copy {stub} to bindings/python/freshet/_core.pyi"


def test_mypy_finds_nothing(folder):
    pytest.importorskip("mypy")
    config = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "pyproject.toml")
    cache = os.path.join(folder, "cache")
    run("mypy", "--config-file", config, "--cache-dir", cache, "-p", "freshet", cwd=folder)
