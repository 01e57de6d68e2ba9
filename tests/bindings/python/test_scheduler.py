# SPDX-License-Identifier: Apache-2.0
"""When to publish."""
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


def test_the_evaluations_loss_counts_where_it_is_known():
    """The training's loss stands still; the evaluation's falls, and so it is worth publishing."""
    told, untold = freshet.Scheduler("online"), freshet.Scheduler("online")
    due = [0, 0]
    for step in range(1, 2001):
        for at, (scheduler, evaluated) in enumerate([(told, 5.0 / step + 0.1), (untold, None)]):
            if scheduler.observe(step, 1.0, eval_loss=evaluated):
                due[at] += 1
                scheduler.published(0.0)
    assert due[0] > due[1]
