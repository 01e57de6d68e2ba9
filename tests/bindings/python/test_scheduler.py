# SPDX-License-Identifier: Apache-2.0
"""When to publish."""
import math

import pytest

import freshet


def test_a_scheduler_says_when():
    scheduler = freshet.Scheduler("every:3")
    due = []
    for step in range(1, 10):
        if scheduler.observe(step, 1.0 / step):
            due.append(step)
            scheduler.published(0)
    assert due == [3, 6, 9]
    assert scheduler.last_decision()["publishes"] == 3
    assert not freshet.Scheduler("every:3").observe(1, None)
    with pytest.raises(freshet.InvalidArgument, match="sometimes"):
        freshet.Scheduler("sometimes")
    with pytest.raises(freshet.InvalidArgument):
        scheduler.published(-1)


def test_evaluations_decide_where_there_are_some():
    """Overfits from step 1000 on: the training's loss falls, the evaluation's, made at each 25th step, rises."""
    told, untold = freshet.Scheduler("online"), freshet.Scheduler("online")
    due: dict[freshet.Scheduler, list[int]] = {told: [], untold: []}
    for step in range(1, 3001):
        evaluated = 3 + abs(1000 - step) / 500 if step % 25 == 0 else None
        for scheduler in (told, untold):
            if scheduler.observe(step, 2 * math.exp(-step / 800), evaluated if scheduler is told else None):
                due[scheduler].append(step)
                scheduler.published(0.0)
    assert [step for step in due[told] if 225 < step <= 1000]
    assert all(step % 25 == 0 for step in due[told] if step > 225), "versions that were not evaluated"
    assert not [step for step in due[told] if step > 1300], "versions that are worse than the served one"
    assert [step for step in due[untold] if step > 1300]
