# SPDX-License-Identifier: Apache-2.0
"""Arrays on their way to C++ and back. NumPy is all that is needed; bfloat16 and the float8 types come with ml_dtypes."""
from __future__ import annotations

import functools
import math
import sys
from typing import Any, Callable, Iterable, Mapping, Tuple

import numpy as np

from . import _core
from ._device_arrays import OnDevice, on_device
from ._errors import InvalidArgument, Unsupported

_NUMPY = {"float64": "f64", "float32": "f32", "float16": "f16", "int64": "i64", "int32": "i32", "int16": "i16",
          "int8": "i8", "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "bool", "complex64": "c64"}
_ML_DTYPES = {"bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3", "float8_e5m2": "f8_e5m2", "float8_e8m0fnu": "f8_e8m0",
              "float8_e4m3fnuz": "f8_e4m3fnuz", "float8_e5m2fnuz": "f8_e5m2fnuz"}
_TO_NUMPY = {ours: np.dtype(name) for name, ours in _NUMPY.items()}
_SHOWN = {ours: name for name, ours in {**_NUMPY, **_ML_DTYPES}.items()}
_PACKED_BITS = {"f4": 4, "f6_e2m3": 6, "f6_e3m2": 6}


class PackedArray(np.ndarray):
    """A tensor whose elements are smaller than a byte, "f4", "f6_e2m3" or "f6_e3m2": its bytes as one row of uint8, in which the
    elements lie one behind the other as in a safetensors file. No library unpacks them here.

        freshet.PackedArray(raw, "f4", (64, 128))       # raw: 4096 bytes; shares their memory

    `packed_dtype` and `packed_shape` say what the tensor is. What is made from such an array (a slice, a sum,
    np.copy()) is an ordinary uint8 array, where both are None or missing; copy(), the module `copy` and pickle keep
    them."""

    packed_dtype: str | None
    packed_shape: tuple[int, ...] | None

    def __new__(cls, raw: Any, dtype: str, shape: Iterable[int]) -> "PackedArray":
        extents = tuple(int(extent) for extent in shape)
        bits = _PACKED_BITS.get(dtype)
        if bits is None:
            raise InvalidArgument(f"a packed array is of {', '.join(_PACKED_BITS)}, not of {dtype}")
        row = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
        if any(extent < 0 for extent in extents) or math.prod(extents) * bits != 8 * row.size:
            raise InvalidArgument(f"a packed array of {row.size} bytes is no {dtype} of the shape {extents}")
        made = row.view(cls)
        made.packed_dtype, made.packed_shape = dtype, extents
        return made

    def __array_finalize__(self, _: Any) -> None:
        self.packed_dtype, self.packed_shape = None, None

    def copy(self, order: Any = "C") -> Any:
        """A copy in memory of its own, of the same dtype and shape."""
        copied = np.array(self)
        if self.packed_dtype is None or self.packed_shape is None:
            return copied
        return PackedArray(copied, self.packed_dtype, self.packed_shape)

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, _: Any) -> Any:
        return self.copy()

    def __reduce__(self) -> Any:
        if self.packed_dtype is None or self.packed_shape is None:
            return np.array(self).__reduce__()
        return PackedArray, (np.array(self), self.packed_dtype, self.packed_shape)


def packed_of(array: np.ndarray) -> tuple[str, tuple[int, ...]] | None:
    """The dtype and the shape of a packed array's tensor; None for any other array."""
    if isinstance(array, PackedArray) and array.packed_dtype is not None and array.packed_shape is not None:
        return array.packed_dtype, array.packed_shape
    return None


def described(array: np.ndarray, tensor: str) -> tuple[str, tuple[int, ...]]:
    """The dtype, as C++ calls it, and the shape of the tensor that an array holds. InvalidArgument, with the tensor's
    name, for a dtype that no tensor has."""
    return packed_of(array) or (_name_of(array.dtype, tensor), array.shape)


def shown(dtype: str, shape: tuple[int, ...]) -> str:
    """For an error's text: the dtype by its name in NumPy or ml_dtypes, where it has one, and the shape."""
    return f"{_SHOWN.get(dtype, dtype)} {shape}"


def dtype_of(name: str) -> np.dtype:
    """NumPy's dtype for "f32" and the like. Unsupported for bf16 and f8 without ml_dtypes, and for what is packed."""
    known = _TO_NUMPY.get(name)
    if known is not None:
        return known
    if name in _PACKED_BITS:
        raise Unsupported(f"NumPy has no dtype {name}: its elements are smaller than a byte")
    try:
        import ml_dtypes
    except ImportError:
        raise Unsupported(f"NumPy has no dtype {name} of its own: install ml_dtypes") from None
    for theirs, ours in _ML_DTYPES.items():
        if hasattr(ml_dtypes, theirs):
            _TO_NUMPY[ours] = np.dtype(getattr(ml_dtypes, theirs))
    if name not in _TO_NUMPY:
        raise Unsupported(f"ml_dtypes {ml_dtypes.__version__} has no {name}: install a newer one")
    return _TO_NUMPY[name]


