# SPDX-License-Identifier: Apache-2.0
"""A PyTorch module's tensors as arrays, and back; and whether those of a version are a module's."""
from __future__ import annotations

import json
import warnings
from typing import Dict, Mapping

import numpy as np
import torch

from ._arrays import PackedArray, dtype_of, packed_of
from ._errors import FailedPrecondition, InvalidArgument
from ._torch_graph import unwrapped
from .repository import Stored
from .subscriber import Snapshot

_TIED = "freshet.tied"  # The tag that says which further names a tensor has.
# Types that NumPy has only with ml_dtypes: what of the same size both have, and how ml_dtypes and we call them.
_BITS = {torch.bfloat16: (torch.int16, np.int16, "bfloat16", "bf16"),
         torch.float8_e4m3fn: (torch.uint8, np.uint8, "float8_e4m3fn", "f8_e4m3"),
         torch.float8_e5m2: (torch.uint8, np.uint8, "float8_e5m2", "f8_e5m2"),
         torch.float8_e4m3fnuz: (torch.uint8, np.uint8, "float8_e4m3fnuz", "f8_e4m3fnuz"),
         torch.float8_e5m2fnuz: (torch.uint8, np.uint8, "float8_e5m2fnuz", "f8_e5m2fnuz")}
if hasattr(torch, "float8_e8m0fnu"):
    _BITS[torch.float8_e8m0fnu] = (torch.uint8, np.uint8, "float8_e8m0fnu", "f8_e8m0")
_PAIRS = getattr(torch, "float4_e2m1fn_x2", None)  # Two elements in a byte, which PyTorch counts as one.


def _named(module: torch.nn.Module) -> tuple[Dict[str, torch.Tensor], Dict[str, str]]:
    """A module's tensors by their first name, and the further names of tied ones."""
    first: Dict[int, str] = {}
    named: Dict[str, torch.Tensor] = {}
    tied: Dict[str, str] = {}
    for name, tensor in unwrapped(module).state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):  # What get_extra_state() gave.
            raise InvalidArgument(f"tensor {name}: {type(tensor).__name__} is no tensor")
        known = first.setdefault(id(tensor), name)
        if known == name:
            named[name] = tensor
        else:
            tied[name] = known
    return named, tied


def _check(name: str, tensor: torch.Tensor) -> None:
    """InvalidArgument, with the tensor's name, for what has no bytes of its own that a version could have. Of a detached one."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise InvalidArgument(f"tensor {name}: a {type(tensor).__name__}; gather it first (full_tensor())")
    if tensor.device.type == "meta":
        raise InvalidArgument(f"tensor {name}: it is on the device meta, and has no bytes")
    if tensor.layout is not torch.strided:
        raise InvalidArgument(f"tensor {name}: its layout is {tensor.layout}; give to_dense()")
    if tensor.is_complex() and tensor.dtype is not torch.complex64 or tensor.is_quantized:
        raise InvalidArgument(f"tensor {name}: dtype {tensor.dtype} is not one of Freshet's")


def _to_numpy(name: str, tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as an array, with its strides; a copy where it lies on another device."""
    tensor = tensor.detach()
    _check(name, tensor)
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    tensor = tensor.resolve_neg().resolve_conj()
    if _PAIRS is not None and tensor.dtype is _PAIRS and tensor.dim() > 0:
        if not tensor.is_contiguous():
            raise InvalidArgument(f"tensor {name}: it is packed, and not in one piece; give contiguous()")
        return PackedArray(tensor.view(torch.uint8).numpy(), "f4", (*tensor.shape[:-1], 2 * tensor.shape[-1]))
    bits = _BITS.get(tensor.dtype)
    if bits is not None:
        return tensor.view(bits[0]).numpy().view(dtype_of(bits[3]))
    try:
        return tensor.numpy()
    except TypeError:
        raise InvalidArgument(f"tensor {name}: dtype {tensor.dtype} is not one of Freshet's") from None


def _from_numpy(array: np.ndarray) -> torch.Tensor:
    """In the array's memory. What is packed, and no type of PyTorch's, comes as its bytes."""
    packed = packed_of(array)
    if packed is not None:
        kind, shape = packed
        row = _from_numpy(np.asarray(array))
        if kind != "f4" or _PAIRS is None or not shape or shape[-1] % 2 != 0:
            return row
        return row.reshape(*shape[:-1], shape[-1] // 2).view(_PAIRS)
    for dtype, (_, bits, name, _) in _BITS.items():
        if array.dtype.name == name:
            return _from_numpy(array.view(bits)).view(dtype)
    with warnings.catch_warnings():
        # A tensor does not know that its memory is read-only; what is written there lands in a page of its own.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def with_tied(arrays: Mapping[str, np.ndarray], tags: Mapping[str, str]) -> Dict[str, torch.Tensor]:
    """The tensors in the arrays' memory; those that were tied when they were published, by all their names."""
    viewed = {name: _from_numpy(array) for name, array in arrays.items()}
    for name, first in _tied_in(tags).items():
        if first in viewed and name not in arrays:
            viewed[name] = viewed[first]
    return viewed


def _tied_in(tags: Mapping[str, str]) -> Dict[str, str]:
    """The further names of tied tensors. A publisher that checks no tags may have said anything: what is no such thing says
    nothing, as a server goes on with the tensors that it has."""
    try:
        told = json.loads(tags.get(_TIED, "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {name: first for name, first in told.items() if isinstance(first, str)}


def check_fits(module: tuple[Mapping[str, torch.Tensor], Mapping[str, str]], came: Mapping[str, torch.Tensor], source: str,
               strict: bool) -> None:
    """Of a module as _named() tells it. FailedPrecondition names the tensor that `came` lacks, or has in another shape or
    type. If `strict`: also one that the module lacks, or ties to another whose values differ. What the module computed then
    would be another network's."""
    named, tied = module
    for name, tensor in named.items():
        one = came.get(name)
        if one is None or one.shape != tensor.shape or one.dtype != tensor.dtype:
            has = "does not have it" if one is None else f"has {one.dtype} {tuple(one.shape)}"
            raise FailedPrecondition(f"tensor {name}: {source} {has}, the module has {tensor.dtype} {tuple(tensor.shape)}")
    if not strict:
        return
    more = [name for name in came if name not in named and name not in tied]
    if more:
        others = f" (nor {len(more) - 1} others that {source} has)" if len(more) > 1 else ""
        raise FailedPrecondition(f"tensor {more[0]}: {source} has it, the module does not have it{others}: it would compute what no "
                                 f"trained network does; strict=False leaves out what the module lacks")
    for name, first in tied.items():
        one = came.get(name)
        if one is not None and one is not came[first] and not torch.equal(one, came[first]):
            raise FailedPrecondition(f"tensor {name}: the module ties it to {first}, and {source} has other values in each; "
                                     f"strict=False takes those of {first}")


def view(snapshot: Mapping[str, np.ndarray]) -> Dict[str, torch.Tensor]:
    """A snapshot's tensors in the memory where the version lies, or those of what Repository.get() answered in theirs, for
    `load_state_dict()` or a forward; tied weights by all their names. Each keeps the version while it lives. They
    are meant for reading: what is written to one lands in pages of this process's own, which nobody else sees, and which go with
    the version."""
    return with_tied(snapshot, snapshot.tags if isinstance(snapshot, (Snapshot, Stored)) else {})
