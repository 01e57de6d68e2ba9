# SPDX-License-Identifier: Apache-2.0
"""Tensors in a GPU's memory, on the host device: no GPU and no framework on CUDA is needed. What arrays of such a framework say
of themselves is said by stubs."""
import os

import numpy as np
import pytest

import freshet
from conftest import PATIENCE
from freshet import _core, _device_arrays
from host_device import OnDevice, host  # noqa: F401

SEED = int(os.environ.get("FRESHET_GPU_SEED", "1"))


class GpuArray:
    """As CuPy's arrays: `__cuda_array_interface__`, and the stream that is current."""

    def __init__(self, gpus, dtype, shape, device=0, stream=0):
        self._gpus, self.dtype, self.shape, self.device, self.stream = gpus, np.dtype(dtype), shape, device, stream
        self.address = gpus.allocate(device, max(1, int(np.prod(shape)) * self.dtype.itemsize))
        self.more = {}

    def write(self, array):
        assert array.dtype == self.dtype and array.shape == self.shape
        self._gpus.write(self.device, self.stream, self.address, array.copy().reshape(-1).view(np.uint8))

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3, "strides": None,
                "stream": self.stream or None, **self.more}

    def __dlpack_device__(self):
        return 2, self.device


@pytest.fixture(params=range(SEED, SEED + 2))
def gpus(request):
    print(f"FRESHET_GPU_SEED={request.param}")
    gpus = _core.HostGpus(request.param)
    yield gpus
    gpus.hold(False)


@pytest.fixture
def pair(gpus):
    opened = type("OnHostGpus", (freshet.Publisher,), {"_test_gpus": gpus})
    with opened("m") as publisher, freshet.Subscriber("m") as subscriber:
        yield publisher, subscriber
        gpus.hold(False)


def check_served(pair, version, wanted):
    publisher, subscriber = pair
    publisher.wait_committed(version, PATIENCE)
    subscriber.wait_for(version, PATIENCE)
    snapshot = subscriber.snapshot()
    assert set(snapshot) == set(wanted)
    for name, array in wanted.items():
        assert snapshot[name].dtype == array.dtype
        np.testing.assert_array_equal(snapshot[name], array)


def values(dtype, shape, seed):
    numbers = np.random.default_rng(seed).integers(0, 100, shape)
    return (numbers % 2 if np.dtype(dtype).kind == "b" else numbers).astype(dtype)


def test_version_has_what_the_stream_had_queued(gpus, pair):
    publisher, _ = pair
    stream = gpus.create_stream(0)
    array = GpuArray(gpus, "float32", (301, 7), stream=stream)
    for step in range(1, 4):
        gpus.hold(True)
        wanted = values("float32", (301, 7), step)
        array.write(wanted)
        receipt = publisher.publish({"w": array}, step=step)  # Nothing runs on the device, and it returns.
        array.write(values("float32", (301, 7), 100 + step))
        gpus.hold(False)
        check_served(pair, receipt.version, {"w": wanted})


def test_types_host_arrays_and_a_second_device(gpus, pair):
    publisher, _ = pair
    streams = [gpus.create_stream(0), gpus.create_stream(1)]
    wanted, given = {}, {}
    for index, dtype in enumerate(["float64", "float16", "int64", "int8", "uint8", "bool"]):
        wanted[dtype] = values(dtype, (5, index), index)
        given[dtype] = GpuArray(gpus, dtype, (5, index), index % 2, streams[index % 2])
        given[dtype].write(wanted[dtype])
    wanted["host"] = given["host"] = values("float32", (3, 3), 9)
    wanted["scalar"] = values("float32", (), 10)
    given["scalar"] = GpuArray(gpus, "float32", (), 0, streams[0])
    given["scalar"].write(wanted["scalar"])
    receipt = publisher.publish(given, roles={"int8": "buffer"})
    check_served(pair, receipt.version, wanted)


