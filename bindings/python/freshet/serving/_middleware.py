# SPDX-License-Identifier: Apache-2.0
"""The middleware for ASGI servers."""
from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import os
import re
import time
from typing import Any, Awaitable, Callable, Collection, Dict, List, MutableMapping, Optional, Tuple

from .._errors import Error, InvalidArgument, check_type
from .._handles import drain
from ..subscriber import Snapshot, Subscriber
from ._client import Client
from ._freshness import freshness
from ._journal import Journal
from ._kept import Kept
from ._metrics import CONTENT_TYPE, families_of, text_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = List[Tuple[bytes, bytes]]

_VERSION, _ID = b"x-weight-version", b"x-request-id"
_MIN, _EXACT, _WAIT = b"x-min-version", b"x-exact-version", b"x-max-wait"
_ASKED = frozenset((_MIN, _EXACT, _WAIT, _ID))
_OURS = frozenset((_VERSION, _ID))
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_DIGITS = re.compile(rb"[0-9]{1,19}")
_SECONDS = re.compile(rb"[0-9]{1,9}(\.[0-9]{0,9})?")
_WAITING_MAX = 256
_log = logging.getLogger("freshet")


def middleware(app: App, subscriber: Subscriber, *, journal: Optional[Journal] = None, ready: Optional[str] = "/freshet/ready",
               metrics: Optional[str] = "/freshet/metrics", stale_after: Optional[float] = None, max_wait: float = 10.0,
               unpinned: Collection[str] = ()) -> App:
    """An ASGI app around `app` that answers each request from one version, and says which in the header x-weight-version.

        app = freshet.serving.middleware(app, subscriber)

    app          any ASGI app. Wrap it last: what stands outside of this middleware answers without the header
    subscriber   a freshet.Subscriber, opened in the process that serves
    journal      a freshet.serving.Journal: each answer gets a line, under the id in the request's header x-request-id. A
                 request without a good one (1 to 128 letters, digits and ._:/+=@-) gets a new id; the answer has it
    ready        the path of the readiness route; None: no route. Paths are given without the root_path that a server or a mount
                 puts before them. JSON with `state`: "fresh" and "stale" are 200, "none" is 503
    metrics      the path of the metrics in Prometheus' text format; None: no route
    stale_after  after so many seconds of being stale the readiness route answers 503; None: never
    max_wait     the longest wait in seconds that a request may ask for
    unpinned     paths that `app` answers without a version, and so before the first one has come

    `scope["freshet.snapshot"]` is the request's snapshot. It is closed when the response ended, was cut, or raised; an array of it
    that lives longer keeps its version's memory.

    A request may ask for a version: `x-min-version: 7` (that one or a later one) and `x-exact-version: 7`. Where the served version
    is another one, the answer is 409, with the served version in `kept`. With `x-max-wait: 0.5` a request waits so many seconds for
    its minimum version, at most `max_wait`; 256 requests may wait at a time. No wait holds up the event loop. If the client goes
    away meanwhile, the wait ends, and `app` is not called. A header that is no number is answered by 400. Before a first version,
    requests are answered by 503.

    Between requests the first event loop that serves holds the served version, so its pages stay mapped. Event loops of other
    threads answer right, too, but hold nothing until that loop is closed: their requests map pages anew.

    If `app` raises before it answers, this middleware answers 500, with the header, and raises on. Websockets and lifespan events
    pass untouched: a websocket's handler takes `subscriber.snapshot()` for each message.
    """
    check_type("subscriber", subscriber, Subscriber)
    if journal is not None:
        check_type("journal", journal, Journal)
    for what, path in (("ready", ready), ("metrics", metrics)):
        if path is not None and not (isinstance(path, str) and path.startswith("/")):
            raise InvalidArgument(f"{what}={path!r}: a path begins with /; None gives no route")
    for what, seconds in (("max_wait", max_wait), ("stale_after", 0.0 if stale_after is None else stale_after)):
        if not (isinstance(seconds, (int, float)) and math.isfinite(seconds) and seconds >= 0):
            raise InvalidArgument(f"{what}={seconds!r}: seconds from 0 are wanted")
    if isinstance(unpinned, str):
        raise InvalidArgument(f"unpinned={unpinned!r}: a list of paths is wanted")
    return _Middleware(app, subscriber, journal, ready, metrics, stale_after, max_wait, frozenset(unpinned))


class _Refused(Exception):
    """A request that is answered without the app."""

    def __init__(self, status: int, told: str, **more: Any) -> None:
        super().__init__(told)
        self.status, self.body = status, {"error": told, **more}


class _Gone(Exception):
    """A request whose client went away before it was answered."""


