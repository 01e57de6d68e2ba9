# SPDX-License-Identifier: Apache-2.0
"""The slow folder (tests/support/slow_folder) for scripts."""
import json
import os
import subprocess


class SlowFolder:
    """Shows `backing` at `mount`. Raises OSError, with the reason, where that cannot be had. It goes with this process."""

    def __init__(self, program, backing, mount, latency_us=0, bytes_per_second=0, uncached=False):
        if not os.path.exists(program):
            raise OSError("this build has no slow_folder (libfuse3 was missing)")
        if not os.path.exists("/dev/fuse"):
            raise OSError("this machine has no FUSE")
        os.makedirs(mount, exist_ok=True)
        words = [program, "--backing", backing, "--mount", mount, "--latency-us", str(latency_us), "--bandwidth", str(bytes_per_second)]
        self.process = subprocess.Popen(words + ["--uncached"] * uncached, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if not self.process.stdout.readline():
            raise OSError("FUSE cannot be mounted here")

    def ask(self, command):
        """What it answers."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        """Returns when the mount is gone."""
        self.process.stdin.close()
        self.process.wait()
