#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tiering under real kills: programs and keepers that die by SIGKILL at any moment, while the source changes in between; then a folder of
many files. Every byte that a program reads is compared with what the source has.

usage: soak.py FOLDER-OF-PROGRAMS [--kills N] [--files N] [--seed N] [--folder DIR]
Prints a line now and then, and at the end one JSON object; exit code 1 when a program read something else, failed, or a copy is bad.
"""
import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from slow_folder import SlowFolder

# Reads what the list names, in its order, and says which files were wrong.
READER = """
import json, sys, zlib
for line in open(sys.argv[1]):
    path, digest = json.loads(line)
    with open(path, "rb") as file: data = file.read()
    if zlib.crc32(data) != digest: print("wrong", path, len(data))
print("read")
"""


class Lab:
    def __init__(self, programs, folder, chance):
        self.freshet, self.folder, self.chance = f"{programs}/freshet", folder, chance
        self.slow = None
        self.backing = self.source = f"{folder}/source"
        self.tier, self.config, self.list = f"{folder}/tier", f"{folder}/tiers.toml", f"{folder}/list"
        os.makedirs(self.backing)
        try:
            # Slow enough that a kill meets something.
            self.source = f"{folder}/slow"
            self.slow = SlowFolder(f"{programs}/lab/slow_folder", self.backing, self.source, 300, 500_000_000)
        except OSError as error:
            self.source = self.backing
            print(f"soak: {error}: the source is a plain folder", flush=True)
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(f'source = ["{self.source}"]\n[[tier]]\npath = "{self.tier}"\nquota = "100 GiB"\n')
        self.digests = {}

    def close(self):
        self.tier_command("stop")
        if self.slow:
            self.slow.close()

    def tier_command(self, *words):
        return subprocess.run([self.freshet, "tier", *words, "--config", self.config], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)

    def write(self, name):
        data = self.chance.randbytes(self.chance.choice([0, 1, 4096, 50_000, 300_000, 1_200_000]))
        path = f"{self.source}/{name}"
        if self.chance.random() < 0.5:
            with open(path, "wb") as file:
                file.write(data)
        else:
            with open(f"{path}.new", "wb") as file:
                file.write(data)
            os.rename(f"{path}.new", path)
        self.digests[name] = zlib.crc32(data)

    def write_list(self):
        names = list(self.digests)
        self.chance.shuffle(names)
        with open(self.list, "w", encoding="utf-8") as file:
            for name in names:
                file.write(json.dumps([f"{self.source}/{name}", self.digests[name]]) + "\n")

    def keeper(self):
        said = self.tier_command("stat", "--json")
        return json.loads(said.stdout.splitlines()[-1])["keeper_pid"]

    def start(self):
        self.write_list()
        return subprocess.Popen([self.freshet, "tier", "run", "--config", self.config, "--", sys.executable, "-c", READER, self.list],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, TypeError):
        pass


def program_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def children_of(pid):
    """The programs that it started. A leak checker's own child is of the same program; without it, its parent never ends."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            return [child for child in map(int, file.read().split()) if program_of(child) != program_of(pid)]
    except OSError:
        return []


def one_life(lab, chance, faults):
    """One program, and what is killed meanwhile. Returns who was."""
    victim = chance.choice(["keeper", "keeper", "program", "run", "both"])
    running = lab.start()
    time.sleep(chance.random() * 0.4)
    if victim in ("keeper", "both"):
        kill(lab.keeper())
    if victim in ("program", "both"):
        for child in children_of(running.pid):
            kill(child)
    if victim == "run":
        kill(running.pid)
    out, err = running.communicate()
    dies = victim != "keeper"
    if "wrong" in out or (not dies and (out != "read\n" or running.returncode != 0)):
        faults.append(f"{victim}: {running.returncode} {out[:300]} {err[:300]}")
    return victim


