#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers over HTTP with what numpy_trainer.py trains: POST /predict, a JSON list of images of 64 pixels from 0 to 16. Each answer is of
one version, which it names. GET /status says how the server stands."""
import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

import freshet

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--model", default="digits")
arguments.add_argument("--port", type=int, default=8000, help="0: any that is free")
options = arguments.parse_args()

subscriber = freshet.Subscriber(options.model)                          # Freshet


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            images = np.array(json.loads(self.rfile.read(int(self.headers["Content-Length"]))), np.float32).reshape(-1, 64)
        except (TypeError, ValueError) as error:
            return self.answer(400, {"error": f"a JSON list of images of 64 pixels is wanted: {error}"})
        try:
            with subscriber.snapshot() as weights:                      # Freshet: one whole version, as long as it is read.
                digits = (images / 16 @ weights["w"] + weights["b"]).argmax(axis=1).tolist()
                self.answer(200, {"digits": digits, "version": weights.version, "step": weights.step})
        except freshet.Unavailable as error:                            # No version has come yet.
            self.answer(503, {"error": str(error)})

    def do_GET(self):
        self.answer(200, subscriber.status())                           # Freshet

    def answer(self, code, what):
        body = json.dumps(what).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


try:
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
except OSError as error:
    raise SystemExit(f"port {options.port}: {error.strerror}; give another one with --port")
print(f"http://127.0.0.1:{server.server_port}", flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    subscriber.close()
