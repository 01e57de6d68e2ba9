# SPDX-License-Identifier: Apache-2.0
"""freshet.DeviceTensors: versions are copied to a device, here the host device."""
import gc
import types

import numpy as np
import pytest

import freshet
import freshet.device
from conftest import PATIENCE
from freshet import _core
from host_device import SEED, HostDevice, OnDevice, host  # noqa: F401


@pytest.fixture
def opened(host, monkeypatch):
    """The package opens the host device, and no other."""
    fake = types.SimpleNamespace(DeviceTensors=_core.DeviceTensors, Device=types.SimpleNamespace(open=lambda uuid: host.core.device()))
    monkeypatch.setattr(freshet.device, "_core", fake)
    return host


def published(pair, tensors, **how):
    publisher, subscriber = pair
    return subscriber.wait_for(publisher.publish(tensors, **how).version, PATIENCE)


def model(seed):
    random = np.random.default_rng(seed)
    return {"a": random.random((7, 3), np.float32), "b": random.integers(0, 255, 100_001, np.uint8), "c": np.float16(seed) * np.ones(5, np.float16),
            **{f"small{i}": random.random(i, np.float64) for i in range(20)}}


def test_a_refresh_copies_what_changed(pair, opened):
    values = model(1)
    arrays = {name: opened.array(np.zeros_like(value)) for name, value in values.items()}
    published(pair, values)
    with freshet.DeviceTensors({name: OnDevice(array) for name, array in arrays.items()}) as tensors:
        assert tensors.version == 0 and not tensors.mixed
        with pair[1].snapshot() as snapshot:
            tensors.prepare(snapshot)
            assert tensors.refresh(snapshot, opened.stream) == len(values)
        assert tensors.version == 1
        tensors.wait(PATIENCE)
        for name, value in values.items():
            assert np.array_equal(arrays[name], value), name
        values["b"] = values["b"] + np.uint8(1)
        published(pair, values)
        assert tensors.refresh(pair[1].snapshot(), opened.stream) == 1
        tensors.wait(PATIENCE)
        assert np.array_equal(arrays["b"], values["b"])
        tensors.forget("a")
        assert tensors.refresh(pair[1].snapshot(), opened.stream) == 1
        tensors.forget()
        assert tensors.refresh(pair[1].snapshot(), opened.stream) == len(values)
        with pytest.raises(freshet.NotFound, match="forget tensor z"):
            tensors.forget("z")
    with pytest.raises(freshet.FailedPrecondition, match="closed"):
        tensors.use()
    tensors.close()


@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_the_version_stays_while_it_is_copied_whatever_is_closed(pair, opened, seed):
    device = HostDevice(seed)
    values = model(seed)
    arrays = {name: device.array(np.zeros_like(value)) for name, value in values.items()}
    rows = [freshet.device._row(name, OnDevice(array)) for name, array in arrays.items()]
    tensors = _core.DeviceTensors.bind(device.core.device(), rows)
    published(pair, values)
    tensors.refresh(pair[1].snapshot()._pin, device.stream)
    for more in range(5):
        published(pair, model(100 + more))
    gc.collect()
    pair[1].close()
    pair[0].close()
    device.finish()
    for name, value in values.items():
        assert np.array_equal(arrays[name], value), name
    assert tensors.pins() == 0


@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_streams_are_ordered(pair, seed):
    device = HostDevice(seed)
    weight, answers = device.array(np.zeros(5000)), device.array(np.zeros((2, 5000)))
    streams = [device.core.stream() for _ in range(2)]
    tensors = _core.DeviceTensors.bind(device.core.device(), [freshet.device._row("w", OnDevice(weight))])
    for version in (1, 2):
        published(pair, {"w": np.full(5000, float(version))})
        tensors.refresh(pair[1].snapshot()._pin, streams[0])
        tensors.use(streams[1])
        device.core.copy(streams[1], answers[version - 1].ctypes.data, weight.ctypes.data, weight.nbytes)
    device.core.finish(streams[1])
    assert (answers[0] == 1).all() and (answers[1] == 2).all()


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_arrays_stay_until_the_copies_are_done(pair, monkeypatch, seed):
    device = HostDevice(seed)
    fake = types.SimpleNamespace(DeviceTensors=_core.DeviceTensors, Device=types.SimpleNamespace(open=lambda uuid: device.core.device()))
    monkeypatch.setattr(freshet.device, "_core", fake)
    seen = []

    class Array(OnDevice):
        def __init__(self, array):
            super().__init__(array)
            self.array = array

        def __del__(self):
            seen.append(self.array.copy())

    tensors = freshet.DeviceTensors({"w": Array(device.array(np.zeros(100_000)))})
    published(pair, {"w": np.ones(100_000)})
    tensors.refresh(pair[1].snapshot(), device.stream)
    del tensors
    gc.collect()
    assert len(seen) == 1 and (seen[0] == 1).all()


def test_what_is_wrong_is_named(pair, opened):
    published(pair, {"w": np.zeros(4, np.float32)})
    there = opened.array(np.zeros(8, np.float32))
    wrong = [({"w": np.zeros(4)}, "tensor w: ndarray is no array in a GPU's memory"),
             ({"w": OnDevice(np.zeros(4))}, "tensor w: its 32 bytes at"),
             ({"w": OnDevice(there, strides=(8,))}, "tensor w: it lies strided"),
             ({"w": OnDevice(there, data=(there.ctypes.data, True))}, "tensor w: its array is read-only"),
             ({"w": OnDevice(there, typestr="<c16")}, "tensor w: dtype complex128"),
             ({"w": OnDevice(there), "v": OnDevice(there[4:])}, "lies in the same memory"),
             ({3: OnDevice(there)}, "a tensor's name is text"),
             ([], "is a")]
    for tensors, words in wrong:
        with pytest.raises(freshet.InvalidArgument, match=words):
            freshet.DeviceTensors(tensors)
    tensors = freshet.DeviceTensors({"w": OnDevice(there)})
    with pytest.raises(freshet.FailedPrecondition, match=r"tensor w: m@1 has f32\[4\], the server has f32\[8\]"):
        tensors.refresh(pair[1].snapshot(), opened.stream)
    for stream in (-1, "1", 1.5):
        with pytest.raises(freshet.InvalidArgument, match="stream"):
            tensors.use(stream)
    with pytest.raises(freshet.InvalidArgument, match="refresh"):
        tensors.refresh({})
    assert tensors.version == 0 and (there == 0).all()
    tensors = freshet.DeviceTensors({"w": OnDevice(there[:4], strides=(4,))})
    assert tensors.refresh(pair[1].snapshot(), opened.stream) == 1


def test_a_lost_device_is_told(pair, opened):
    array = opened.array(np.zeros(4000))
    tensors = freshet.DeviceTensors({"w": OnDevice(array)})
    published(pair, {"w": np.ones(4000)})
    tensors.refresh(pair[1].snapshot(), opened.stream)
    opened.core.strike()
    with pytest.raises(freshet.FailedPrecondition, match="lost to this process"):
        tensors.wait(PATIENCE)
    with pytest.raises(freshet.FailedPrecondition, match="lost to this process"):
        tensors.use()


def test_without_a_driver_it_says_so():
    try:
        device = _core.Device.open("")
    except freshet.Unavailable as error:
        assert "libcuda.so.1" in str(error) or "device" in str(error) or "driver" in str(error)
    except freshet.InvalidArgument as error:
        assert "name one of" in str(error)  # Several are here.
    else:
        assert device.uuid().startswith("GPU-")
