# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: each starts on a host (a network namespace of tests/support/net/lab), and is watched."""
import contextlib
import json
import os
import signal
import subprocess
import threading
import time

WAIT_MAX_S = 180  # A loaded machine is slow; only a process that hangs takes so long.


class Failure(Exception):
    """What the run found wrong, or could not do."""


def wait_until(is_true, what, seconds=WAIT_MAX_S):
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(0.02)


class Host:
    """Where processes run. `net_lab --host NAME` tells of it in the environment."""

    def __init__(self, name):
        self.name = name
        self.address = os.environ[f"LAB_{name.upper()}_ADDRESS"]
        self.space = os.environ[f"LAB_{name.upper()}_NETNS"]

    def words(self, words):
        """With them, a program here, which ends with the thread that starts it."""
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={self.space}", *map(str, words)]

    def run(self, words, keys=None):
        """To its end: the exit code, its output, and its errors."""
        ended = subprocess.run(self.words(words), env=environment(keys), stdin=subprocess.DEVNULL, capture_output=True,
                               check=False)
        return ended.returncode, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace").strip()

    @contextlib.contextmanager
    def cut_from(self, other):
        """No packet goes from here to that host, or comes from there."""
        rules = [("OUTPUT", "-d"), ("INPUT", "-s")]
        try:
            for chain, side in rules:
                self._iptables("-A", chain, side, other.address, "-j", "DROP")
            yield
        finally:
            for chain, side in rules:
                self._iptables("-D", chain, side, other.address, "-j", "DROP")

    def _iptables(self, *words):
        code, _, errors = self.run(["iptables", "-w", *words])
        if code != 0:
            raise Failure(f"{self.name}: iptables {' '.join(words)}: {errors}")


def environment(keys):
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LAB_"))}
    return {**plain, **(keys or {})}


class Process:
    """One that runs until somebody ends it. Its errors go to a file, its lines to `on_line` with the time."""

    def __init__(self, host, words, log, keys=None, on_line=None):
        self.host, self.log, self.is_stopped = host, log, False
        with open(log, "ab") as errors:
            self.child = subprocess.Popen(host.words(words), env=environment(keys), stdin=subprocess.DEVNULL,
                                          stdout=subprocess.PIPE if on_line else errors, stderr=errors)
        if on_line:
            threading.Thread(target=self._read, args=(on_line,), daemon=True).start()

    def _read(self, on_line):
        for line in self.child.stdout:
            on_line(time.monotonic(), line.decode(errors="replace"))

    @property
    def lives(self):
        return self.child.poll() is None

    def signal(self, number):
        self.child.send_signal(number)
        self.is_stopped = number == signal.SIGSTOP or (self.is_stopped and number != signal.SIGCONT)

    def end(self, number):
        """The exit code; negative: a signal."""
        if self.lives:
            self.signal(number)
            if self.is_stopped:
                self.signal(signal.SIGCONT)
        try:
            return self.child.wait(WAIT_MAX_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.host.name} does not end within {WAIT_MAX_S} s: {self.last_words()}") from None

    def last_words(self):
        with open(self.log, "rb") as file:
            return " | ".join(file.read()[-2000:].decode(errors="replace").splitlines()[-5:])


class Provider:
    """`freshet provider`: the owner, or a standby. What it said last tells which."""

    def __init__(self, host, words, log, keys):
        self.host, self.words, self.log, self.keys = host, words, log, keys
        self.process, self.said = None, []
        self.start()

    def start(self):
        self.said = []  # (time, whether it stands by)
        self.process = Process(self.host, self.words, self.log, self.keys, self._on_line)

    def _on_line(self, at, line):
        self.said.append((at, json.loads(line)["standby"]))

    def has_role(self):
        """Whether it said whether it stands by. A provider that ended by itself is a failure."""
        if not self.process.lives:
            raise Failure(f"the provider of {self.host.name} ended by itself, with exit code "
                          f"{self.process.child.returncode}: {self.process.last_words()}")
        return bool(self.said)

    @property
    def is_owner(self):
        return self.process.lives and self.said[-1:] != [] and not self.said[-1][1]

    @property
    def is_standby(self):
        return self.process.lives and self.said[-1:] != [] and self.said[-1][1]

    def owns_since(self, after):
        """When it took over, after that time; None while it has not."""
        return next((at for at, stands_by in self.said if at > after and not stands_by), None)
