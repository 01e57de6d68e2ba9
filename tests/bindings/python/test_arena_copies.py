# SPDX-License-Identifier: Apache-2.0
"""Publisher(arena_copies=): how much memory is taken before a publish needs it."""
import freshet
import numpy as np
import pytest
from conftest import PATIENCE


def test_arena_copies_is_the_memory_that_is_taken_ahead_of_changes():
    tensors = {f"t{index}": np.full((256, 1024), index, np.float32) for index in range(16)}
    sizes = []
    for copies, changed in ((1.0, ["t0"]), (3.0, ["t0"]), (3.0, None)):
        with freshet.Publisher(f"m{copies:g}", arena_copies=copies) as publisher, freshet.Subscriber(f"m{copies:g}") as subscriber:
            bound = publisher.bind(tensors)
            for value in (20, 21):
                tensors["t0"][0] = value
                version = bound.publish(changed=changed, sync=True).version
            subscriber.wait_for(version, PATIENCE)
            with subscriber.snapshot() as snapshot:
                assert (snapshot["t0"][0] == 21).all() and (snapshot["t15"] == 15).all()
            stat = publisher.stat()
            sizes.append(stat["arena_bytes"] / stat["model_bytes"])
    assert 1 <= sizes[0] < 2 and 1 < sizes[1] < 2 and sizes[2] >= 3
    with pytest.raises(freshet.InvalidArgument, match="arena_copies is 0.5"):
        freshet.Publisher("m", arena_copies=0.5)


@pytest.mark.parametrize("wrong", ["x", None, True, [2]])
def test_arena_copies_that_are_no_number_are_told_in_words(wrong):
    with pytest.raises(freshet.InvalidArgument, match="arena_copies=.*: a number is wanted, not " + type(wrong).__name__):
        freshet.Publisher("m", arena_copies=wrong)
