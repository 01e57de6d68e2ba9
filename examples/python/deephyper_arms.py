#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The search of deephyper_search.py three times, to one budget: without transfer, with transfer through HDF5 files and Redis (the third arm of
EvoStore's evaluation), and with transfer through Freshet. Leaves a picture of candidates, best accuracy and bytes over time, and the
numbers as JSON. Then a table: without transfer, and Freshet with each way to freeze what was transferred, on several seeds."""
import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time

import h5py
import matplotlib
import redis
import torch
from deephyper.evaluator import Evaluator
from deephyper.hpo import RegularizedEvolution

import freshet.deephyper
from deephyper_search import build, options as of_search, problem, train

matplotlib.use("svg")
import matplotlib.pyplot as plt


class WithoutTransfer:
    """Each candidate begins anew, and nothing is kept."""

    name = "without transfer"

    def evaluate(self, job):
        return {"objective": train(build(job.parameters))}

    def bytes_kept(self):
        return 0

    def close(self):
        pass


class Hdf5AndRedis:
    """Each candidate is a file. Redis has their layers, and whoever looks for an ancestor reads them all."""

    name = "HDF5 and Redis"

    def __init__(self, folder):
        self.folder = os.path.join(folder, "hdf5")
        os.makedirs(self.folder)
        self.sockets = tempfile.mkdtemp(prefix="freshet-arms-")  # A socket's path is short.
        path = os.path.join(self.sockets, "s")
        self.server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", self.folder],
                                       stdout=subprocess.DEVNULL)
        self.redis = redis.Redis(unix_socket_path=path, decode_responses=True, retry=None)
        while True:
            try:
                self.redis.ping()
                break
            except redis.ConnectionError:
                if self.server.poll() is not None:
                    raise SystemExit("redis-server did not start")
                time.sleep(0.01)

    def evaluate(self, job):
        model = build(job.parameters)
        layers = [f"{type(layer).__name__} {[list(one.shape) for one in layer.parameters()]}" for layer in model]
        ancestor, shared = self.longest_prefix(layers)
        if ancestor is not None:
            with h5py.File(os.path.join(self.folder, f"{ancestor}.h5")) as file, torch.no_grad():
                for name, parameter in model[:shared].named_parameters():
                    parameter.copy_(torch.from_numpy(file[name][()]))
                    parameter.requires_grad_(False)
        objective = train(model)
        number = self.redis.incr("number")
        with h5py.File(os.path.join(self.folder, f"{number}.h5"), "w") as file:
            for name, tensor in model.state_dict().items():
                file[name] = tensor.numpy()
        self.redis.hset("layers", number, json.dumps([objective, layers]))
        return {"objective": objective}

    def longest_prefix(self, layers):
        best, best_shared = None, (0, 0.0)
        for number, told in self.redis.hgetall("layers").items():
            quality, theirs = json.loads(told)
            shared = next((i for i, (a, b) in enumerate(zip(layers, theirs)) if a != b), min(len(layers), len(theirs)))
            if shared and (shared, quality) > best_shared:
                best, best_shared = number, (shared, quality)
        return best, best_shared[0]

    def bytes_kept(self):
        return sum(entry.stat().st_size for entry in os.scandir(self.folder))

    def close(self):
        self.redis.close()
        self.server.terminate()
        self.server.wait()
        shutil.rmtree(self.sockets)


class Freshet:
    """What deephyper_search.py does; nothing is retired, as in the other arms."""

    def __init__(self, folder, freeze="prefix"):
        self.name = "Freshet" if freeze == "prefix" else f"Freshet, freeze={freeze}"
        self.freeze = freeze
        self.repository = freshet.Repository(os.path.join(tempfile.mkdtemp(dir=folder), "runs"))

    def evaluate(self, job):
        model = build(job.parameters)
        with freshet.deephyper.evaluate(job, model, self.repository, freeze=self.freeze) as e:
            e.objective = train(model)
        return e.result

    def bytes_kept(self):
        return self.repository.stat()["live_bytes"]

    def close(self):
        self.repository.close()


def searched(arm, options, seed):
    """When each candidate was done, in seconds, its accuracy, and the bytes that were kept by then."""
    rows = []
    begin = time.monotonic()

    def run(job):
        result = arm.evaluate(job)
        rows.append((time.monotonic() - begin, result["objective"], arm.bytes_kept()))
        return result

    torch.manual_seed(seed)
    search = RegularizedEvolution(problem(), random_state=seed, log_dir=tempfile.mkdtemp(dir=options.out),
                                  population_size=options.population, sample_size=max(2, options.population // 3))
    budget = {"max_evals": options.candidates} if options.candidates else {"timeout": options.seconds}
    search.search(Evaluator.create(run, method="thread"), **budget)
    return rows


def show(table, seeds):
    print(f"\n| best accuracy, MB kept | {' | '.join(f'seed {seed}' for seed in seeds)} | mean |")
    print("| --- |" + " --- |" * (len(seeds) + 1))
    for name, by_seed in table.items():
        cells = [*by_seed.values(), {key: sum(one[key] for one in by_seed.values()) / len(seeds) for key in ("accuracy", "bytes")}]
        print(f"| {name} | " + " | ".join(f"{one['accuracy']:.3f}, {one['bytes'] / 1e6:.2f}" for one in cells) + " |")
    print()


def draw(arms, path):
    figure, (candidates, accuracy, kept) = plt.subplots(1, 3, figsize=(12, 3.5))
    for name, rows in arms.items():
        seconds = [row[0] for row in rows]
        candidates.step(seconds, range(1, len(rows) + 1), where="post", label=name)
        accuracy.step(seconds, [max(row[1] for row in rows[:i + 1]) for i in range(len(rows))], where="post")
        kept.step(seconds, [row[2] / 1e6 for row in rows], where="post")
    for panel, title in ((candidates, "candidates"), (accuracy, "best accuracy"), (kept, "MB kept")):
        panel.set_title(title)
        panel.set_xlabel("seconds")
    candidates.legend()
    figure.tight_layout()
    figure.savefig(path)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", default="deephyper_arms", help="a folder that is not there yet")
    arguments.add_argument("--seconds", type=int, default=60, help="the budget of each arm")
    arguments.add_argument("--candidates", type=int, help="a budget of candidates, in the place of seconds")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the table; the picture is of the first")
    arguments.add_argument("--population", type=int, default=10)
    arguments.add_argument("--epochs", type=int, default=3)
    options = arguments.parse_args()
    of_search.epochs = options.epochs
    try:
        os.makedirs(options.out)
    except FileExistsError:
        arguments.error(f"--out {options.out}: it is there already; name another folder, or remove it")
    train(build({f"width{i}": 16 for i in range(3)}))  # What PyTorch loads at its first step is no arm's time.
    makes = [lambda: WithoutTransfer(), lambda: Hdf5AndRedis(options.out), lambda: Freshet(options.out),
             lambda: Freshet(options.out, "none"), lambda: Freshet(options.out, "all")]
    told = {}  # By arm and seed.
    for seed in options.seeds:
        for make in makes if seed == options.seeds[0] else makes[:1] + makes[2:]:
            arm = make()
            try:
                rows = told.setdefault(arm.name, {})[seed] = searched(arm, options, seed)
            finally:
                arm.close()
            print(f"{arm.name}, seed {seed}: {len(rows)} candidates, best accuracy {max(row[1] for row in rows):.3f}, "
                  f"{rows[-1][2] / 1e6:.2f} MB kept", flush=True)
    arms = {name: by_seed[options.seeds[0]] for name, by_seed in told.items() if "freeze=" not in name}
    table = {name: {seed: {"accuracy": max(row[1] for row in rows), "bytes": rows[-1][2]} for seed, rows in by_seed.items()}
             for name, by_seed in told.items() if name != Hdf5AndRedis.name}
    show(table, options.seeds)
    with open(os.path.join(options.out, "table.json"), "w", encoding="utf-8") as file:
        json.dump(table, file)
    with open(os.path.join(options.out, "arms.json"), "w", encoding="utf-8") as file:
        json.dump({name: [dict(zip(("seconds", "accuracy", "bytes"), row)) for row in rows] for name, rows in arms.items()}, file)
    draw(arms, os.path.join(options.out, "arms.svg"))
    print(f"drawn in {os.path.join(options.out, 'arms.svg')}")


if __name__ == "__main__":
    main()
