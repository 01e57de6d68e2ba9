# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules that answer with what a subscriber has."""
from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import inspect
import itertools
import logging
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping

import torch

from . import _lent
from ._errors import Error, InvalidArgument, check_type
from ._handles import Closing
from ._torch_arrays import _from_numpy, _named, _to_numpy, check_fits, view
from ._torch_device import copies_for, mode_for
from ._torch_lanes import Lane, Use, computed, methods_of
from ._torch_twin import Twins, copied
from .subscriber import Snapshot, Subscriber, has_first

_log = logging.getLogger("freshet")
_LANES_MAX = 8  # Each has a version, which takes room in the publisher's memory. Most of the time there is one.
_SHARE = 8      # Where a version has to wait for forwards, others wait with it for this part of the time that it waits, at most.

# By the number of an Attached: what this thread or task is in, and the version of its last forward.
_uses: "contextvars.ContextVar[Mapping[int, Use]]" = contextvars.ContextVar("freshet uses", default={})
_answered: "contextvars.ContextVar[Mapping[int, int]]" = contextvars.ContextVar("freshet answered", default={})
_numbers = itertools.count()


class Attached(Closing):
    """A module that answers with what a subscriber has; see attach(). Call the module as before."""

    def __init__(self, module: torch.nn.Module, subscriber: Subscriber, mode: str | None, strict: bool) -> None:
        if mode not in (None, "swap", "copy"):
            raise InvalidArgument(f"mode={mode!r}: \"swap\" or \"copy\"")
        check_type("attach(module, …)", module, torch.nn.Module)
        check_type("attach(…, subscriber)", subscriber, Subscriber)
        self._module = module
        self._subscriber = subscriber
        self._strict = strict
        named, self._tied = _named(module)
        if mode is None:
            mode = mode_for(named)
        self._mode = mode
        self._copies = copies_for(named) if mode == "copy" else None
        if self._copies is not None:
            with contextlib.suppress(Error), subscriber.snapshot() as snapshot:
                self._copies.prepare(snapshot)  # So the first forward need not.
        if mode == "swap":
            for name, tensor in named.items():
                if tensor.device.type != "cpu":
                    raise InvalidArgument(f"tensor {name}: it is on {tensor.device}, where nothing can be swapped in; "
                                          f"mode=\"copy\" copies to it")
        self._number = next(_numbers)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._refused: int | None = 0  # The version that could not be taken; None: nothing can be asked for any more.
        self._late_since: float | None = None  # Since when a newer version waits for forwards.
        self._follows = True
        self._shadowed = vars(module).get("forward")
        self._base = Lane(module, named)
        self._current = self._base  # The lane of the newest version that was taken.
        self._lanes = [self._base]
        self._twins = Twins(module, named, self._copied) if mode == "swap" and self._shadowed is None else None
        # The calls themselves are wrapped, since PyTorch runs no hook after Ctrl-C. torch.compile would trace the wrapper; it
        # leaves it out, and compiles what the wrapper calls.
        self._begin, self._end, self._answers, self._use, self._order = (
            torch.compiler.disable(one) for one in (self._begins, self._ends, self._answers_now, self._use_now, self._order_now))
        self._wrappers = {"forward": torch.compiler.disable(self._forward, recursive=False)}
        for name in methods_of(type(module)):
            if name not in vars(module):
                self._wrappers[name] = self._method(getattr(type(module), name))
        if "__deepcopy__" not in vars(module):
            self._wrappers["__deepcopy__"] = lambda memo: self._copy(memo)  # A method would be copied, too.
        for name, wrapper in self._wrappers.items():
            object.__setattr__(module, name, wrapper)
        _attached.add(self)

    @property
    def version(self) -> int:
        """The number of the newest version that was taken; 0: the module's own weights. For a forward's own see `answered`."""
        return self._current.version

    @property
    def answered(self) -> int:
        """The version of the last forward that ended in this thread or asyncio task; 0: its own weights, or there was none."""
        return _answered.get().get(self._number, 0)

    def _use_now(self) -> Use | None:
        """What this thread or task is in."""
        use = _uses.get().get(self._number)
        return None if use is None or use.ended else use

    def _forward(self, *inputs: Any, **how: Any) -> Any:
        """The module's forward() within one version. A mark for each, and no counters: taking one away twice, or one that was not
        set yet, does no harm, so Ctrl-C may come at any place."""
        use = self._use()
        if use is not None and use.lane is not None:  # In a hold; or a module that calls itself.
            self._order()
            answer = computed(use.lane.forward, inputs, how)
            self._answers(use)
            return answer
        if not self._follows:
            return computed(self._base.forward, inputs, how)
        use = Use()
        try:
            lane = self._begin(use)
            return computed(lane.forward, inputs, how)
        finally:
            self._end(use)

    def _method(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Another method of the module, all of it with one version."""
        if inspect.iscoroutinefunction(function):
            @functools.wraps(function)
            async def awaited(*inputs: Any, **how: Any) -> Any:
                with self._within(suspends=True) as module:
                    return await function(module, *inputs, **how)
            return awaited

        @functools.wraps(function)
        def call(*inputs: Any, **how: Any) -> Any:
            with self._within() as module:
                return function(module, *inputs, **how)

        return call

    @contextlib.contextmanager
    def _within(self, suspends: bool = False) -> Iterator[torch.nn.Module]:
        use = self._use()
        if use is not None and use.lane is not None:
            self._order()
            yield use.lane.module
            return
        if not self._follows:
            yield self._module
            return
        use = Use(suspends=suspends)
        try:
            yield self._begin(use).module
        finally:
            self._end(use)

    @contextlib.contextmanager
    def hold(self) -> Iterator[int]:
        """For `with`: all forwards of this thread or asyncio task answer with one version, whose number it gives. A hold within a
        hold has the same version. Other threads and tasks follow newer ones meanwhile; with mode="copy", and where the module
        cannot be doubled, the module stays at this version for them too."""
        outer = self._use()
        if outer is not None or not self._follows:
            yield outer.version if outer is not None else self.version
            return
        use = Use(holds=True)
        try:
            self._begin(use)
            yield use.version
        finally:
            self._end(use)

    def _begins(self, use: Use) -> Lane:
        """What cannot be taken is told once, and the module goes on with what it has."""
        failed: Error | None = None
        with self._lock:
            try:
                lane = self._lane_of_newest()
            except Error as error:
                if self._is_mixed():
                    raise
                lane, failed = self._current, error
            if self._copies is not None:
                self._copies.use()
            use.lane, use.version = lane, lane.version
            lane.inside[use] = time.monotonic()
        _uses.set({**_uses.get(), self._number: use})
        if failed is not None:
            _log.warning("the attached module stays at version %d: %s", self.version, failed)
        return lane

    def _order_now(self) -> None:
        """On a GPU: this forward's stream comes after the copies of the version that the module has, and before the next ones."""
        if self._copies is not None:
            with self._lock:
                self._copies.use()

    def _is_mixed(self) -> bool:
        return self._copies is not None and self._copies.is_mixed

    def _ends(self, use: Use) -> None:
        use.ended = True
        if use.lane is not None and not use.holds:
            self._answers(use)
        there = _uses.get()
        if self._number in there:
            _uses.set({number: one for number, one in there.items() if number != self._number and not one.ended})
        with self._lock:
            for lane in self._lanes:
                lane.inside.pop(use, None)
            self._gather()
            self._changed.notify_all()

    def _answers_now(self, use: Use) -> None:
        there = _answered.get()
        if there.get(self._number) != use.version:
            _answered.set({**there, self._number: use.version})

    def _gather(self) -> None:
        """A lane that nobody uses any more lets go of its version, and takes the newest that was taken; the user's module is the
        first choice."""
        newest = self._current
        if not self._follows or newest.came is None or newest.snapshot is None:
            return
        for lane in self._lanes:
            if lane.is_free() and lane.came is not newest.came:
                self._put(lane, newest.came, newest.snapshot)
        if self._base.is_free() and self._base.version == newest.version:
            self._current = self._base

    def _lane_of_newest(self, patiently: bool = False) -> Lane:
        """The lane with the newest version, which is taken now if it is not there yet. Each forward finds a lane that is free, or a new
        one, and waits for nobody. Without one it waits for forwards that are on their way, if these are not old beside the
        time for which the version waits; so a slow one delays the others little, and the version comes all the same.
        REQUIRES: the lock."""
        newest = None
        try:
            while True:
                if not self._is_like_the_module(self._current):
                    self._current = self._base
                if self._copies is not None and not self._copies.may_refresh:
                    return self._current
                newest = self._subscriber.version
                is_settled = newest in (0, self._current.version) or (newest == self._refused and not patiently)
                if is_settled and not self._is_mixed():
                    self._late_since = None
                    return self._current
                lane = self._free_lane()
                if lane is not None:
                    self._take(lane, self._subscriber.snapshot())
                    self._late_since = None
                    return lane
                now = time.monotonic()
                self._late_since = self._late_since or now
                at_most = (now - self._late_since) / _SHARE
                inside = [(use, since) for lane in self._lanes for use, since in lane.inside.items()]
                is_old = now - min(since for _, since in inside) > at_most
                if not all(use.is_waited_for for use, _ in inside) or (is_old and not patiently):
                    return self._current
                self._changed.wait(None if patiently else at_most)
        except Error:
            if self._is_mixed():
                raise
            if not patiently and newest == self._refused:
                return self._current
            self._refused = newest
            raise

    def _free_lane(self) -> Lane | None:
        for lane in list(self._lanes):
            if lane.is_free() and self._is_like_the_module(lane):
                return lane
        if self._twins is None or len(self._lanes) == _LANES_MAX:
            return None
        twin = self._twins.make(self._known())
        if twin is None:
            return None
        self._lanes.append(Lane(twin.module, twin.named, twin))
        return self._lanes[-1]

    def _is_like_the_module(self, lane: Lane) -> bool:
        """A twin has what was set on the module since. One that is a twin no more is left out, once nobody is in it."""
        if lane.twin is None or self._twins is None or self._twins.bring_up_to_date(lane.twin):
            return True
        if lane.is_free():
            self._lanes.remove(lane)
        return False

    def _known(self) -> Dict[int, Any]:
        """What is in no copy of the module anew, by ids."""
        return {id(one): one for one in (self, *self._wrappers.values())}

    def _copied(self, memo: Dict[int, Any]) -> torch.nn.Module:
        """A plain module, as this one was before attach().
        REQUIRES: the lock, since all of it has one version."""
        memo.update(self._known())
        made = copied(self._module, memo)
        for name in self._wrappers:
            vars(made).pop(name, None)
        if self._shadowed is not None:
            object.__setattr__(made, "forward", copy.deepcopy(self._shadowed, memo))
        return made

    def _copy(self, memo: Dict[int, Any]) -> torch.nn.Module:
        with self._lock:
            return self._copied(memo)

    def refresh(self) -> int:
        """Takes the newest version, if there is a newer one, and says which the module has now. Each forward takes it by itself,
        and goes on with what it has when that fails; after detach() this does nothing, and inside of a forward or a hold() it
        changes nothing there. Where the module cannot be doubled it waits for forwards that are on their way, but not for a
        hold(), nor for a method that awaits.

        FailedPrecondition names the tensor that the model lacks, has in another shape or type, or that the module lacks; the
        module then keeps what it had."""
        if not self._follows or self._use() is not None:
            return self.version
        if self._subscriber.version != self.version or self._is_mixed():
            with self._lock:
                self._lane_of_newest(patiently=True)
        self._order_now()
        return self.version

    def forget(self) -> None:
        """The program wrote parameters in a way that PyTorch does not count, as to `.data`: the next version that the module takes
        is copied whole. Needed on an NVIDIA GPU alone, where only that is copied which another version wrote; does nothing
        elsewhere."""
        with self._lock:
            if self._copies is not None:
                self._copies.forget()

    def _take(self, lane: Lane, snapshot: Snapshot) -> None:
        came = view(snapshot)
        check_fits((self._base.named, self._tied), came, f"{snapshot.model}@{snapshot.version}", self._strict)
        try:
            self._put(lane, came, snapshot)
        finally:
            self._current = lane

    def _put(self, lane: Lane, came: Mapping[str, torch.Tensor], snapshot: Snapshot) -> None:
        try:
            lane.taking, lane.source = came, snapshot
            self._install(lane, came)
        except BaseException:  # Ctrl-C: no forward answers with half a version.
            self._install(lane, came)
            self._took(lane, came, snapshot)
            raise
        self._took(lane, came, snapshot)

    def _install(self, lane: Lane, came: Mapping[str, torch.Tensor]) -> None:
        left: Iterable[str] = lane.named
        if self._copies is not None and lane.source is not None:
            left = self._copies.refresh(lane.source)
        with torch.no_grad():
            for name in left:
                tensor = lane.named[name]
                if self._mode == "copy":
                    tensor.copy_(came[name])
                else:
                    tensor.data = came[name]

    def _took(self, lane: Lane, came: Mapping[str, torch.Tensor], snapshot: Snapshot) -> None:
        lane.version = snapshot.version
        lane.taking = lane.source = None
        if self._mode == "swap":
            lane.came, lane.snapshot = came, snapshot  # Until the next one: the tensors lie in it.
            _lent.release()

    def detach(self) -> None:
        """The module keeps the weights that it has, in memory of its own, and follows no more. Waits for forwards that are
        on their way. A hold(), and a method that awaits, keep their version to their end."""
        mine = self._use()
        with self._lock:
            while any(use is not mine and use.is_waited_for and not use.ended for lane in self._lanes for use in lane.inside):
                self._changed.wait()
            if not self._follows:
                return
            self._gather()
            self._follows = False
            for name, wrapper in self._wrappers.items():
                if vars(self._module).get(name) is not wrapper:  # Somebody wrapped it once more: it stays, and does nothing.
                    continue
                if name == "forward" and self._shadowed is not None:
                    object.__setattr__(self._module, name, self._shadowed)
                else:
                    object.__delattr__(self._module, name)
            self._own_memory(self._base)
            self._lanes = [self._base]
            self._current = self._base
            if self._copies is not None:
                self._copies.close()

    def close(self) -> None:
        """As detach(). The subscriber stays open."""
        self.detach()

    def _own_memory(self, lane: Lane) -> None:
        if self._mode == "copy" or (lane.snapshot is None and lane.taking is None):
            return
        with torch.no_grad():
            for name, tensor in lane.named.items():
                # NumPy copies: PyTorch's threads are not there in a forked child.
                tensor.data = _from_numpy(_to_numpy(name, tensor).copy())
        lane.came = lane.snapshot = lane.taking = None

    def _after_fork(self) -> None:
        """In the child: the threads that were in a forward are not there, and the versions are the parent's, which holds them
        until this is done."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._copies = None  # The device is the parent's.
        mine = self._use()
        for lane in self._lanes:
            lane.inside = {use: since for use, since in lane.inside.items() if use is mine}
            if self._mode == "swap" and lane.taking is not None:
                self._install(lane, lane.taking)
        self._gather()
        self._lanes = [lane for lane in self._lanes if lane in (self._base, self._current) or lane.inside]
        for lane in self._lanes:
            self._own_memory(lane)

    def _held(self) -> List[Any]:
        return [one for lane in list(self._lanes) for one in (lane.snapshot, lane.came, lane.taking) if one is not None]


_attached: "weakref.WeakSet[Attached]" = weakref.WeakSet()


def _held_by_all() -> List[Any]:
    return [one for attached in list(_attached) for one in attached._held()]


def _after_fork_in_child() -> None:
    for attached in list(_attached):
        attached._after_fork()


_lent.at_forks(_held_by_all, _after_fork_in_child)


def attach(module: torch.nn.Module, subscriber: Subscriber, mode: str | None = None, strict: bool = True, *,
           wait: float | None = None) -> Attached:
    """From now on each forward of `module`, and each call of another method of its class, answers with the newest version that the
    subscriber has: all of one with one version, also with several threads. Until a first version came the module has its own
    weights. `answered` tells the version of this thread's last forward; `with served.hold() as version:` keeps one for several.

    mode   "swap": the parameters become views of the memory where the version lies; nothing is copied. While a forward is on its
           way with an older version, others begin with the newer one in a twin of the module, which shares its hooks, and takes
           over numbers, texts and flags that were set on it. So a module that changes itself in a forward (a cache of its own) is
           for "copy".
           "copy": the bytes are copied into the parameters, whose addresses stay (CUDA graphs, other devices), between
           forwards. On an NVIDIA GPU the copies are queued on the current stream, and only of what another version wrote; forwards
           on other streams are ordered with them. What the program itself wrote in place is copied again, but for writes to
           `.data` (some adapters merge so): call forget() after these. While a CUDA graph is recorded no version is taken; call refresh() on the
           stream that replays it, before each replay.
           None: "swap" for a module in the processor's memory, else "copy".
    strict a version with tensors that the module lacks is refused, since it is of another network; False takes it, and
           leaves them out.
    wait   so many seconds for a first version, which the module then has; 0 demands that there is one. TimedOut names the
           model, and where its publisher was looked for; FailedPrecondition says why the version does not fit. The module
           is then as it was. None: goes on at once.

    A forward that raised, or that Ctrl-C ended, counts as ended. When the subscriber was closed, and in a forked child, the
    module goes on with the weights that it has, which is logged once. close() ends it, as the end of a `with` does. What
    copy.deepcopy() makes of the module is a plain one, with weights of its own. For servers: a module that trains is not to be
    attached."""
    return has_first(Attached(module, subscriber, mode, strict), subscriber, wait)