class _Middleware:
    def __init__(self, app: App, subscriber: Subscriber, journal: Optional[Journal], ready: Optional[str], metrics: Optional[str],
                 stale_after: Optional[float], max_wait: float, unpinned: Collection[str]) -> None:
        self.app, self.subscriber, self.journal = app, subscriber, journal
        self._ready, self._metrics, self._stale_after, self._max_wait = ready, metrics, stale_after, max_wait
        self._without_version = {*unpinned, *(path for path in (ready, metrics) if path is not None)}
        self._kept = Kept(subscriber)
        self._ids = map(f"{os.urandom(6).hex()}-{{:x}}".format, itertools.count(1))
        self._waiting = self._answered = self._failed = 0
        self._refused: Dict[int, int] = {400: 0, 409: 0, 503: 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = _path_of(scope)
        if path in self._without_version:
            return await self._answer_without_version(path, scope, receive, send)
        asked: Optional[Dict[bytes, bytes]] = None
        client: Optional[Client] = None
        try:
            for name, value in scope["headers"]:
                if name in _ASKED:
                    if asked is None:
                        asked = {}
                    if name in asked and name != _ID:
                        raise _Refused(400, f"the header {name.decode()} stands twice in the request; send it once")
                    asked[name] = value
            if asked is None:
                snapshot = self._snapshot()
            else:
                if _WAIT in asked:
                    receive = client = Client(receive)
                snapshot = await self._asked_for(asked, client)
            await self._pinned(scope, receive, send, asked, snapshot)
        except _Refused as refused:
            self._refused[refused.status] += 1
            await self._refuse(send, refused, asked)
        except _Gone:
            pass
        finally:
            if client is not None:
                await client.end()

    async def _pinned(self, scope: Scope, receive: Receive, send: Send, asked: Optional[Dict[bytes, bytes]], snapshot: Snapshot) -> None:
        version = snapshot.version
        if version != self._kept.version:
            self._kept.keep(snapshot, version)
        own = [(_VERSION, b"%d" % version)]
        journal, request_id = self.journal, ""
        if journal is not None:
            given = _id_in(asked)
            request_id = next(self._ids) if given is None else given.decode()
            own.append((_ID, request_id.encode()))
        started = streamed = trailers = False

        async def send_on(message: Message) -> None:
            nonlocal started, streamed, trailers
            if message["type"] == "http.response.start":
                started, trailers = True, bool(message.get("trailers"))
                self._answered += 1
                if journal is not None:
                    _record(journal, request_id, snapshot)
                headers = [header for header in message.get("headers", ()) if header[0] not in _OURS] + own
                await send({**message, "headers": headers})  # The app may send its own message again.
            elif message["type"] == "http.response.body" and not message.get("more_body") and not trailers:
                await send(message)
                snapshot.close()
            else:
                streamed = True
                await send(message)

        try:
            await self.app({**scope, "freshet.snapshot": snapshot}, receive, send_on)
        except Exception:
            self._failed += 1
            if not started:
                try:
                    await _send_text(send_on, 500, "Internal Server Error", "text/plain; charset=utf-8")
                except Exception:  # The client went away, or the app broke the protocol: what it raised says more.
                    pass
            raise
        finally:
            snapshot.close()
            if streamed:  # It took its time.
                self._kept.look()

    def _snapshot(self) -> Snapshot:
        try:
            return self.subscriber.snapshot()
        except Error as error:
            raise _Refused(503, str(error), model=self.subscriber.model) from None

    async def _asked_for(self, asked: Dict[bytes, bytes], client: Optional[Client]) -> Snapshot:
        least = _number(asked, _MIN)
        exact = _number(asked, _EXACT)
        wait = min(_seconds(asked, _WAIT), self._max_wait)
        snapshot = self._snapshot()
        waited = 0.0
        if least is not None and snapshot.version < least and client is not None and wait > 0:
            snapshot.close()
            begin = time.monotonic()
            await self._wait_for(least, wait, client)
            waited = time.monotonic() - begin
            snapshot = self._snapshot()
        version = snapshot.version
        if (least is None or version >= least) and (exact is None or version == exact):
            return snapshot
        snapshot.close()
        wanted = " and ".join(f"{name.decode()}: {number}" for name, number in ((_MIN, least), (_EXACT, exact)) if number is not None)
        after = f" after a wait of {waited:.3f} s" if waited else ""
        raise _Refused(409, f"the request asks for {wanted}, and {self.subscriber.model}@{version} is served{after}",
                       model=self.subscriber.model, min_version=least, exact_version=exact, kept=[version])

    async def _wait_for(self, version: int, seconds: float, client: Client) -> None:
        """Returns when that version is served, or after so many seconds. _Gone: the client is."""
        if self._waiting >= _WAITING_MAX:
            raise _Refused(503, f"{_WAITING_MAX} requests wait for a version of {self.subscriber.model} already; try again without "
                                "x-max-wait", model=self.subscriber.model)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        changed = asyncio.Event()
        self._waiting += 1
        try:
            news = self.subscriber._core.news()
            descriptor = news.add_descriptor()
            try:
                loop.add_reader(descriptor, _wake, descriptor, changed)
                client.listen(changed)
                try:
                    while not client.is_gone and self.subscriber.version < version and loop.time() < end:
                        changed.clear()
                        await asyncio.wait_for(changed.wait(), end - loop.time())
                finally:
                    client.listen_no_more()
                    loop.remove_reader(descriptor)
            finally:
                news.remove_descriptor(descriptor)
        except asyncio.TimeoutError:
            pass
        except Error as error:
            raise _Refused(503, str(error), model=self.subscriber.model) from None
        finally:
            self._waiting -= 1
        if client.is_gone:
            raise _Gone

    async def _refuse(self, send: Send, refused: _Refused, asked: Optional[Dict[bytes, bytes]]) -> None:
        more: Headers = [(b"retry-after", b"1")] if refused.status == 503 else []
        given = _id_in(asked)
        if self.journal is not None and given is not None:
            more.append((_ID, given))
        await _send_text(send, refused.status, json.dumps(refused.body), "application/json", self._served() + more)

    def _served(self) -> Headers:
        try:
            version = self.subscriber.version
        except Error:
            version = 0
        return [(_VERSION, b"%d" % version)] if version else []

    async def _answer_without_version(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if path == self._ready:
                state = freshness(self.subscriber)
                late = self._stale_after is not None and state["state"] == "stale" and state["stale_s"] > self._stale_after
                status = 503 if late or state["state"] == "none" else 200
                return await _send_text(send, status, json.dumps(state), "application/json", self._served())
            if path == self._metrics:
                return await _send_text(send, 200, text_of(families_of([self.subscriber]) + self._families()), CONTENT_TYPE)
        except Error as error:  # The subscriber was closed.
            return await _send_text(send, 503, json.dumps({"model": self.subscriber.model, "state": "none", "error": str(error)}),
                                    "application/json")
        await self.app(scope, receive, send)

    def _families(self) -> List[Any]:
        model = {"model": self.subscriber.model}
        families: List[Any] = [
            ("freshet_requests_answered_total", "counter", "Requests that the app answered, each from one version.",
             [(model, self._answered)]),
            ("freshet_requests_failed_total", "counter", "Requests in which the app raised.", [(model, self._failed)]),
            ("freshet_requests_refused_total", "counter", "Requests that were refused: 400 a bad header, 409 another version is served, "
             "503 no version.", [({**model, "code": str(code)}, count) for code, count in self._refused.items()]),
            ("freshet_requests_waiting", "gauge", "Requests that wait for their minimum version.", [(model, self._waiting)])]
        if self.journal is not None and not self.journal.closed:
            families.append(("freshet_journal_lines_lost_total", "counter", "Answers that the journal could not note.",
                             [(model, self.journal.lost)]))
        return families


def _id_in(asked: Optional[Dict[bytes, bytes]]) -> Optional[bytes]:
    """The id that the client gave the request; None: none, or no good one."""
    given = asked.get(_ID) if asked is not None else None
    return given if given is not None and _REQUEST_ID.fullmatch(given) else None


def _path_of(scope: Scope) -> str:
    """The request's path below the scope's root_path. Some servers put that before the path, as ASGI wants it, and some do not."""
    path: str = scope["path"]
    root: str = scope.get("root_path") or ""
    if not root or not path.startswith(root):
        return path
    below = path[len(root):]
    if not below or root.endswith("/"):
        return "/" + below.lstrip("/")
    return below if below.startswith("/") else path


def _record(journal: Journal, request_id: str, snapshot: Snapshot) -> None:
    try:
        journal.record(request_id, snapshot)
    except Error as error:  # A closed journal, or an app that closed the snapshot: no reason to fail an answer.
        _log.warning("no line in the journal %s for request %s: %s", journal.path, request_id, error)


def _wake(descriptor: int, changed: asyncio.Event) -> None:
    drain(descriptor)
    changed.set()


def _number(asked: Dict[bytes, bytes], name: bytes) -> Optional[int]:
    value = asked.get(name)
    if value is None:
        return None
    if not _DIGITS.fullmatch(value):
        raise _Refused(400, f"the header {name.decode()} is a version's number, not {value[:64]!r}; send digits"[:300])
    return int(value)


def _seconds(asked: Dict[bytes, bytes], name: bytes) -> float:
    value = asked.get(name, b"0")
    if not _SECONDS.fullmatch(value):
        raise _Refused(400, f"the header {name.decode()} is a time in seconds, not {value[:64]!r}; send digits, with a point at most")
    return float(value)


async def _send_text(send: Send, status: int, text: str, kind: str, more: Collection[Tuple[bytes, bytes]] = ()) -> None:
    body = text.encode()
    await send({"type": "http.response.start", "status": status, "headers": [
        (b"content-type", kind.encode()), (b"content-length", b"%d" % len(body)), *more]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
