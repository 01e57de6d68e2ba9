# SPDX-License-Identifier: Apache-2.0
"""Tells the keeper of tiers (docs/tiering.md) which files come next, so that they are there when they are opened.

    loader = DataLoader(dataset, sampler=freshet.tier.follow(sampler, dataset.path_of), num_workers=4)
    freshet.tier.upcoming(["/pfs/set/a.jpg", "/pfs/set/b.jpg"])

All of it is a hint. Outside `freshet tier run` (no FRESHET_TIER, or no keeper) these calls do nothing, and say so once.
"""
from __future__ import annotations

import collections
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Optional, TypeVar, Union

from . import _core
from ._errors import Error, OutOfSpace

_log = logging.getLogger("freshet")
_Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
_Index = TypeVar("_Index")

_RETRY_AFTER_S = 10.0
_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _log.warning("freshet.tier: %s; files are opened as if nothing had been told", text)


def _paths_of(told: Any) -> list[bytes]:
    """One path, several, or none."""
    if told is None:
        return []
    if isinstance(told, (list, tuple)):
        return [path for one in told for path in _paths_of(one)]
    return [os.fsencode(told)]


class _Teller:
    """One order, as a connection to the keeper. After a fork the child has its own. Any thread."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._order: Optional[_core.TierOrder] = None
        self._not_before = 0.0

    def tell(self, paths: list[bytes], *, anew: bool = False) -> None:
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            try:
                if self._reach():
                    assert self._order is not None
                    if anew:
                        self._order.anew()
                    if paths:
                        self._order.tell(paths)
            except OutOfSpace as error:
                _say_once(str(error))
            except Error as error:
                self._order = None
                self._not_before = time.monotonic() + _RETRY_AFTER_S
                _say_once(str(error))

    def _reach(self) -> bool:
        if self._order is not None:
            return True
        config = os.environ.get("FRESHET_TIER", "")
        if not config:
            _say_once("FRESHET_TIER names no tiers")
            return False
        if time.monotonic() < self._not_before:
            return False
        self._order = _core.TierOrder.open(config)
        return True


_upcoming = _Teller()


def upcoming(paths: Iterable[_Path]) -> None:
    """These files are opened next, in this order, after those that were told before. Returns at once."""
    _upcoming.tell([path for one in paths for path in _paths_of(one)])


class Followed(Generic[_Index]):
    """A sampler that tells its order ahead; what `follow()` gives. It has the sampler's length and attributes."""

    def __init__(self, sampler: Iterable[_Index], path_of: Callable[[_Index], Any], ahead: int) -> None:
        self._sampler = sampler
        self._path_of = path_of
        self._ahead = ahead
        self._teller = _Teller()

    def __iter__(self) -> Iterator[_Index]:
        source = iter(self._sampler)
        waiting: collections.deque[_Index] = collections.deque()
        at_once = max(1, self._ahead // 4)
        is_over = False
        is_new = True
        while True:
            if not is_over and len(waiting) <= self._ahead - at_once:
                paths: list[bytes] = []
                while len(waiting) < self._ahead:
                    try:
                        index = next(source)
                    except StopIteration:
                        is_over = True
                        break
                    waiting.append(index)
                    paths += _paths_of(self._path_of(index))
                self._teller.tell(paths, anew=is_new)
                is_new = False
            if not waiting:
                return
            yield waiting.popleft()

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_sampler" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._sampler, name)


def follow(sampler: Iterable[_Index], path_of: Callable[[_Index], Any], *, ahead: int = 4096) -> Followed[_Index]:
    """Yields what the sampler yields, and tells the keeper the files of up to `ahead` of them before they are due.

    `path_of(index)` is the path of that sample's file; a list of paths for several (a batch sampler's list of indices), None for
    none. The sampler is drawn from up to `ahead` items early: right for one that draws its permutation as an epoch begins, as
    PyTorch's do. Each iteration is an epoch: what was told in the one before counts no more.
    """
    if ahead < 1:
        raise ValueError("ahead must be 1 or more")
    return Followed(sampler, path_of, ahead)
