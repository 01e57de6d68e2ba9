#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many hosts and a bucket, or a pool of Ceph, while processes are killed and stopped: scripts/many_hosts.sh starts this
beside `net_lab`.

Hosts: the store, an owner and a standby, four workers (each an architecture search, examples/nas_evolution), and a client
that puts a small version again and again. Faults come one after the other, in an order that the seed gives. At the end, each
version that was acknowledged is read from the store and compared with the sum that its worker wrote down.
"""
import argparse
import json
import os
import random
import signal
import statistics
import sys
import threading
import time

from ceph import Ceph, missing_program
from count_requests import count_requests
from ledger import Ledger, sum_of, write_tensors
from processes import Failure, Host, Process, Provider, wait_until
from store import SeaweedFS

PROVIDER_PORT = 7080
WORKERS = 4
FAULTS = ("kill owner", "end owner", "stop owner", "cut owner", "kill standby", "stop standby", "cut standby", "kill both",
          "kill worker", "stop worker", "kill store", "stop store")
# A client's errors that say "later": exit code 5, unavailable or timed out.
LATER = 5
DONE = 0


class Client:
    """Puts a small version again and again, and reads one back now and then."""

    def __init__(self, run):
        self.run, self.ending = run, threading.Event()
        self.acknowledged, self.refused, self.problems = [], 0, []
        self.thread = threading.Thread(target=self._live, daemon=True)

    def start(self):
        self.thread.start()

    def end(self):
        self.ending.set()
        self.thread.join()

    def _live(self):
        draw = random.Random(self.run.seed + 1)
        file = os.path.join(self.run.folder, "client.safetensors")
        copy = os.path.join(self.run.folder, "client.copy.safetensors")
        while not self.ending.is_set():
            tensors = {"a": draw.randbytes(draw.randrange(1, 20000)), "b": draw.randbytes(16)}
            write_tensors(file, tensors)
            code, out, errors = self.run.command(self.run.client_host, "put", f"client-{draw.randrange(20)}",
                                                 "--weights", file, "--json")
            if code == DONE:
                answer = json.loads(out)
                version = f"{answer['model']}@{answer['version']}"
                if version in self.run.ledger.put:
                    self.problems.append(f"{version} was acknowledged twice, for other bytes")
                self.run.ledger.put[version] = sum_of(tensors)
                self.acknowledged.append(time.monotonic())
                if len(self.acknowledged) % 10 == 0:
                    self._read_back(version, copy)
            elif code == LATER:
                self.refused += 1
            else:
                self.problems.append(f"a client's put ended with exit code {code}: {errors}")
            self.ending.wait(0.1)

    def _read_back(self, version, copy):
        code, _, errors = self.run.command(self.run.client_host, "get", version, "-o", copy)
        if code not in (DONE, LATER):
            self.problems.append(f"{version} was acknowledged, and cannot be read: exit code {code}: {errors}")

    def longest_gap(self, begin, end):
        """Of the gaps between two acknowledged puts that overlap this time, the longest."""
        times = list(self.acknowledged)
        return max((b - a for a, b in zip(times, times[1:]) if b > begin and a < end), default=0.0)


class Worker:
    """A search on a host of its own. A search that has ended is followed by the next one."""

    def __init__(self, run, number):
        self.run, self.number, self.host = run, number, Host(f"worker{number}")
        self.searches, self.done, self.process = 0, 0, None

    def start(self):
        self.searches += 1
        name = f"w{self.number}-{self.searches}"
        # Two workers have addresses only; the other two find the owner in the store.
        place, keys = (self.run.addresses, None) if self.number % 2 else (self.run.store.reader_place, self.run.store.reader_keys)
        files, ledger = self.run.file(name), self.run.file(name + ".ledger")
        self.process = Process(self.host, [
            self.run.program("nas_evolution"), "--repo", place, *self.run.client_keys, "--report", files, "--prefix", name,
            "--ledger", ledger, "--json", "--candidates", self.run.candidates,
            "--population", 10, "--epoch-ms", 400, "--patience", 600, "--seed", self.run.seed * 100 + self.number,
        ], self.run.file(name + ".log"), keys)
        # A command that begins while the store is away ends with an error. A search that runs does not.
        wait_until(lambda: os.path.exists(ledger) or not self.process.lives, f"{self.host.name} has opened the repository")

    def look(self):
        """The next search where one has ended."""
        if self.process.lives:
            return
        if self.process.child.returncode != DONE:
            raise Failure(f"the search of {self.host.name} ended with exit code {self.process.child.returncode}: "
                          f"{self.process.last_words()}")
        self.done += 1
        self.start()


class Run:
    def __init__(self, options, store):
        self.seed, self.folder, self.bin = options.seed, options.folder, options.bin
        self.candidates, self.chosen = options.candidates, options.faults
        self.random = random.Random(options.seed)
        self.log_began = time.monotonic()
        self.figures = {}  # {what: [seconds]}
        self.faults = 0
        self.ledger = Ledger(self.folder)
        self.client_host = Host("client")
        self.store = store
        hosts = [Host("owner"), Host("standby")]
        self.addresses = ",".join(f"tcp://{host.address}:{PROVIDER_PORT}" for host in hosts)
        for name in ("provider", "client"):
            self.check(self.client_host.run([self.program("freshet"), "keygen", self.file(name)]))
        self.client_keys = ["--keys", self.file("client"), "--server-key", self.file("provider.pub")]
        with open(self.file("allow"), "w", encoding="utf-8") as allow:
            for name in ("provider.pub", "client.pub"):
                with open(self.file(name), encoding="utf-8") as key:
                    allow.write(f"operator {key.read()}\n")
        os.chmod(self.file("allow"), 0o600)
        self.say(f"the store answers after {self.store.start():.1f} s")
        self.providers = []
        for host in hosts:
            words = [self.program("freshet"), "provider", "--repo", store.place, "--listen",
                     f"tcp://{host.address}:{PROVIDER_PORT}", "--keys", self.file("provider"), "--allow", self.file("allow"),
                     "--json"]
            self.providers.append(Provider(host, words, self.file(host.name + ".log"), store.owner_keys))
            wait_until(self.providers[-1].has_role, f"{host.name} has a role")
        self.wait_for_roles()
        self.client, self.workers = Client(self), [Worker(self, i + 1) for i in range(WORKERS)]

    def file(self, name):
        return os.path.join(self.folder, name)

    def program(self, name):
        return os.path.join(self.bin, name)

    def say(self, text):
        print(f"many_hosts: {time.monotonic() - self.log_began:6.1f} s: {text}", file=sys.stderr, flush=True)

    @staticmethod
    def print_row(words):
        print("| " + " | ".join(words) + " |", file=sys.stderr)

    def check(self, ended):
        code, out, errors = ended
        if code != DONE:
            raise Failure(f"exit code {code}: {errors}")
        return out

    def command(self, host, *words):
        """`freshet repo` through the owner."""
        return host.run([self.program("freshet"), "repo", *words, "--repo", self.addresses, *self.client_keys])

    # ---- roles ----

    def owner(self):
        return next((one for one in self.providers if one.is_owner), None)

    def standby(self):
        return next((one for one in self.providers if one.is_standby), None)

    def wait_for_roles(self):
        def settled():
            return all([one.has_role() for one in self.providers]) and self.owner() and self.standby()
        wait_until(settled, "there is one owner and one standby")

    # ---- faults ----

    def note(self, what, seconds):
        self.figures.setdefault(what, []).append(seconds)

    def takeover(self, standby, after, what):
        wait_until(lambda: standby.owns_since(after), f"{standby.host.name} takes over")
        self.note(what, standby.owns_since(after) - after)

    def kill_owner(self):
        owner, standby, began = self.owner(), self.standby(), time.monotonic()
        owner.process.end(signal.SIGKILL)
        self.takeover(standby, began, "takeover after kill -9")
        self.pause(0, 3)
        owner.start()

    def end_owner(self):
        owner, standby, began = self.owner(), self.standby(), time.monotonic()
        code = owner.process.end(signal.SIGTERM)
        ended = time.monotonic()
        if code != 130:
            raise Failure(f"the owner that was ended has exit code {code}: {owner.process.last_words()}")
        self.note("orderly end: SIGTERM to the owner's end", ended - began)
        self.takeover(standby, began, "orderly end: SIGTERM to the takeover")
        self.pause(0, 3)
        owner.start()

    def stop_owner(self):
        owner, standby, began = self.owner(), self.standby(), time.monotonic()
        owner.process.signal(signal.SIGSTOP)
        self.takeover(standby, began, "takeover after SIGSTOP")
        self.pause(0, 5)
        owner.process.signal(signal.SIGCONT)

    def cut_owner(self):
        """The owner loses the store, and nobody else does."""
        owner, standby = self.owner(), self.standby()
        with owner.host.cut_from(self.store.host):
            self.takeover(standby, time.monotonic(), "takeover after the owner lost the store")
            self.pause(0, 5)

    def cut_standby(self):
        """The standby does not reach the owner. Both reach the store."""
        with self.standby().host.cut_from(self.owner().host):
            self.pause(1, 12)

    def kill_both(self):
        for one in self.providers:
            one.process.end(signal.SIGKILL)
        self.pause(0, 3)
        for one in self.random.sample(self.providers, 2):
            one.start()

    def kill_standby(self):
        standby = self.standby()
        standby.process.end(signal.SIGKILL)
        self.pause(0, 3)
        standby.start()

    def stop_standby(self):
        standby = self.standby()
        standby.process.signal(signal.SIGSTOP)
        self.pause(1, 12)
        standby.process.signal(signal.SIGCONT)

    def kill_worker(self):
        worker = self.random.choice(self.workers)
        worker.process.end(signal.SIGKILL)
        self.pause(0, 3)
        worker.start()

    def stop_worker(self):
        worker = self.random.choice(self.workers)
        worker.process.signal(signal.SIGSTOP)
        self.pause(1, 12)
        worker.process.signal(signal.SIGCONT)

    def kill_store(self):
        self.store.kill()
        self.pause(0, 8)
        self.note("start of a killed store", self.store.start())

    def stop_store(self):
        self.store.signal(signal.SIGSTOP)
        self.pause(1, 15)
        self.store.signal(signal.SIGCONT)

    def pause(self, at_least, at_most):
        time.sleep(self.random.uniform(at_least, at_most))

    def hurt(self, fault):
        self.wait_for_roles()  # A store that is back may be so for some processes only.
        self.say(fault)
        began = time.monotonic()
        getattr(self, fault.replace(" ", "_"))()
        self.wait_for_roles()
        puts = len(self.client.acknowledged)
        # Two: the first one may have been under way.
        wait_until(lambda: len(self.client.acknowledged) > puts + 1, f"a client's put is acknowledged after: {fault}")
        self.note(f"gap of a client's puts: {fault}", self.client.longest_gap(began, time.monotonic()))
        self.faults += 1

    def faults_until(self, end):
        """All of them in turn, in another order each time."""
        while True:
            for fault in self.random.sample(FAULTS, len(FAULTS)):
                if time.monotonic() >= end:
                    return
                yield fault

    # ---- the run ----

    def live(self, seconds):
        self.client.start()
        for worker in self.workers:
            worker.start()
        wait_until(lambda: self.client.acknowledged, "a first put")
        for fault in self.chosen or self.faults_until(time.monotonic() + seconds):
            for worker in self.workers:
                worker.look()
            self.hurt(fault)
            self.pause(1, 4)
        self.client.end()
        for worker in self.workers:
            worker.look()
            worker.process.end(signal.SIGKILL)
        self.prove()
        self.tell()

    def prove(self):
        """Compares the ledgers with the store, as a reader sees it that asks no provider."""
        for one in (self.standby(), self.owner()):
            code = one.process.end(signal.SIGTERM)
            if code != 130:
                raise Failure(f"a provider that was ended has exit code {code}: {one.process.last_words()}")
        files = self.file("files")
        self.check(self.client_host.run([self.program("freshet"), "repo", "export", "--all", "--repo", self.store.reader_place,
                                         "-o", files], self.store.reader_keys))
        problems = [*self.client.problems, *self.ledger.problems(files)]
        if problems:
            raise Failure("; ".join(problems[:20]))

    def tell(self):
        kept, stored = self.ledger.read()
        summary = {"seed": self.seed, "faults": self.faults, "acknowledged": len(stored), "compared": len(kept),
                   "searches_done": sum(worker.done for worker in self.workers),
                   "client_puts": len(self.client.acknowledged), "client_puts_later": self.client.refused,
                   "seconds": {what: {"median": statistics.median(times), "min": min(times), "max": max(times),
                                      "n": len(times)} for what, times in sorted(self.figures.items())}}
        print(json.dumps(summary), flush=True)
        self.say(f"seed {self.seed}: {self.faults} faults, {len(stored)} versions acknowledged, {len(kept)} of them to be kept "
                 "and read back; none lost, none wrong, no search ended")
        self.print_row(["seconds", "median", "min", "max", "n"])
        self.print_row(["---", "---:", "---:", "---:", "---:"])
        for what, row in summary["seconds"].items():
            self.print_row([what, *(f"{row[key]:.1f}" for key in ("median", "min", "max")), str(row["n"])])


def faults_of(text):
    faults = text.split(",")
    unknown = [fault for fault in faults if fault not in FAULTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no fault {unknown[0]!r}; there are: {', '.join(FAULTS)}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--weed", help="SeaweedFS' program, for a bucket; without it, a pool of Ceph is the place")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--candidates", type=int, default=120, help="of each search")
    parser.add_argument("--count", action="store_true", help="no faults: count the store's requests for 1,000 puts")
    parser.add_argument("--faults", type=faults_of, help="FAULT,…: these, once each, instead of SECONDS")
    options = parser.parse_args()
    if not options.weed and missing_program():
        print(f"many_hosts: there is no {missing_program()}: scripts/install_dependencies.sh ceph brings it", file=sys.stderr)
        sys.exit(5)
    try:
        host = Host("store")
        store = SeaweedFS(host, options.weed, options.folder) if options.weed else Ceph(host, options.folder)
        try:
            run = Run(options, store)
            if options.count:
                count_requests(run)
            else:
                run.live(options.seconds)
        finally:
            store.close()
    except Failure as failure:
        sys.exit(f"many_hosts: seed {options.seed}: {failure}")


if __name__ == "__main__":
    main()
