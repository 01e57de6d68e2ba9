# SPDX-License-Identifier: Apache-2.0
"""An ASGI app in uvicorn, a closed-loop client and a trainer, each a process: what the middleware costs, and what updates cost. A request
reads the whole model. A bare request reads one number of it: what is left is the server's own time."""
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import uvicorn  # Without it this part is a skip.

import freshet

MODEL = "serving"
CHANGED = 10          # Of 100 percent.
EVERY_S = 0.1         # Between two versions.
WIDTH = 500           # A layer is a megabyte.
TURNS = 4             # Of a round.
SUBJECTS = {"plain": "/plain", "middleware": "/middleware", "middleware_journal": "/journal"}


def model_of(megabytes):
    """A chain of layers."""
    return {f"layer{i}": np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32) for i in range(megabytes)}


def train(megabytes):
    """Publishes once, and then does as it is told by lines on stdin. `train`: it changes a part of the weights each 0.1 s; `publish`: and
    publishes it; `rest`."""
    weights = model_of(int(megabytes))
    names = list(weights)
    with freshet.Publisher(MODEL) as publisher:
        bound = publisher.bind(weights)
        bound.publish()
        print("ready", flush=True)
        os.set_blocking(0, False)
        doing, number, round_ = "rest", 0, 0
        while True:
            word = sys.stdin.readline()
            if word:
                doing = word.strip()
                print(number, flush=True)
            if doing != "rest":
                changed = names[round_ % 10::100 // CHANGED]
                round_ += 1
                for name in changed:
                    weights[name] *= 1.0001
            if doing == "publish":
                number += 1
                bound.publish(step=number, changed=changed)
            time.sleep(EVERY_S)


def serve(journal_path):
    """The app thrice in one server, so that all of them have the same process, loop and connection."""
    subscriber = freshet.Subscriber(MODEL)
    subscriber.wait_for(timeout=60)
    with subscriber.snapshot() as snapshot:
        layers = list(snapshot)

    def answer_of(weights, query):
        if query == b"bare":
            return b"%f" % float(weights["layer0"][0, 3])
        values = np.ones(WIDTH, np.float32)
        for layer in layers:
            values = values @ weights[layer]
        return b"%f" % float(values[0])

    async def respond(weights, scope, send):
        body = answer_of(weights, scope["query_string"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async def plain(scope, receive, send):
        with subscriber.snapshot() as weights:
            await respond(weights, scope, send)

    async def app(scope, receive, send):
        await respond(scope["freshet.snapshot"], scope, send)

    wrapped = freshet.serving.middleware(app, subscriber)
    noted = freshet.serving.middleware(app, subscriber, journal=freshet.serving.Journal(journal_path))

    async def all_of_them(scope, receive, send):
        await {"/plain": plain, "/middleware": wrapped, "/journal": noted}[scope["path"]](scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(all_of_them, port=0, log_level="error", access_log=False, lifespan="off"))
    socket = server.config.bind_socket()
    socket.listen()  # The client's first request waits there.
    print(socket.getsockname()[1], flush=True)
    server.run([socket])


class Children:
    """The trainer and the server; both end with the block."""

    def __init__(self, megabytes, folder):
        self._megabytes, self._folder, self._started = megabytes, folder, []

    def _start(self, *arguments):
        child = subprocess.Popen([sys.executable, "-W", "ignore", os.path.abspath(__file__), *arguments], text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 env=dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"))
        self._started.append(child)
        return child, child.stdout.readline().strip()

    def __enter__(self):
        self.trainer, ready = self._start("train", str(self._megabytes))
        self.server, port = self._start("serve", os.path.join(self._folder, "journal"))
        if not ready or not port:
            self.__exit__()
            raise RuntimeError("serving: the trainer or the server ended")
        self.port = int(port)
        return self

    def tell_trainer(self, word):
        """How many versions it has published by then."""
        self.trainer.stdin.write(word + "\n")
        self.trainer.stdin.flush()
        return int(self.trainer.stdout.readline())

    def __exit__(self, *_):
        for child in self._started:
            child.kill()
            child.communicate()


def requests(connection, path, count):
    """Times of so many requests, one after the other, in ms; the longest time between two answers; failures."""
    times, failed, longest = [], 0, 0.0
    last = time.perf_counter()
    for _ in range(count):
        begin = time.perf_counter()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            failed += answer.status != 200
        except (OSError, http.client.HTTPException):
            failed += 1
            connection.close()
        now = time.perf_counter()
        times.append(1e3 * (now - begin))
        longest, last = max(longest, 1e3 * (now - last)), now
    return times, longest, failed


def row(case, subject, unit, samples):
    return {"case": case, "subject": subject, "unit": unit, "median": statistics.median(samples), "min": min(samples),
            "max": max(samples), "n": len(samples)}


def p99(times):
    return sorted(times)[int(0.99 * len(times))]


def cost_of_middleware(connection, case, query, rounds, count):
    """Requests a second. The subjects take turns with each request, so that whatever else the machine does meets all of them alike; the
    first round does not count."""
    rates = {subject: [] for subject in SUBJECTS}
    for round_ in range(rounds + 1):
        times = {subject: [] for subject in SUBJECTS}
        for _ in range(count):
            for subject, path in SUBJECTS.items():
                took, _, failed = requests(connection, path + query, 1)
                assert failed == 0, f"a request of {subject} failed"
                times[subject] += took
        if round_:
            for subject, one in times.items():
                rates[subject].append(1e3 / statistics.median(one))
    of_rounds = [a / b for a, b in zip(rates["middleware_journal"], rates["plain"])]
    return [row(case, subject, "1/s", rates[subject]) for subject in SUBJECTS], statistics.median(of_rounds)


def cost_of_updates(connection, children, rounds, count):
    """The trainer rests, changes its weights, or publishes these changes too: by turns of a part of a second, as above."""
    words = {"at_rest": "rest", "under_training": "train", "under_updates": "publish"}
    found = {case: {subject: [] for subject in words} for case in ("p99", "longest_gap")}
    failures, versions = 0, 0
    for round_ in range(rounds + 1):
        times, longest = {subject: [] for subject in words}, dict.fromkeys(words, 0.0)
        for _ in range(TURNS):
            for subject, word in words.items():
                before = children.tell_trainer(word)
                took, gap, failed = requests(connection, SUBJECTS["middleware_journal"], count // TURNS)
                versions += children.tell_trainer("rest") - before
                failures += failed
                times[subject] += took
                longest[subject] = max(longest[subject], gap)
        for subject in words if round_ else ():
            found["p99"][subject].append(p99(times[subject]))
            found["longest_gap"][subject].append(longest[subject])
    rows_ = [row(case, subject, "ms", samples) for case, subjects in found.items() for subject, samples in subjects.items()]
    rows_ += [row("failed_requests", "under_updates", "", [failures]), row("versions", "under_updates", "", [versions])]
    median = {case: {subject: statistics.median(samples) for subject, samples in subjects.items()} for case, subjects in found.items()}
    return rows_, {"p99_under_updates": median["p99"]["at_rest"] / median["p99"]["under_updates"],
                   "p99_of_publishing": median["p99"]["under_training"] / median["p99"]["under_updates"],
                   "http_longest_gap": median["longest_gap"]["at_rest"] / median["longest_gap"]["under_updates"]}


def rows(quick):
    megabytes, rounds, count = (32, 5, 300) if quick else (32, 11, 1000)
    with tempfile.TemporaryDirectory(prefix="freshet-benchmark-") as folder, Children(megabytes, folder) as children:
        connection = http.client.HTTPConnection("127.0.0.1", children.port, timeout=60)
        middleware_rows, ratio = cost_of_middleware(connection, "requests", "", rounds, count // 2)
        bare_rows, bare_ratio = cost_of_middleware(connection, "bare_requests", "?bare", rounds, count)
        update_rows, ratios = cost_of_updates(connection, children, rounds, count)
        connection.close()
    return middleware_rows + bare_rows + update_rows, {"requests_with_middleware_and_journal": ratio,
                                                       "bare_requests_with_middleware_and_journal": bare_ratio, **ratios}


if __name__ == "__main__":
    {"train": train, "serve": serve}[sys.argv[1]](*sys.argv[2:])
