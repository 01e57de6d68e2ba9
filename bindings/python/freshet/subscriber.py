# SPDX-License-Identifier: Apache-2.0
"""The server's side."""
from __future__ import annotations

import asyncio
import json
import logging
import threading
import weakref
from typing import Any, Callable, Coroutine, Iterator, List, Mapping, TypeVar

import numpy as np

from . import _core
from ._arrays import check_name, view_of
from ._errors import FailedPrecondition, NotFound
from ._handles import Handle, all_or_nothing, drain, told_with
from ._numbers import whole
from ._html import freshness, table
from .publisher import path_of

_ROWS_SHOWN = 100
_log = logging.getLogger("freshet")


class Snapshot(Mapping):
    """One whole version: a mapping of names to read-only arrays in the memory where the version lies; nothing is copied.

    An array keeps its version, and the memory, for as long as it or a view of it lives, whatever was closed before.
    Closing a snapshot gives up its own hold. What a trainer published with the role "optimizer" or "opaque" is not here:
    a repository has it.
    """

    __slots__ = ("_pin", "__weakref__")

    def __init__(self, pin: Any) -> None:
        self._pin = pin

    def _here(self) -> Any:
        if self._pin is None:
            raise FailedPrecondition("the snapshot was closed")
        return self._pin

    @property
    def model(self) -> str:
        """The model's name."""
        return self._here().model()

    @property
    def version(self) -> int:
        """The version's number."""
        return self._here().version()

    @property
    def step(self) -> int:
        """The step that publish() was given; 0: none."""
        return self._here().step()

    @property
    def metrics(self) -> dict:
        """What publish() was given as metrics: numbers by name."""
        return self._here().metrics()

    @property
    def tags(self) -> dict:
        """What publish() was given as tags: texts by name."""
        return self._here().tags()

    @property
    def graph(self) -> dict:
        """The architecture as a graph file has it (docs/graph-file.md)."""
        return json.loads(self._here().graph().json())

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that no other version has, of whatever bytes; Publisher.wait_committed() tells the same."""
        return self._here().digest()

    def changed_since(self, base: "Snapshot") -> List[str]:
        """The names of the tensors that another version wrote than in `base`, as the owner maps of both have it: all others have the
        same bytes. All of them where the two are of different architectures."""
        pin = self._here()
        return [pin.spec(index)[0] for index in pin.changed_since(base._here())]

    @property
    def stale(self) -> bool:
        """It came from a member of a group that did not know any more what was decided."""
        return self._here().stale()

    def __getitem__(self, name: str) -> np.ndarray:
        pin = self._here()
        index = pin.find(check_name(name))
        if index is None:
            raise NotFound(f"{pin.model()}@{pin.version()} has no tensor {name}")
        _, dtype, shape, _ = pin.spec(index)
        return view_of(pin.bytes(index), dtype, shape)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._here().find(name) is not None

    def __iter__(self) -> Iterator[str]:
        pin = self._here()
        return (pin.spec(index)[0] for index in pin.served())

    def __len__(self) -> int:
        return self._here().size()

    def __repr__(self) -> str:
        if self._pin is None:
            return "<freshet.Snapshot, closed>"
        return f"<freshet.Snapshot {self.model}@{self.version}, {len(self)} tensors>"

    def _repr_html_(self) -> str:
        if self._pin is None:
            return table("a closed snapshot", [], [])
        said = ", ".join(f"{name} {value:g}" for name, value in self.metrics.items())
        specs = [self._pin.spec(index) for index in self._pin.served()[:_ROWS_SHOWN]]
        more = [("…", f"{len(self) - _ROWS_SHOWN} more", "")] if len(self) > _ROWS_SHOWN else []
        return table(f"{self.model}@{self.version}, step {self.step}{': ' if said else ''}{said}",
                     ("tensor", "type", "shape"), [*((name, dtype, shape) for name, dtype, shape, _ in specs), *more])

    def close(self) -> None:
        """Gives up this snapshot's hold; arrays that were taken from it keep theirs."""
        self._pin = None

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:  # `*_` would take as long as all the rest.
        self._pin = None


