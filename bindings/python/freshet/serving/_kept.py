# SPDX-License-Identifier: Apache-2.0
"""The served version's pages, kept between requests."""
from __future__ import annotations

import asyncio
import threading
from typing import Any, Optional

from .._errors import Error
from .._handles import drain
from ..subscriber import Snapshot, Subscriber


class Kept:
    """Holds a snapshot of the served version. A version's arrays lie in a mapping that ends, or is cleaned for the next version, with
    its last snapshot; where each request is the first and the last one, each of them pays for that. What is served is mapped
    anyway, so the hold costs no memory.

    The event loop is told of each swap, and lets the older version go: a trainer needs its memory. Where a loop cannot watch a
    descriptor, nothing is held.

    Any thread. The first event loop watches until it is closed; the calls of others do nothing until then.
    """

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._claim = threading.Lock()  # Which loop watches.
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._news: Any = None
        self._descriptor = -1
        self._snapshot: Optional[Snapshot] = None
        self.version = 0  # Of the snapshot; 0: there is none.

    def keep(self, snapshot: Snapshot, version: int) -> None:
        """From now on that version, if it is still the served one."""
        try:
            if not self._is_watched_by(asyncio.get_running_loop()):
                return
            self.drop()
            if self._descriptor >= 0 and self._subscriber.version == version:
                self._snapshot, self.version = Snapshot(snapshot._pin), version
        except (Error, RuntimeError, NotImplementedError):  # Closed meanwhile; another kind of loop.
            pass

    def look(self) -> None:
        """Lets go of what is not served any more."""
        try:
            if asyncio.get_running_loop() is not self._loop:
                return
        except RuntimeError:  # Another kind of loop, in which nothing was held.
            return
        try:
            if self._subscriber.version != self.version:
                self.drop()
        except Error:  # The subscriber was closed.
            self.drop()
            with self._claim:
                self._leave()

    def drop(self) -> None:
        self._snapshot, self.version = None, 0

    def _is_watched_by(self, loop: asyncio.AbstractEventLoop) -> bool:
        """It is from now on, unless another one watches."""
        if loop is self._loop:
            return True
        with self._claim:
            if self._descriptor >= 0 and self._loop is not None and not self._loop.is_closed():
                return False
            self._leave()
            self._watch(loop)
            return True

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._news = loop, self._subscriber._core.news()
        descriptor = self._news.add_descriptor()
        try:
            loop.add_reader(descriptor, self._swapped, descriptor)
        except BaseException:
            self._news.remove_descriptor(descriptor)
            raise
        self._descriptor = descriptor

    def _leave(self) -> None:
        if self._descriptor < 0:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        self._news.remove_descriptor(self._descriptor)
        self._loop, self._news, self._descriptor = None, None, -1

    def _swapped(self, descriptor: int) -> None:
        drain(descriptor)
        self.look()
