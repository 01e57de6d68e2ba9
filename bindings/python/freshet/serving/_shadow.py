# SPDX-License-Identifier: Apache-2.0
"""A staged version that answers live requests beside the served one, and whose answers are compared only."""
from __future__ import annotations

import atexit
import contextlib
import inspect
import logging
import math
import os
import queue
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterable, NamedTuple, Set, Tuple, TypeVar

from .._errors import Cancelled, Error, FailedPrecondition, InvalidArgument, NotFound, check_type
from .._handles import Closing
from .._numbers import whole
from ..subscriber import Snapshot, Subscriber

_Answer = TypeVar("_Answer")
_When = Tuple[int, float]
_log = logging.getLogger("freshet")
_PATIENCE = 5      # Seconds that close() waits for a comparison that is on its way.
_AGAIN = 1.0       # Seconds after which what failed is tried again.
_NEWS = 0.5        # Seconds after which the decision of another member is known here.
_WITHIN_MAX = 3600.0
_open: "weakref.WeakSet[Shadow]" = weakref.WeakSet()


class Counts(Dict[str, int]):
    """How many requests the staged version answered, too (`shadowed`), with the same answer (`same`), another one (`different`), or an
    exception of the function or of the comparison (`failed`). The numbers are attributes, too."""

    def __init__(self) -> None:
        super().__init__(shadowed=0, same=0, different=0, failed=0)

    def __getattr__(self, name: str) -> int:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class _Request(NamedTuple):
    """A request that was answered by the served version."""

    function: Callable[..., Any]
    arguments: Tuple[Any, ...]
    named: Dict[str, Any]
    answer: Any
    staged: Snapshot