def check(lab, faults):
    """What lies in the tier by now, without a keeper that would mend it."""
    kill(lab.keeper())
    verified = lab.tier_command("verify")
    if verified.returncode != 0:
        faults.append(f"verify: {verified.stdout[:500]} {verified.stderr[:300]}")
    lab.write_list()
    library = lab.tier_command("library").stdout.strip()
    got = subprocess.run([sys.executable, "-c", READER, lab.list], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                         env={**os.environ, "LD_PRELOAD": library, "FRESHET_TIER": lab.config})
    if got.stdout != "read\n":
        faults.append(f"after a kill: {got.stdout[:500]} {got.stderr[:300]}")


def kills(lab, chance, count, faults):
    for number in range(30):
        lab.write(f"f{number}")
    killed = {}
    for turn in range(count):
        victim = one_life(lab, chance, faults)
        killed[victim] = killed.get(victim, 0) + 1
        if chance.random() < 0.4:
            for _ in range(3):
                lab.write(f"f{chance.randrange(30)}")
        if chance.random() < 0.15:
            lab.tier_command("drop")
        if turn % 10 == 9 or turn == count - 1:
            check(lab, faults)
        if turn % 100 == 99:
            print(f"soak: {turn + 1} kills, {len(faults)} faults", flush=True)
        if len(faults) > 5:
            break
    lab.tier_command("prefetch")
    lab.tier_command("settle")
    lab.tier_command("stop")
    left = [name for name in os.listdir(lab.tier) if name.startswith(".freshet-copy-") or name.endswith(".tmp")]
    if left:
        faults.append(f"left behind: {left[:5]}")
    return killed


def many_files(programs, count, faults):
    """A folder of many files, copied and read."""
    folder = tempfile.mkdtemp(prefix="freshet-soak.", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    freshet = f"{programs}/freshet"
    config = f"{folder}/tiers.toml"
    try:
        os.makedirs(f"{folder}/source")
        for number in range(count):
            with open(f"{folder}/source/{number}", "w", encoding="utf-8") as file:
                file.write(str(number))
        with open(config, "w", encoding="utf-8") as file:
            file.write(f'source = ["{folder}/source"]\n[[tier]]\npath = "{folder}/tier"\nquota = "100 GiB"\n')
        begin = time.monotonic()
        for words in (["prefetch"], ["settle"]):
            subprocess.run([freshet, "tier", *words, "--config", config], check=True)
        copied_s = time.monotonic() - begin
        script = ("import os, sys\nwrong = 0\nfor name in os.listdir(sys.argv[1]):\n"
                  "    wrong += open(os.path.join(sys.argv[1], name)).read() != name\nprint(wrong)")
        got = subprocess.run([freshet, "tier", "run", "--config", config, "--", sys.executable, "-c", script, f"{folder}/source"],
                             stdout=subprocess.PIPE, text=True, check=False)
        said = subprocess.run([freshet, "tier", "stat", "--json", "--config", config], stdout=subprocess.PIPE, text=True, check=True)
        total = json.loads(said.stdout.splitlines()[-1])
        if got.stdout != "0\n" or total["copied_files"] != count or total["hits"] != count:
            faults.append(f"many files: {got.stdout[:100]} {total['copied_files']} copied, {total['hits']} hits of {count}")
        return {"files": count, "copied_s": round(copied_s, 1)}
    finally:
        subprocess.run([freshet, "tier", "stop", "--config", config], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    programs = os.path.abspath(arguments.programs)
    print(f"soak: seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)
    faults = []
    folder = tempfile.mkdtemp(prefix="freshet-soak.", dir=arguments.folder)
    lab = Lab(programs, folder, chance)
    try:
        killed = kills(lab, chance, arguments.kills, faults)
    finally:
        lab.close()
        shutil.rmtree(folder, ignore_errors=True)
    many = many_files(programs, arguments.files, faults) if arguments.files else None
    for fault in faults:
        print("soak: FAULT", fault, flush=True)
    print(json.dumps({"seed": arguments.seed, "killed": killed, "many_files": many, "faults": len(faults)}))
    sys.exit(1 if faults else 0)


main()
