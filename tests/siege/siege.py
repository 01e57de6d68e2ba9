#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile peers beside a live run: what must hold then, held against it, and figures of how much it took.

usage: siege.py --bin FOLDER [--seconds S] [--seed N] [--no-loop] [--only ATTACK,…] [--spare KIND,…] [--keep] [ARG…]
  --bin FOLDER     where live_run and freshet are
  --seconds S      how long the attacks last (default: 600); the run that the loop is compared with takes a quarter of it
  --seed N         of everything that is random (default: drawn, and printed)
  --no-loop        does not compare the training loop's times
  --only ATTACK,…  these attacks alone
  --spare KIND,…   leaves such ports alone: control, news, data, raw (whose language nobody here speaks: UCX), repository, answers,
                   door, curve
  --keep           leaves the folder with all output
  ARG…             further arguments of live_run
"""
import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import attacks
from context import Context
import messages
import processes
import sockets
import victims

#: No process that is besieged may grow by more, from when the attacks begin: what its limits add up to (docs/security.md). Who
#: publishes or relays has 64 MiB of answers, and 8 MiB that came, 32 times as large in small parts; a repository's server has 192 MiB
#: of answers and 528 MiB that came. The others serve nobody.
GROWTH_BYTES_MAX = {"trainer": 384 << 20, "relay": 384 << 20, "repository": 768 << 20, "provider": 768 << 20, "provider-keyed": 768 << 20}
GROWTH_BYTES_MAX_OF_OTHERS = 256 << 20
#: The training loop's calls, p99.9: beside the attacks, at most this many times what they take beside as many processes that only
#: burn processor time.
LOOP_RATIO_MAX = 2.0
#: Where the directory remembers nothing, as for a model's first publisher, a subscriber is believed to have seen that many versions
#: (kNumbersBelieved). More would mean that somebody pushed the model's numbers up.
NUMBERS_AHEAD_MAX = 1 << 20
#: Only what hangs takes as long as the last two.
SETTLE_SECONDS, CREW_SECONDS, END_SECONDS = 2, 90, 240
#: Versions come until the end, as they would not by a schedule that weighs what they gain; and the load's record of each, some
#: 60 KB, stays far below the bound.
SCHEDULE = "every:100"
#: What live_run ends with after a Ctrl-C, which still brings its summary.
INTERRUPTED = 130
CORPUS = os.path.join(messages.ROOT, "tests", "fuzz", "corpus")


def say(text):
    print(f"siege: {text}", file=sys.stderr, flush=True)


class Crew:
    """The processes of attacks: started together, stopped together, each with its counts."""

    def __init__(self, names, seed, targets, options):
        self.stop, self.results = multiprocessing.Event(), multiprocessing.Queue()
        self.processes = {}
        for name in names:
            process = multiprocessing.Process(target=self.work, args=(name, seed, targets, options), daemon=True)
            process.start()
            self.processes[name] = process

    def work(self, name, seed, targets, options):
        processes.die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        function = attacks.ATTACKS_AND_OTHERS[name.split("-")[0]]
        context = Context(name, seed, targets and targets.read, self.stop, options)
        try:
            function(context)
        except Exception as error:  # pylint: disable=broad-except
            context.breaches.append(f"the attack itself failed: {type(error).__name__}: {error}")
        self.results.put((name, context.counts, context.breaches))

    def end(self):
        """(counts, breaches) of each; what does not come is said."""
        self.stop.set()
        found, until = {}, time.monotonic() + CREW_SECONDS
        while len(found) < len(self.processes) and time.monotonic() < until:
            try:
                name, counts, breaches = self.results.get(timeout=1)
                found[name] = (counts, breaches)
            except multiprocessing.queues.Empty:
                pass
        for name, process in self.processes.items():
            process.join(1)
            if process.is_alive():
                process.kill()
            found.setdefault(name, ({}, ["the attack did not end"]))
        return found


class Targets:
    """The list of open doors, in a file that is replaced; attacks read it anew when it has changed."""

    def __init__(self, path):
        self.path, self.seen, self.known = path, None, []
        self.write([])

    def write(self, targets):
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            json.dump(targets, file)
        os.chmod(self.path + ".new", 0o644)
        os.rename(self.path + ".new", self.path)

    def read(self):
        state = os.stat(self.path)
        if self.seen != (state.st_ino, state.st_mtime_ns):
            with open(self.path, encoding="utf-8") as file:
                self.known = json.load(file)
            self.seen = (state.st_ino, state.st_mtime_ns)
        return self.known


class Watch:
    """Looks at the besieged processes: who lives, how large each is, where each listens."""

    def __init__(self, run, others, targets, spared):
        self.run, self.others, self.targets, self.spared = run, others, targets, spared
        self.kinds, self.sizes, self.dead = {}, {}, []

    def pids(self):
        return {**self.run.roles(), **{other.name: other.pid for other in self.others}}

    def look(self):
        found = []
        for owner, pid in self.pids().items():
            self.weigh(owner, pid)
            for address in sockets.listening(pid):
                found.append({"owner": owner, "address": address, "kind": self.kind(address), **self.model(owner)})
        for other in self.others:
            if other.process.poll() is not None and other.name not in self.dead:
                self.dead.append(other.name)
        self.targets.write([target for target in found if target["kind"] and target["kind"] not in self.spared])

    def model(self, owner):
        """What an attack on that process names, and how far it is."""
        name = "net" if owner.startswith("provider") else {"watcher": "watched"}.get(owner, "live")
        return {"model": name, "newest": self.run.last_number()}

    def kind(self, address):
        """Asked once of each port, since it costs a connection."""
        if address in self.run.control:
            return "control"
        if any(address == getattr(other, "address", None) for other in self.others):
            keyed = next(other.keyed for other in self.others if getattr(other, "address", None) == address)
            return "curve" if keyed else "repository"
        if address not in self.kinds:
            self.kinds[address] = sockets.kind_of(address)
        return self.kinds[address]

    def weigh(self, owner, pid):
        size = sockets.memory(pid)
        if size is None:
            return
        now, most = size
        of_life = self.sizes.setdefault(owner, {}).setdefault(pid, {"start": most, "most": most, "end": now})
        of_life.update(most=most, end=now)

    def memory(self):
        """By process, over its lives: bytes when it was first looked at, at most, and last."""
        return {owner: {"start_bytes": max(life["start"] for life in lives.values()),
                        "most_bytes": max(life["most"] for life in lives.values()),
                        "end_bytes": list(lives.values())[-1]["end"],
                        "grown_bytes": max(0, *(life["most"] - life["start"] for life in lives.values()))}
                for owner, lives in self.sizes.items()}


def options_of(folder, binaries, run, providers, watcher, follower):
    """What attacks are told, beside where the doors are."""
    command = shutil.copy(f"{binaries}/freshet", f"{folder}/freshet")
    os.chmod(command, 0o755)
    keyless = next(provider for provider in providers if not provider.keyed)
    keyed = next(provider for provider in providers if provider.keyed)
    at = list(run.control)[0]
    return {
        "corpus": CORPUS, "command": command, "run_dir": run.directories["trainer"], "private": run.private(),
        "at": at,
        "lines": [["top", "live", "--once", "--at", at], ["rollback", "", "--no-hold", "--at", at],
                  ["repo", "ls", "--repo", keyless.address], ["repo", "retire", "net@2", "--repo", keyless.address],
                  ["repo", "gc", "--repo", keyless.address]],
        "reader_lines": [["repo", *line, *keyed.as_client("reader")] for line in (["gc"], ["retire", "net@2"], ["pin", "net@1"])],
        "honest": [provider.as_client("reader") for provider in providers], "scratch": folder,
        "watched": watcher.watched, "followed": follower.watched}


def besiege(arguments, folder, names, seed):
    """The live run and its neighbours under attack: its summary, what was seen, and what went wrong."""
    say(f"seed {seed}; {arguments.seconds:g} s of {', '.join(names)}")
    others, run = [], None
    try:
        freshet = f"{arguments.bin}/freshet"
        providers = [victims.Provider(folder, "provider", freshet, False), victims.Provider(folder, "provider-keyed", freshet, True)]
        others = [*providers, victims.Watcher(folder, freshet), victims.Follower(folder, freshet)]
        for provider in providers:
            provider.fill()
        run = victims.LiveRun(folder, "besieged", arguments.bin, arguments.seconds + END_SECONDS, arguments.live_run)
        run.wait_until_it_serves()
        targets = Targets(f"{folder}/targets.json")
        watch = Watch(run, others, targets, arguments.spare.split(","))
        time.sleep(SETTLE_SECONDS)
        watch.look()
        for target in targets.read():
            if target["kind"] in ("control", "repository") and not attacks.is_understood(target):
                raise RuntimeError(f"{target['owner']} does not understand what tests/siege/messages.py says to {target['address']}")
        options = options_of(folder, arguments.bin, run, providers, *others[2:])
        crew = Crew([*names, "honest"], seed, targets, options)
        until = time.monotonic() + arguments.seconds
        while time.monotonic() < until and run.process.poll() is None:
            watch.look()
            time.sleep(min(1, max(0, until - time.monotonic())))
        watch.look()
        did = crew.end()
        newest = newest_number(freshet, run)
        watch.look()
        code = run.interrupt(END_SECONDS)
        return {"summary": run.summary(), "code": code, "deaths": run.deaths(), "dead": watch.dead, "memory": watch.memory(),
                "attacks": did, "newest": newest, "strays": others[2].strays(),
                "damaged": others[3].damaged()}
    finally:
        for program in [run, *others]:
            if program:
                program.end()


def newest_number(freshet, run):
    """The model's newest number as its publisher tells it; None when there is no answer."""
    try:
        told = subprocess.run([freshet, "top", "live", "--once", "--json", "--at", list(run.control)[0]], capture_output=True, timeout=30,
                              env={**os.environ, "FRESHET_RUN_DIR": run.directories["trainer"]}, check=False)
        return json.loads(told.stdout)["newest"] if told.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError):
        return None


