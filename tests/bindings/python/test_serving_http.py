# SPDX-License-Identifier: Apache-2.0
"""The middleware in real servers: uvicorn over loopback, and the pages for FastAPI and Ray Serve, block by block."""
import json
import os
import re
import subprocess
import sys
import threading

import freshet
import numpy as np
import pytest
from conftest import PATIENCE, eventually, free_port
from pages import TOOLS, files_of, in_shell

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

SERVER = """
import asyncio
import freshet

subscriber = freshet.Subscriber("m")

async def respond(scope, receive, send):
    weights = scope["freshet.snapshot"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    if scope["path"] == "/stream":
        await receive()
        gone = asyncio.ensure_future(receive())         # As frameworks do: a server drops what is sent to nobody.
        while not gone.done():
            await send({"type": "http.response.body", "body": b"%d\\n" % weights["w"][0], "more_body": True})
            await asyncio.sleep(0.01)
    if scope["path"] == "/raise":
        raise RuntimeError("in the middle")
    await send({"type": "http.response.body", "body": b"%d" % weights["w"][0]})

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["path"] == "/break":
        raise RuntimeError("at once")
    await respond(scope, receive, send)

app = freshet.serving.middleware(app, subscriber, journal=freshet.serving.Journal("answers.jsonl"))
"""


class Uvicorn:
    """A server of a module in a folder; its address comes from what it says."""

    def __init__(self, folder, module="server:app"):
        self.process = subprocess.Popen([sys.executable, "-m", "uvicorn", module, "--port", "0"], cwd=folder, text=True,
                                        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        env=dict(os.environ, PYTHONUNBUFFERED="1"))
        self.said, self.address = [], None
        for line in self.process.stderr:
            self.said.append(line)
            found = re.search(r"running on (http://\S+)", line)
            if found:
                self.address = found[1]
                break
        assert self.address, "".join(self.said)
        threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(folder):
    with open(folder + "/server.py", "w", encoding="utf-8") as file:
        file.write(SERVER)
    with Uvicorn(folder) as running:
        yield running


def publish(publisher, number):
    return publisher.publish({"w": np.full(1000, number, np.float32)}, step=number).version


def test_a_server_over_loopback(server, folder):
    with httpx.Client(base_url=server.address, timeout=PATIENCE) as client, freshet.Publisher("m") as publisher:
        assert client.get("/").status_code == client.get("/freshet/ready").status_code == 503
        assert publish(publisher, 7) == 1
        assert eventually(lambda: client.get("/freshet/ready").status_code == 200)
        answer = client.get("/", headers={"x-request-id": "one"})
        assert (answer.text, answer.headers["x-weight-version"], answer.headers["x-request-id"]) == ("7", "1", "one")
        broken = client.get("/break")
        assert (broken.status_code, broken.headers["x-weight-version"]) == (500, "1")
        with pytest.raises(httpx.TransportError):
            client.get("/raise")
        refused = client.get("/", headers={"x-exact-version": "2"})
        assert refused.status_code == 409 and refused.json()["kept"] == [1]
        assert eventually(lambda: any("at once" in line for line in server.said)), "the exception reaches the server's log"

        # The client goes away amid a stream: its version is given up.
        def held():
            return {version for one in publisher.stat()["subscribers"] for version in one["held"]}

        with client.stream("GET", "/stream") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "7" and stream.headers["x-weight-version"] == "1"
            publish(publisher, 8)
            assert eventually(lambda: client.get("/").text == "8")
            assert next(lines) == "7" and 1 in held()
        assert eventually(lambda: 1 not in held())
    with open(folder + "/answers.jsonl", encoding="utf-8") as file:
        notes = [json.loads(line) for line in file]
    assert notes[0]["request"] == "one" and {note["version"] for note in notes} == {1, 2}


def test_no_request_fails_while_versions_come_and_the_trainer_goes(server):
    with httpx.Client(base_url=server.address, timeout=PATIENCE) as client:
        with freshet.Publisher("m") as publisher:
            publish(publisher, 1)
            assert eventually(lambda: client.get("/").status_code == 200)
            for number in range(2, 202):
                version = publish(publisher, number)
                answer = client.get("/", headers={"x-min-version": str(version), "x-max-wait": "10"})
                assert (answer.status_code, answer.text, answer.headers["x-weight-version"]) == (200, str(number), str(version))
        for _ in range(20):  # The trainer has gone.
            assert (client.get("/").status_code, client.get("/").text) == (200, "201")
        assert client.get("/freshet/ready").json()["version"] == 201