def test_bound_arrays_follow_the_stream_that_is_current(gpus, pair):
    publisher, _ = pair
    array = GpuArray(gpus, "int32", (1000,), stream=gpus.create_stream(0))
    bound = publisher.bind({"w": array})
    for step in range(3):
        array.stream = gpus.create_stream(0)
        gpus.hold(True)
        wanted = values("int32", (1000,), step)
        array.write(wanted)
        receipt = bound.publish(step=step)
        array.write(values("int32", (1000,), 100 + step))
        gpus.hold(False)
        check_served(pair, receipt.version, {"w": wanted})
        publisher.wait_committed(bound.publish().version, PATIENCE)  # What this stream still had queued has run.


def test_loop_that_is_ahead_skips_and_says_why(gpus, pair):
    publisher, _ = pair
    array = GpuArray(gpus, "int32", (1000,), stream=gpus.create_stream(0))
    gpus.hold(True)
    for step in range(2):
        array.write(values("int32", (1000,), step))
        last = publisher.publish({"w": array})
    wanted = values("int32", (1000,), 7)
    array.write(wanted)
    skipped = publisher.publish({"w": array}, changed=["w"])
    assert skipped.version is None
    assert "the loop is ahead of its versions" in skipped.skipped and "not sealed yet" in skipped.skipped
    assert "Drop arrays" not in skipped.skipped, "no reader can help it"
    bound = publisher.bind({"w": array})
    bound.begin()
    bound.capture(["w"])
    assert bound.end().version is None
    assert publisher.stat()["versions_skipped"] == 2
    gpus.hold(False)
    publisher.wait_committed(last.version, PATIENCE)
    receipt = publisher.publish({"w": array}, changed=[])
    assert receipt.version == last.version + 1
    check_served(pair, receipt.version, {"w": wanted})


def test_layers_are_captured_as_their_updates_are_queued(gpus, pair):
    publisher, _ = pair
    stream = gpus.create_stream(0)
    arrays = {name: GpuArray(gpus, "float32", (400,), stream=stream) for name in "abc"}
    bound = publisher.bind(arrays)
    gpus.hold(True)
    bound.begin()
    wanted = {}
    for seed, name in enumerate("ab"):
        wanted[name] = values("float32", (400,), seed)
        arrays[name].write(wanted[name])
        bound.capture([name])
        arrays[name].write(values("float32", (400,), 50 + seed))
    wanted["c"] = values("float32", (400,), 9)
    arrays["c"].write(wanted["c"])
    receipt = bound.end()
    gpus.hold(False)
    check_served(pair, receipt.version, wanted)


@pytest.mark.parametrize("more, words", [
    ({"strides": (8,)}, "tensor w: it lies strided"),
    ({"mask": object()}, "tensor w: a masked array"),
    ({"shape": (-1,)}, "tensor w: its __cuda_array_interface__ has a negative number"),
    ({"data": None}, "tensor w: its __cuda_array_interface__ is malformed"),
    ({"typestr": "<c16"}, "tensor w: dtype complex128"),
    ({"typestr": ">f4"}, "tensor w: its bytes are swapped"),
    ({"stream": "fast"}, "tensor w: its stream is 'fast'"),
    ({"stream": 0xdead}, "no such stream"),
    ({"data": (np.zeros(100, np.float32).ctypes.data, False)}, "tensor w on GPU 0: the driver knows its address as host memory"),
])
def test_what_is_refused_names_the_tensor(gpus, pair, more, words):
    publisher, _ = pair
    array = GpuArray(gpus, "float32", (100,), stream=gpus.create_stream(0))
    wanted = values("float32", (100,), 1)
    array.write(wanted)
    array.more = more
    with pytest.raises(freshet.InvalidArgument, match="(?s)" + words.replace("(", r"\(")):
        publisher.publish({"w": array})
    array.more = {}
    receipt = publisher.publish({"w": array})
    assert receipt.version == 1, "what is refused takes no number"
    check_served(pair, 1, {"w": wanted})


def test_device_that_is_not_there(gpus, pair):
    array = GpuArray(gpus, "float32", (100,))
    array.device = 5
    with pytest.raises(freshet.InvalidArgument, match="copy from GPU 5: this process sees 2 of them"):
        pair[0].publish({"w": array})


