"""The programs in examples/python, as a newcomer runs them: a server's accuracy follows the trainer's."""
import importlib.util
import os
import subprocess
import sys

import pytest

from conftest import PATIENCE

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "python")


def start(name, *arguments, **environment):
    return subprocess.Popen([sys.executable, "-W", "ignore", os.path.join(EXAMPLES, name), *arguments], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=dict(os.environ, OMP_NUM_THREADS="1", **environment))


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"without {module}; scripts/python.sh --frameworks brings it")


def follow(trainer, server, least):
    """Both to their ends; the accuracies that the server printed, by version."""
    out, err = server.communicate(timeout=5 * PATIENCE)
    assert server.returncode == 0, err
    _, complaints = trainer.communicate("\n", timeout=PATIENCE)
    assert trainer.returncode == 0, complaints
    accuracy = {}
    for line in out.splitlines():
        if line.startswith("version "):
            version, _, value = line.removeprefix("version ").partition(": accuracy ")
            accuracy[int(version)] = float(value)
    assert max(accuracy) == 20, "the last version was served"
    assert accuracy[20] >= least, accuracy


def test_torch_trainer_and_server():
    needs("torch", "sklearn")
    server = start("torch_server.py", "--patience", str(PATIENCE), "--until", "20")
    follow(start("torch_trainer.py"), server, 0.93)


def test_keras_trainer_and_server_on_another_backend():
    needs("keras", "jax", "torch", "sklearn")
    trainer = start("keras_trainer.py", KERAS_BACKEND="jax")
    follow(trainer, start("keras_server.py", "--patience", str(PATIENCE), "--until", "20", KERAS_BACKEND="torch"), 0.93)


def test_deephyper_search(folder):
    needs("torch", "deephyper", "sklearn")
    search = subprocess.run([sys.executable, "-W", "ignore", os.path.abspath(os.path.join(EXAMPLES, "deephyper_search.py")),
                             "--repo", os.path.join(folder, "runs"), "--candidates", "12", "--population", "5", "--epochs", "2"],
                            text=True, capture_output=True, cwd=folder, timeout=5 * PATIENCE,
                            env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert search.returncode == 0, search.stderr
    assert "candidates" in search.stdout and "search@best" in search.stdout
