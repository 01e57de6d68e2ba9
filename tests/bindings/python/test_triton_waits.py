# SPDX-License-Identifier: Apache-2.0
"""The books of freshet.triton about requests that wait in the server's queue, without a server: any steps, against a plain model."""
import random

from freshet.triton._waits import Waits

SEED = 20261128


def test_a_wait_keeps_its_end_and_its_place_until_it_is_over():
    waits = Waits(2)
    assert waits.end("a", 5.0) == 5.0 and len(waits) == 0, "asking puts nothing back"
    assert waits.keep("a", 5.0, now=1.0) and waits.keep("b", 6.0, now=1.0)
    assert not waits.keep("c", 7.0, now=2.0) and len(waits) == 2
    assert waits.keep("a", 9.0, now=2.0), "one that comes back has its place already"
    assert waits.end("a", 100.0) == 5.0, "and its wait ends when it was to end"
    waits.over("a")
    waits.over("a")
    assert waits.end("a", 100.0) == 100.0 and waits.keep("c", 7.0, now=2.0) and len(waits) == 2


def test_a_request_that_never_comes_back_gives_its_place_up():
    waits = Waits(1)
    assert waits.keep("gone", 5.0, now=1.0)
    assert not waits.keep("next", 70.0, now=64.9)
    assert waits.keep("next", 70.0, now=65.1) and len(waits) == 1


def test_one_paces_for_all_until_it_is_over_or_lost():
    waits = Waits(9)
    assert waits.paces(["a"], 1.00)
    waits.keep("a", 9.0, now=1.0)
    waits.keep("b", 9.0, now=1.0)
    assert not waits.paces(["b"], 1.01) and waits.paces(["a"], 1.02), "the same one goes on"
    assert not waits.paces(["b"], 1.10)
    assert waits.paces(["b"], 1.13), "a did not come back"
    assert not waits.paces(["a"], 1.14)
    waits.over("b")
    assert waits.paces(["a"], 1.15), "b has its answer"


def test_any_steps():
    print("seed", SEED)
    steps = random.Random(SEED)
    waits, places, kept, now = Waits(5), 5, {}, 0.0
    for _ in range(5000):
        now += steps.random() * 20
        sequence = steps.randrange(12)
        if steps.random() < 0.6:
            end = now + steps.random() * 30
            if sequence not in kept and len(kept) >= places:
                kept = {one: ends for one, ends in kept.items() if ends > now - 60}
            has_place = sequence in kept or len(kept) < places
            assert waits.keep(sequence, end, now) == has_place
            if has_place:
                kept.setdefault(sequence, end)
        else:
            waits.over(sequence)
            kept.pop(sequence, None)
        assert len(waits) == len(kept) <= places
        assert all(waits.end(one, -1.0) == kept.get(one, -1.0) for one in range(12))
