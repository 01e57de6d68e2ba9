# SPDX-License-Identifier: Apache-2.0
"""Arrays on their way to C++ and back. NumPy is all that is needed; bfloat16 and the two float8 come with ml_dtypes."""
from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Iterable, Mapping, Tuple

import numpy as np

from . import _core
from ._errors import InvalidArgument, Unsupported

_NUMPY = {"float64": "f64", "float32": "f32", "float16": "f16", "int64": "i64", "int32": "i32", "int16": "i16",
          "int8": "i8", "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "bool"}
_ML_DTYPES = {"bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3", "float8_e5m2": "f8_e5m2"}
_TO_NUMPY = {ours: np.dtype(name) for name, ours in _NUMPY.items()}


def dtype_of(name: str) -> np.dtype:
    """NumPy's dtype for "f32" and the like. Unsupported for bf16 and f8 without ml_dtypes."""
    known = _TO_NUMPY.get(name)
    if known is not None:
        return known
    try:
        import ml_dtypes
    except ImportError:
        raise Unsupported(f"NumPy has no {name} of its own: install ml_dtypes") from None
    for theirs, ours in _ML_DTYPES.items():
        _TO_NUMPY[ours] = np.dtype(getattr(ml_dtypes, theirs))
    return _TO_NUMPY[name]


def _name_of(dtype: np.dtype, tensor: str) -> str:
    name = _NUMPY.get(dtype.name)
    if name is not None and dtype.kind in "fiub":
        if not dtype.isnative:
            raise InvalidArgument(f"tensor {tensor}: its bytes are swapped ({dtype.str}); "
                                  f"give array.astype(array.dtype.newbyteorder('='))")
        return name
    name = _ML_DTYPES.get(dtype.name)
    if name is not None and dtype.isnative:
        return name
    raise InvalidArgument(f"tensor {tensor}: dtype {dtype} is none that a model's tensors may have")


def to_numpy(value: Any, tensor: str) -> np.ndarray:
    """`value` as an array that shares its memory, or a copy where NumPy cannot share it. InvalidArgument, with the tensor's name,
    for what is no array of numbers."""
    return _converted(value, tensor)[0]


def in_place(value: Any, tensor: str) -> np.ndarray:
    """`value` as an array to be filled: one that shares its memory, or InvalidArgument."""
    array, is_shared = _converted(value, tensor)
    if not is_shared:
        raise InvalidArgument(f"tensor {tensor}: NumPy cannot fill a {type(value).__name__} in place")
    return array


def _converted(value: Any, tensor: str) -> Tuple[np.ndarray, bool]:
    """The array, and whether it shares the memory of `value`."""
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidArgument(f"tensor {tensor}: a masked array; give array.filled(…)")
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value), True
    tensor_class: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    if isinstance(value, tensor_class):  # NumPy refuses bf16, f8, other devices, and what has gradients.
        from .torch import _to_numpy
        return _to_numpy(tensor, value), value.device.type == "cpu" and not value.is_neg()
    try:
        if hasattr(value, "__array_interface__"):
            return np.asarray(value), True
        if hasattr(value, "__dlpack__"):
            try:
                return np.from_dlpack(value), True
            except Exception:  # A type or a device that NumPy does not know; `__array__` may.
                if not hasattr(value, "__array__"):
                    raise
        if hasattr(value, "__array__"):
            return np.asarray(value), False
        return np.asarray(memoryview(value)), True
    except Exception as error:  # Whatever another library says of its own arrays.
        raise InvalidArgument(f"tensor {tensor}: {type(value).__name__} is no array in this host's memory: {error}") \
            from None


def check_name(name: Any) -> str:
    """A tensor's name, which must be text."""
    if not isinstance(name, str):
        raise InvalidArgument(f"tensor {name!r}: a tensor's name is text, not {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"tensor {name!r}: its name is not valid Unicode") from None
    return name


def bytes_of(array: np.ndarray) -> np.ndarray:
    """The bytes of an array that lies in one piece, as one row."""
    return array.reshape(-1).view(np.uint8)


class Gathered:
    """Arrays by name, ready for C++. What lies strided, or in memory that NumPy cannot share, has a copy in one piece, made anew by
    refresh()."""

    def __init__(self, tensors: Mapping[str, Any], order: Iterable[str] | None = None,
                 roles: Mapping[str, str] | None = None) -> None:
        if not isinstance(tensors, Mapping):
            raise InvalidArgument(f"tensors are a mapping of names to arrays, not {type(tensors).__name__}")
        given = {check_name(name): value for name, value in tensors.items()}
        roles = dict(roles or {})
        for name, role in roles.items():
            if name not in given:
                raise InvalidArgument(f"tensor {name!r}: it has a role, but was not given")
            if not isinstance(role, str):
                raise InvalidArgument(f"tensor {name}: its role is text, not {type(role).__name__}")
        names = list(given) if order is None else list(order)
        if len(names) != len(given) or any(name not in given for name in names):
            names = list(given)  # C++ says which one is missing or new.
        self.names = names
        self.core = _core.Tensors()
        self._copies: list[tuple[int, np.ndarray, Callable[[], np.ndarray]]] = []
        for index, name in enumerate(names):
            array, is_shared = _converted(given[name], name)
            dtype = _name_of(array.dtype, name)
            whole = array
            if not is_shared or not array.flags.c_contiguous:
                whole = np.array(array, order="C", copy=True, subok=False)
                again = (lambda array=array: array) if is_shared else functools.partial(to_numpy, given[name], name)
                self._copies.append((index, whole, again))
            self.core.add(name, dtype, array.shape, bytes_of(whole), roles.get(name, "weight"))

    def refresh(self, only: Iterable[int] | None = None) -> None:
        """Copies again what has a copy; of `only` these tensors, where it is given."""
        wanted = None if only is None else set(only)
        for index, whole, again in self._copies:
            if wanted is None or index in wanted:
                np.copyto(whole, again())


def view_of(raw: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A read-only row of bytes as an array of that type and shape. An empty one has no memory to keep."""
    if raw.size == 0:
        empty = np.empty(shape, dtype_of(dtype))
        empty.flags.writeable = False
        return empty
    return raw.view(dtype_of(dtype)).reshape(shape)


if sys.byteorder != "little":
    raise ImportError("freshet runs on little-endian machines")
