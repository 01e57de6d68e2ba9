# SPDX-License-Identifier: Apache-2.0
"""Versions that this process holds for a forked child, until the child has copied what it needs of them. The child cannot
hold a version itself: its memory is the publisher's, who knows this process only."""
from __future__ import annotations

import os
import select
import threading
from typing import Any, Callable, Dict, List

_lent: Dict[int, Any] = {}  # What a child needs, by this process' end of a pipe. Only the child has the other end.
_here = threading.local()   # `.fork`: the pipe's ends, and what is needed, of the fork that this thread is in.


def release() -> None:
    """Lets go of what children have copied by now. Does not wait. Any thread."""
    for ours in list(_lent):
        poll = select.poll()  # A descriptor may be above 1023.
        poll.register(ours, select.POLLIN)
        if poll.poll(0) and _lent.pop(ours, None) is not None:
            os.close(ours)


def at_forks(needed: Callable[[], List[Any]], copy: Callable[[], None]) -> None:
    """From now on, at each os.fork(): this process holds what `needed` names, while the child runs `copy`."""

    def before() -> None:
        release()
        _here.fork = None
        held = needed()
        if held:
            try:
                _here.fork = (*os.pipe(), held)
            except OSError:  # No descriptor is free: the child copies what it finds.
                pass

    def in_parent() -> None:
        fork, _here.fork = getattr(_here, "fork", None), None
        if fork is not None:
            ours, theirs, held = fork
            os.close(theirs)
            _lent[ours] = [*held, *needed()]  # Another thread may have taken another version meanwhile.

    def in_child() -> None:
        fork, _here.fork = getattr(_here, "fork", None), None
        try:
            copy()
        finally:
            for end in (*_lent, *(fork[:2] if fork is not None else ())):
                os.close(end)
            _lent.clear()

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
