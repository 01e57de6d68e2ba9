# SPDX-License-Identifier: Apache-2.0
"""JAX's arrays on NVIDIA GPUs, by DLPack. JAX has no stream that a program could name: it makes one that we name wait for its work,
and hears of no work of ours. So it copies an array within the GPU first, since the next step may take the array's memory
for its results; the copy stays until the version exists."""
from __future__ import annotations

import ctypes
import functools
import math
import sys
import threading
from typing import Any, Callable, List

import numpy as np

from ._device_arrays import OnDevice
from ._errors import Error, InvalidArgument

_CUDA = 2         # DLPack's kDLCUDA.
_STREAM = 1       # What DLPack calls CUDA's default stream, which waits for JAX's work.
_RANK_MAX = 64    # More axes than NumPy and C++ take.
_PARTED_MAX = 2**31 - 1  # Elements: JAX counts them with 32 bits.
_KINDS = {(0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64", (1, 8): "uint8", (1, 16): "uint16", (1, 32): "uint32",
          (1, 64): "uint64", (2, 16): "float16", (2, 32): "float32", (2, 64): "float64", (5, 64): "complex64", (6, 8): "bool"}


class _Tensor(ctypes.Structure):
    """DLTensor, which a DLManagedTensor begins with."""
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("device", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


@functools.lru_cache(maxsize=None)
def _slicer() -> Callable[..., Any]:
    jax: Any = sys.modules["jax"]
    # Compiled once for each shape and length. One program, so that no flat copy of all comes before the part.
    return jax.jit(lambda array, first, count: jax.lax.dynamic_slice(array.reshape(-1), (first,), (count,)), static_argnums=2)


def part_of(value: Any, first: int, count: int) -> Any:
    """A copy of these elements, row by row. REQUIRES: they are not all."""
    return _slicer()(value, first, count)


def of_jax(value: Any, tensor: str, stored: tuple[int, int] | None = None) -> OnDevice | None:
    """A copy of the array within its GPU, or of the bytes that are `stored` (an offset and their number) and no others: its address is
    that of the whole array, if there were one. None for what lies elsewhere or on several devices, and where the GPU has no room for
    a copy: JAX copies these to host memory."""
    try:
        kind, device = value.__dlpack_device__()
        if len(value.devices()) != 1 or int(kind) != _CUDA:
            return None
        dtype, first = np.dtype(value.dtype), 0
        if stored is not None and stored[1] == 0:
            return OnDevice(dtype, tuple(value.shape), 0, int(device), lambda: 0, None, None, True)
        count = value.size
        if stored is not None and value.size <= _PARTED_MAX:
            first = stored[0] // dtype.itemsize
            count = -(-sum(stored) // dtype.itemsize) - first
        copy = value.copy() if count == value.size else part_of(value, first, count)
        capsule = copy.__dlpack__(stream=_STREAM)
    except Exception:  # No room, a type that DLPack does not have, an array that was given away: JAX's own way tells of it.
        return None
    one = placed(capsule, value.dtype, tensor)
    return one and one._replace(shape=tuple(value.shape), address=one.address - first * dtype.itemsize)


def placed(capsule: Any, dtype: Any, tensor: str) -> OnDevice | None:
    """What a capsule says of memory that it owns. None for what is not dense, and for types that NumPy and DLPack know by other
    names. InvalidArgument for a capsule that contradicts itself."""
    address = _pointer_of(capsule, b"dltensor")
    told = _Tensor.from_address(address or 0) if address else None
    if told is None or not 0 <= told.ndim <= _RANK_MAX or (told.ndim > 0 and not told.shape):
        raise InvalidArgument(f"tensor {tensor}: its DLPack capsule is malformed")
    shape = tuple(told.shape[axis] for axis in range(told.ndim))
    if any(extent < 0 for extent in shape) or told.kind != _CUDA:
        raise InvalidArgument(f"tensor {tensor}: its DLPack capsule has a negative extent, or is of another device")
    numpys = np.dtype(_KINDS.get((told.code, told.bits), dtype))
    if told.lanes != 1 or numpys != np.dtype(dtype) or numpys.itemsize * 8 != told.bits:
        return None
    if told.strides and math.prod(shape) > 0:
        wanted = 1
        for axis in range(told.ndim - 1, -1, -1):
            if shape[axis] > 1 and told.strides[axis] != wanted:
                return None
            wanted *= shape[axis]
    return OnDevice(numpys, shape, (told.data or 0) + told.offset, told.device, lambda: 0, capsule, None, True)


def keep_until(wait: Callable[[], Any], version: int, kept: List[Any]) -> None:
    """Keeps what copies read until `wait` returns, on a thread of its own: no copy of the version runs then."""

    def run() -> None:
        try:
            wait()
        except Error:  # The publisher was closed, or there is no such version: no copy runs.
            pass
        kept.clear()

    threading.Thread(target=run, name=f"freshet-keeps-{version}", daemon=True).start()
