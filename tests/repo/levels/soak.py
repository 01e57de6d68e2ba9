#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of checkpoint_ranks that are killed, stopped, cut off, resized and robbed of hosts, one after another, from one seed.
Before each life the faults are chosen; after it what must have survived is known, and the next life has to go on from there, byte
by byte.

Under net_lab (LAB_HOST0_NETNS and so on in the environment) the ranks stand in its hosts, in turn, have keys, and cables are
cut; rank r and rank r + 3 share a host. Else all are on loopback, each a host of its own.

usage: soak.py PROGRAM SECONDS [--seed N] [--folder DIR]
Prints a line now and then, then one JSON object, and at the end how much was lost and wrong; exit code 1 when anything was.
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
RANKS = 6
BAD = ("lost", "wrong", "hung", "twice", "died")


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


class Lab:
    """The hosts that net_lab made, if it did."""

    def __init__(self):
        self.spaces, self.addresses = [], []
        while f"LAB_HOST{len(self.spaces)}_NETNS" in os.environ:
            self.addresses.append(os.environ[f"LAB_HOST{len(self.spaces)}_ADDRESS"])
            self.spaces.append(os.environ[f"LAB_HOST{len(self.spaces)}_NETNS"])

    def inside(self, host):
        """What to write before a command that is to run there; the process stays the same."""
        return ["nsenter", f"--net={self.spaces[host]}"] if self.spaces else []

    def cut(self, host):
        for chain, direction in (("LOSS", "-i"), ("OUTPUT", "-o")):
            subprocess.run([*self.inside(host), "iptables", "-A", chain, direction, "eth0", "-j", "DROP"], check=True)

    def heal(self, host):
        for chain in ("LOSS", "OUTPUT"):
            subprocess.run([*self.inside(host), "iptables", "-F", chain], check=True)


