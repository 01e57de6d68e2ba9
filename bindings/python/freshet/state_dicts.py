# SPDX-License-Identifier: Apache-2.0
"""Files of weights, each kind read and written by its own library."""
from __future__ import annotations

import os
import uuid
import zipfile
from typing import Any, Callable, Dict, Mapping

import numpy as np

from . import _core
from ._arrays import Gathered, check_name, to_numpy, view_of
from ._errors import Corrupt, Error, InvalidArgument, IoError, NotFound, Unsupported
from ._parts import files_of_index, kind_of_index, refuse_part
from .publisher import path_of

_HDF5 = (".h5", ".hdf5")
_TORCH = (".pt", ".pth", ".bin", ".ckpt")


def _kind_of(path: str) -> str:
    kind = os.path.splitext(path)[1].lower()
    if kind in (".safetensors", ".npz", *_TORCH, *_HDF5):
        return kind
    raise InvalidArgument(f"{path}: a file of weights ends in .safetensors, .npz, .pt, .pth, .bin, .ckpt, .h5 or .hdf5")


def _library(name: str, path: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise Unsupported(f"{path}: needs {name}, which is not installed") from None


def from_state_dict(path: Any) -> Dict[str, np.ndarray]:
    """A file's tensors by name: safetensors, NumPy's .npz, PyTorch's state dicts (.pt, .pth, .bin, .ckpt) and HDF5
    (datasets by their paths). Nothing that is read runs code: pickled objects are refused. Of a model in parts, the index is read
    (model.safetensors.index.json, pytorch_model.bin.index.json); one of its parts is InvalidArgument.

    NotFound, or Corrupt with the file's name and what is wrong; Unsupported names the library that is missing."""
    path = path_of(path)
    kind = kind_of_index(path) or _kind_of(path)
    if not os.path.exists(path):
        raise NotFound(f"{path}: no such file")
    if kind == ".safetensors":
        arrays = {}
        for (name, dtype, shape, _), raw in _core.read_safetensors(path):
            arrays[name] = view_of(raw, dtype, shape)
        return arrays
    if kind_of_index(path) is None:
        refuse_part(path)
        return _read(path)
    arrays = {}
    for part, names in files_of_index(path).items():
        held = _read(part)
        if set(held) != names:
            name = sorted(names ^ set(held))[0]
            raise Corrupt(f"{path}: the index and {part} contradict each other about {check_name(name)}")
        arrays.update(held)
    return arrays


def _read(path: str) -> Dict[str, np.ndarray]:
    kind = _kind_of(path)
    read = _read_npz if kind == ".npz" else _read_torch if kind in _TORCH else _read_hdf5
    try:
        return read(path)
    except Error:
        raise
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise IoError(f"{path}: {error.strerror}") from error
        # Each library has its own for a file that is damaged.
        raise Corrupt(f"{path}: {error}") from error


def to_state_dict(path: Any, tensors: Mapping[str, Any]) -> None:
    """Writes tensors, which are given as to Publisher.publish(), into a file of the kind that its name says: whole or not at all, over
    what was there."""
    path = path_of(path)
    kind = _kind_of(path)
    if kind == ".safetensors":
        _core.write_safetensors(path, Gathered(tensors).core)
        return
    Gathered(tensors)  # The same is refused for all kinds.
    write = _write_npz if kind == ".npz" else _write_torch if kind in _TORCH else _write_hdf5
    _aside(path, kind, lambda place: write(place, tensors))


def _aside(path: str, kind: str, write: Callable[[str], None]) -> None:
    place = f"{path}.{uuid.uuid4().hex}{kind}"
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        write(place)
        with open(place, "rb") as file:
            os.fsync(file.fileno())
        os.replace(place, path)
    except Error:
        raise
    except (OSError, RuntimeError) as error:  # PyTorch says of a full disk that it failed to write.
        raise IoError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        if os.path.exists(place):
            os.unlink(place)


def _read_npz(path: str) -> Dict[str, np.ndarray]:
    opened = np.load(path, allow_pickle=False)
    if isinstance(opened, np.ndarray):
        raise Corrupt(f"{path}: one array without a name, and no .npz")
    with opened as file:
        return {name: file[name] for name in file.files}


def _write_npz(path: str, tensors: Mapping[str, Any]) -> None:
    arrays = {}
    for name, value in tensors.items():
        array = to_numpy(value, name)
        if array.dtype.kind not in "fiub":
            raise Unsupported(f"tensor {name}: .npz has no {array.dtype}; .safetensors has")
        arrays[name] = array
    with open(path, "wb") as file:
        # By hand, since savez() takes names as keyword arguments, of which one is its own.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in arrays.items():
                with archive.open(name + ".npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, array, allow_pickle=False)


def _read_torch(path: str) -> Dict[str, np.ndarray]:
    torch = _library("torch", path)
    from .torch import _to_numpy
    told = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(told, Mapping) and isinstance(told.get("state_dict"), Mapping):
        told = told["state_dict"]  # What Lightning writes.
    if not isinstance(told, Mapping):
        raise Corrupt(f"{path}: has a {type(told).__name__}, and no tensors by name")
    for name, tensor in told.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(f"{path}: {check_name(name)} is a {type(tensor).__name__}, and no tensor")
    return {check_name(name): _to_numpy(name, tensor) for name, tensor in told.items()}


def _write_torch(path: str, tensors: Mapping[str, Any]) -> None:
    torch = _library("torch", path)
    from .torch import _from_numpy
    torch.save({name: _from_numpy(np.array(to_numpy(value, name))) for name, value in tensors.items()}, path)


def _read_hdf5(path: str) -> Dict[str, np.ndarray]:
    h5py = _library("h5py", path)
    arrays: Dict[str, np.ndarray] = {}

    def take(name: str, one: Any) -> None:
        if isinstance(one, h5py.Dataset):
            if one.is_virtual or one.external:
                raise InvalidArgument(f"{path}: {name} lies in another file")
            arrays[name] = np.asarray(one[()])

    with h5py.File(path, "r") as file:
        file.visititems(take)
    return arrays


def _write_hdf5(path: str, tensors: Mapping[str, Any]) -> None:
    h5py = _library("h5py", path)
    with h5py.File(path, "w") as file:
        for name, value in tensors.items():
            array = to_numpy(value, name)
            if array.dtype.kind not in "fiub":
                raise Unsupported(f"tensor {name}: HDF5 has no {array.dtype}; .safetensors has")
            file.create_dataset(name, data=array)