def _name_of(dtype: np.dtype, tensor: str) -> str:
    name = _NUMPY.get(dtype.name)
    if name is not None and dtype.kind in "fiubc":
        if not dtype.isnative:
            raise InvalidArgument(f"tensor {tensor}: its bytes are swapped ({dtype.str}); "
                                  f"give array.astype(array.dtype.newbyteorder('='))")
        return name
    name = _ML_DTYPES.get(dtype.name)
    if name is not None and dtype.isnative:
        return name
    raise InvalidArgument(f"tensor {tensor}: dtype {dtype} is not one of Freshet's")


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
        return value if isinstance(value, PackedArray) else np.asarray(value), True
    tensor_class: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    if isinstance(value, tensor_class):  # NumPy refuses bf16, f8, other devices, and what has gradients.
        from .torch import _to_numpy
        return _to_numpy(tensor, value), value.device.type == "cpu" and not (value.is_neg() or value.is_conj())
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
    return np.asarray(array).reshape(-1).view(np.uint8)


class Gathered:
    """Arrays by name, ready for C++. What lies strided, or in memory that NumPy cannot share, has a copy in one piece, made anew by
    refresh(). With `gpus` what lies in a GPU's memory stays there, and C++ reads it in the order of the stream that is current now:
    True where there is a driver, otherwise what publishers of the package's tests have."""

    def __init__(self, tensors: Mapping[str, Any], order: Iterable[str] | None = None,
                 roles: Mapping[str, str] | None = None, gpus: Any = None) -> None:
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
        self._on_device: list[tuple[int, OnDevice]] = []
        self._streams: dict[int, int] = {}  # By device.
        for index, name in enumerate(names):
            placed = None if gpus is None else on_device(given[name], name, gpus is not True)
            if placed is not None:
                stream = placed.current()
                if self._streams.setdefault(placed.device, stream) != stream:
                    raise InvalidArgument(f"tensor {name}: its stream is another one than that of the tensors before it on device "
                                          f"{placed.device}; one publish takes one stream of a device")
                self.core.add_on_device(name, _name_of(placed.dtype, name), placed.shape, placed.address, placed.device, stream,
                                        placed.kept, roles.get(name, "weight"))
                self._on_device.append((index, placed))
                continue
            array, is_shared = _converted(given[name], name)
            dtype, shape = described(array, name)
            whole = array
            if not is_shared or not array.flags.c_contiguous:
                whole = np.array(array, order="C", copy=True, subok=False)
                again = (lambda array=array: array) if is_shared else functools.partial(to_numpy, given[name], name)
                self._copies.append((index, whole, again))
            self.core.add(name, dtype, shape, bytes_of(whole), roles.get(name, "weight"))

    @property
    def lent(self) -> list[Any]:
        """What must stay until the version exists."""
        return [placed.kept for _, placed in self._on_device if placed.is_lent]

    def refresh(self, only: Iterable[int] | None = None) -> None:
        """Copies again what has a copy; of `only` these tensors, where it is given."""
        wanted = None if only is None else set(only)
        for index, whole, again in self._copies:
            if wanted is None or index in wanted:
                np.copyto(whole, again())
        for index, placed in self._on_device:
            if placed.refresh is not None and (wanted is None or index in wanted):
                placed.refresh()

    def follow_streams(self, bound: Any) -> None:
        """The streams that are current now are those whose work a publish takes."""
        now: dict[int, int] = {}
        for _, placed in self._on_device:
            stream = placed.current()
            if now.setdefault(placed.device, stream) != stream:
                raise InvalidArgument(f"two tensors on device {placed.device} have two streams; one publish takes one stream of a "
                                      f"device")
        for device, stream in now.items():
            if self._streams[device] != stream:
                bound.set_stream(device, stream)
        self._streams = now


def empty_of(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Memory for a tensor, to be filled."""
    if dtype in _PACKED_BITS:
        return PackedArray(np.empty(math.prod(shape) * _PACKED_BITS[dtype] // 8, np.uint8), dtype, shape)
    return np.empty(shape, dtype_of(dtype))


def view_of(raw: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A read-only row of bytes as an array of that type and shape. An empty one has no memory to keep."""
    if dtype in _PACKED_BITS:
        packed = PackedArray(raw, dtype, shape)
        if raw.size == 0:
            packed.flags.writeable = False
        return packed
    if raw.size == 0:
        empty = np.empty(shape, dtype_of(dtype))
        empty.flags.writeable = False
        return empty
    return raw.view(dtype_of(dtype)).reshape(shape)


if sys.byteorder != "little":
    raise ImportError("freshet runs on little-endian machines")