class Soak:
    def __init__(self, program, folder, seed):
        self.program, self.folder, self.random, self.lab = program, folder, random.Random(seed), Lab()
        self.hosts = len(self.lab.spaces) or RANKS
        self.count = dict.fromkeys(("lives", "restarts", "resized", "killed", "stopped", "continued", "cut", "lost_a_peer",
                                    "hosts_lost", "anew", "versions", "checked_bytes", "rebuilt_bytes", *BAD), 0)
        self.step = 0
        self.safe = {}        # Level: the newest version that every fault so far has left there.
        self.numbers = {}     # Version: step.
        self.ranks = None
        self.spare = 0        # So many hosts may still go since a version reached the group last.
        self.anew = False     # Nothing that has to be there is left: the next life is told to begin anew.
        with open(os.path.join(folder, "state.json"), "w", encoding="utf-8") as file:
            json.dump(STATE, file)
        if self.lab.spaces:
            self.make_keys()

    def make_keys(self):
        freshet = os.path.join(os.path.dirname(self.program), "freshet")
        with open(os.path.join(self.folder, "ranks.allow"), "w", encoding="utf-8") as allow:
            for rank in range(RANKS):
                key = os.path.join(self.folder, f"key{rank}")
                subprocess.run([freshet, "keygen", key], check=True, stdout=subprocess.DEVNULL)
                with open(f"{key}.pub", encoding="utf-8") as public:
                    allow.write(public.read())
        os.chmod(os.path.join(self.folder, "ranks.allow"), 0o600)

    def bad(self, kind, text):
        self.count[kind] += 1
        print(f"soak: {kind}: {text}", flush=True)

    def place(self, rank):
        """The folder of a rank, on the disk of its host."""
        return os.path.join(self.folder, f"host{rank % self.hosts}", f"rank{rank}")

    def meeting_place(self):
        if self.lab.spaces:
            return f"tcp://{self.lab.addresses[0]}:{self.random.randint(20000, 30000)}"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"tcp://127.0.0.1:{probe.getsockname()[1]}"

    def choose_group(self, ranks):
        """A way that this number of ranks on these hosts can have, and how many hosts it gives back."""
        ways = [("partner", 1), ("xor", 1)]
        # Groups are as large as there are hosts, and with RS(2) none may have two ranks only.
        if ranks >= 3 and (ranks <= self.hosts or ranks % self.hosts == 0):
            ways += [("rs:2", 2)] * 2
        return self.random.choice(ways)

    def start(self, ranks, scheme, die_at):
        steps = self.step + self.random.randint(3, 12)
        meet = self.meeting_place()
        locals_of = [[self.place(rank)] for rank in range(ranks)]
        # The folders of ranks that this job does not have are read on their hosts; by rank 0, where nobody is there.
        for other in range(ranks, RANKS):
            reader = next((rank for rank in range(ranks) if rank % self.hosts == other % self.hosts), 0)
            locals_of[reader].append(self.place(other))
        jobs = []
        for rank in range(ranks):
            host = rank % self.hosts
            words = [*self.lab.inside(host), self.program, "--model", "net", "--state", os.path.join(self.folder, "state.json"),
                     "--steps", str(steps), "--step-ms", "8", "--lost-after", "0.85", "--local", *locals_of[rank], "--host",
                     f"host{host}", "--group", scheme, "--external", os.path.join(self.folder, "runs"), "--dump",
                     os.path.join(self.folder, "dump"), "--rank", str(rank), "--ranks", str(ranks), "--meet", meet]
            if self.anew:
                words += ["--restore", "none"]
            if self.lab.spaces:
                words += ["--keys", os.path.join(self.folder, f"key{rank}"), "--allow", os.path.join(self.folder, "ranks.allow"),
                          "--server-key", os.path.join(self.folder, "key0.pub")]
            if rank in die_at:
                words += ["--die-at", die_at[rank]]
            output, errors = tempfile.TemporaryFile(mode="w+"), tempfile.TemporaryFile(mode="w+")
            jobs.append((subprocess.Popen(words, stdout=output, stderr=errors), output, errors))
        return jobs

    def hurt(self, how, victims, jobs):
        """What happens to a job that runs. Returns the ranks that stay stopped."""
        time.sleep(self.random.uniform(0.05, 0.6))
        processes = [jobs[rank][0] for rank in victims]
        if how == "kill":
            for process in processes:
                process.send_signal(signal.SIGKILL)
        elif how in ("stop", "continue"):
            for process in processes:
                process.send_signal(signal.SIGSTOP)
            if how == "continue":
                time.sleep(self.random.choice((0.1, 0.4, 1.5)))
                for process in processes:
                    process.send_signal(signal.SIGCONT)
        elif how == "cut":
            host = victims[0] % self.hosts
            self.lab.cut(host)
            time.sleep(self.random.choice((0.1, 0.4, 1.5)))
            self.lab.heal(host)
        return victims if how == "stop" else []

    def live(self):
        self.count["lives"] += 1
        ranks = self.random.randint(2, RANKS)
        shutil.rmtree(os.path.join(self.folder, "dump"), ignore_errors=True)
        scheme, losses = self.choose_group(ranks)
        how = self.random.choice(("none", "none", "point", "point", "kill", "kill", "stop", "continue") +
                                 (("cut", "cut") if self.lab.spaces else ()))
        # One, several, or all of them.
        victims = self.random.sample(range(ranks), self.random.choice((1, 1, self.random.randint(1, ranks), ranks)))
        die_at = {rank: f"{self.random.choice(POINTS)}:{self.step + self.random.randint(1, 6)}"
                  for rank in victims if how == "point"}
        jobs = self.start(ranks, scheme, die_at)
        stopped = self.hurt(how, victims, jobs) if how not in ("none", "point") else []
        if how != "none":
            self.count[{"point": "killed", "kill": "killed", "stop": "stopped", "continue": "continued", "cut": "cut"}[how]] += 1
        for rank, (process, _, _) in enumerate(jobs):
            if rank in stopped:
                continue
            try:
                process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                self.bad("hung", f"rank {rank} of {ranks}, {how} {victims}")
                process.kill()
        codes, said, errors = [], [], []
        for rank, (process, output, error) in enumerate(jobs):
            process.kill()
            codes.append(process.wait())
            output.seek(0)
            error.seek(0)
            said.append([json.loads(line) for line in output.read().splitlines() if line.endswith("}")])
            errors.append(error.read())
            output.close()
            error.close()
            self.count["lost_a_peer"] += codes[-1] == 5
            if codes[-1] not in (0, 1, 4, 5, -signal.SIGKILL):
                self.bad("died", f"rank {rank} of {ranks}, {how} {victims}, ended with {codes[-1]}: {errors[-1]}")
        self.judge(ranks, losses, said, codes, errors)

    def judge(self, ranks, losses, said, codes, errors):
        started = [next((line for line in lines if line["event"] == "started"), None) for lines in said]
        needed = max(self.safe.values(), default=0)
        if 4 in codes and needed:
            self.bad("lost", f"version {needed} should be there: {' '.join(errors)}")
        # What was acknowledged went with hosts that may not have gone.
        self.anew = 4 in codes and not needed
        self.count["anew"] += self.anew
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
            host = self.random.randrange(min(ranks, self.hosts))
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
    where = f"{soak.hosts} hosts in network namespaces, with keys" if soak.lab.spaces else "loopback, with no cable to cut"
    print(f"soak: up to {RANKS} ranks on {where}", flush=True)
    while time.monotonic() < until and not any(soak.count[kind] for kind in BAD):
        soak.live()
        if time.monotonic() - told > 20:
            told = time.monotonic()
            print(f"soak: {json.dumps(soak.count)}", flush=True)
    failed = any(soak.count[kind] for kind in BAD)
    print(json.dumps({"seed": options.seed, **soak.count}))
    print(f"soak: {soak.count['lost']} lost, {sum(soak.count[kind] for kind in BAD[1:])} wrong", flush=True)
    if failed:
        print(f"soak: what it left is in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
