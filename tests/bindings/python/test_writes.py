# SPDX-License-Identifier: Apache-2.0
"""Writes that get past an array's read-only flag: no crash, and nobody else sees them."""
import ctypes

import numpy as np
import pytest

import freshet
from conftest import PATIENCE

# What a library does that takes the memory and ignores the flag.
WAYS = {
    "by the address": lambda array, value: ctypes.memset(array.ctypes.data, value, array.nbytes),
    "by torch.from_numpy": lambda array, value: pytest.importorskip("torch").from_numpy(array).fill_(value),
    "by torch.from_dlpack": lambda array, value: pytest.importorskip("torch").from_dlpack(array).fill_(value),
}


@pytest.fixture(params=["shm", "zmq"])
def pair(request):
    listen = {"shm": None, "zmq": "tcp://127.0.0.1:*"}[request.param]
    with freshet.Publisher("m", listen=listen) as publisher, \
            freshet.Subscriber("m", channel=request.param) as subscriber:
        yield publisher, subscriber


def served(pair, tensors):
    publisher, subscriber = pair
    subscriber.wait_for(publisher.publish(tensors).version, PATIENCE)
    return subscriber.snapshot()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_write_stays_in_the_pin_that_it_came_by(pair, way):
    first = np.full(5000, 1, np.uint8)
    frozen = np.full(5000, 2, np.uint8)
    old = served(pair, {"changes": first, "frozen": frozen})
    arrays = {name: old[name] for name in old}
    for array in arrays.values():
        try:
            WAYS[way](array, 99)
        except (ValueError, BufferError, RuntimeError):  # That one looks at the flag.
            assert not array.flags.writeable
    with freshet.Subscriber("m", at=pair[0].address) as other:
        other.wait_for(timeout=PATIENCE)
        assert (other.snapshot()["changes"] == 1).all() and (other.snapshot()["frozen"] == 2).all()
    # The next version inherits what did not change, and lies in other memory; then the first memory is written again.
    for value in range(3, 12):
        new = served(pair, {"changes": np.full(5000, value, np.uint8), "frozen": frozen})
        assert (new["changes"] == value).all() and (new["frozen"] == 2).all()
    del old, array, arrays


def test_pages_go_with_their_version(pair):
    def mappings():
        with open("/proc/self/maps", encoding="utf-8") as file:
            return sum("rw-p" in line and "memfd:" in line for line in file)

    before = mappings()
    view = served(pair, {"w": np.arange(6, dtype=np.float32)})["w"]
    part = view[2:]
    assert mappings() == before + 1
    del view
    assert part.tolist() == [2, 3, 4, 5] and mappings() == before + 1
    del part
    assert mappings() == before
