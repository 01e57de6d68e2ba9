#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of checkpoint_ranks that are killed, stopped, resized and robbed of hosts, one after another, from one seed. Before each
life the faults are chosen; after it what must have survived is known, and the next life has to go on from there, byte by byte.

usage: soak.py PROGRAM SECONDS [--seed N] [--folder DIR]
Prints a line now and then, and at the end one JSON object; exit code 1 when anything was lost or wrong.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

STATE = {"seed": "soak", "tensors": [
    {"name": "emb", "dtype": "f32", "shape": [3000, 40], "role": "weight", "layout": "replicated", "every": 2},
    {"name": "rows", "dtype": "f32", "shape": [11, 500], "role": "weight", "layout": "split:0", "every": 1},
    {"name": "columns", "dtype": "bf16", "shape": [40, 9], "role": "weight", "layout": "split:1", "every": 3},
    {"name": "frozen", "dtype": "f32", "shape": [500000], "role": "weight", "layout": "replicated", "every": 0},
    {"name": "table", "dtype": "f32", "shape": [2000], "role": "optimizer", "layout": "on:2", "every": 1},
    {"name": "rng", "dtype": "u8", "shape": [21], "role": "opaque", "layout": "own", "every": 1}]}
BYTES = {"f32": 4, "bf16": 2, "u8": 1}
POINTS = ("captured", "local_half", "local_synced", "group_half", "group_synced", "external_half", "external_synced")
HOSTS = 6


def product(numbers):
    all_of_them = 1
    for number in numbers:
        all_of_them *= number
    return all_of_them


def whole(name, written, count):
    """A whole tensor's bytes, by the definition."""
    digest = hashlib.blake2b(f"{STATE['seed']}/{name}/{written}".encode(), digest_size=16).digest()
    k = int.from_bytes(digest[:8], "little") >> 1
    words = (count + 7) // 8
    return struct.pack(f"<{words}Q", *((k + 2654435761 * i) % 2**64 for i in range(words)))[:count]


WHOLE = {}


