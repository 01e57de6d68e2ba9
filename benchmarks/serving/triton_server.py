#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Triton server whose model follows a publisher, beside Triton's own way: a new file of weights, and its load API.

usage: triton_server.py [--quick] [--json]

Needs the venv of scripts/python.sh --frameworks: its Python runs this."""
import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

SIDE = 512                      # A tensor is a matrix of float32: 1 MiB.
TENSOR_BYTES = 4 * SIDE * SIDE
EVERY_S = 0.1
MEMORY = "/dev/shm"

TRAINER = """
import sys, time
import numpy as np
import freshet

def weights_of(tensors):
    return {f"t{i:04}": np.full((%d, %d), 1, np.float32) for i in range(tensors)}

tensors, each = int(sys.argv[1]), max(1, int(sys.argv[1]) // 10)
weights = {**weights_of(tensors), "stamp": np.zeros(1, np.int64)}
with freshet.Publisher("served", arena_copies=float(sys.argv[2])) as publisher:
    bound = publisher.bind(weights)
    step = 0
    def publish(number):
        names = [f"t{(number * each + i) %% tensors:04}" for i in range(each)]
        for name in names:
            weights[name][0, 0] += 1
        weights["stamp"][0] = number
        begin = time.monotonic()
        bound.publish(step=number, changed=[*names, "stamp"])
        return begin
    for line in sys.stdin:
        word, *more = line.split()
        if word == "publish":
            step += 1
            print(step, publish(step), flush=True)
        elif word == "drop":            # The trainer's own weights do not count for the servers.
            weights.clear()
            bound = None
            print("dropped", flush=True)
        elif word == "follow":          # A version each so many seconds, for so many.
            begin, count = time.monotonic(), 0
            while time.monotonic() < begin + float(more[1]):
                step += 1
                publish(step)
                count += 1
                time.sleep(max(0.0, begin + count * float(more[0]) - time.monotonic()))
            print(count, flush=True)
""" % (SIDE, SIDE)

OURS = """import freshet.triton


class TritonPythonModel(freshet.triton.Model):
    model = "served"

    def infer(self, weights, inputs):
        return {"y": inputs["x"] @ weights["t0000"], "stamp": weights["stamp"]}
"""

# As models of the Python backend do it, with inputs and outputs by DLPack as freshet.triton has them.
PEER = """import os
import numpy as np
import triton_python_backend_utils as triton
from freshet.triton._tensors import tensor_of


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        self.weights = np.load(os.path.join(folder, "weights.npy"))
        self.stamp = np.load(os.path.join(folder, "stamp.npy"))

    def execute(self, requests):
        return [triton.InferenceResponse([tensor_of(triton, "y", np.from_dlpack(request.inputs()[0]) @ self.weights[0]),
                                          tensor_of(triton, "stamp", self.stamp)]) for request in requests]
"""
# The same server, and the same Python, without weights.
EMPTY = OURS.replace('inputs["x"] @ weights["t0000"]', 'inputs["x"]').replace('weights["stamp"]', "np.zeros(1, np.int64)").replace(
    "import freshet.triton\n", "import freshet.triton\nimport numpy as np\n")


def find_needs():
    for module in ("pytriton", "tritonclient.grpc", "freshet"):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise ImportError(f"without {module}")


class Trainer:
    def __init__(self, tensors, arena_copies=3.0):
        self.process = subprocess.Popen([sys.executable, "-c", TRAINER, str(tensors), str(arena_copies)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def tell(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def ask(self, words):
        self.tell(words)
        return self.process.stdout.readline().split()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Server:
    """`freshet triton serve`, of models whose names and 1/model.py are given."""

    def __init__(self, folder, models, *words):
        self.models = os.path.join(folder, "models")
        for name, text in models.items():
            new = [sys.executable, "-m", "freshet.triton", "new", os.path.join(self.models, name), "--timeout", "0", "--input",
                   f"x:FP32:-1,{SIDE}", "--output", f"y:FP32:-1,{SIDE}", "--output", "stamp:INT64:1"]
            subprocess.run(new, check=True, stdout=subprocess.DEVNULL)
            if "freshet.triton.Model" not in text:  # It does not tell versions.
                self._edit(name, lambda config: config.replace(',\n  { name: "weight_version" data_type: TYPE_INT64 dims: [1] }', ""))
            with open(os.path.join(self.models, name, "1", "model.py"), "w", encoding="utf-8") as file:
                file.write(text)
        self.words = words
        self.process = None

    def _edit(self, name, change):
        path = os.path.join(self.models, name, "config.pbtxt")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(change(text))

    def launch(self):
        self.process = subprocess.Popen([sys.executable, "-m", "freshet.triton", "serve", self.models, "--http-port", "0", "--grpc-port", "0",
                                         "--json", *self.words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def start(self):
        if self.process is None:
            self.launch()
        self.ready = json.loads(self.process.stdout.readline())

    def end(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def client_of(server, name):
    import tritonclient.grpc as library
    line = library.InferenceServerClient(server.ready["grpc"])
    asked = library.InferInput("x", [1, SIDE], "FP32")
    asked.set_data_from_numpy(np.ones((1, SIDE), np.float32))
    return line, lambda: int(line.infer(name, [asked]).as_numpy("stamp")[0])


def closed_loop(ask, seconds):
    """Times of requests in ms, the longest gap between two answers in ms, and how many failed."""
    times, failed, gap = [], 0, 0.0
    answered = begin = time.perf_counter()
    while answered < begin + seconds:
        start = time.perf_counter()
        try:
            ask()
        except Exception:
            failed += 1
            continue
        now = time.perf_counter()
        times.append(1e3 * (now - start))
        gap, answered = max(gap, 1e3 * (now - answered)), now
    return times, gap, failed


def wait_until(ask, stamp):
    """When the first answer with that stamp, or a later one, came."""
    while True:
        with contextlib.suppress(Exception):
            if ask() >= stamp:
                return time.monotonic()


def save(server, tensors, stamp):
    """What a trainer does for Triton's reload: the file of all weights, then the stamp. Returns when it began."""
    folder = os.path.join(server.models, "peer", "1")
    weights = np.full((tensors, SIDE, SIDE), 1, np.float32)
    begin = time.monotonic()
    for name, array in (("weights", weights), ("stamp", np.array([stamp], np.int64))):
        with open(os.path.join(folder, name + ".tmp"), "wb") as file:
            np.save(file, array)
        os.replace(os.path.join(folder, name + ".tmp"), os.path.join(folder, name + ".npy"))
    return begin


def under_updates(folder, quick):
    tensors, rounds, seconds, reloads = (32, 3, 2.0, 2) if quick else (32, 7, 5.0, 7)
    found = {name: [] for name in ("p99_rest", "p99_updates", "gap_rest", "gap_updates", "gap_reload", "update", "reload")}
    failed = versions = failed_reload = 0
    trainer = Trainer(tensors)
    server = Server(folder, {"served": OURS, "peer": PEER}, "--", "--model-control-mode=explicit", "--load-model=*")
    try:
        save(server, tensors, 0)
        server.start()
        step, _ = trainer.ask("publish")
        _, ask = client_of(server, "served")
        wait_until(ask, int(step))
        closed_loop(ask, 1.0)
        for _ in range(rounds):
            times, gap, lost = closed_loop(ask, seconds)
            found["p99_rest"].append(np.percentile(times, 99))
            found["gap_rest"].append(gap)
            failed += lost
            trainer.tell(f"follow {EVERY_S} {seconds}")
            times, gap, lost = closed_loop(ask, seconds)
            found["p99_updates"].append(np.percentile(times, 99))
            found["gap_updates"].append(gap)
            failed += lost
            versions += int(trainer.process.stdout.readline())
        for _ in range(rounds * 3):
            step, begin = trainer.ask("publish")
            found["update"].append(1e3 * (wait_until(ask, int(step)) - float(begin)))
        line, ask_peer = client_of(server, "peer")
        wait_until(ask_peer, 0)
        for stamp in range(1, reloads + 1):
            # One client asks all the time; the trainer saves, and calls the load API.
            gaps = []
            begin = time.monotonic()
            looker = threading.Thread(target=lambda: gaps.append(follow_reload(server, stamp)))
            looker.start()
            begin = save(server, tensors, stamp)
            line.load_model("peer")
            looker.join()
            at, gap, lost = gaps[0]
            found["reload"].append(1e3 * (at - begin))
            found["gap_reload"].append(gap)
            failed_reload += lost
    finally:
        trainer.end()
        server.end()
    return found, {"failed requests": failed, "failed requests, reload": failed_reload, "versions": versions}


def follow_reload(server, stamp):
    _, ask = client_of(server, "peer")
    answered, gap, failed = time.monotonic(), 0.0, 0
    while True:
        try:
            got = ask()
        except Exception:
            failed += 1
            continue
        now = time.monotonic()
        gap, answered = max(gap, 1e3 * (now - answered)), now
        if got >= stamp:
            return now, gap, failed


def pss_of(process):
    """Of a process and all that it started, in MB."""
    kilobytes, left = 0, [process.pid]
    while left:
        pid = left.pop()
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                kilobytes += sum(int(text.split()[1]) for text in file if text.startswith("Pss:"))
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                    left += map(int, file.read().split())
    return kilobytes / 1024


def memory(folder, quick):
    """Four servers of one model, which each load the file, or each map the publisher's memory; above four servers whose model has
    no weights. The publisher counts. Its arena has two copies of the model; "lean": as much as these versions need."""
    tensors, sizes = 256 if quick else 1024, {}
    for name, text, copies in (("without", EMPTY, None), ("file", PEER, None), ("ours", OURS, 2.0), ("lean", OURS, 1.0)):
        trainer = Trainer(tensors, copies) if copies else None
        model = "peer" if name == "file" else "served"
        servers = [Server(os.path.join(folder, f"{name}{number}"), {model: text}) for number in range(4)]
        try:
            for _ in range(2 if trainer else 0):
                trainer.ask("publish")
            for server in servers:
                if name == "file":
                    save(server, tensors, 1)
                server.launch()
            for server in servers:
                server.start()
                if name != "without":
                    wait_until(client_of(server, model)[1], 2 if trainer else 1)
            if trainer:
                trainer.ask("drop")
                sizes[f"publisher of {name}"] = pss_of(trainer.process)
            sizes[name] = sum(pss_of(server.process) for server in servers) + sizes.get(f"publisher of {name}", 0)
        finally:
            if trainer:
                trainer.end()
            for server in servers:
                server.end()
                shutil.rmtree(server.models)
    return {name: size if name.startswith("publisher") else size - sizes["without"] for name, size in sizes.items()}


def row(case, subject, unit, samples):
    return {"case": case, "subject": subject, "unit": unit, "median": statistics.median(samples), "min": min(samples), "max": max(samples),
            "n": len(samples)}


def rows(quick):
    """ImportError names what is missing."""
    find_needs()
    folder = tempfile.mkdtemp(prefix="freshet-benchmark-", dir=MEMORY)
    try:
        found, counts = under_updates(os.path.join(folder, "updates"), quick)
        sizes = memory(folder, quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    median = {name: statistics.median(samples) for name, samples in found.items()}
    told = [row("triton p99", "at rest", "ms", found["p99_rest"]), row("triton p99", f"a version each {EVERY_S} s", "ms", found["p99_updates"]),
            row("triton longest gap", "at rest", "ms", found["gap_rest"]),
            row("triton longest gap", f"a version each {EVERY_S} s", "ms", found["gap_updates"]),
            row("triton longest gap", "Triton's reload", "ms", found["gap_reload"]),
            row("triton publish to first answer", "freshet", "ms", found["update"]),
            row("triton publish to first answer", "Triton's reload", "ms", found["reload"]),
            *(row("triton counts", name, "", [value]) for name, value in counts.items()),
            row("four servers", "each loads the file", "MB", [sizes["file"]]), row("four servers", "freshet, with its publisher, arena_copies=2", "MB", [sizes["ours"]]),
            row("four servers", "freshet, with its publisher, arena_copies=1", "MB", [sizes["lean"]])]
    return told, {"triton_p99_under_updates": median["p99_rest"] / median["p99_updates"],
                  "triton_longest_gap": median["gap_updates"] / median["gap_rest"],
                  "triton_longest_gap_of_reload": median["gap_reload"] / median["gap_rest"],
                  "triton_update_vs_reload": median["reload"] / median["update"],
                  "four_servers_memory": sizes["file"] / sizes["ours"],
                  "four_servers_memory_lean": sizes["file"] / sizes["lean"]}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    os.environ["FRESHET_RUN_DIR"] = run_dir = tempfile.mkdtemp(prefix="freshet-run-")
    try:
        told, ratios = rows(options.quick)
    except ImportError as error:
        sys.exit(f"triton_server: {error}; scripts/python.sh --frameworks brings it")
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    if not options.json:
        for one in told:
            print("{case}, {subject}: {median:.2f} {unit} ({min:.2f} to {max:.2f}, {n})".format(**one))
        for name, value in ratios.items():
            print(f"{name}: {value:.2f}")
    print(json.dumps({"benchmark": "triton_server", "rows": told, "ratios": ratios}))


if __name__ == "__main__":
    main()
