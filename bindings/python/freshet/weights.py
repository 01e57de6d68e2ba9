# SPDX-License-Identifier: Apache-2.0
"""Two calls in the place of a file of weights."""
from __future__ import annotations

import os
import threading
from typing import Any, Mapping

import numpy as np

from .publisher import Publisher
from .subscriber import Subscriber

_lock = threading.Lock()
_publishers: dict = {}
_subscribers: dict = {}


def _forget() -> None:
    """In a forked child: the lock may be held by a thread that is not there, and what is open is the parent's."""
    global _lock
    _lock = threading.Lock()
    _publishers.clear()
    _subscribers.clear()


os.register_at_fork(after_in_child=_forget)


def _opened(known: dict, kind: type, model: str) -> Any:
    with _lock:
        one = known.get(model)
        if one is None or one.closed:
            one = known[model] = kind(model)
        return one


def save_weights(model: str, weights: Mapping[str, Any]) -> int:
    """Publishes arrays under a model's name, and says which version they are. This process stays the model's publisher
    until it ends."""
    return _opened(_publishers, Publisher, model).publish(weights).version


def opened_subscriber(model: str) -> Subscriber:
    """This process's subscriber of that model, for those who load now and then."""
    return _opened(_subscribers, Subscriber, model)


def load_weights(model: str, timeout: float | None = 10) -> dict:
    """The newest arrays of a model, as copies. Waits so many seconds for a first version, then TimedOut."""
    subscriber = opened_subscriber(model)
    subscriber.wait_for(timeout=timeout)
    with subscriber.snapshot() as snapshot:
        return {name: np.array(array) for name, array in snapshot.items()}
