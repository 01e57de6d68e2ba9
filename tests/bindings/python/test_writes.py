# SPDX-License-Identifier: Apache-2.0
"""Writes that get past an array's read-only flag: no crash, and nobody else sees them."""
import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, eventually

def by_torchs_view(array, value):
    torch = pytest.importorskip("torch")
    tensor = freshet.torch.view({"w": array})["w"]
    tensor.copy_(torch.full_like(tensor, value))


# What a library does that takes the memory and ignores the flag.
WAYS = {
    "by the address": lambda array, value: ctypes.memset(array.ctypes.data, value, array.nbytes),
    "by torch.from_numpy": lambda array, value: pytest.importorskip("torch").from_numpy(array).fill_(value),
    "by torch.from_dlpack": lambda array, value: pytest.importorskip("torch").from_dlpack(array).fill_(value),
    "by freshet.torch.view": by_torchs_view,
}


@pytest.fixture(params=["shm", "zmq", "ucx", "file"])
def pair(request, folder):
    """A publisher and a subscriber whose bytes come by that channel."""
    if request.param == "file":
        command = os.path.join(os.path.dirname(sys.executable), "freshet")
        with freshet.Publisher("m") as publisher:
            writer = subprocess.Popen([command, "subscribe", "m", "--out", folder, "--layout", "weight_v"],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                with freshet.Subscriber("m", at="file://" + folder) as subscriber:
                    yield publisher, subscriber
            finally:
                writer.terminate()
                writer.wait()
        return
    listen = None if request.param == "shm" else "tcp://127.0.0.1:*"
    with freshet.Publisher("m", listen=listen) as publisher, \
            freshet.Subscriber("m", channel=request.param) as subscriber:
        if request.param == "ucx":
            publisher.publish({"changes": np.zeros(5000, np.uint8), "frozen": np.full(5000, 2, np.uint8)})
            assert eventually(lambda: subscriber.version or subscriber.status()["last_error"])
            if not subscriber.version:
                pytest.skip(subscriber.status()["last_error"])
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
    with freshet.Subscriber("m") as other:
        other.wait_for(timeout=PATIENCE)
        assert (other.snapshot()["changes"] == 1).all() and (other.snapshot()["frozen"] == 2).all()
    # The next version inherits what did not change, and lies in other memory; then the first memory is written again.
    for value in range(3, 12):
        new = served(pair, {"changes": np.full(5000, value, np.uint8), "frozen": frozen})
        assert (new["changes"] == value).all() and (new["frozen"] == 2).all()
    del old, array, arrays


def test_memory_that_cannot_be_mapped_once_more_is_copied(program):
    """Huge pages and a system that is out of mappings; here by a limit of the address space."""
    one = program("""
        import ctypes, resource, freshet, numpy as np
        pub, sub = freshet.Publisher("m"), freshet.Subscriber("m")
        pub.publish({"small": np.full(5000, 1, np.uint8), "big": np.zeros(1 << 28, np.uint8)})
        sub.wait_for(1, 60)
        snapshot = sub.snapshot()
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26), resource.RLIM_INFINITY))
        view = snapshot["small"]
        ctypes.memset(view.ctypes.data, 99, view.nbytes)
        try:
            snapshot["big"]
        except MemoryError as error:
            print("no room for the big one")
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        again = snapshot["small"]
        print((view == 99).all(), (again == 99).all(), view.ctypes.data == again.ctypes.data)
        with freshet.Subscriber("m") as other:
            other.wait_for(1, 60)
            print((other.snapshot()["small"] == 1).all())
        snapshot.close()
        print((view == 99).all())
    """)
    assert one.end()[:2] == (0, "no room for the big one\nTrue True True\nTrue\nTrue\n")


def mappings_of_arrays():
    with open("/proc/self/maps", encoding="utf-8") as file:
        return sum("rw-p" in line and "memfd:" in line for line in file)


@pytest.mark.parametrize("pair", ["shm", "zmq"], indirect=True)
def test_pages_live_as_long_as_arrays_or_the_subscriber(pair):
    before = mappings_of_arrays()
    view = served(pair, {"w": np.arange(6, dtype=np.float32)})["w"]
    part = view[2:]
    assert mappings_of_arrays() == before + 1
    del view
    assert part.tolist() == [2, 3, 4, 5] and mappings_of_arrays() == before + 1
    pair[1].close()
    assert part.tolist() == [2, 3, 4, 5] and mappings_of_arrays() == before + 1
    del part
    assert mappings_of_arrays() == before


@pytest.mark.parametrize("way", ["by the address", "by torch.from_numpy"])
@pytest.mark.parametrize("pair", ["shm", "zmq"], indirect=True)
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_later_version_in_the_same_pages_finds_no_write(pair, way):
    """Three pages a tensor, and one that shares its pages with the next tensor; what comes after a write begins anew."""
    frozen, small = np.full(3 * 4096 + 7, 2, np.uint8), np.full(5, 3, np.uint8)
    places = set()
    for value in range(4, 16):
        new = served(pair, {"changes": np.full(3 * 4096, value, np.uint8), "frozen": frozen, "small": small})
        assert (new["changes"] == value).all() and (new["frozen"] == 2).all() and (new["small"] == 3).all()
        places.add(new["frozen"].ctypes.data)
        for name in new:
            WAYS[way](new[name], 99)
        assert (new["frozen"] == 99).all()
        del new
    assert len(places) <= 2 and mappings_of_arrays() <= 2 * len(places)  # Nobody held two versions.


@pytest.mark.parametrize("pair", ["shm"], indirect=True)
def test_idle_pages_do_not_keep_a_dead_publishers_memory(pair):
    publisher, subscriber = pair
    before = mappings_of_arrays()
    assert served(pair, {"w": np.zeros(5000, np.uint8)})["w"].sum() == 0
    publisher.close()
    with freshet.Publisher("m") as following:
        version = following.publish({"w": np.ones(5000, np.uint8)}).version
        subscriber.wait_for(version, PATIENCE)
        snapshot = subscriber.snapshot()
        assert snapshot["w"].sum() == 5000 and mappings_of_arrays() == before + 1


@pytest.mark.parametrize("pair", ["shm"], indirect=True)
def test_a_request_that_outlives_its_publisher_keeps_its_memory_no_longer(pair):
    publisher, subscriber = pair
    before = mappings_of_arrays()
    old = served(pair, {"w": np.zeros(5000, np.uint8)})
    assert old["w"].sum() == 0
    publisher.close()
    with freshet.Publisher("m") as following:
        subscriber.wait_for(following.publish({"w": np.ones(5000, np.uint8)}).version, PATIENCE)
        new = subscriber.snapshot()
        assert new["w"].sum() == 5000 and mappings_of_arrays() == before + 2
        del old
        assert mappings_of_arrays() == before + 1


def test_locked_pages_are_not_taken_for_the_next_version(program):
    """mlockall() writes to each page of a private mapping, also to one that nobody uses."""
    one = program("""
        import ctypes, freshet, numpy as np
        libc = ctypes.CDLL(None, use_errno=True)
        pub, sub = freshet.Publisher("m"), freshet.Subscriber("m")

        def look(value):
            sub.wait_for(pub.publish({"w": np.full(50_000, value, np.uint8)}).version, 60)
            with sub.snapshot() as snapshot:
                print((snapshot["w"] == value).all(), flush=True)

        for value in range(6):
            look(value)
        if libc.mlockall(1) != 0:
            print("no right to lock")
        for value in range(6, 12):
            look(value)
            libc.munlockall()
            libc.mlockall(1)
    """)
    code, out, _ = one.end()
    if "no right to lock" in out:
        pytest.skip("this process may lock no memory")
    assert (code, out) == (0, "True\n" * 12)
