# SPDX-License-Identifier: Apache-2.0
"""The programs that are besieged, each started as a person would, all in one folder."""
import json
import os
import re
import signal
import socket
import struct
import subprocess
import time

import processes

PATIENCE_SECONDS = 120
TENSOR_BYTES = 4 << 20


def free_port():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def safetensors(tensors, fill=0):
    """A file of these tensors: name to number of f32 elements."""
    header, at = {}, 0
    for name, elements in tensors.items():
        header[name] = {"dtype": "F32", "shape": [elements], "data_offsets": [at, at + 4 * elements]}
        at += 4 * elements
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes([fill]) * at


class Program:
    """A program with its output in files; dies with the siege."""

    def __init__(self, folder, name, arguments, environment):
        self.name, self.out_path, self.err_path = name, f"{folder}/{name}.out", f"{folder}/{name}.err"
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err,  # pylint: disable=R1732
                                            env={**os.environ, **environment}, preexec_fn=processes.die_with_parent)

    @property
    def pid(self):
        return self.process.pid

    def text(self, path):
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def out(self):
        return self.text(self.out_path)

    def err(self):
        return self.text(self.err_path)

    def wait_for(self, holds, what):
        until = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{self.name}: {what} did not come: {self.err()[-500:]}")
            time.sleep(0.05)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class LiveRun(Program):
    """Trainer, relay, two servers behind it, repository, load."""

    def __init__(self, folder, name, binaries, seconds, arguments):
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder, 0o755)
        directories = {role: f"{self.folder}/host-{role}" for role in ("trainer", "relay")}
        for path in directories.values():
            os.mkdir(path, 0o700)
        trainer, relay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        plan = {
            "trainer": {"directory": directories["trainer"], "listen": trainer},
            "repository": {"directory": directories["trainer"], "at": trainer},
            "relay": {"directory": directories["relay"], "at": trainer, "listen": relay, "channel": "zmq"},
            "server": {"directory": directories["relay"], "at": f"{relay},{trainer}", "channel": "zmq"},
        }
        with open(f"{self.folder}/hosts.json", "w", encoding="utf-8") as file:
            json.dump(plan, file)
        self.control = {trainer: "trainer", relay: "relay"}
        self.directories = directories
        super().__init__(self.folder, "live_run", [f"{binaries}/live_run", "--hosts", f"{self.folder}/hosts.json", "--json", "--seconds",
                                                   str(seconds), "--report", f"{self.folder}/report", *arguments],
                         {"TMPDIR": self.folder})

    def wait_until_it_serves(self):
        self.wait_for(lambda: re.search(r" served v[1-9]", self.err()), "an answered request")

    def interrupt(self, seconds):
        """Ends it as Ctrl-C does; its exit code, or that it did not end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "nothing, after all that time"

    def roles(self):
        """Process id by role, of those that live now."""
        found = {}
        for pid in processes.children(self.pid):
            words = processes.command_line(pid)
            role = next((word[7:] for word in words if word.startswith("--role=")), None)
            index = next((word[8:] for word in words if word.startswith("--index=")), "0")
            if role:
                found[f"server-{index}" if role == "server" else role] = pid
        return found

    def private(self):
        """Folders that no other account may look into."""
        runs = [entry.path for entry in os.scandir(self.folder) if entry.name.startswith("freshet-live-")]
        return [*self.directories.values(), *runs, f"{self.folder}/report/repository/serve"]

    def last_number(self):
        """The last number that was given, as the host directory keeps it."""
        try:
            with open(f"{self.directories['trainer']}/live.number", "rb") as file:
                return struct.unpack("<Q", file.read(8))[0]
        except (OSError, struct.error):
            return 0

    def summary(self):
        lines = self.out().splitlines()
        return json.loads(lines[-1]) if lines else None

    def deaths(self):
        return [line for line in self.err().splitlines() if line.endswith("; starting it again") or "giving up" in line]


class Provider(Program):
    """A repository on a port of its own, with or without keys, with a model to read."""

    def __init__(self, folder, name, freshet, keyed):
        self.folder, self.freshet = os.path.join(folder, name), freshet
        os.mkdir(self.folder, 0o755)
        self.address, self.keyed = f"tcp://127.0.0.1:{free_port()}", keyed
        arguments = []
        if keyed:
            for key in ("owner", "reader", "provider"):
                subprocess.run([freshet, "keygen", f"{self.folder}/{key}"], check=True, stdout=subprocess.DEVNULL)
            with open(f"{self.folder}/allow", "w", encoding="utf-8") as allow:
                for key, before in (("owner", "operator "), ("reader", "")):
                    with open(f"{self.folder}/{key}.pub", encoding="utf-8") as public:
                        allow.write(before + public.read().strip() + "\n")
            os.chmod(f"{self.folder}/allow", 0o600)
            arguments = ["--keys", f"{self.folder}/provider", "--allow", f"{self.folder}/allow"]
        super().__init__(self.folder, name, [freshet, "provider", "--repo", f"{self.folder}/store", "--listen", self.address, "--json",
                                             *arguments], {"FRESHET_RUN_DIR": f"{self.folder}/host"})

    def as_client(self, key):
        return ["--repo", self.address, *(["--keys", f"{self.folder}/{key}", "--server-key", f"{self.folder}/provider.pub"]
                                          if self.keyed else [])]

    def fill(self):
        self.wait_for(lambda: self.out().endswith("\n"), "its address")
        for version in (1, 2):
            path = f"{self.folder}/{version}.safetensors"
            with open(path, "wb") as file:
                file.write(safetensors({"a.kernel": TENSOR_BYTES // 4, "b.kernel": TENSOR_BYTES // 4}, version))
            subprocess.run([self.freshet, "repo", "put", "net", "--weights", path, *self.as_client("owner")], check=True,
                           stdout=subprocess.DEVNULL, timeout=PATIENCE_SECONDS)
            os.remove(path)


class Watcher(Program):
    """Publishes what appears in a folder; every file of two tensors counts, no other does."""

    def __init__(self, folder, freshet):
        self.folder = os.path.join(folder, "watcher")
        self.watched = f"{self.folder}/files"
        os.makedirs(self.watched)
        os.mkdir(f"{self.folder}/host", 0o700)
        with open(f"{self.watched}/0.safetensors", "wb") as file:
            file.write(safetensors({"a.kernel": 1024, "b.kernel": 1024}))
        super().__init__(self.folder, "watcher", [freshet, "publish", "watched", "--watch", self.watched, "--settle", "0.1", "--json"],
                         {"FRESHET_RUN_DIR": f"{self.folder}/host"})

    def strays(self):
        versions = [json.loads(line) for line in self.out().splitlines() if line.endswith("}")]
        return [version for version in versions if version["tensors"] != 2]


class Follower(Program):
    """Follows a folder of versions (the channel `file`)."""

    def __init__(self, folder, freshet):
        self.folder = os.path.join(folder, "follower")
        self.watched = f"{self.folder}/weights"
        os.makedirs(f"{self.watched}/weight_v000001")
        with open(f"{self.watched}/weight_v000001/model.safetensors", "wb") as file:
            file.write(safetensors({"a.kernel": 1 << 20, "b.kernel": 1 << 20}))
        os.mkdir(f"{self.folder}/out")
        self.written = f"{self.folder}/out"
        super().__init__(self.folder, "follower", [freshet, "subscribe", "weights", "--at", f"file://{self.watched}", "--out",
                                                   f"{self.folder}/out", "--json"], {"FRESHET_RUN_DIR": f"{self.folder}/host"})

    def damaged(self):
        """Of the versions that it wrote, those that no writer meant: both tensors are there, and one byte fills a file."""
        found = []
        for name in sorted(os.listdir(self.written)):
            path = os.path.join(self.written, name)
            if not name.endswith(".safetensors") or os.path.islink(path):
                continue
            with open(path, "rb") as file:
                content = file.read()
            header_bytes = struct.unpack_from("<Q", content)[0]
            data = content[8 + header_bytes:]
            names = set(json.loads(content[8:8 + header_bytes])) - {"__metadata__"}
            if names != {"a.kernel", "b.kernel"} or data.count(data[:1]) != len(data):
                found.append(name)
        return found
