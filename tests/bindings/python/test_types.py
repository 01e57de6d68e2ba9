# SPDX-License-Identifier: Apache-2.0
"""What the package says of its types is so."""
import os
import subprocess
import sys

import pytest

import freshet
import freshet.publisher

CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "pyproject.toml")  # Follows no framework's imports.
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
    cache = os.path.join(folder, "cache")
    run("mypy", "--config-file", CONFIG, "--cache-dir", cache, "-p", "freshet", cwd=folder)


def test_a_program_is_told_the_types(folder):
    pytest.importorskip("mypy")
    program = os.path.join(folder, "program.py")
    with open(program, "w", encoding="utf-8") as file:
        file.write("""
import freshet
import freshet.publisher
with freshet.Publisher("m") as pub:
    reveal_type(pub)
with freshet.Repository("runs/") as repo:
    reveal_type(repo)
reveal_type(freshet.Subscriber("m"))
reveal_type(freshet.deephyper.evaluate)
""")
    ran = subprocess.run([sys.executable, "-m", "mypy", "--config-file", CONFIG, "--cache-dir", os.path.join(folder, "cache"), program],
                         text=True, capture_output=True, cwd=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = [line.partition('Revealed type is "')[2] for line in ran.stdout.splitlines() if "Revealed" in line]
    assert [one.rpartition(".")[2].rstrip('"') for one in told[:3]] == ["Publisher", "Repository", "Subscriber"], told
    assert told[3].startswith("def (")


@pytest.mark.parametrize("kind", [freshet.Publisher, freshet.Subscriber, freshet.Snapshot, freshet.Repository, freshet.Version,
                                  freshet.Scheduler, freshet.Checkpointer, freshet.DeviceTensors, freshet.publisher.Receipt])
def test_whatever_has_a_name_has_a_docstring(kind):
    bare = [name for name, value in vars(kind).items() if not name.startswith("_") and (callable(value) or isinstance(value, property))
            and not value.__doc__]
    assert not bare
