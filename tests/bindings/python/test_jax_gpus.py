# SPDX-License-Identifier: Apache-2.0
"""JAX's arrays in a GPU's memory, on the host device: stubs say of themselves what JAX's arrays say, by DLPack."""
import ctypes
import gc

import numpy as np
import pytest

import freshet
from conftest import eventually
from freshet import _dlpack
from test_gpus import GpuArray, check_served, gpus, pair, values  # noqa: F401

_NEW = ctypes.pythonapi.PyCapsule_New
_NEW.restype, _NEW.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_CODES = {"f": 2, "i": 0, "u": 1, "b": 6, "c": 5}


class Memory:
    """A capsule over memory, and what it needs. `fields` of the tensor are others than they should be."""

    def __init__(self, address, extents, dtype, dropped=None, **fields):
        self.extents = (ctypes.c_int64 * max(1, len(extents)))(*extents)
        dtype = np.dtype(dtype)
        told = {"data": address, "kind": 2, "device": 0, "ndim": len(extents), "code": _CODES[dtype.kind], "bits": 8 * dtype.itemsize, "lanes": 1,
                "shape": ctypes.cast(self.extents, ctypes.POINTER(ctypes.c_int64)), **fields}
        self.tensor = _dlpack._Tensor(**told)
        self.destructor = _DESTRUCTOR(lambda _: dropped.append(self) if dropped is not None else None)

    def capsule(self):
        return _NEW(ctypes.addressof(self.tensor), b"dltensor", ctypes.cast(self.destructor, ctypes.c_void_p))


class JaxArray:
    """Immutable; its work runs on a stream that nobody is told of."""
    __module__ = "jaxlib.stub"

    def __init__(self, gpus, value, stream, dropped):
        self._gpus, self._value, self._stream, self._dropped = gpus, value, stream, dropped
        self.dtype, self.shape, self.size = value.dtype, value.shape, value.size
        self._array = GpuArray(gpus, value.dtype, value.shape, stream=stream)
        self._array.write(value)
        self.copies, self.parts = 0, []

    def devices(self):
        return {0}

    def copy(self):
        self.copies += 1
        return JaxArray(self._gpus, self._value, self._stream, self._dropped)

    def part(self, first, count):
        self.parts.append((first, count))
        return JaxArray(self._gpus, self._value.reshape(-1)[first:first + count], self._stream, self._dropped)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None):
        assert stream == 1, "the default stream is told to wait"
        self._gpus.make_wait(0, 0, self._stream)
        memory = Memory(self._array.address, self.shape, self.dtype, self._dropped)
        _kept.append(memory)
        return memory.capsule()

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("JAX's own copy")


_kept = []


def test_a_version_has_what_jax_had_queued(gpus, pair):
    publisher, _ = pair
    stream, dropped = gpus.create_stream(0), []
    for step in range(3):
        gpus.hold(True)
        wanted = {name: values(dtype, shape, step) for name, dtype, shape in
                  (("w", "float32", (301, 7)), ("i", "int64", ()), ("b", "bool", (5,)), ("empty", "float16", (0, 3)))}
        arrays = {name: JaxArray(gpus, value, stream, dropped) for name, value in wanted.items()}
        receipt = publisher.publish(arrays, step=step)  # Nothing runs on the device, and it returns.
        assert all(array.copies == 1 for array in arrays.values()), "the next step may take the arrays' own memory"
        gc.collect()
        assert len(dropped) == 4 * step, "what our copies read stays"
        gpus.hold(False)
        check_served(pair, receipt.version, wanted)
        assert eventually(lambda: len(dropped) == 4 * (step + 1)), "and goes when the version exists"


@pytest.mark.parametrize("fields, words", [
    ({"ndim": -1}, "malformed"), ({"ndim": 65}, "malformed"), ({"shape": None}, "malformed"), ({"kind": 1}, "of another device"),
    ({"shape": (ctypes.c_int64 * 2)(3, -1)}, "negative extent"),
])
def test_capsules_that_lie_are_refused_by_name(fields, words):
    if fields.get("shape") is not None:
        fields = {"shape": ctypes.cast(fields["shape"], ctypes.POINTER(ctypes.c_int64))}
    memory = Memory(1 << 40, (3, 4), "float32", **fields)
    with pytest.raises(freshet.InvalidArgument, match=f"tensor w: its DLPack capsule .*{words}"):
        _dlpack.placed(memory.capsule(), np.dtype("float32"), "w")


def test_what_numpy_and_dlpack_call_differently_goes_through_the_host():
    row = (ctypes.c_int64 * 2)(1, 3)
    column_major = ctypes.cast(row, ctypes.POINTER(ctypes.c_int64))
    for dtype, fields in (("float32", {"lanes": 2}), ("float32", {"bits": 16}), ("int32", {}), ("float32", {"strides": column_major})):
        assert _dlpack.placed(Memory(1 << 40, (3, 4), "float32", **fields).capsule(), np.dtype(dtype), "w") is None
    dense = (ctypes.c_int64 * 2)(4, 1)
    memory = Memory(1 << 40, (3, 4), "float32", strides=ctypes.cast(dense, ctypes.POINTER(ctypes.c_int64)), offset=16)
    placed = _dlpack.placed(memory.capsule(), np.dtype("float32"), "w")
    assert (placed.address, placed.shape, placed.device) == ((1 << 40) + 16, (3, 4), 0)


def test_a_part_of_jaxs_is_row_by_row():
    jax = pytest.importorskip("jax")
    for dtype in ("float32", "bfloat16", "int8", "bool"):
        array = jax.numpy.arange(24).reshape(2, 3, 4).astype(dtype)
        for first, count in ((0, 23), (5, 7), (23, 1)):
            np.testing.assert_array_equal(np.asarray(_dlpack.part_of(array, first, count)), np.asarray(array).reshape(-1)[first:first + count])


def test_jaxs_own_capsules_are_read_as_jax_means_them():
    jax = pytest.importorskip("jax")
    for dtype in ("float32", "bfloat16", "int32", "bool", "uint8"):
        array = jax.numpy.arange(12).reshape(3, 4).astype(dtype)
        capsule = array.__dlpack__()
        told = _dlpack._Tensor.from_address(_dlpack._pointer_of(capsule, b"dltensor"))
        assert (told.ndim, told.shape[0], told.shape[1], told.bits, told.lanes) == (2, 3, 4, 8 * array.dtype.itemsize, 1)
        raw = (ctypes.c_uint8 * array.nbytes).from_address(told.data + told.offset)
        assert bytes(raw) == np.asarray(array).tobytes()
        assert np.dtype(_dlpack._KINDS.get((told.code, told.bits), array.dtype)) == array.dtype
        with pytest.raises(freshet.InvalidArgument, match="of another device"):
            _dlpack.placed(capsule, array.dtype, "w")
        assert _dlpack.of_jax(array, "w") is None, "on the CPU NumPy shows its memory"