def test_the_page_for_fastapi(folder):
    pytest.importorskip("fastapi")
    commands = files_of("fastapi.md", folder)
    asks = [line for line in commands if line.startswith("curl")]
    trainer = subprocess.Popen([sys.executable, "trainer.py"], cwd=folder)
    try:
        with Uvicorn(folder) as running:
            with httpx.Client(base_url=running.address, timeout=PATIENCE) as client:
                # A later version than the first, so that it has an ancestor.
                assert eventually(lambda: int(client.get("/freshet/ready").headers.get("x-weight-version", "0")) >= 2)
            told = [in_shell(line, folder, running.address) for line in asks]
        version = re.search(r"x-weight-version: (\d+)", told[0])[1]
        assert "x-request-id:" in told[0] and '{"digits":[' in told[0] and int(version) >= 1
        assert re.fullmatch(r"\d by version \d+\n", told[1])
        assert "HTTP/1.1 200" in told[2]
        assert json.loads(told[3])["kept"]
        assert json.loads(told[4])["model"] == "digits" and "freshet_served_version" in told[5] and "digits" in told[6]
        [why] = [line for line in commands if "freshet why" in line]
        if os.path.exists(TOOLS + "/freshet"):
            told = in_shell(why, folder, "")
            assert "request mine-1: digits@" in told and re.search(r"^digits@\d+ +digits@\d+ ", told, re.MULTILINE), told
        assert len(asks) == 7
    finally:
        trainer.kill()
        trainer.wait()


def test_the_page_for_ray_serve(folder):
    pytest.importorskip("fastapi")
    imported = subprocess.run([sys.executable, "-c", "import ray.serve"], text=True, capture_output=True)
    if imported.returncode:
        pytest.skip("without ray[serve], half a gigabyte, which wants another protobuf than TensorFlow: "
                    + imported.stderr.strip().splitlines()[-1])
    commands = files_of("ray-serve.md", folder)
    with open(f"{folder}/digits_app.py", encoding="utf-8") as file:
        text = file.read()
    with open(f"{folder}/digits_app.py", "w", encoding="utf-8") as file:
        file.write(text.replace("/tmp/answers.jsonl", folder + "/answers.jsonl"))
    port = free_port()
    with open(f"{folder}/run.py", "w", encoding="utf-8") as file:
        file.write(f"""
import sys
import ray
from ray import serve
ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", _temp_dir={folder + "/ray"!r})
serve.start(http_options={{"port": {port}}})
from digits_app import app
serve.run(app)
print("ready", flush=True)
sys.stdin.readline()
serve.shutdown()
ray.shutdown()
""")
    trainer = subprocess.Popen([sys.executable, "trainer.py"], cwd=folder)
    cluster = subprocess.Popen([sys.executable, "run.py"], cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               env=dict(os.environ, RAY_USAGE_STATS_ENABLED="0", PYTHONPATH=os.pathsep.join(
                                   [folder, *filter(None, [os.environ.get("PYTHONPATH")])])))
    try:
        assert any(line.strip() == "ready" for line in cluster.stdout), "Ray ended"
        address = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=address, timeout=PATIENCE) as client:
            assert eventually(lambda: client.get("/freshet/ready").status_code == 200)
            seen = {client.post("/predict", json=[[1] * 64]).headers["x-weight-version"] for _ in range(20)}
            assert seen
            newest = max(map(int, seen))
            assert eventually(lambda: int(client.post("/predict", json=[[1] * 64]).headers["x-weight-version"]) > newest), \
                "a replica takes new versions without being reconfigured"
        assert "x-weight-version" in in_shell(next(line for line in commands if line.startswith("curl")), folder, address)
        [why] = [line for line in commands if line.startswith("freshet why")]
        if os.path.exists(TOOLS + "/freshet"):
            assert "request mine-1: digits@" in in_shell(why.replace("/tmp/answers.jsonl", folder + "/answers.jsonl"), folder, "")
        cluster.communicate("\n", timeout=PATIENCE)
        assert cluster.returncode == 0
    finally:
        trainer.kill()
        trainer.wait()
        cluster.kill()
        cluster.wait()
