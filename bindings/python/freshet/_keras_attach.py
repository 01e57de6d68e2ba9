# SPDX-License-Identifier: Apache-2.0
"""Keras models that answer with what a subscriber has."""
from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import itertools
import logging
import os
import threading
import weakref
from typing import Any, Callable, Iterator, Mapping

import keras

from ._errors import Error, check_type
from ._handles import Closing
from ._keras_arrays import _take
from .subscriber import Subscriber, has_first

_log = logging.getLogger("freshet")
# By the number of an Attached: what this thread or task is in, and the version of its last prediction.
_uses: "contextvars.ContextVar[Mapping[int, _Use]]" = contextvars.ContextVar("freshet keras uses", default={})
_answered: "contextvars.ContextVar[Mapping[int, int]]" = contextvars.ContextVar("freshet keras answered", default={})
_numbers = itertools.count()


class _Use:
    """A prediction or a hold() that is on its way."""

    ended = False  # Contexts that were copied meanwhile still have it.


class Attached(Closing):
    """A model that follows a subscriber; see attach()."""

    def __init__(self, model: keras.Model, subscriber: Subscriber, strict: bool) -> None:
        check_type("attach(model, …)", model, keras.Model)
        check_type("attach(…, subscriber)", subscriber, Subscriber)
        self._model = model
        self._subscriber = subscriber
        self._strict = strict
        self._number = next(_numbers)
        self._lock = threading.RLock()  # Of the prediction that is on its way.
        self._holds: set[_Use] = set()
        self._refused: int | None = 0  # The version that could not be taken; None: nothing can be asked for any more.
        self._follows = True
        self.version = 0  #: The number of the version that the model has; 0: its own weights.
        # The model's own methods follow, too.
        self._wrappers = {name: self._wrapped(getattr(model, name)) for name in ("predict", "predict_on_batch", "evaluate",
                                                                                "test_on_batch", "call")}
        for name, wrapper in self._wrappers.items():
            object.__setattr__(model, name, wrapper)
        _attached.add(self)

    @property
    def answered(self) -> int:
        """The version of the last prediction that ended in this thread or asyncio task; 0: the model's own weights, or there was
        none."""
        return _answered.get().get(self._number, 0)

    def _use(self) -> _Use | None:
        """What this thread or task is in."""
        use = _uses.get().get(self._number)
        return None if use is None or use.ended else use

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*inputs: Any, **how: Any) -> Any:
            if how.get("training") or _is_traced(inputs):
                return function(*inputs, **how)
            with self._predicting():
                return function(*inputs, **how)

        return call

    @contextlib.contextmanager
    def _predicting(self) -> Iterator[None]:
        """All of one prediction with one version, and one at a time."""
        with self._lock:
            outer = self._use()
            use = outer or _Use()
            try:
                if outer is None:
                    self._begin(use)
                yield
            finally:
                _answered.set({**_answered.get(), self._number: self.version})
                if outer is None:
                    self._end(use)

    def _begin(self, use: _Use) -> None:
        if self._follows and not self._holds:
            self._follow()
        _uses.set({**_uses.get(), self._number: use})

    def _end(self, use: _Use) -> None:
        use.ended = True
        self._holds.discard(use)
        _uses.set({number: one for number, one in _uses.get().items() if number != self._number and not one.ended})

    @contextlib.contextmanager
    def hold(self) -> Iterator[int]:
        """For `with`: all predictions of this thread or asyncio task have one version, whose number it gives. The model stays at it
        for all others meanwhile, too."""
        if self._use() is not None:
            yield self.version
            return
        use = _Use()
        try:
            with self._lock:
                self._begin(use)
                self._holds.add(use)
            yield self.version
        finally:
            self._end(use)

    def refresh(self) -> int:
        """Copies in the newest version, if there is a newer one, and says which the model has. Waits for a prediction that
        is on its way; within a hold() and after detach() it does nothing. FailedPrecondition names the tensor that does not fit,
        or that the model lacks; the model then keeps what it had."""
        with self._lock:
            if self._follows and not self._holds and self._subscriber.version not in (0, self.version):
                with self._subscriber.snapshot() as snapshot:
                    _take(self._model, snapshot, f"{snapshot.model}@{snapshot.version}", strict=self._strict)
                    self.version = snapshot.version
            return self.version

    def detach(self) -> None:
        """The model keeps the weights that it has, and follows no more. Waits for a prediction that is on its way."""
        with self._lock:
            self._follows = False
            for name, wrapper in self._wrappers.items():
                if vars(self._model).get(name) is wrapper:  # Else somebody wrapped it once more: it stays, and does nothing.
                    object.__delattr__(self._model, name)

    def close(self) -> None:
        """As detach(). The subscriber stays open."""
        self.detach()

    def _follow(self) -> None:
        """Before a prediction: what cannot be taken is told once, and the model goes on with what it has."""
        newest = None
        try:
            newest = self._subscriber.version
            if newest not in (self.version, self._refused):
                self.refresh()
        except Error as error:
            if newest != self._refused:
                self._refused = newest
                _log.warning("the attached model stays at version %d: %s", self.version, error)

    def _after_fork(self) -> None:
        """In the child: a thread that predicted is not there to unlock."""
        self._lock = threading.RLock()
        mine = self._use()
        self._holds = {use for use in self._holds if use is mine}

    def predict(self, *inputs: Any, **how: Any) -> Any:
        """model.predict() with the newest version, all of it with one."""
        with self._predicting():
            return self._model.predict(*inputs, **how)

    def __call__(self, *inputs: Any, **how: Any) -> Any:
        """The model called with the newest version."""
        with self._predicting():
            return self._model(*inputs, **how)


def _is_traced(inputs: Any) -> bool:
    """Whether a backend only looks at what the model computes, to compile it. What is assigned then would be part of that."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax
        return keras.src.backend.common.stateless_scope.in_stateless_scope() or \
            any(isinstance(one, jax.core.Tracer) for one in inputs)
    if backend == "tensorflow":
        return not importlib.import_module("tensorflow").executing_eagerly()
    return False


_attached: "weakref.WeakSet[Attached]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for attached in list(_attached):
        attached._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def attach(model: keras.Model, subscriber: Subscriber, strict: bool = True, *, wait: float | None = None) -> Attached:
    """Answers predictions with the newest version that the subscriber has: one prediction, one version, one at a time. So do the
    model's own predict(), evaluate() and call. `answered` tells the version of this thread's last prediction; `with
    served.hold() as version:` keeps one for several.

    A version that does not fit, or has tensors that the model lacks (strict=False takes it), is logged once, and the model
    keeps what it had; so it does when the subscriber was closed, and in a forked child. close() ends it, as the end of a `with`
    does. For servers: a model that trains is not to be attached.

    wait   so many seconds for a first version, which the model then has; 0 demands that there is one. TimedOut names the model,
           and where its publisher was looked for; FailedPrecondition says why the version does not fit. None: goes on at once,
           and the model has its own weights until then."""
    return has_first(Attached(model, subscriber, strict), subscriber, wait)