class Subscriber(Handle):
    """Keeps the newest whole version of a model mapped, and hands out snapshots of it.

        with freshet.Subscriber("digits") as sub:
            sub.wait_for(timeout=10)
            with sub.snapshot() as s:
                print(s.version, s["w"].shape, s.metrics["loss"])

    model       its name. It opens whether or not a publisher is there.
    at          the publisher's address, for another host with `keys` and `server_key`, names of files; or
                "file:///folder". None: ask the directory.
    channel     how bytes come: "auto", "shm", "ucx", "nccl", "zmq" or "file".
    every       every version in order, by next(), instead of the newest.
    staged      a member of a group that stages versions and swaps them in together.
    on_update   called with `.version` and more after each swap, on a thread of its own, perhaps before Subscriber() has
                returned. Of more than 1024 that wait the oldest are dropped. What it raises is logged.
    label       how `freshet top` shows it.
    trusted_fabric: you trust everybody on the network, as the publisher says it does; tensors may come over it unencrypted.

    Timeouts are seconds, None waits for ever; too late is TimedOut. Ctrl-C ends every wait. Any thread; after a fork each
    call of the child is FailedPrecondition. While a version's arrays live, the subscriber behind them stays connected,
    closed or not, since that is what holds their memory.
    """

    @all_or_nothing
    def __init__(self, model: str, *, at: str | None = None, keys: str | None = None, server_key: str | None = None,
                 channel: str = "auto", directory: str | None = None, every: bool = False, staged: bool = False,
                 on_update: Callable[["Update"], Any] | None = None, label: str = "", trusted_fabric: bool = False) -> None:
        self.model = model
        self._at = at
        self._is_member = staged
        # What was told: to all, by so many calls of wait_for(), and to each task since.
        self._told, self._waits = 0, 0
        self._told_tasks: "weakref.WeakKeyDictionary[asyncio.Task[Any], tuple[int, int]]" = weakref.WeakKeyDictionary()
        self._core = _core.Subscriber.open(model, at or "", path_of(keys), path_of(server_key), channel,
                                           path_of(directory), every, staged, label, on_update is not None, trusted_fabric)
        self._opened()
        if on_update is not None:
            threading.Thread(target=_call_back, args=(self._core.news(), on_update, model), name=f"freshet {model}",
                             daemon=True).start()

    def _described(self) -> str:
        serving = 0 if self.closed else self._core.version()
        return f" of {self.model}, {f'serving @{serving}' if serving else 'no version yet'}"

    def _where(self) -> str:
        """Whom a wait was for, and where."""
        return f"{self.model} ({'at ' + self._at if self._at else self._core.status()['directory']})"

    def wait_for(self, version: int = 1, timeout: float | None = None) -> int:
        """Waits until that version or a later one is served, and says which."""
        with told_with(self._where):
            serving = self._core.wait_for(whole(version, "version"), timeout)
        self._told, self._waits = serving, self._waits + 1
        return serving

    def snapshot(self, min_version: int = 0, timeout: float | None = None) -> Snapshot:
        """What is served now; Unavailable says why there is nothing yet. With `min_version`, waits for that one."""
        if min_version.__class__ is int and not min_version:  # A request's way: no call more than it needs.
            return Snapshot(self._core.snapshot())
        if whole(min_version, "min_version") > 0:
            with told_with(self._where):
                return Snapshot(self._core.snapshot_at_least(min_version, timeout))
        return Snapshot(self._core.snapshot())

    def _current_snapshot(self, timeout: float | None) -> Snapshot:
        """What was current when this was called, or newer: the publisher is asked."""
        with told_with(self._where):
            return Snapshot(self._core.current_snapshot(timeout))

    def next(self, timeout: float | None = None) -> Snapshot:
        """The next version in order, of a subscriber with `every`."""
        with told_with(self._where):
            return Snapshot(self._core.next(timeout))

    def updated(self) -> Coroutine[Any, Any, int]:
        """To be awaited: the next version that this task was not told of by updated(), and nobody by wait_for(). The event loop
        waits for a descriptor meanwhile: no thread, no polling. Several tasks may wait: each of them is told."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # As in asyncio.run(subscriber.updated()).
            task = None
        told, at = (self._told, self._waits) if task is None else self._told_tasks.get(task, (0, -1))
        return self._updated(task, told if at == self._waits else self._told)

    async def _updated(self, task: "asyncio.Task[Any] | None", told: int) -> int:
        news = self._core.news()
        loop = asyncio.get_running_loop()
        descriptor = news.add_descriptor()
        try:
            while True:
                version = self._core.version()
                if version not in (0, told):
                    if task is None:
                        self._told = version
                    else:
                        self._told_tasks[task] = version, self._waits
                    return version
                changed = loop.create_future()
                loop.add_reader(descriptor, _resolve, loop, descriptor, changed)
                try:
                    await changed
                finally:
                    loop.remove_reader(descriptor)
        finally:
            news.remove_descriptor(descriptor)

    @property
    def version(self) -> int:
        """The number of what is served; 0: nothing yet."""
        return self._core.version()

    def status(self) -> dict:
        """How it stands, with C++'s names, and its `model`. `directory` says where the publisher is looked for."""
        return {"model": self.model, **self._core.status()}

    def _repr_html_(self) -> str:
        if self.closed:
            return table(f"the subscriber of {self.model}, closed", [], [])
        status = self.status()
        shown = ("connected", "serving", "newest_known", "updates", "bytes_fetched", "gaps", "staged", "last_error")
        return table(f"{self.model}@{status['serving']}" if status["serving"] else f"{self.model}: no version yet",
                     shown, [[status[key] for key in shown]]) + freshness(self.model, self._core.news().past(),
                                                                          status["newest_known"])

    def stage(self, version: int, timeout: float | None = None) -> None:
        """For members: gets that version beside the served one."""
        with told_with(self._where):
            self._core.stage(whole(version, "version"), timeout)

    def staged_snapshot(self) -> Snapshot:
        """For members: what is staged and not served yet, to be tried out before commit(). FailedPrecondition when nothing
        is staged."""
        return Snapshot(self._core.staged_snapshot())

    def commit(self) -> int:
        """Swaps in what stage() got, and says which version that is."""
        return self._core.commit()


