# SPDX-License-Identifier: Apache-2.0
"""Arrays in a GPU's memory, as C++ takes them: an address, a device, and the stream whose work writes them."""
from __future__ import annotations

import functools
import logging
import sys
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from . import _core
from ._errors import InvalidArgument

_CUDA = 2  # DLPack's kDLCUDA.
_log = logging.getLogger("freshet")
Current = Callable[[], int]  # The stream that is current now: a cudaStream_t as a number.


class OnDevice(NamedTuple):
    """A tensor in one piece of a GPU's memory, which `kept` owns."""
    dtype: np.dtype
    shape: tuple[int, ...]
    address: int
    device: int
    current: Current
    kept: Any
    refresh: Callable[[], None] | None  # Where `kept` is a copy: makes it anew, on the current stream.
    is_lent: bool = False  # `kept` must stay until the copy is done: no stream that frees it waits.


@functools.lru_cache(maxsize=None)
def _has_gpus() -> bool:
    """Whether C++ reads GPUs' memory here. If not, the framework copies tensors to host memory, as ever; said once."""
    why = _core.why_no_gpus()
    if why is not None:
        _log.info("tensors in GPUs' memory go through the framework's own copies: %s", why)
    return why is None


def is_torchs_on_gpu(value: Any) -> bool:
    """Whether it is a tensor of PyTorch's in a GPU's memory, NVIDIA's or AMD's."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and value.is_cuda


def on_device(value: Any, tensor: str, is_forced: bool, stored: tuple[int, int] | None = None) -> OnDevice | None:
    """`value` as C++ reads it from a GPU; None for what is in host memory, or is to be copied there first. `is_forced`: the
    publisher has GPUs of its own. `stored`: C++ reads no other bytes, an offset and their number. InvalidArgument names the
    tensor that is not dense."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if not is_torchs_on_gpu(value) or torch.version.hip is not None or not (is_forced or _has_gpus()):
            return None
        from ._torch_on_device import of_torch
        return of_torch(value, tensor)
    if isinstance(value, (np.ndarray, np.generic)):
        return None
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib") and hasattr(value, "__dlpack__"):
        if not (is_forced or _has_gpus()):
            return None
        from ._dlpack import of_jax
        return of_jax(value, tensor, stored)
    if not hasattr(value, "__cuda_array_interface__"):
        return None
    return _of_interface(value, tensor) if is_forced or _has_gpus() else None


class Interface(NamedTuple):
    """What an array of CuPy, Numba and others tells of itself as `__cuda_array_interface__`. `fault`: why it is not dense, or
    empty."""
    dtype: np.dtype
    shape: tuple[int, ...]
    address: int
    is_read_only: bool
    has_stream: bool
    fault: str


def interface_of(value: Any, tensor: str) -> Interface:
    """InvalidArgument names the tensor that has no such interface, or a malformed one."""
    try:
        told = value.__cuda_array_interface__
    except Exception as error:  # Whatever another library says of its own arrays.
        raise InvalidArgument(f"tensor {tensor}: {type(value).__name__} is no array in a GPU's memory: {error}") from None
    try:
        dtype = np.dtype(told["typestr"])
        shape = tuple(int(extent) for extent in told["shape"])
        address, is_read_only = told["data"]
        address = int(address or 0)
        strides = told.get("strides")
        is_dense = strides is None or _is_in_one_piece(shape, strides, dtype.itemsize)
        is_masked, has_stream = told.get("mask") is not None, "stream" in told
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"tensor {tensor}: its __cuda_array_interface__ is malformed: {error!r}") from None
    fault = ""
    if address < 0 or any(extent < 0 for extent in shape):
        fault = f"tensor {tensor}: its __cuda_array_interface__ has a negative number"
    elif is_masked:
        fault = f"tensor {tensor}: a masked array; give one without mask"
    elif not is_dense:
        fault = f"tensor {tensor}: it lies strided in the GPU's memory; give a contiguous array"
    return Interface(dtype, shape, address, bool(is_read_only), has_stream, fault)


def _of_interface(value: Any, tensor: str) -> OnDevice | None:
    """CuPy, Numba, and what else has `__cuda_array_interface__`. None where it names no stream, as in version 2 of the
    interface: its work has no order with ours. None for read-only memory: its owner may give it to others."""
    told = interface_of(value, tensor)
    if not told.has_stream or told.is_read_only:
        return None
    if told.fault:
        raise InvalidArgument(told.fault)
    device = 0
    if hasattr(value, "__dlpack_device__"):
        kind, device = value.__dlpack_device__()
        if int(kind) != _CUDA:
            raise InvalidArgument(f"tensor {tensor}: DLPack's device {int(kind)} is no NVIDIA GPU's memory")
    return OnDevice(told.dtype, told.shape, told.address, int(device), lambda: _stream_of(value, tensor), value, None)


def _stream_of(value: Any, tensor: str) -> int:
    """None asks for no order: the default stream has one all the same, for those that write on it. CuPy calls it 1, PyTorch
    and Numba call it 0."""
    stream = value.__cuda_array_interface__.get("stream")
    if stream is None:
        return 0
    if isinstance(stream, bool) or not isinstance(stream, int) or stream < 0:
        raise InvalidArgument(f"tensor {tensor}: its stream is {stream!r}")
    return 0 if stream == 1 else stream


def _is_in_one_piece(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    """Row by row, in elements of `size` bytes. The stride of an extent of 1 tells nothing."""
    if 0 in shape:
        return True
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent > 1 and stride != size:
            return False
        size *= extent
    return True