class Shadow(Closing):
    """Runs a share of the requests with a staged version as well, on a thread of its own, and compares the answers. Callers get the
    served version's answer, and do not wait.

        shadow = Shadow(subscriber, 0.1, same, commit_when=(500, 0.01), drop_when=(50, 0.2))
        answer = shadow.handle(predict, request)

    subscriber    opened with staged=True, of a publisher without group_commit.
    share         of the requests, 0 to 1; they are evenly spread.
    compare       compare(answer, staged version's answer): whether they are the same.
    commit_when   (requests, share different): after at least so many shadowed requests of which at most that share differed,
                  the version becomes current for all members of the group, or for none of them.
    drop_when     (requests, share different): after at least so many of which at least that share, and one, differed, the
                  version is dropped: the served one becomes current again for all followers, and no Shadow counts the
                  dropped one any more. Where both hold, the version is dropped. An exception counts as a difference.
    queue         so many requests wait for the thread at most. Of more, none waits: `overflowed` counts them.
    stage         the newest version is staged when a request comes and nothing is staged; False leaves that to the program.
    within        seconds that members have to stage a version, and the publisher to decide.

    Without commit_when and drop_when it counts only. Counts begin anew with each staged version; `version` is the one that
    they are of. Any thread."""

    def __init__(self, subscriber: Subscriber, share: float, compare: Callable[[Any, Any], Any],
                 commit_when: _When | None = None, drop_when: _When | None = None, *, queue: int = 64, stage: bool = True,
                 within: float = 10) -> None:
        check_type("Shadow(subscriber, …)", subscriber, Subscriber)
        if not subscriber._is_member:
            raise InvalidArgument("Shadow(subscriber, …): open it with Subscriber(…, staged=True)")
        if not callable(compare):
            raise InvalidArgument(f"compare is a function of two answers, not {compare!r:.80}")
        self._subscriber = subscriber
        self._share = _part(share, "share")
        self._compare = compare
        self._commit_when = _when(commit_when, "commit_when")
        self._drop_when = _when(drop_when, "drop_when")
        self._stages = stage
        self._within = _seconds(within)
        self._lock = threading.Lock()
        self._counts = Counts()
        self._version = 0                 # Guarded by the lock, as what follows.
        self._epoch: int | None = 0       # The one in which counting began: with another one somebody decided.
        self._is_deciding = False
        self._due = 0.0
        self._overflowed = 0
        self._decisions: Dict[int, str] = {}
        self._tried: Dict[str, float] = {}  # When what failed is tried again.
        self._said: Set[str] = set()
        self._error = ""
        self._is_staging = False
        self._closed = False
        self._pid = os.getpid()
        self._requests: "_Queue" = _Queue(max(1, whole(queue, "queue")))
        self._ended = weakref.finalize(self, self._requests.close)
        self._worker = threading.Thread(target=_work, args=(weakref.ref(self), self._requests), daemon=True,
                                        name=f"freshet shadow {subscriber.model}")
        self._worker.start()
        _open.add(self)

    def handle(self, function: Callable[..., _Answer], /, *arguments: Any, **named: Any) -> _Answer:
        """What function(snapshot, *arguments) answers with the served version. What it raises is raised. The function and its
        arguments are used once more, later, by another thread: they must not change meanwhile."""
        if self._closed or self._pid != os.getpid():
            raise FailedPrecondition(f"the shadow of {self._subscriber.model} "
                                     + ("was closed" if self._closed else "was made before a fork: make one in this process"))
        with self._subscriber.snapshot() as snapshot:
            staged = self._staged_for_this()
            try:
                answer = function(snapshot, *arguments, **named)
            except BaseException:
                if staged is not None:
                    staged.close()
                raise
        if staged is not None and not self._requests.offer(_Request(function, arguments, named, answer, staged)):
            staged.close()
            with self._lock:
                self._overflowed += 1
        return answer

    @property
    def counts(self) -> Counts:
        """A copy of the numbers, of the version that `version` tells."""
        with self._lock:
            copy = Counts()
            copy.update(self._counts)
            return copy

    @property
    def version(self) -> int:
        """The staged version that the counts are of; also after it was committed or dropped. 0: none yet."""
        return self._version

    @property
    def overflowed(self) -> int:
        """Requests that were due to be shadowed and were not, since too many waited."""
        return self._overflowed

    @property
    def decisions(self) -> Dict[int, str]:
        """By version: "committed" and "dropped", by this Shadow; "ended", where others decided before."""
        with self._lock:
            return dict(self._decisions)

    @property
    def error(self) -> str:
        """Why the last try to stage, commit or drop a version failed; empty: it did not. It is tried again with later requests."""
        return self._error

    @property
    def closed(self) -> bool:
        """close() was called."""
        return self._closed

    def close(self) -> None:
        """Ends the comparisons; those that wait are left out. Waits for the one on its way, five seconds at most. The subscriber
        stays open, and what is staged stays staged. Closing twice does nothing."""
        self._closed = True
        self._ended()
        if self._pid == os.getpid() and threading.current_thread() is not self._worker:
            self._worker.join(_PATIENCE)

    def __repr__(self) -> str:
        return f"<freshet.serving.Shadow of {self._subscriber.model}@{self._version}: {dict(self.counts)}>"

    def _staged_for_this(self) -> Snapshot | None:
        """The staged version, if this request is one of those that it answers, too."""
        status = self._subscriber._core.status()
        with self._lock:
            if self._is_deciding:
                return None
            if status["serving"] == self._version != 0 and self._version not in self._decisions:
                self._decide("ended")  # Another member committed it, or the program did.
            staged = status["staged"]
            self._epoch = status["current"]["epoch"] if self._epoch is None else self._epoch
            if staged in self._decisions or staged == status["serving"]:
                staged = 0
            if staged and staged != self._version:
                self._begin(staged, status["current"]["epoch"])
            elif staged and status["current"]["epoch"] != self._epoch and status["current"]["version"] != staged:
                self._decide("ended")  # Another member dropped it, or somebody went back.
                staged = 0
            if not staged:
                self._ask_to_stage(status)
                return None
            self._due += self._share
            if self._due < 1 - 1e-9:
                return None
            self._due -= 1
        try:
            snapshot = self._subscriber.staged_snapshot()
        except Error:  # It was committed just now.
            return None
        if snapshot.version == staged:
            return snapshot
        snapshot.close()
        return None

    def _begin(self, version: int, epoch: int) -> None:
        """REQUIRES: the lock."""
        self._counts, self._version, self._epoch, self._due = Counts(), version, epoch, 0.0
        self._tried.clear()
        _log.info("%s@%d answers a share of the requests beside the served version: counts begin anew", self._subscriber.model,
                  version)

    def _decide(self, what: str) -> None:
        """REQUIRES: the lock."""
        self._decisions[self._version] = what
        while len(self._decisions) > 100:
            del self._decisions[next(iter(self._decisions))]

    def _ask_to_stage(self, status: Dict[str, Any]) -> None:
        """REQUIRES: the lock."""
        newest = status["newest_known"]
        if not self._stages or self._is_staging or status["current"]["hold"] or newest <= status["serving"] or \
                newest in self._decisions or time.monotonic() < self._tried.get("stage", 0):
            return
        self._is_staging = self._requests.offer(newest)

    def _take(self, one: Any) -> None:
        """What waited: a request, or a version to be staged."""
        if isinstance(one, int):
            self._stage(one)
        else:
            with one.staged:
                self._run(one)

    def _stage(self, version: int) -> None:
        self._tries("stage", version, lambda: self._subscriber.stage(version, self._within))
        with self._lock:
            self._is_staging = False

    def _run(self, request: _Request) -> None:
        version = request.staged.version
        if version != self._version or version in self._decisions:
            return
        try:
            answer = request.function(request.staged, *request.arguments, **request.named)
            if inspect.iscoroutine(answer):
                answer.close()
                raise InvalidArgument("handle() cannot await: call it in the thread that runs the function")
            outcome = "same" if self._compare(request.answer, answer) else "different"
        except BaseException as error:  # Of the user's function: SystemExit too ends nothing here.
            outcome = "failed"
            self._say(f"shadow {version}", "%s@%d: a shadowed request raised %s: %s; further ones are counted only",
                      self._subscriber.model, version, type(error).__name__, error)
        with self._lock:
            if version != self._version or version in self._decisions:
                return
            self._counts["shadowed"] += 1
            self._counts[outcome] += 1
            what = self._due_decision()
            if not what or time.monotonic() < self._tried.get(what, 0) or self._closed:
                return
            self._is_deciding = True
        self._carry_out(what, version)

    def _due_decision(self) -> str:
        """REQUIRES: the lock."""
        shadowed, other = self._counts["shadowed"], self._counts["different"] + self._counts["failed"]
        if self._drop_when is not None and shadowed >= self._drop_when[0] and other and other >= self._drop_when[1] * shadowed:
            return "dropped"
        if self._commit_when is not None and shadowed >= self._commit_when[0] and other <= self._commit_when[1] * shadowed:
            return "committed"
        return ""

    def _carry_out(self, what: str, version: int) -> None:
        call = self._drop if what == "dropped" else self._commit
        failed = self._tries(what, version, lambda: call(version, self._subscriber.status()))
        with self._lock:
            self._is_deciding = False
            if what == "dropped" or failed is None:
                self._decide(what)
            elif failed.code == "not_found" and self._subscriber.status()["connected"]:
                self._decide("ended")  # Another run of the trainer, which does not have it.
            elif failed.code == "cancelled":
                self._decide("ended")
            self._epoch = None
            counts = dict(self._counts)
        if failed is None:
            _log.info("%s@%d was %s after %s", self._subscriber.model, version, what, counts)

    def _commit(self, version: int, status: Dict[str, Any]) -> None:
        """All members or none. What was published is current, though members do not serve it: it gives way first, since making the
        current version current changes nothing."""
        epoch = status["current"]["epoch"]
        if status["current"]["hold"]:
            raise FailedPrecondition(f"{self._subscriber.model}@{status['current']['version']} is held: release it first")
        if status["current"]["version"] == version and status["serving"] != version:
            try:
                epoch = self._make_current(status["serving"], epoch)
            except NotFound:  # Of a trainer that began anew. Members take what is activated: holding it is, and so is the release.
                epoch = self._make_current(version, epoch, hold=True)
        self._make_current(version, epoch, as_group=True)
        self._subscriber.wait_for(version, self._within)

    def _drop(self, version: int, status: Dict[str, Any]) -> None:
        """Where a later version is current by now, followers have left the dropped one already."""
        if status["current"]["version"] == version:
            self._make_current(status["serving"], status["current"]["epoch"])

    def _make_current(self, version: int, epoch: int, hold: bool = False, as_group: bool = False) -> int:
        """Which epoch began. Cancelled, if another decision began one before: each Shadow of the group may decide."""
        core = self._subscriber._core
        try:
            return core.activate(version, hold, as_group, epoch, self._within)["current"]["epoch"]
        except FailedPrecondition as error:
            end = time.monotonic() + _NEWS
            while time.monotonic() < end:
                if core.status()["current"]["epoch"] > epoch:
                    raise Cancelled(f"another member decided first: {error}") from None
                time.sleep(0.005)
            raise

    def _tries(self, what: str, version: int, call: Callable[[], Any]) -> Error | None:
        """What went wrong, which is told once for each version."""
        try:
            call()
        except Error as error:
            done = "staged" if what == "stage" else what
            if error.code == "cancelled":
                return error
            self._error = f"{self._subscriber.model}@{version} was not {done}: {error}"
            with self._lock:
                self._tried[what] = time.monotonic() + _AGAIN
            self._say(f"{what} {version}", "%s", self._error)
            return error
        self._error = ""
        return None

    def _say(self, once: str, message: str, *more: Any) -> None:
        if once not in self._said and not self._closed:
            if len(self._said) > 100:
                self._said.clear()
            self._said.add(once)
            _log.warning(message, *more)


