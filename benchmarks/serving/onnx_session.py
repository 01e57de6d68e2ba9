#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: from a new version to the first answer with it, and a run, beside a session that is built for each version.

usage: onnx_session.py [--quick] [--json]

A trainer is a process of its own. The clock starts when its arrays have the new values: it writes a file into memory (/dev/shm), of
which the server builds a session, or it publishes. `session_of_a_ready_file` leaves out the writing. Sessions have one thread
each."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime

import freshet
import freshet.onnx

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common")]
from tables import machine, print_tables

MODEL = "onnx-session"
LAYERS, WIDTH = 32, 500     # 32 MB.
CHANGED = 3                 # Layers: 10 percent.
MEMORY = "/dev/shm"
PATIENCE = 60


def weights():
    rng = np.random.default_rng(1)
    scale = np.float32(WIDTH) ** -0.5
    return {f"layer{i}": rng.standard_normal((WIDTH, WIDTH), np.float32) * scale for i in range(LAYERS)}


def graph_of(tensors):
    nodes, last = [], "x"
    for name in tensors:
        nodes += [onnx.helper.make_node("MatMul", [last, name], [f"{name}.product"]),
                  onnx.helper.make_node("Tanh", [f"{name}.product"], [f"{name}.out"])]
        last = f"{name}.out"
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "layers", [value("x", onnx.TensorProto.FLOAT, ["N", WIDTH])], [value(last, onnx.TensorProto.FLOAT, ["N", WIDTH])],
        [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=8)


def train(path):
    """For each line on stdin a version: published, or written as a file. Says when it began, and the version's number."""
    tensors = weights()
    names = list(tensors)
    model = graph_of(tensors)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    with freshet.Publisher(MODEL) as publisher:
        bound = publisher.bind(tensors)
        number = bound.publish(sync=True).version
        print(number, flush=True)
        for line in sys.stdin:
            changed = [names[(number * CHANGED + i) % LAYERS] for i in range(CHANGED)]
            for name in changed:
                tensors[name] += np.float32(0.001)
            begin = time.monotonic()
            if line.strip() == "write":
                for name in changed:
                    stored[name].raw_data = tensors[name].tobytes()
                onnx.save(model, path)
            else:
                number = bound.publish().version
            print(begin, number, flush=True)


class Trainer:
    def __init__(self, path):
        self.process = subprocess.Popen([sys.executable, "-W", "ignore", os.path.abspath(__file__), "--train", path], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the trainer ended")
        return line.split()

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.read()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def options():
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = 1
    return made


def row(case, subject, samples):
    ms = [1e3 * one for one in samples]
    return {"case": case, "subject": subject, "unit": "ms", "median": statistics.median(ms), "min": min(ms), "max": max(ms),
            "n": len(ms)}


def timed(call):
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def updates(trainer, path, subjects, x, repeats):
    """Seconds from a new version to the first answer with it; subjects take turns, and the first turn warms up."""
    took = {name: [] for name in ("session_per_version", "session_of_a_ready_file", *subjects)}
    for turn in range(repeats + 1):
        begin, _ = trainer.ask("write")
        ready = time.monotonic()
        onnxruntime.InferenceSession(path, options()).run(None, {"x": x})
        end = time.monotonic()
        samples = {"session_per_version": end - float(begin), "session_of_a_ready_file": end - ready}
        for name, session in subjects.items():
            begin, version = trainer.ask("publish")
            session.wait_for(int(version), PATIENCE)
            answers = session.run(None, {"x": x})
            samples[name] = time.monotonic() - float(begin)
            assert answers.weight_version == int(version)
        for name, seconds in samples.items():
            if turn > 0:
                took[name].append(seconds)
    return took


def runs(subjects, batch, repeats):
    x = np.random.default_rng(2).standard_normal((batch, WIDTH), np.float32)
    took = {name: [] for name in subjects}
    for turn in range(repeats + 1):
        for name, session in subjects.items():
            seconds = timed(lambda: session.run(None, {"x": x}))
            if turn > 0:
                took[name].append(seconds)
    return took


def rows(quick):
    """The table's rows, and the ratios: larger is better."""
    told, ratios = [], {}
    folder = tempfile.mkdtemp(prefix="freshet-onnx-", dir=MEMORY if os.path.isdir(MEMORY) else None)
    path = os.path.join(folder, "m.onnx")
    try:
        onnx.save(graph_of(weights()), path)
        trainer = Trainer(path)
        try:
            with freshet.Subscriber(MODEL) as subscriber, \
                    freshet.onnx.Session(path, subscriber, sess_options=options()) as inputs:
                x = np.ones((1, WIDTH), np.float32)
                inputs.wait_for(timeout=PATIENCE)
                took = updates(trainer, path, {"freshet_inputs": inputs}, x, 5 if quick else 21)
                with freshet.onnx.Session(path, subscriber, "session", sess_options=options) as built:
                    built.wait_for(timeout=PATIENCE)
                    more = updates(trainer, path, {"freshet_session": built}, x, 5 if quick else 21)
                    for name, samples in more.items():
                        took[name] = took.get(name, []) + samples
                told += [row("update to first answer", name, samples) for name, samples in took.items()]
                median = {name: statistics.median(samples) for name, samples in took.items()}
                ratios["onnx_update_vs_session"] = median["session_per_version"] / median["freshet_inputs"]
                ratios["onnx_update_vs_ready_file"] = median["session_of_a_ready_file"] / median["freshet_inputs"]
                ratios["onnx_update_mode_session"] = median["session_per_version"] / median["freshet_session"]
                plain = onnxruntime.InferenceSession(path, options())
                for batch in (1, 32):
                    took = runs({"session": plain, "freshet_inputs": inputs}, batch, 50 if quick else 200)
                    told += [row(f"a run, batch {batch}", name, samples) for name, samples in took.items()]
                    ratios[f"onnx_run_inputs_batch_{batch}"] = \
                        statistics.median(took["session"]) / statistics.median(took["freshet_inputs"])
        finally:
            trainer.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return told, ratios


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--train", metavar="FILE", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.train:
        return train(chosen.train)
    before = machine()
    with tempfile.TemporaryDirectory(prefix="freshet-run-") as run_dir:
        os.environ["FRESHET_RUN_DIR"] = run_dir
        told, ratios = rows(chosen.quick)
    if not chosen.json:
        print_tables(before, told, ratios)
    print(json.dumps({"rows": told, "ratios": ratios}))


if __name__ == "__main__":
    main()
