# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share. They run against the installed wheel, in the venv of scripts/python.sh."""
import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

import freshet
import pytest

PATIENCE = 60  # Seconds, for what comes soon on any machine.

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # A shell starts what runs behind it so, and programs would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def eventually(condition):
    """Whether it became true; what is waited for comes soon on any machine."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)  # Leaves the processor to what is waited for.
    return True


def stand_still(pid):
    """SIGSTOP; returns when every thread of the process stands. Until then some of them may run on and answer."""
    def stands():
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] not in "TZX":
                    return False
        return True

    os.kill(pid, signal.SIGSTOP)
    assert eventually(stands)


@contextlib.contextmanager
def full_disk():
    """No file of this process takes more than 64 KiB meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def folder():
    """A new folder with a short path, since sockets' paths are short."""
    path = tempfile.mkdtemp(prefix="freshet-py-")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def run_dir(monkeypatch):
    """The host directory of this test alone, and of the programs that it starts."""
    path = tempfile.mkdtemp(prefix="freshet-run-")
    monkeypatch.setenv("FRESHET_RUN_DIR", path)
    monkeypatch.setenv("XDG_STATE_HOME", path + "-state")
    yield path
    for each in (path, path + "-state"):
        shutil.rmtree(each, ignore_errors=True)


@pytest.fixture
def pair():
    """A publisher and a subscriber of one model."""
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        yield publisher, subscriber


class Program:
    """A Python program of its own; its lines come by line(), and it is ended with the test."""

    def __init__(self, text, *arguments):
        self.process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(text), *arguments], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=dict(os.environ, PYTHONUNBUFFERED="1"))

    def line(self):
        line = self.process.stdout.readline().strip()
        if not line:
            self.process.kill()
            pytest.fail(f"the program ended: {self.process.communicate()[1]}")
        return line

    def go_on(self):
        """Gives it a line."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        """Its exit code, what else it printed, and what it complained of."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err


@pytest.fixture
def program():
    started = []

    def start(text, *arguments):
        started.append(Program(text, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()
