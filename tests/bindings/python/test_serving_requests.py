# SPDX-License-Identifier: Apache-2.0
"""freshet.serving.middleware and what servers and clients do: mounts, messages that are sent again, clients that go away."""
import asyncio

import freshet
import numpy as np
import pytest
from asgi_calls import Answer, call, respond, scope_of
from conftest import PATIENCE
from freshet import serving


@pytest.fixture
def served(pair):
    """Publisher and subscriber, with version 1 served."""
    publish(pair, 5)
    return pair


def publish(pair, number):
    version = pair[0].publish({"w": np.full(1000, number, np.float32)}).version
    assert pair[1].wait_for(version, PATIENCE) == version


async def echo(scope, receive, send):
    await respond(send, b"%d" % scope["freshet.snapshot"]["w"][7])


async def never(scope, receive, send):
    raise AssertionError("the app ran")


def asked_under(app, root, path):
    messages = []

    async def send(message):
        messages.append(message)

    asyncio.run(app({**scope_of(path), "root_path": root}, None, send))
    return Answer(messages)


@pytest.mark.parametrize("root, path", [("", "/freshet/ready"), ("/api", "/api/freshet/ready"), ("/api/", "/api/freshet/ready"),
                                        ("/api", "/freshet/ready")])  # The last one: a server that takes the root away.
def test_the_routes_lie_below_the_root_path(served, root, path):
    assert asked_under(serving.middleware(never, served[1]), root, path).json()["state"] == "fresh"


def test_a_path_that_only_begins_like_the_root_is_the_apps(served):
    app = serving.middleware(echo, served[1], ready="/x")
    assert asked_under(app, "/ap", "/api/x").body == b"5"
    assert asked_under(app, "/api", "/api/y").body == b"5"


def test_a_message_of_the_app_is_not_changed(served):
    start = {"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]}

    async def app(scope, receive, send):
        await send(start)
        await send({"type": "http.response.body", "body": b""})

    answer = asyncio.run(call(serving.middleware(app, served[1])))
    assert (answer.header("x-own"), answer.header("x-weight-version")) == ("1", "1")
    assert start == {"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]}


def test_trailers_are_of_the_snapshot_too(served):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
        await send({"type": "http.response.body", "body": b"5"})
        await send({"type": "http.response.trailers", "headers": [(b"w", b"%d" % scope["freshet.snapshot"]["w"][0])]})

    told = []

    async def sent(message):
        told.append(message)

    asyncio.run(call(serving.middleware(app, served[1]), sent=sent))
    assert told[-1]["headers"] == [(b"w", b"5")]


WAITS = [("x-min-version", "2"), ("x-max-wait", str(PATIENCE))]


def test_a_client_that_goes_away_waits_no_more(served):
    inner = serving.middleware(never, served[1], max_wait=PATIENCE)
    gone = asyncio.Event()
    messages = []

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        messages.append(message)

    async def run():
        waiting = asyncio.ensure_future(inner(scope_of("/", WAITS), receive, send))
        while inner._waiting == 0:
            await asyncio.sleep(0)
        gone.set()
        await asyncio.wait_for(waiting, PATIENCE)
        assert inner._waiting == 0 and not messages
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a receive() is left"

    asyncio.run(run())
    assert served[1].version == 1, "the wait ended by itself"


def test_an_app_gets_the_body_that_came_while_its_request_waited(served):
    parts = [{"type": "http.request", "body": b"%d" % part, "more_body": part < 3} for part in range(4)]
    came = asyncio.Event()

    async def app(scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                return await respond(send, body + b" by %d" % scope["freshet.snapshot"]["w"][0])

    async def run():
        left = list(parts)

        async def receive():
            if not left:
                came.set()
                await asyncio.Event().wait()  # The client stays, and says no more.
            return left.pop(0)

        messages = []

        async def send(message):
            messages.append(message)

        inner = serving.middleware(app, served[1], max_wait=PATIENCE)
        request = asyncio.ensure_future(inner(scope_of("/", WAITS), receive, send))
        await asyncio.wait_for(came.wait(), PATIENCE)
        served[0].publish({"w": np.full(1000, 6, np.float32)})
        await asyncio.wait_for(request, PATIENCE)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a receive() is left"
        return Answer(messages)

    assert asyncio.run(run()).body == b"0123 by 6"


def test_a_refusal_has_the_requests_id(served, tmp_path):
    with freshet.serving.Journal(tmp_path / "journal") as journal:
        app = serving.middleware(echo, served[1], journal=journal)
        answer = asyncio.run(call(app, headers=[("x-exact-version", "9"), ("x-request-id", "mine")]))
        assert (answer.status, answer.header("x-request-id")) == (409, "mine")
        assert asyncio.run(call(app, headers=[("x-exact-version", "9"), ("x-request-id", "not mine")])).header("x-request-id") is None
