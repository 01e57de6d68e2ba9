# SPDX-License-Identifier: Apache-2.0
"""Two calls in the place of a file of weights."""
from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import Any, Mapping

import numpy as np

from ._errors import Error
from .publisher import Publisher
from .subscriber import Snapshot, Subscriber

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


@atexit.register
def _close_publishers() -> None:
    """A program that ends right after save_weights() waits, as Publisher.close() does, for those who are about to take it."""
    for publisher in list(_publishers.values()):
        with contextlib.suppress(Error):
            publisher.close()


def opened_publisher(model: str) -> Publisher:
    """The publisher that save_weights() uses."""
    return _opened(_publishers, Publisher, model)


def save_weights(model: str, weights: Mapping[str, Any]) -> int | None:
    """Publishes arrays under a model's name, and says which version they are; None: there was no room for it. When this has
    returned, whoever loads gets this version or a newer one. This process stays the model's publisher until it ends."""
    return opened_publisher(model).publish(weights, sync=True).version


def newest_snapshot(model: str, timeout: float | None) -> Snapshot:
    """What the model's publisher had made when this was called, or newer; of a publisher that ended, its last version. This
    process keeps a subscriber for it."""
    return _opened(_subscribers, Subscriber, model)._current_snapshot(timeout)


def load_weights(model: str, timeout: float | None = 10) -> dict:
    """The newest arrays of a model, as copies: those of the last save_weights() that returned before, or newer ones. Waits so
    many seconds for a first version and for the publisher's answer, then TimedOut."""
    with newest_snapshot(model, timeout) as snapshot:
        return {name: np.array(array) for name, array in snapshot.items()}
