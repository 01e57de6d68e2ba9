# SPDX-License-Identifier: Apache-2.0
"""When to publish."""
from __future__ import annotations

import math

from . import _core
from ._numbers import whole


class Scheduler:
    """Told of each iteration, it says whether a publish is due.

        scheduler = freshet.Scheduler("online")
        if scheduler.observe(step, loss):
            receipt = pub.publish(tensors, step=step)
            scheduler.published(receipt.blocked)

    `schedule`: "online", "every:N", "epoch", "fixed", "greedy", "optimal" or
    "failures:MTBF[:RESTART]" (docs/schedules.md). `epoch_steps`: of an epoch, for "epoch", if observe() is not told of an
    epoch's end. `warmup_steps`: "online" publishes first after so many; "fixed", "greedy" and "optimal" learn from them. Any
    thread.
    """

    def __init__(self, schedule: str = "online", *, epoch_steps: int = 0, warmup_steps: int = 100) -> None:
        self.schedule = schedule
        self._core = _core.Scheduler.make(schedule, whole(epoch_steps, "epoch_steps"), whole(warmup_steps, "warmup_steps"))

    def __repr__(self) -> str:
        return f"freshet.Scheduler({self.schedule!r})"

    def observe(self, step: int, loss: float | None, eval_loss: float | None = None, *, epoch_end: bool = False) -> bool:
        """An iteration ended; True: publish now. `loss`: of the training; None (or NaN): the iteration has none.
        `eval_loss`: the loss of an evaluation of this iteration's version on data that the training does not see; None:
        none was made. Once there were some, evaluations decide in the place of `loss` (docs/schedules.md)."""
        return self._core.observe(whole(step, "step"), _number(loss), _number(eval_loss), epoch_end)

    def published(self, seconds: float) -> None:
        """The version was published, and the loop stood still for so long."""
        self._core.published(seconds)

    def last_decision(self) -> dict:
        """Why the last answer came out as it did; times are seconds."""
        return self._core.last_decision()


def _number(loss: float | None) -> float:
    return math.nan if loss is None else float(loss)
