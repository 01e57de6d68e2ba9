# SPDX-License-Identifier: Apache-2.0
"""Calls an ASGI app as a server does, without a server."""
import asyncio
import json


class Answer:
    def __init__(self, messages):
        starts = [message for message in messages if message["type"] == "http.response.start"]
        assert len(starts) <= 1
        self.status = starts[0]["status"] if starts else None
        self.headers = [(name.decode(), value.decode()) for name, value in starts[0]["headers"]] if starts else []
        self.body = b"".join(message.get("body", b"") for message in messages if message["type"] == "http.response.body")

    def header(self, name):
        """The only one of that name; None: none."""
        found = [value for each, value in self.headers if each == name]
        assert len(found) <= 1, self.headers
        return found[0] if found else None

    def json(self):
        return json.loads(self.body)


def scope_of(path="/", headers=()):
    return {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers]}


async def call(app, path="/", headers=(), sent=None):
    """One request. `sent` is called with each message that goes to the client; what it raises ends the connection."""
    messages = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        messages.append(message)
        if sent is not None:
            await sent(message)

    await app(scope_of(path, headers), receive, send)
    return Answer(messages)


def answer_to(app, path="/", headers=()):
    return asyncio.run(call(app, path, headers))


async def respond(send, body, status=200, headers=()):
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})
