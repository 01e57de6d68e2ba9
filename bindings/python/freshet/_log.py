# SPDX-License-Identifier: Apache-2.0
"""Brings what C++ logs to the logger `freshet`."""
from __future__ import annotations

import logging
import os
import threading
from typing import Any, Optional

from . import _core

_log = logging.getLogger("freshet")
_thread: Optional[threading.Thread] = None
_lock = threading.Lock()
_ended = False


def _tell() -> None:
    while True:
        told: Any = _core.log_next()
        if told is False:
            return
        if told is True:
            continue
        is_warning, line = told
        try:
            _log.log(logging.WARNING if is_warning else logging.INFO, "%s", line)
        except Exception:  # A handler of the user's that raises must not silence what comes after.
            pass


def begin() -> None:
    """Called by whatever opens something; the first time it starts the thread, which Ctrl-C may end before it runs."""
    global _thread
    with _lock:
        if not _ended and (_thread is None or not _thread.is_alive()):
            _core.log_begin()
            _thread = threading.Thread(target=_tell, name="freshet log", daemon=True)
            _thread.start()


def end() -> None:
    """When the program ends: what waits is logged, and later lines go to stderr."""
    global _ended
    _ended = True
    thread = _thread
    if thread is not None:
        _core.log_end()
        if thread.is_alive():
            thread.join(1)


def _in_child() -> None:
    global _lock, _thread
    _lock = threading.Lock()
    if _thread is not None:  # It is the parent's, and does not run here.
        _thread = None
        _core.log_in_child()


os.register_at_fork(after_in_child=_in_child)
