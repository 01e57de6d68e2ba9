# SPDX-License-Identifier: Apache-2.0
"""Versions that this process holds for a forked child, until the child has copied what it needs of them. The child cannot
hold a version itself: its memory is the publisher's, who knows this process only."""
from __future__ import annotations

import os
import select
import threading
from typing import Any, Callable, List, Tuple

_lent: List[Tuple[int, Any]] = []  # The end of a pipe whose other end only the child has, and what it needs.
_here = threading.local()          # `.fork`: of the fork that this thread is in.


def release() -> None:
    """Lets go of what children have copied by now. Does not wait."""
    for ours, held in list(_lent):
        poll = select.poll()  # A descriptor may be above 1023.
        poll.register(ours, select.POLLIN)
        if poll.poll(0) and (ours, held) in _lent:
            _lent.remove((ours, held))
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
        if _here.fork is not None:
            ours, theirs, held = _here.fork
            _here.fork = None
            os.close(theirs)
            _lent.append((ours, [*held, *needed()]))  # Another thread may have taken another version meanwhile.

    def in_child() -> None:
        copy()
        for ours, _ in _lent:
            os.close(ours)
        _lent.clear()
        if _here.fork is not None:
            ours, theirs, _ = _here.fork
            _here.fork = None
            os.close(ours)
            os.close(theirs)

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