def compare_loop(arguments, folder, count, seed):
    """The summary of the same run beside that many processes that only burn processor time."""
    seconds = max(20, arguments.seconds / 4)
    say(f"the same run beside {count} processes that only burn processor time, {seconds:g} s")
    run = victims.LiveRun(folder, "compared", arguments.bin, seconds, arguments.live_run)
    try:
        run.wait_until_it_serves()
        crew = Crew([f"burn-{index}" for index in range(count)], seed, None, {})
        run.process.wait(seconds + END_SECONDS)
        crew.end()
        return run.summary()
    finally:
        run.end()


def breaches_of(seen, loop_ratio):
    """What did not hold, a line each."""
    found, summary = [], seen["summary"]
    if seen["code"] != INTERRUPTED:
        found.append(f"live_run ended with {seen['code']}")
    found += [f"a role died: {line}" for line in seen["deaths"]]
    found += [f"{name} died" for name in seen["dead"]]
    if summary is None:
        found.append("live_run left no summary")
    else:
        for key in ("failed_requests", "torn_reads", "restarts"):
            if summary[key]:
                found.append(f"{summary[key]} {key.replace('_', ' ')}")
        if not summary["requests"] or summary["checked_answers"] < summary["requests"] - summary["failed_requests"]:
            found.append(f"{summary['checked_answers']} checked answers of {summary['requests']} requests")
        if summary["versions_served"] < 2:
            found.append("nothing new was served")
        if seen["newest"] is not None and seen["newest"] > summary["versions_published"] + NUMBERS_AHEAD_MAX:
            found.append(f"the newest version has number {seen['newest']}, and {summary['versions_published']} were published")
    if seen["newest"] is None:
        found.append("the trainer did not answer `freshet top` after the attacks")
    for owner, sizes in seen["memory"].items():
        allowed = GROWTH_BYTES_MAX.get(owner, GROWTH_BYTES_MAX_OF_OTHERS)
        if sizes["grown_bytes"] > allowed:
            found.append(f"{owner} grew by {sizes['grown_bytes'] >> 20} MiB, {allowed >> 20} are allowed")
    if seen["strays"]:
        found.append(f"{len(seen['strays'])} stray files were published")
    if seen["damaged"]:
        found.append(f"versions were taken from a folder half or torn: {', '.join(seen['damaged'][:5])}")
    for name, (_, breaches) in seen["attacks"].items():
        found += [f"{name}: {breach}" for breach in breaches]
    if loop_ratio is not None and loop_ratio > LOOP_RATIO_MAX:
        found.append(f"the loop's p99.9 is {loop_ratio:.2f} times what it is beside as many processes that only burn processor time, "
                     f"{LOOP_RATIO_MAX:g} are allowed")
    return found


