# SPDX-License-Identifier: Apache-2.0
"""A client whose request waits."""
from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Awaitable, Callable, Deque, MutableMapping

_KEPT_MAX = 1 << 20       # Bytes of a request's body that are kept. Of a client with more it is not known whether it is still there.
_MESSAGE_BYTES = 1 << 10  # What a message counts beside its body.
_PATIENCE = 1.0           # Seconds for a cancelled receive().


class Client:
    """An ASGI app's receive() that may listen before the app does. The app receives first what came meanwhile; no message is lost,
    also if the app is cancelled while it receives. One event loop."""

    def __init__(self, receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
        self._receive = receive
        self._calls: "Deque[asyncio.Future[MutableMapping[str, Any]]]" = deque()  # Of receive(), whose results the app has not had.
        self._kept = 0
        self._changed: "asyncio.Event | None" = None
        self.is_gone = False

    def listen(self, changed: asyncio.Event) -> None:
        """From now on; `changed` is set when the client is gone."""
        self._changed = changed
        self._call()

    def listen_no_more(self) -> None:
        self._changed = None

    async def __call__(self) -> MutableMapping[str, Any]:
        while self._calls:
            if self._calls[0].done():
                return self._calls.popleft().result()
            await asyncio.wait({self._calls[0]})  # A cancellation ends this wait, not the call.
        return await self._receive()

    async def end(self) -> None:
        """No call is left."""
        self.listen_no_more()
        calls = set(self._calls)
        self._calls.clear()
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=_PATIENCE)

    def _call(self) -> None:
        call = asyncio.ensure_future(self._receive())
        self._calls.append(call)
        call.add_done_callback(self._came)

    def _came(self, call: "asyncio.Future[MutableMapping[str, Any]]") -> None:
        if call.cancelled() or call.exception() is not None:  # The app is told when it receives.
            return
        message, changed = call.result(), self._changed
        if changed is None:
            return
        if message["type"] == "http.disconnect":
            self.is_gone = True
            changed.set()
            return
        self._kept += _MESSAGE_BYTES + len(message.get("body") or b"")
        if self._kept < _KEPT_MAX:
            self._call()