def test_lost_device_harms_no_served_version(gpus, pair):
    publisher, subscriber = pair
    array = GpuArray(gpus, "float32", (100,), stream=gpus.create_stream(0))
    wanted = values("float32", (100,), 1)
    array.write(wanted)
    check_served(pair, publisher.publish({"w": array}).version, {"w": wanted})
    gpus.hold(True)
    array.write(values("float32", (100,), 2))
    receipt = publisher.publish({"w": array})
    gpus.strike(0)
    gpus.hold(False)
    with pytest.raises(freshet.FailedPrecondition, match="publish m@2: copy the tensors"):
        publisher.wait_committed(receipt.version, PATIENCE)
    with pytest.raises(freshet.FailedPrecondition, match="lost to this process"):
        publisher.publish({"w": array})
    np.testing.assert_array_equal(subscriber.snapshot()["w"], wanted)


def test_without_a_driver_the_framework_copies(monkeypatch):
    monkeypatch.setattr(_core, "why_no_gpus", lambda: "no libcuda.so.1")
    _device_arrays._has_gpus.cache_clear()

    class Array:
        __cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (0, False), "version": 3}

        def __array__(self, dtype=None, copy=None):
            return np.ones(1, np.float32)

    try:
        with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
            publisher.publish({"w": Array()}, sync=True)
            subscriber.wait_for(1, PATIENCE)
            np.testing.assert_array_equal(subscriber.snapshot()["w"], np.ones(1, np.float32))
    finally:
        _device_arrays._has_gpus.cache_clear()


def test_the_default_stream_has_two_numbers(gpus, pair):
    publisher, _ = pair
    arrays = {name: GpuArray(gpus, "float32", (50,), stream=stream) for name, stream in (("cupys", 1), ("numbas", 0))}
    wanted = {name: values("float32", (50,), seed) for seed, name in enumerate(arrays)}
    for name, array in arrays.items():
        array.write(wanted[name])
    bound = publisher.bind(arrays)
    check_served(pair, bound.publish().version, wanted)
    check_served(pair, bound.publish().version, wanted)


@pytest.mark.parametrize("told", [{"data": True, "version": 2}, {"data": True, "stream": None, "version": 3}, {"data": False, "version": 2}])
def test_arrays_without_an_order_come_through_the_host(gpus, pair, told):
    """JAX's arrays on CUDA: version 2 of the interface, read-only, and no stream whose work could be waited for."""
    publisher, _ = pair
    wanted = values("float32", (100,), 1)

    class Jax:
        address = gpus.allocate(0, 400)

        @property
        def __cuda_array_interface__(self):
            return {"shape": (100,), "typestr": "<f4", **told, "data": (self.address, told["data"])}

        def __array__(self, dtype=None, copy=None):
            return wanted

    receipt = publisher.publish({"w": Jax()})
    check_served(pair, receipt.version, {"w": wanted})


def test_pytorchs_tensors_by_their_current_stream(gpus, pair, monkeypatch):
    torch = pytest.importorskip("torch")
    from freshet import _torch_on_device

    class Stream:
        def __init__(self):
            self.cuda_stream = gpus.create_stream(0)

    class OnGpu(torch.Tensor):
        """What a CUDA tensor says of itself."""
        is_cuda = True
        device = torch.device("cuda:0")

        def detach(self):
            return self

        def data_ptr(self):
            return self.array.address

        def record_stream(self, stream):
            self.recorded.append(stream)

    stream = Stream()
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(_torch_on_device, "_check", lambda name, tensor: None)  # It takes no class of a program's own.
    publisher, _ = pair
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype, numpys in ((torch.float32, np.dtype("float32")), (torch.bfloat16, np.dtype(ml_dtypes.bfloat16)), (torch.int64, np.dtype("int64"))):
        assert _torch_on_device._dtype_of(dtype) == numpys
    tensor = torch.empty(50, 3).as_subclass(OnGpu)
    tensor.array = GpuArray(gpus, "float32", (50, 3), stream=stream.cuda_stream)
    tensor.recorded = []
    gpus.hold(True)
    wanted = values("float32", (50, 3), 1)
    tensor.array.write(wanted)
    receipt = publisher.publish({"w": tensor})
    tensor.array.write(values("float32", (50, 3), 2))
    gpus.hold(False)
    check_served(pair, receipt.version, {"w": wanted})
    assert tensor.recorded == [stream], "the allocator hears of the stream that our copy is ordered by"
    capturing[0] = True
    with pytest.raises(freshet.FailedPrecondition, match="CUDA graph"):
        publisher.publish({"w": tensor})


