# SPDX-License-Identifier: Apache-2.0
"""The random state of a process: Python's, NumPy's and, for who trains with it, PyTorch's."""
from __future__ import annotations

import random
from typing import Any, Dict, List, Mapping

import numpy as np

from ._errors import Corrupt

_PYTHON, _NUMPY = 625, 624  # Words of a Mersenne twister, with and without its position.
_HOST = "rng/host"
_TORCH = "rng/torch"
_CUDA = "rng/cuda/"


def take(with_torch: bool, prefix: str = "") -> Dict[str, np.ndarray]:
    """The state as arrays of bytes, whose names and sizes stay as they are in a process."""
    state = {f"{prefix}{_HOST}": _take_host()}
    if with_torch:
        import torch
        state[f"{prefix}{_TORCH}"] = torch.get_rng_state().numpy()
        for device in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            state[f"{prefix}{_CUDA}{device}"] = torch.cuda.get_rng_state(device).numpy()
    return state


def names(with_torch: bool, prefix: str = "") -> List[str]:
    """What take() calls its arrays."""
    return list(take(with_torch, prefix))


def put_back(state: Mapping[str, np.ndarray], prefix: str = "") -> None:
    """Makes it so again, as far as `state` has it."""
    host = state.get(f"{prefix}{_HOST}")
    if host is not None:
        _put_back_host(np.ascontiguousarray(host))
    torch_state = state.get(f"{prefix}{_TORCH}")
    if torch_state is None:
        return
    torch = _torch()
    torch.set_rng_state(torch.from_numpy(np.array(torch_state, np.uint8)))
    for device in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        of_device = state.get(f"{prefix}{_CUDA}{device}")
        if of_device is not None:
            torch.cuda.set_rng_state(torch.from_numpy(np.array(of_device, np.uint8)), device)


def _torch() -> Any:
    import torch
    return torch


def _take_host() -> np.ndarray:
    _, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state()
    known = isinstance(numpy_state, tuple)  # Not where somebody put another generator in its place.
    parts: List[np.ndarray] = [
        np.array(words, np.uint32), np.array([gauss is not None, gauss or 0.0], np.float64),
        np.asarray(numpy_state[1] if known else np.zeros(_NUMPY), np.uint32),
        np.array([numpy_state[2], numpy_state[3], numpy_state[4]] if known else [-1, 0, 0], np.float64)]
    return np.concatenate([part.view(np.uint8) for part in parts])


def _put_back_host(state: np.ndarray) -> None:
    ends = np.cumsum([4 * _PYTHON, 16, 4 * _NUMPY, 24])
    if state.dtype != np.uint8 or state.size != ends[-1]:
        raise Corrupt(f"tensor {_HOST}: {state.size} bytes are not a random state")
    words, gauss, numpy_words, more = np.split(state, ends[:-1])
    words = words.view(np.uint32)
    has_gauss, value = gauss.view(np.float64)
    position, numpy_has_gauss, numpy_value = more.view(np.float64)
    # Neither library looks at a position that leads out of its memory.
    if words[-1] > _NUMPY or not -1 <= position <= _NUMPY or not all(np.isfinite(more.view(np.float64))):
        raise Corrupt(f"tensor {_HOST}: its bytes are not a random state")
    random.setstate((3, tuple(int(word) for word in words), float(value) if has_gauss else None))
    if position >= 0:
        np.random.set_state(("MT19937", numpy_words.view(np.uint32), int(position), int(numpy_has_gauss != 0), float(numpy_value)))
