# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors on NVIDIA GPUs: where they lie, and which stream is current."""
from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ._arrays import described, dtype_of
from ._device_arrays import OnDevice
from ._errors import FailedPrecondition
from ._torch_arrays import _BITS, _check, _from_numpy, _to_numpy


def of_torch(value: torch.Tensor, tensor: str) -> OnDevice | None:
    """The tensor's memory on its GPU, or a copy in one piece there. None for a type that only the way through the host knows.
    InvalidArgument as for tensors of the host."""
    value = value.detach()
    _check(tensor, value)
    dtype = _dtype_of(value.dtype)
    if dtype is None:
        return None
    device = value.device.index or 0
    is_whole = value.is_contiguous() and not value.is_neg() and not value.is_conj()
    whole = value if is_whole else value.resolve_neg().resolve_conj().clone(memory_format=torch.contiguous_format)
    refresh = None if is_whole else lambda: whole.copy_(value)
    return OnDevice(dtype, tuple(value.shape), whole.data_ptr(), device, lambda: _current(whole, device), whole, refresh)


def form_of(value: torch.Tensor, tensor: str) -> tuple[str, tuple[int, ...]]:
    """As described() tells it of an array; no byte is looked at. InvalidArgument as for tensors of the host."""
    _check(tensor, value.detach())
    return described(_to_numpy(tensor, torch.empty(value.shape, dtype=value.dtype)), tensor)


def fill(value: torch.Tensor, array: np.ndarray) -> None:
    """Copies the array into the tensor, on the current stream."""
    with torch.no_grad():
        value.copy_(_from_numpy(array))


def _current(whole: torch.Tensor, device: int) -> int:
    """The stream that is current. A tensor that another stream allocated is not given to others before this one's work, which
    our copy is a part of, has run."""
    if torch.cuda.is_current_stream_capturing():
        raise FailedPrecondition("the current stream is being captured into a CUDA graph; publish, and make checkpoints, after the capture")
    stream: Any = torch.cuda.current_stream(device)
    whole.record_stream(stream)
    return int(stream.cuda_stream)


def _dtype_of(dtype: torch.dtype) -> np.dtype | None:
    bits = _BITS.get(dtype)
    if bits is not None:
        return dtype_of(bits[3])
    try:
        return np.dtype(str(dtype).rpartition(".")[2])
    except TypeError:  # Packed elements; and what the host's way refuses by name.
        return None