def test_pytorchs_tensors_have_the_same_values_by_both_ways():
    torch = pytest.importorskip("torch")
    from freshet._torch_arrays import _to_numpy
    from freshet._torch_on_device import of_torch
    base = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    numbers = torch.complex(base, base + 10)
    for value in (base, base.T, numbers, numbers.conj(), numbers.conj().imag, numbers.conj().T):
        placed = of_torch(value, "w")
        whole = placed.kept
        np.testing.assert_array_equal(whole.numpy(), _to_numpy("w", value))
        assert whole.is_contiguous() and placed.address == whole.data_ptr()
        if placed.refresh is not None:
            whole.zero_()
            placed.refresh()
            np.testing.assert_array_equal(whole.numpy(), _to_numpy("w", value))
    if hasattr(torch, "float4_e2m1fn_x2"):
        assert of_torch(torch.zeros(4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "w") is None, "packed: the host's way knows it"
    with pytest.raises(freshet.InvalidArgument, match="tensor w: dtype torch.complex32"):
        of_torch(torch.zeros(2, dtype=torch.complex32), "w")


def test_device_memory_serves_a_device_from_its_own(gpus, host):
    """A publisher with versions in the device's memory, and a server's tensors there: the copies stay within it."""
    opened = type("OnHostGpus", (freshet.Publisher,), {"_test_gpus": gpus})
    with opened("m", device_memory=8.0) as publisher, freshet.Subscriber("m") as subscriber:
        array = GpuArray(gpus, "f4", (50, 21), stream=gpus.create_stream(0))
        mine = host.array(np.zeros((50, 21), np.float32))
        tensors = _core.DeviceTensors.bind(host.core.device(), [freshet.device._row("w", OnDevice(mine))])
        channels = set()
        for step in range(1, 200):  # The first versions may come before the publisher knows of the device.
            wanted = values("f4", (50, 21), step)
            array.write(wanted)
            version = publisher.publish({"w": array}, step=step).version
            publisher.wait_committed(version, PATIENCE)
            subscriber.wait_for(version, PATIENCE)
            assert tensors.refresh(subscriber.snapshot()._pin, host.stream) == 1
            tensors.wait(PATIENCE)
            np.testing.assert_array_equal(mine, wanted)
            channels.add(publisher.stat()["subscribers"][0]["channel"])
            if channels == {"shm", "cuda_ipc"}:
                break
        assert "cuda_ipc" in channels
        stat = publisher.stat()
        assert stat["device_memory_bytes"] > stat["device_memory_free_bytes"] > 0 and stat["device_memory_why"] == ""
        tensors.close()
        gpus.hold(False)


@pytest.mark.parametrize("wrong", [0.5, 65.0, 0.0, 3, -1, True, "2", float("nan")])
def test_device_memory_that_is_no_size(wrong):
    with pytest.raises(freshet.InvalidArgument, match="device_memory"):
        freshet.Publisher("m", device_memory=wrong)


def test_a_version_that_finds_no_room_says_why(gpus):
    opened = type("OnHostGpus", (freshet.Publisher,), {"_test_gpus": gpus})
    with opened("m", device_memory=4096) as publisher, freshet.Subscriber("m") as subscriber:
        array = GpuArray(gpus, "f4", (5000,))
        wanted = values("f4", (5000,), 1)
        array.write(wanted)
        check_served((publisher, subscriber), publisher.publish({"w": array}).version, {"w": wanted})
        assert "do not fit" in publisher.stat()["device_memory_why"]
        gpus.hold(False)
