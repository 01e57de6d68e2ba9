#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two Triton servers answer while Keras trains: docs/python/triton.md in one program. Amid the requests one of the servers is killed,
and then the trainer. A request that one server fails is asked of the other one, and none is lost. At the end each answer is compared
with the version that it names, and `freshet why` explains one of them. A new folder gets the models, the repository and the journal."""
import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import tritonclient.http
from sklearn.datasets import load_digits

import freshet

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("folder", help="is made")
arguments.add_argument("--requests", type=int, default=100, help="that are answered in each part")
options = arguments.parse_args()

PATIENCE = 300  # Seconds, for what comes soon on any machine.
FRESHET = os.path.join(os.path.dirname(sys.executable), "freshet")
HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = '''import freshet.triton
import numpy as np


class TritonPythonModel(freshet.triton.Model):
    model = "digits"

    def infer(self, weights, inputs):
        hidden = np.maximum(inputs["x"] @ weights["sequential/dense/kernel"] + weights["sequential/dense/bias"], 0)
        return {"scores": hidden @ weights["sequential/dense_1/kernel"] + weights["sequential/dense_1/bias"]}
'''


def run(*words):
    ran = subprocess.run([FRESHET, *words], text=True, stdout=subprocess.PIPE)
    if ran.returncode != 0:
        raise SystemExit(f"`freshet {' '.join(words)}` ended with code {ran.returncode}")
    return ran.stdout


def wait_until(what, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not come within {PATIENCE} s")
        time.sleep(0.01)


class Client(threading.Thread):
    """Asks, one request after the other, until `ends` is set. A request that a server fails is asked of the next one."""

    def __init__(self, addresses):
        super().__init__(daemon=True)
        self.servers = [tritonclient.http.InferenceServerClient(address) for address in addresses]
        self.answers = []       # (request's id, image, scores, version)
        self.asked_again = 0    # And so many times.
        self.lost = 0
        self.ends = threading.Event()

    def run(self):
        images = load_digits().data.astype(np.float32) / 16
        while not self.ends.is_set():
            number = len(self.answers) + self.lost
            image = images[number % len(images)]
            x = tritonclient.http.InferInput("x", [1, 64], "FP32")
            x.set_data_from_numpy(image[None])
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    answer = self.servers[0].infer("digits", [x], request_id=f"request-{number}")
                    self.answers.append((f"request-{number}", image, answer.as_numpy("scores")[0], int(answer.as_numpy("weight_version")[0])))
                    break
                except Exception as error:  # Triton's, and the socket's.
                    if time.monotonic() > end:
                        self.lost += 1
                        print(f"request-{number} is lost: {error}", file=sys.stderr)
                        break
                    self.asked_again += 1
                    self.servers.append(self.servers.pop(0))
        for server in self.servers:
            server.close()

    def version(self):
        return self.answers[-1][3] if self.answers else 0

    def wait_for(self, version):
        """So many answers more, and that version."""
        count = len(self.answers) + options.requests
        wait_until(f"an answer of version {version}", lambda: len(self.answers) >= count and self.version() >= version)


def train():
    """The trainer, which trains until it is killed."""
    return subprocess.Popen([sys.executable, os.path.join(HERE, "keras_trainer.py"), "--epochs", "1000000", "--repo", "runs"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={"KERAS_BACKEND": "jax", **os.environ})


def serve():
    """A server, with free ports; and what it says when it is ready."""
    server = subprocess.Popen([FRESHET, "triton", "serve", "models", "--http-port", "0", "--grpc-port", "0", "--json"], text=True,
                              stdout=subprocess.PIPE)
    ready = server.stdout.readline()
    if not ready:
        raise SystemExit("the server did not start")
    return server, json.loads(ready)


def instances():
    """The servers' processes that have a version, as the publisher knows them."""
    [stat] = [json.loads(line) for line in run("top", "digits", "--once", "--json").splitlines()]
    return {one["pid"] for one in stat["subscribers"] if one["label"].startswith("triton ") and one["serving"]}


def differs(answer, stored):
    """Whether the answer is not what the version makes of the image."""
    _, image, scores, version = answer
    weights = stored[version]
    hidden = np.maximum(image @ weights["sequential/dense/kernel"] + weights["sequential/dense/bias"], 0)
    return not np.allclose(scores, hidden @ weights["sequential/dense_1/kernel"] + weights["sequential/dense_1/bias"], rtol=1e-4, atol=1e-4)


def main():
    os.mkdir(options.folder)
    os.chdir(options.folder)
    processes = [train()]
    try:
        run("triton", "new", "models/digits", "--input", "x:FP32:-1,64", "--output", "scores:FP32:-1,10",
            "--journal", "../../answers.jsonl", "--timeout", str(PATIENCE))
        with open("models/digits/1/model.py", "w", encoding="utf-8") as file:
            file.write(MODEL)
        servers = []
        for _ in range(2):
            process, ready = serve()
            processes.append(process)
            servers.append(ready)
        wait_until("a version in both servers", lambda: len(instances()) == 2)
        client = Client([ready["http"] for ready in servers])
        client.start()
        client.wait_for(3)
        print(f"{len(client.answers)} answers, the last one by version {client.version()}", flush=True)

        before = instances()
        os.kill(servers[0]["pid"], signal.SIGKILL)  # `freshet triton serve` starts it again.
        client.wait_for(client.version() + 3)
        wait_until("a server in the place of the killed one", lambda: len(instances()) == 2 and instances() != before)
        print(f"a server was killed, and started again; {len(client.answers)} answers, the last one by version {client.version()}",
              flush=True)

        processes[0].kill()
        processes[0].wait()
        client.wait_for(client.version())
        client.ends.set()
        client.join(2 * PATIENCE)
        print(f"the trainer was killed; {len(client.answers)} answers, the last one by version {client.version()}", flush=True)
        print(f"{client.lost} requests lost, {client.asked_again} asked of the other server", flush=True)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()

    with freshet.Repository("runs") as repository:
        named = {version for _, _, _, version in client.answers}
        stored = {row.version.number: repository.get(row.version) for row in repository.versions("digits") if row.version.number in named}
    known = [answer for answer in client.answers if answer[3] in stored]
    wrong = sum(differs(answer, stored) for answer in known)
    print(f"{len(known)} answers compared with the version that they name: {wrong} differ", flush=True)
    if not known:
        raise SystemExit("the repository has none of the versions that answered")
    request = known[-1][0]
    print(f"freshet why {request} --journal answers.jsonl --repo runs", flush=True)
    print(run("why", request, "--journal", "answers.jsonl", "--repo", "runs").split("\n\n")[0])  # The lineage follows.
    return 1 if client.lost or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
