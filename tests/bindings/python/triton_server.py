# SPDX-License-Identifier: Apache-2.0
"""What test_triton.py runs: the models of its server, a trainer, and clients of both protocols."""
import importlib
import json
import os
import subprocess
import sys
import threading

import numpy as np

from freshet.triton.__main__ import main

from conftest import PATIENCE

WIDTH, HEIGHT = 64, 10

# Published name: config of `freshet triton new`, and 1/model.py.
MODELS = {
    "digits": (["--instances", "2", "--input", "x:FP32:-1,64", "--output", "y:FP32:-1,10", "--output", "step:INT64:1"], """
        return {"y": inputs["x"] @ weights["w"] + weights["b"], "step": np.array([weights.step])}"""),
    "lone": (["--input", "x:FP32:-1", "--output", "y:FP32:-1"], """
        return {"y": inputs["x"] * weights["w"]}"""),
    "batched": (["--max-batch", "4", "--input", "x:FP32:3", "--output", "y:FP32:3"], """
        return {"y": inputs["x"] * weights["w"]}"""),
    "types": ([word for kind in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "fp16", "fp32", "fp64")
               for word in ("--input", f"{kind}:{kind}:-1,2", "--output", f"{kind}:{kind}:2,-1")]
              + ["--output", "served:FP32:3"], """
        return {**{name: value.T for name, value in inputs.items()}, "served": weights["w"]}"""),
    "odd": (["--input", "what:INT32:1", "--output", "y:FP32:2"], """
        what = int(inputs["what"][0])
        good = np.zeros(2, np.float32)
        if what == 1:
            raise RuntimeError("the model's own words")
        if what == 2:
            raise SystemExit(3)
        if what == 3:
            return {"y": weights["absent"]}
        if what == 4:
            return {"y": weights["w"] @ np.ones((7, 7), np.float32)}
        return {0: {"y": good}, 5: {"y": good.astype(np.float64)}, 6: {"y": np.zeros(3, np.float32)}, 7: {}, 8: {"y": good, "z": good},
                9: good, 10: {"y": good, "weight_version": good}}[what]"""),
}
HEAD = """import freshet.triton
import numpy as np


class TritonPythonModel(freshet.triton.Model):
    model = {name!r}

    def infer(self, weights, inputs):"""


def write_models(folder):
    """As a user does: `freshet triton new`, then infer()."""
    for name, (flags, infer) in MODELS.items():
        assert main(["new", os.path.join(folder, name), "--timeout", "0", *flags]) == 0
        with open(os.path.join(folder, name, "1", "model.py"), "w", encoding="utf-8") as file:
            file.write(HEAD.format(name=name) + infer + "\n")


def run(*words, code=0):
    ran = subprocess.run([sys.executable, "-m", "freshet.triton", *words], text=True, capture_output=True, timeout=PATIENCE)
    assert ran.returncode == code, ran.stderr
    return ran.stdout if code == 0 else ran.stderr


class Server:
    """`freshet triton serve` of a folder, with ports of its own."""

    def __init__(self, models, *words):
        self.log = os.path.join(models, os.pardir, "server.log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "freshet.triton", "serve", models, "--http-port", "0", "--grpc-port", "0",
                                             "--json", *words], text=True, stdout=subprocess.PIPE, stderr=log)
        line = self.process.stdout.readline()
        assert line, self.errors()
        self.ready = json.loads(line)

    def errors(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def instances(self, model):
        """The processes of a model's instances that live, which the server of `freshet triton serve` started."""
        parents, found = {}, []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                    parents[pid] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if any(word.endswith(f"/{model}/1/model.py".encode()) for word in words):
                found.append(pid)
        return sorted(pid for pid in found if parents.get(parents[pid]) == self.process.pid)


class Client:
    """Asks by "http" or "grpc". One thread's."""

    def __init__(self, server, protocol):
        self.library, self.types = (importlib.import_module(f"tritonclient.{name}") for name in (protocol, "utils"))
        self.line = self.library.InferenceServerClient(server.ready[protocol], **(
            {"network_timeout": PATIENCE, "connection_timeout": PATIENCE} if protocol == "http" else {}))

    def ask(self, model, inputs, outputs=None, **parameters):
        """Its outputs by name; InferenceServerException."""
        given = []
        for name, value in inputs.items():
            value = np.asarray(value)
            given.append(self.library.InferInput(name, list(value.shape), self.types.np_to_triton_dtype(value.dtype)))
            given[-1].set_data_from_numpy(value)
        wanted = [self.library.InferRequestedOutput(name) for name in outputs] if outputs else None
        answer = self.line.infer(model, given, outputs=wanted, parameters=parameters or None)
        told = answer.get_response()
        names = [one["name"] for one in told["outputs"]] if isinstance(told, dict) else [one.name for one in told.outputs]
        return {name: answer.as_numpy(name) for name in names}


def weights_of(step):
    """What the trainer publishes at that step."""
    random = np.random.default_rng(step)
    return {"w": random.normal(size=(WIDTH, HEIGHT)).astype(np.float32), "b": random.normal(size=HEIGHT).astype(np.float32)}


TRAINER = """
    import sys
    import freshet
    sys.path.insert(0, sys.argv[1])
    from triton_server import weights_of
    with freshet.Publisher("digits") as publisher:
        step = int(sys.argv[2])
        while True:
            receipt = publisher.publish(weights_of(step), step=step, sync=True)
            if receipt.version is not None:
                print(receipt.version, step, flush=True)
            step += 1
"""


class Trainer:
    """Publishes all the time, as fast as it can, from a step on. `.steps`: of the versions that it told of."""

    def __init__(self, program, first_step):
        self.program = program(TRAINER, os.path.dirname(os.path.abspath(__file__)), str(first_step))
        self.steps = {}
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.program.process.stdout:
            if len(line.split()) == 2:
                version, step = map(int, line.split())
                with self.changed:
                    self.steps[version] = step
                    self.changed.notify_all()

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.steps) >= count, PATIENCE)

    def kill(self):
        self.program.process.kill()
        self.thread.join(PATIENCE)
