# SPDX-License-Identifier: Apache-2.0
"""Tensors of requests and responses. The stub of Triton's Python backend was compiled for NumPy 1, and takes a NumPy 2 array's
item size from a wrong place: strides of inputs become 0, sizes of outputs too. Both go through DLPack instead."""
from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Mapping

import numpy as np

from .._errors import FailedPrecondition, InvalidArgument
from ._config import TYPES, VERSION_OUTPUT, Config, Output

_CPU = (1, 0)  # kDLCPU, device 0.
_set_destructor = ctypes.pythonapi.PyCapsule_SetDestructor
_set_destructor.argtypes = [ctypes.py_object, ctypes.c_void_p]
_set_destructor.restype = ctypes.c_int


class _Lent:
    """An array for Tensor.from_dlpack(). The stub gives a capsule that it took a name of its own, which NumPy's destructor does
    not know and complains of on stderr, for each tensor. The stub frees the tensor itself, so the capsule needs no destructor."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, *_: Any, **__: Any) -> Any:
        capsule = self._array.__dlpack__()
        _set_destructor(capsule, None)
        return capsule

    def __dlpack_device__(self) -> Any:
        return _CPU


def array_of(tensor: Any, config: Config) -> np.ndarray:
    """A request's tensor. Texts are object arrays of bytes."""
    if tensor.name() in config.texts:  # DLPack has none.
        return tensor.as_numpy()
    return np.from_dlpack(tensor)


def tensor_of(triton: Any, name: str, array: np.ndarray) -> Any:
    """A response's tensor."""
    if array.size == 0 or array.dtype.hasobject:  # The stub takes no empty one by DLPack; its size is not read wrongly.
        return triton.Tensor(name, array)
    if not array.flags.c_contiguous or not array.flags.writeable:  # A served tensor itself, or a view of it.
        array = array.copy(order="C")
    return triton.Tensor.from_dlpack(name, _Lent(array))


def check_outputs(outputs: Any, config: Config, inputs: Mapping[str, np.ndarray], wanted: List[str], version: int) -> Dict[str, np.ndarray]:
    """The arrays of the wanted outputs. InvalidArgument and FailedPrecondition tell how what infer() returned differs from the
    config."""
    if not isinstance(outputs, Mapping):
        raise FailedPrecondition(f"infer() returned {type(outputs).__name__}; it must return a dict of outputs by name")
    for name in outputs:
        if name not in config.outputs:
            raise FailedPrecondition(f"infer() returned {name!r}, which is no output of config.pbtxt; there are "
                                     f"{', '.join(config.outputs)}")
        if name == VERSION_OUTPUT:
            raise FailedPrecondition(f"infer() returned {VERSION_OUTPUT}, which the server fills in; leave it out")
    batch = len(next(iter(inputs.values()))) if config.has_batches and inputs else None
    arrays = {}
    for name in wanted or config.outputs:
        if name == VERSION_OUTPUT:
            arrays[name] = np.full((1,) if batch is None else (batch, 1), version, np.int64)
        elif name not in outputs:
            raise FailedPrecondition(f"infer() returned no {name!r}, which is an output of config.pbtxt; it returned "
                                     f"{', '.join(map(repr, outputs)) or 'nothing'}")
        else:
            arrays[name] = _checked(config.outputs[name], outputs[name], batch)
    return arrays


def _checked(output: Output, value: Any, batch: "int | None") -> np.ndarray:
    try:
        array = np.asarray(value)
    except Exception as error:
        raise InvalidArgument(f"output {output.name}: infer() returned {type(value).__name__}, which NumPy cannot read: "
                              f"{error}") from error
    dtype = TYPES[output.type]
    if array.dtype != dtype and not (dtype.hasobject and array.dtype.kind in "SU"):
        raise FailedPrecondition(f"output {output.name}: infer() returned {array.dtype.name}, but config.pbtxt says {output.type}: "
                                 f"return it .astype(np.{dtype.name})")
    shape = output.shape if batch is None else [batch, *output.shape]
    if array.ndim != len(shape) or any(size not in (-1, got) for size, got in zip(shape, array.shape)):
        raise FailedPrecondition(f"output {output.name}: infer() returned the shape {list(array.shape)}, but config.pbtxt says "
                                 f"{output.shape}{'' if batch is None else f', and the batch is {batch}'}")
    return array.astype(object) if dtype.hasobject else array.astype(dtype.newbyteorder("="), copy=False)