def _work(shadow_of: "Callable[[], Shadow | None]", requests: "_Queue") -> None:
    """The thread, which does not keep the Shadow."""
    while True:
        one = requests.take()
        shadow = shadow_of()
        if one is None or shadow is None:
            return
        shadow._take(one)
        del shadow, one


class _Queue:
    """Bounded, and closed at once, whatever waits in it. Any thread."""

    def __init__(self, most: int) -> None:
        self._waiting: "queue.Queue[Any]" = queue.Queue(most)
        self._closed = False
        self._pid = os.getpid()

    def offer(self, one: Any) -> bool:
        try:
            self._waiting.put_nowait(one)
        except queue.Full:
            return False
        return True

    def take(self) -> Any:
        """The next one; None: it was closed."""
        one = self._waiting.get()
        return None if self._closed else one

    def close(self) -> None:
        if self._pid != os.getpid():  # A thread that is not in this forked child may have its lock.
            return
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:  # Pins of versions go.
                self._waiting.get_nowait()
        self.offer(None)


def _part(value: Any, what: str) -> float:
    try:
        part = float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{what}={value!r:.80}: a number from 0 to 1 is wanted") from None
    if not 0 <= part <= 1:
        raise InvalidArgument(f"{what}={value!r:.80}: a number from 0 to 1 is wanted")
    return part


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0.001 <= seconds <= _WITHIN_MAX:
        raise InvalidArgument(f"within={value!r:.80}: seconds from 0.001 to {_WITHIN_MAX:.0f} are wanted")
    return seconds


def _when(value: Iterable[Any] | None, what: str) -> _When | None:
    if value is None:
        return None
    try:
        requests, share = value
    except (TypeError, ValueError):
        raise InvalidArgument(f"{what}={value!r:.80}: a pair is wanted, (requests, share different)") from None
    if whole(requests, f"{what}[0]") < 1:
        raise InvalidArgument(f"{what}={value!r:.80}: a decision needs a request")
    return whole(requests, f"{what}[0]"), _part(share, f"{what}[1]")


@atexit.register
def _close_all() -> None:
    """A thread within another library's code would end with the interpreter, which some libraries do not survive."""
    for shadow in list(_open):
        shadow.close()
