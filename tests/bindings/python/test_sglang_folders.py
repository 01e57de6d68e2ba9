# SPDX-License-Identifier: Apache-2.0
"""What docs/python/sglang.md says, with the command, its script, and an HTTP server that reads the folders with Hugging Face's library."""
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, eventually

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "python", "sglang.md")
load_file = pytest.importorskip("safetensors.numpy").load_file


class Server(http.server.HTTPServer):
    """Takes a call as SGLang does: reads a whole checkpoint out of the folder."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.loaded = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(os.path.join(asked["model_path"], "model.safetensors.index.json"), encoding="utf-8") as file:
            index = json.load(file)
        tensors = {}
        for name in sorted(set(index["weight_map"].values())):
            tensors.update(load_file(os.path.join(asked["model_path"], name)))
        assert set(tensors) == set(index["weight_map"]) and "delta_encoding" not in index.get("metadata", {})
        self.server.loaded.append((self.path, asked["weight_version"], tensors))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_each_version_is_loaded_as_the_page_says(folder):
    if shutil.which("curl") is None:
        pytest.skip("without curl")
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    script, commands = (next(block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if start in block)
                        for start in ("#!/bin/sh", "freshet subscribe"))
    command = next(line for line in commands.splitlines() if line.startswith("freshet subscribe")).partition("   #")[0]
    with Server() as server, freshet.Publisher("policy") as publisher:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with open(os.path.join(folder, "update.sh"), "w", encoding="utf-8") as file:
            file.write(script.replace("127.0.0.1:30000", f"127.0.0.1:{server.server_port}"))
        subscriber = subprocess.Popen(["/bin/sh", "-c", f"exec {command}"], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      env=dict(os.environ, PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]))
        try:
            tensors = {"model.embed.weight": np.arange(12, dtype=np.float32).reshape(4, 3), "model.norm.weight": np.ones(3, np.float16)}
            for version in range(1, 6):
                tensors["model.norm.weight"] = np.full(3, version, np.float16)
                assert publisher.publish(tensors).version == version
                assert eventually(lambda: len(server.loaded) == version)
                path, name, came = server.loaded[-1]
                assert (path, name) == ("/update_weights_from_disk", f"weight_v{version:06}")
                assert came.keys() == tensors.keys() and all(np.array_equal(came[key], tensors[key]) for key in tensors)
            versions = os.path.join(folder, "versions")
            with open(os.path.join(versions, "latest"), encoding="utf-8") as file:
                assert file.read().strip() == "weight_v000005"
            assert eventually(lambda: sorted(os.listdir(versions)) == ["latest", "weight_v000003", "weight_v000004", "weight_v000005"])
        finally:
            subscriber.terminate()
            _, complaints = subscriber.communicate(timeout=PATIENCE)
            server.shutdown()
    assert complaints == ""