def loop_of(summary):
    return (summary or {}).get("loop_call_ms") or {}


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--no-loop", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--spare", default="")
    parser.add_argument("--keep", action="store_true")
    arguments, arguments.live_run = parser.parse_known_args(words)
    unknown = [name for name in arguments.only.split(",") if name and name not in attacks.ATTACKS]
    if unknown:
        parser.error(f"no such attack: {', '.join(unknown)}; there are {', '.join(attacks.ATTACKS)}")
    if arguments.seconds <= 0:
        parser.error("--seconds: more than 0")
    arguments.bin = os.path.abspath(arguments.bin)
    if not any(word.startswith("--schedule") for word in arguments.live_run):
        arguments.live_run += ["--schedule", SCHEDULE]
    return arguments


def main(words):
    arguments = parse(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    names = [name for name in arguments.only.split(",") if name] or list(attacks.ATTACKS)
    if os.getuid() != 0 and "neighbour" in names:
        names.remove("neighbour")
        say("no other account's attacks: only root can become somebody else")
    base = os.environ.get("TMPDIR", "/tmp")
    folder = tempfile.mkdtemp(prefix="freshet-siege-", dir=base if len(base) <= 20 else "/tmp")
    os.chmod(folder, 0o755)  # What is in it must keep others out by itself.
    try:
        seen = besiege(arguments, folder, names, seed)
        loop, beside_burners, ratio = loop_of(seen["summary"]), {}, None
        if not arguments.no_loop:
            beside_burners = loop_of(compare_loop(arguments, folder, sum(name in attacks.BUSY for name in names), seed))
            ratio = loop["p999"] / beside_burners["p999"] if loop.get("p999") and beside_burners.get("p999") else None
    finally:
        if arguments.keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    breaches = breaches_of(seen, ratio)
    if not arguments.no_loop and ratio is None:
        breaches.append("the loop's times could not be compared")
    summary = seen["summary"] or {}
    print(json.dumps({
        "seconds": arguments.seconds, "seed": seed,
        **{key: summary.get(key) for key in ("requests", "failed_requests", "torn_reads", "checked_answers", "restarts",
                                             "versions_published", "versions_served", "versions_skipped", "request_latency_ms")},
        "newest": seen["newest"], "memory": seen["memory"], "growth_bytes_max": GROWTH_BYTES_MAX,
        "attacks": {name: counts for name, (counts, _) in seen["attacks"].items()},
        "loop_call_ms": loop, "loop_call_ms_beside_burners": beside_burners, "loop_ratio": ratio, "breaches": breaches}))
    for breach in breaches:
        say(breach)
    say(f"{len(breaches)} breaches" if breaches else "held")
    return 1 if breaches else 0


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    sys.exit(main(sys.argv[1:]))
