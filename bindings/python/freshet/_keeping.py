# SPDX-License-Identifier: Apache-2.0
"""Versions that are not wanted any more, and who finds them."""
from __future__ import annotations

import logging
import threading
import weakref
from typing import Any, Callable, Iterable, List

from ._errors import Error, FailedPrecondition, InvalidArgument, NotFound, TimedOut, Unavailable

_log = logging.getLogger("freshet")
_GC_AFTER_MAX = 8  # Versions that a sink has retired.
_LOOK = 1.0        # Seconds. A publisher whose numbers began anew wakes nobody who waits for the next number.


def at_least_one(keep: Any, what: str) -> int:
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise InvalidArgument(f"keep={keep!r}: how many {what} stay, at least 1")
    return keep


class Retirer:
    """Retires versions, and gives room back after so many. Those that the repository does not let go of yet (somebody pins them, an
    alias means them) wait in `waiting` for the next time."""

    def __init__(self, repository: Callable[[], Any], gc_after: int) -> None:
        self._repository = repository
        self._gc_after = gc_after
        self._retired = 0
        self.waiting: List[str] = []

    def retire(self, versions: Iterable[str] = (), *, is_last: bool = False) -> None:
        """These, and those that wait. Nothing is raised: the run is worth more than the room."""
        waiting, self.waiting = [*self.waiting, *versions], []
        try:
            repository = self._repository()
            while waiting:
                try:
                    repository.retire(waiting[-1])
                    self._retired += 1
                except FailedPrecondition:
                    self.waiting.append(waiting[-1])
                except NotFound:
                    pass  # Somebody else retired it.
                except (Unavailable, TimedOut):
                    raise
                except Error as error:
                    _log.warning("%s is not wanted any more, and cannot be retired: %s", waiting[-1], error)
                waiting.pop()
            if self._retired >= (1 if is_last else self._gc_after):
                self._retired = 0
                repository.gc()
        except FailedPrecondition:  # The repository was closed, as at the end of a program.
            self.waiting += waiting
        except Error as error:
            self.waiting += waiting
            _log.warning("%d versions that are not wanted any more stay for now: %s", len(self.waiting), error)


class SinkKeeper:
    """Of a model's versions the newest ones stay. Owns a thread, which ends with the sink, and does not keep the sink."""

    def __init__(self, sink: Any, repository: Any, keep: int) -> None:
        self._sink = weakref.ref(sink)
        self._repository = repository
        self._model = sink.model
        self._keep = keep
        self._live: List[int] = []  # Ascending.
        self._newest = 0
        # What a run goes on from stays until the run has stored a version of its own.
        self._begin = sink._core.status()["newest"]
        self._retirer = Retirer(lambda: repository, min(keep, _GC_AFTER_MAX))
        self._thread = threading.Thread(target=self._run, name=f"freshet keeps {keep} of {sink.model}", daemon=True)
        self._thread.start()

    def end(self, newest: int) -> None:
        """The sink was closed, when it had stored `newest`; 0: it is not to be waited for."""
        self._thread.join(None if newest else _LOOK)
        if newest:
            self._retire(newest, is_last=True)

    def _run(self) -> None:
        try:
            while True:
                sink = self._sink()
                if sink is None:
                    return
                core = sink._core
                del sink
                status = core.status()
                self._retire(status["newest"])
                try:
                    core.wait_for(status["published"] + 1, _LOOK)
                except TimedOut:
                    pass
                del core
        except FailedPrecondition:  # It was closed.
            return

    def _retire(self, newest: int, *, is_last: bool = False) -> None:
        if newest <= self._begin:
            return
        if newest == self._newest + 1:
            self._live.append(newest)
        elif newest != self._newest:
            try:
                rows = self._repository.versions(self._model)
            except FailedPrecondition:  # It was closed.
                return
            except Error as error:
                _log.warning("which versions of %s to keep is looked at later: %s", self._model, error)
                return
            self._live = [row.version.number for row in rows if not row.retired and row.version.number <= newest]
            self._retirer.waiting = []  # They are among these.
        elif not is_last:
            return
        self._newest = newest
        old, self._live = self._live[:-self._keep], self._live[-self._keep:]
        self._retirer.retire((f"{self._model}@{number}" for number in old), is_last=is_last)
