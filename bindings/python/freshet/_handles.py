# SPDX-License-Identifier: Apache-2.0
"""What opens and closes."""
from __future__ import annotations

import atexit
import contextlib
import functools
import os
import weakref
from typing import Any, Callable, Iterator, Type, TypeVar, cast

from . import _log
from ._errors import TimedOut

_Closing = TypeVar("_Closing", bound="Closing")
_Kind = TypeVar("_Kind", bound="Handle")
_Init = TypeVar("_Init", bound=Callable[..., None])
_open: "weakref.WeakSet[Handle]" = weakref.WeakSet()


def is_open_here(kind: type, model: str) -> bool:
    """Whether this process has an open handle of that kind and model."""
    return any(type(one) is kind and one.__dict__.get("model") == model and not one.closed for one in list(_open))


@contextlib.contextmanager
def told_with(where: Callable[[], str]) -> Iterator[None]:
    """A wait that was in vain tells of whom it was."""
    try:
        yield
    except TimedOut as error:
        raise TimedOut(f"{where()}: {error}") from None


def all_or_nothing(init: _Init) -> _Init:
    """For `__init__` of a Handle: where it does not come to its end, by Ctrl-C too, what it opened is closed. The traceback would keep
    it open otherwise, with the name that it has."""
    @functools.wraps(init)
    def opens(self: "Handle", *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except BaseException:
            if "_core" in self.__dict__:
                self._end_with_program()
            raise

    return cast(_Init, opens)


def drain(descriptor: int) -> None:
    """Takes what made a descriptor of updates readable."""
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, 8)


class Closing:
    """Can stand after `with`, whose end is close()."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Closing) -> _Closing:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Handle(Closing):
    """Has close(), and can stand after `with`. What is open when the program ends is closed then."""

    _core: Any

    def _described(self) -> str:
        """What a handle says of itself, which must neither wait nor raise."""
        return f" of {self.__dict__['model']}" if "model" in self.__dict__ else ""

    def __repr__(self) -> str:
        state = "" if "_core" in self.__dict__ and not self.closed else ", closed"
        return f"<freshet.{type(self).__name__}{self._described()}{state}>"

    def __new__(cls: Type[_Kind], *_: Any, **__: Any) -> _Kind:
        _log.begin()  # What opening it logs counts, too.
        return super().__new__(cls)

    def _opened(self) -> None:
        """`_core` is there: whatever ends the constructor from here on, all_or_nothing() finds it."""
        _open.add(self)

    def close(self) -> None:
        """Ends it; later calls are FailedPrecondition. Closing twice does nothing."""
        self._core.close()

    def _end_with_program(self) -> None:
        """close(), without a wait for others."""
        self.close()

    @property
    def closed(self) -> bool:
        return not self._core.is_open()


@atexit.register
def _close_all() -> None:
    for handle in list(_open):
        try:
            handle._end_with_program()
        except BaseException:  # The program ends; there is nobody left to tell.
            pass
    _log.end()