def expected(step, ranks, rank, fresh):
    """{name: (shape, bytes)} that a rank holds."""
    held = {}
    for tensor in STATE["tensors"]:
        name, shape, layout = tensor["name"], list(tensor["shape"]), tensor["layout"]
        if layout == "own":
            name = f"{name}.r{rank}"
        if layout.startswith("on:") and int(layout[3:]) % ranks != rank:
            continue
        written = 0 if tensor["every"] == 0 or name in fresh else step - step % tensor["every"]
        size = BYTES[tensor["dtype"]]
        key = (name, written)
        if key not in WHOLE:
            if len(WHOLE) > 60:
                WHOLE.clear()
            WHOLE[key] = whole(name, written, product(shape) * size)
        data = WHOLE[key]
        if layout.startswith("split:"):
            axis = int(layout[6:])
            rows, row = shape[axis], product(shape[axis + 1:]) * size
            each = -(-rows // ranks)
            first, last = min(rows, rank * each), min(rows, (rank + 1) * each)
            data = b"".join(data[(outer * rows + first) * row:(outer * rows + last) * row]
                            for outer in range(product(shape[:axis])))
            shape[axis] = last - first
        held[name] = (shape, data)
    return held


def tensors_of(path):
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    data = data[8 + length:]
    return {name: (entry["shape"], data[entry["data_offsets"][0]:entry["data_offsets"][1]])
            for name, entry in header.items()}


class Soak:
    def __init__(self, program, folder, seed):
        self.program, self.folder, self.random = program, folder, random.Random(seed)
        self.count = dict.fromkeys(("lives", "restarts", "resized", "killed", "stopped", "hosts_lost", "versions",
                                    "checked_bytes", "rebuilt_bytes", "lost", "wrong", "hung", "twice"), 0)
        self.step = 0
        self.safe = {}        # Level: the newest version that every fault so far has left there.
        self.numbers = {}     # Version: step.
        self.ranks = None
        self.spare = 0        # So many hosts may still go since a version reached the group last.
        with open(os.path.join(folder, "state.json"), "w", encoding="utf-8") as file:
            json.dump(STATE, file)

    def bad(self, kind, text):
        self.count[kind] += 1
        print(f"soak: {kind}: {text}", flush=True)

    def live(self):
        self.count["lives"] += 1
        ranks = self.random.randint(2, HOSTS)
        steps = self.step + self.random.randint(3, 12)
        shutil.rmtree(os.path.join(self.folder, "dump"), ignore_errors=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            meet = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        scheme, losses = self.random.choice([("partner", 1), ("xor", 1)] + ([("rs:2", 2)] * 2 if ranks > 2 else []))
        victim = self.random.randrange(ranks) if self.random.random() < 0.6 else None
        how = self.random.choice(("point", "kill", "stop"))
        # Every rank reads all hosts' folders that are left: they could be anywhere, and bytes come from whoever has them.
        locals_of = [[os.path.join(self.folder, f"host{rank}")] for rank in range(ranks)]
        locals_of[0] += [os.path.join(self.folder, f"host{host}") for host in range(ranks, HOSTS)]
        jobs, outputs = [], []
        for rank in range(ranks):
            words = [self.program, "--model", "net", "--state", os.path.join(self.folder, "state.json"), "--steps", str(steps),
                     "--step-ms", "8", "--local", *locals_of[rank], "--host", f"host{rank}", "--group", scheme,
                     "--external", os.path.join(self.folder, "runs"), "--dump", os.path.join(self.folder, "dump"),
                     "--rank", str(rank), "--ranks", str(ranks), "--meet", meet]
            if rank == victim and how == "point":
                words += ["--die-at", f"{self.random.choice(POINTS)}:{self.step + self.random.randint(1, 6)}"]
            output = tempfile.TemporaryFile(mode="w+")
            outputs.append(output)
            jobs.append(subprocess.Popen(words, stdout=output, stderr=subprocess.PIPE, text=True))
        if victim is not None and how != "point":
            time.sleep(self.random.uniform(0.05, 0.5))
            jobs[victim].send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        codes, errors = [], []
        for rank, job in enumerate(jobs):
            if rank == victim and how == "stop":
                codes.append(None)
                errors.append("")
                continue
            try:
                errors.append(job.communicate(timeout=60)[1])
                codes.append(job.returncode)
            except subprocess.TimeoutExpired:
                self.bad("hung", f"rank {rank} of {ranks}")
                job.kill()
                errors.append(job.communicate()[1])
                codes.append(None)
        if victim is not None:
            self.count["stopped" if how == "stop" else "killed"] += 1
            jobs[victim].kill()
            jobs[victim].wait()
        said = []
        for output in outputs:
            output.seek(0)
            said.append([json.loads(line) for line in output.read().splitlines() if line.endswith("}")])
            output.close()
        self.judge(ranks, losses, said, codes, errors)

    def judge(self, ranks, losses, said, codes, errors):
        started = [next((line for line in lines if line["event"] == "started"), None) for lines in said]
        needed = max(self.safe.values(), default=0)
        if 4 in codes and needed:
            self.bad("lost", f"version {needed} should be there: {' '.join(errors)}")
        restored_steps = set()
        for rank, line in enumerate(started):
            if line is None:
                continue
            restored = line["restored"]
            version, step = (restored["version"], restored["step"]) if restored else (0, 0)
            self.count["rebuilt_bytes"] += restored["rebuilt_bytes"] if restored else 0
            restored_steps.add(step)
            if version < needed:
                self.bad("lost", f"version {needed} should be there, rank {rank} has {version}: {errors[rank]}")
            got = tensors_of(os.path.join(self.folder, "dump", f"rank{rank}.safetensors"))
            want = expected(step, ranks, rank, restored["fresh"] if restored else ())
            if got != want:
                names = [name for name in sorted(set(got) | set(want)) if got.get(name) != want.get(name)]
                self.bad("wrong", f"rank {rank} of {ranks} at version {version}: {names}")
            self.count["checked_bytes"] += sum(len(data) for _, data in got.values())
        if len(restored_steps) > 1:
            self.bad("wrong", f"ranks went on from different steps: {restored_steps}")
        if restored_steps:
            self.count["restarts"] += 1
            self.count["resized"] += self.ranks not in (None, ranks)
            self.step = restored_steps.pop()
            self.ranks = ranks
        for lines in said:
            for line in lines:
                if line["event"] == "captured":
                    if self.numbers.setdefault(line["version"], line["step"]) != line["step"]:
                        self.bad("twice", f"number {line['version']}")
                elif line["event"] == "reached" and line["level"] != "memory":
                    self.count["versions"] += line["rank"] == 0
                    self.safe[line["level"]] = max(self.safe.get(line["level"], 0), line["version"])
                    if line["level"] == "group":
                        self.spare = losses
        self.lose_hosts(ranks)

    def lose_hosts(self, ranks):
        """A host's disk goes, or two do, now and then: what the folders alone held is not needed any more, the rest is."""
        for _ in range(self.random.choice((0, 0, 0, 0, 1, 1, 2))):
            host = self.random.randrange(ranks)
            shutil.rmtree(os.path.join(self.folder, f"host{host}"), ignore_errors=True)
            self.count["hosts_lost"] += 1
            # The group has what it had. More hosts than it was made for, before a version is there again, may be too many.
            self.safe.pop("local", None)
            self.spare -= 1
            if self.spare < 0:
                self.safe.pop("group", None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--folder")
    options = parser.parse_args()
    print(f"soak: seed {options.seed}", flush=True)
    folder = options.folder or tempfile.mkdtemp(prefix="freshet-soak-")
    os.makedirs(folder, exist_ok=True)
    soak = Soak(options.program, folder, options.seed)
    until = time.monotonic() + options.seconds
    told = time.monotonic()
    bad = ("lost", "wrong", "hung", "twice")
    while time.monotonic() < until and not any(soak.count[kind] for kind in bad):
        soak.live()
        if time.monotonic() - told > 20:
            told = time.monotonic()
            print(f"soak: {json.dumps(soak.count)}", flush=True)
    failed = any(soak.count[kind] for kind in bad)
    print(json.dumps({"seed": options.seed, **soak.count}))
    if failed:
        print(f"soak: what it left is in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
