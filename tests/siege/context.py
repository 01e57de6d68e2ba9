# SPDX-License-Identifier: Apache-2.0
"""What an attack knows, and what it leaves behind."""
import random
import struct
import subprocess

REFUSED = (OSError, struct.error, IndexError)


class Context:
    """What an attack knows: where the doors are (told anew while it runs), its seed, when to stop."""

    def __init__(self, name, seed, targets, stop, options):
        self.name, self.targets_of, self.stop, self.options = name, targets, stop, options
        self.random = random.Random(f"{seed} {name}")
        self.counts = {}
        self.breaches = []

    def go_on(self):
        return not self.stop.is_set()

    def targets(self, *kinds):
        return [target for target in self.targets_of() if target["kind"] in kinds]

    def pick(self, *kinds):
        """One of them, or nothing, and then a moment has passed."""
        found = self.targets(*kinds)
        if not found:
            self.stop.wait(0.2)
            return None
        return self.random.choice(found)

    def count(self, what, by=1):
        self.counts[what] = self.counts.get(what, 0) + by

    def breach(self, text):
        self.count("breaches")
        if len(self.breaches) < 10 and text not in self.breaches:
            self.breaches.append(text)

    def run(self, line, seconds=30, output=False):
        """`freshet` with these arguments: its exit code, or that it did not end; what it printed, if that is wanted."""
        try:
            ended = subprocess.run([self.options["command"], *line], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE if output else subprocess.DEVNULL, timeout=seconds, cwd="/",
                                   env={"FRESHET_RUN_DIR": self.options["run_dir"]}, check=False)
            return ended.stdout if output else ended.returncode
        except subprocess.TimeoutExpired:
            return "no answer"


def session(context):
    return context.random.getrandbits(64) | 1


def model_of(target):
    return target.get("model", "live")
