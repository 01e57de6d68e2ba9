# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for their version in Triton's queue."""
from __future__ import annotations

from typing import Any, Collection, Dict

_PACER_LOST = 0.1  # Seconds after which a request that paced did not come back.
_FORGET = 60.0     # Seconds after its end, a wait whose request never came back is forgotten.


class Waits:
    """When the wait of each request ends that was put back into Triton's queue. A request is known by its sequence, under which
    Triton hands it over again. Times are those of one clock, in seconds. One thread at a time.

    A wait has a place from keep() until over(). What never comes back, as a client that went away, has its place until a minute
    after its end."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._ends: Dict[Any, float] = {}
        self._pacer: Any = None  # The request for which the instance paused last, and when.
        self._paced = 0.0

    def __len__(self) -> int:
        return len(self._ends)

    def end(self, sequence: Any, otherwise: float) -> float:
        """When this request's wait ends; `otherwise`, if it has not been put back yet."""
        return self._ends.get(sequence, otherwise)

    def keep(self, sequence: Any, end: float, now: float) -> bool:
        """The request goes back, and its wait ends then. False: it has no place, and there is none."""
        if sequence in self._ends:
            return True
        if len(self._ends) >= self._places:
            self._ends = {one: ends for one, ends in self._ends.items() if ends > now - _FORGET}
        if len(self._ends) >= self._places:
            return False
        self._ends[sequence] = end
        return True

    def over(self, sequence: Any) -> None:
        """The request has its answer. Nothing for one that was never put back."""
        self._ends.pop(sequence, None)

    def paces(self, sequences: Collection[Any], now: float) -> bool:
        """Whether the instance pauses for these requests. One that waits does it for all: else each would keep a request that need
        not wait for as long. Another one takes over when it has its answer, or does not come back."""
        if self._pacer in self._ends and self._pacer not in sequences and now - self._paced < _PACER_LOST:
            return False
        self._pacer, self._paced = next(iter(sequences)), now
        return True