_Attached = TypeVar("_Attached", bound=Any)


def has_first(attached: _Attached, subscriber: Subscriber, wait: float | None) -> _Attached:
    """What attach() answers: with `wait`, it has a version; without one it is detached."""
    if wait is not None:
        try:
            subscriber.wait_for(timeout=wait)
            attached.refresh()
        except BaseException:
            attached.close()
            raise
    return attached


class Update:
    """What happened on the way of a version to this process: `.version`, and the rest of C++'s names as attributes."""

    version: int

    def __init__(self, fields: dict) -> None:
        self.__dict__.update(fields)

    def __repr__(self) -> str:
        return f"Update({', '.join(f'{key}={value!r}' for key, value in self.__dict__.items())})"


def _resolve(loop: asyncio.AbstractEventLoop, descriptor: int, changed: "asyncio.Future[None]") -> None:
    drain(descriptor)
    if not changed.done():
        changed.set_result(None)


def _call_back(news: Any, on_update: Callable[[Update], Any], model: str) -> None:
    """The callback's thread; it ends with the subscriber, which it does not keep."""
    while True:
        try:
            fields = news.next()
        except FailedPrecondition:
            return
        if fields is None:
            continue
        try:
            on_update(Update(fields))
        except Exception:
            _log.exception("on_update of the subscriber of %s", model)
