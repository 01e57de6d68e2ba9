# SPDX-License-Identifier: Apache-2.0
"""What a snapshot says of itself beside another one."""
import re

import numpy as np
import pytest

import freshet
from conftest import PATIENCE


def test_what_changed_and_which_version_it_is(pair):
    """The owner maps of two versions say what was written between them, and a digest is of one version alone."""
    publisher, subscriber = pair
    tensors = {name: np.zeros(4, np.float32) for name in "abc"}
    snapshots, digests = [], []
    for version, written in enumerate(("abc", "b", "", "bc"), 1):
        for name in written:
            tensors[name] = tensors[name] + 1
        publisher.publish(tensors)
        digests.append(publisher.wait_committed(version, PATIENCE)["digest"])
        snapshots.append(subscriber.snapshot(version, timeout=PATIENCE))
    assert [snapshot.digest for snapshot in snapshots] == digests and len(set(digests)) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in digests)
    since = [["".join(sorted(new.changed_since(base))) for base in snapshots] for new in snapshots]
    assert since == [["", "b", "b", "bc"], ["b", "", "", "bc"], ["b", "", "", "bc"], ["bc", "bc", "bc", ""]]
    with freshet.Publisher("other") as another, freshet.Subscriber("other") as follower:
        another.publish({"a": tensors["a"], "d": tensors["b"]})
        with follower.snapshot(1, timeout=PATIENCE) as other:
            assert sorted(other.changed_since(snapshots[3])) == ["a", "d"] and other.digest not in digests
    snapshots[0].close()
    with pytest.raises(freshet.FailedPrecondition, match="closed"):
        snapshots[1].changed_since(snapshots[0])
