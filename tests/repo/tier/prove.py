#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/prove_tiering.sh does, in a folder of its own.

usage: prove.py FOLDER-OF-PROGRAMS FILES
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from slow_folder import SlowFolder

EPOCHS = 3
KILLED_IN = 2
TRAINER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trainer.py")


class Source:
    """The set, slow where that can be had; what is asked of it."""

    def __init__(self, programs, folder):
        self.backing = f"{folder}/set"
        self.path = self.backing
        self.slow = None
        try:
            self.slow = SlowFolder(f"{programs}/lab/slow_folder", self.backing, f"{folder}/source", 2000, 200_000_000)
            self.path = f"{folder}/source"
        except OSError as error:
            print(f"prove_tiering: {error}: the set is read where it lies, and nothing counts what is asked of it")

    def forget(self):
        """Nothing of it is in memory."""
        if self.slow:
            self.slow.ask("invalidate")
        else:
            drop_pages(self.backing)

    def asked(self):
        """(operations, bytes) since the last call."""
        if not self.slow:
            return None
        counters = self.slow.ask("counters")
        self.slow.ask("reset")
        return sum(value for name, value in counters.items() if name != "bytes"), counters["bytes"]


def drop_pages(folder):
    """The page cache forgets what lies below a folder."""
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                fd = os.open(os.path.join(where, name), os.O_RDONLY | os.O_NOFOLLOW)
            except OSError:
                continue  # A link, or a copy that just became one.
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def make_set(folder, count):
    os.makedirs(folder)
    chance = random.Random(17)
    for number in range(count):
        with open(f"{folder}/{number:06}", "wb") as file:
            file.write(chance.randbytes(max(64, int(chance.lognormvariate(11.6, 0.5)))))


class Training:
    """One way to train: rows by epoch, and the losses."""

    def __init__(self, folder, source, name, before=(), tier=None):
        self.checkpoint = f"{folder}/{name}.json"
        self.source, self.before, self.tier = source, list(before), tier
        self.rows = {epoch: [0.0, 0, 0] for epoch in range(1, EPOCHS + 1)}

    def begin_epoch(self):
        self.source.forget()
        if self.tier:
            drop_pages(self.tier)
        self.source.asked()
        return time.monotonic()

    def end_epoch(self, epoch, begin):
        row = self.rows[epoch]
        row[0] += time.monotonic() - begin
        asked = self.source.asked()
        if asked:
            row[1] += asked[0]
            row[2] += asked[1]

    def run(self, die_in=0):
        """Until the end, or until it dies in that epoch."""
        words = self.before + [sys.executable, TRAINER, self.source.path, self.checkpoint, str(EPOCHS)]
        words += ["--die-in", str(die_in)] if die_in else []
        done = self.losses()
        begin = self.begin_epoch()
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
            for epoch in range(len(done) + 1, EPOCHS + 1):
                line = trainer.stdout.readline()
                self.end_epoch(epoch, begin)
                if line != f"epoch {epoch}\n":
                    break
                begin = self.begin_epoch()
                trainer.stdin.write("go on\n")
                trainer.stdin.flush()
        killed = trainer.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if killed != bool(die_in) or (not killed and trainer.returncode != 0):
            sys.exit(f"prove_tiering: the program ended with {trainer.returncode}")

    def losses(self):
        if not os.path.exists(self.checkpoint):
            return []
        with open(self.checkpoint, encoding="utf-8") as file:
            return json.load(file)["losses"]


def tiered(programs, folder, source, name, more):
    """Trains with tiers of its own, killed half-way; returns the training and what the tiers say."""
    config, tier = f"{folder}/{name}.toml", f"{folder}/tier-{name}"
    with open(config, "w", encoding="utf-8") as file:
        file.write(f'source = ["{source.path}"]\n{more}\n[[tier]]\npath = "{tier}"\nquota = "100 GiB"\n')
    freshet = [f"{programs}/freshet", "tier"]
    try:
        training = Training(folder, source, name, [*freshet, "run", "--config", config, "--"], tier)
        training.run(die_in=KILLED_IN)
        training.run()
        subprocess.run([*freshet, "settle", "--config", config], check=True)
        verified = subprocess.run([*freshet, "verify", "--config", config], check=True, stdout=subprocess.PIPE, text=True).stdout
        stat = subprocess.run([*freshet, "stat", "--json", "--config", config], check=True, stdout=subprocess.PIPE, text=True).stdout
        return training, json.loads(stat.splitlines()[-1]), verified.strip()
    finally:
        subprocess.run([*freshet, "stop", "--config", config], check=False)


def line(name, values):
    print(f"{name:34}" + "".join(f"{value:>26}" for value in values))


def show(trainings, counted):
    line("", ["without", "with", 'with, validate "never"'])
    for epoch in range(1, EPOCHS + 1):
        line(f"loss of epoch {epoch}", [training.losses()[epoch - 1] for training in trainings])
    for epoch in range(1, EPOCHS + 1):
        note = ", killed half-way, again" if epoch == KILLED_IN else ""
        line(f"epoch {epoch}{note}", [f"{training.rows[epoch][0]:.2f} s" for training in trainings])
        if counted:
            line("  operations at the source", [training.rows[epoch][1] for training in trainings])
            line("  read at the source", [f"{training.rows[epoch][2] / 1e6:.1f} MB" for training in trainings])
    line("all", [f"{sum(row[0] for row in training.rows.values()):.2f} s" for training in trainings])
    if counted:
        line("  operations at the source", [sum(row[1] for row in training.rows.values()) for training in trainings])
        line("  read at the source", [f"{sum(row[2] for row in training.rows.values()) / 1e6:.1f} MB" for training in trainings])


def prove(programs, folder, count):
    make_set(f"{folder}/set", count)
    source = Source(programs, folder)
    try:
        plain = Training(folder, source, "plain")
        plain.run()
        looked, told, verified = tiered(programs, folder, source, "looked", "")
        trusted, _, _ = tiered(programs, folder, source, "trusted", 'validate = "never"')
        trainings = [plain, looked, trusted]
        show(trainings, source.slow is not None)
        print("(Only the trainings with tiers were killed in epoch 2; the row has both attempts.)")
        print(f"copied once: {told['copied_files']} files, {told['copied_bytes'] / 1e6:.1f} MB; {told['hits']} of {told['opens']} opens "
              f"were served from the tier; {verified}")
        if any(training.losses() != plain.losses() or len(training.losses()) != EPOCHS for training in trainings):
            sys.exit("prove_tiering: the losses differ")
        print("losses are equal to the last bit")
    finally:
        if source.slow:
            source.slow.close()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = tempfile.mkdtemp(prefix="freshet-tiering.")
    try:
        prove(os.path.abspath(sys.argv[1]), folder, int(sys.argv[2]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
