# SPDX-License-Identifier: Apache-2.0
"""Files of weights, each kind read and written by its own library."""
from __future__ import annotations

import math
import os
import uuid
import zipfile
from typing import Any, Callable, Dict, Iterable, Mapping

import numpy as np

from . import _core
from ._arrays import Gathered, check_name, packed_of, to_numpy, view_of
from ._errors import Corrupt, Error, InvalidArgument, IoError, NotFound, Unsupported
from ._parts import files_of_index, kind_of_index, refuse_part
from .publisher import path_of

_HDF5 = (".h5", ".hdf5")
_TORCH = (".pt", ".pth", ".bin", ".ckpt")


_TIMES_SHARED = 32         # Tied weights lie in a file once, and come under each of their names.
_TIMES_PACKED = 1100       # What deflate can make of a byte.
_ALLOWANCE = 16 << 20      # Bytes: what was never written, or is one number many times, may be small.


def _check_room(path: str, name: str, wanted: int, times: int) -> None:
    """Corrupt when so many bytes of tensors cannot come from a file of this size. A file of a kilobyte may say that it has
    gigabytes, all of them one number, and each program that reads it would have to hold them."""
    held = os.path.getsize(path)
    if wanted > times * held + _ALLOWANCE:
        raise Corrupt(f"{path}: {name!r} and those before it would take {wanted} bytes of memory, and the file has {held}")


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

    A file whose tensors would take far more memory than it has bytes (never written, one number many times) is Corrupt.

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
    if not zipfile.is_zipfile(path):
        raise Corrupt(f"{path} is not an .npz archive of named arrays")
    with zipfile.ZipFile(path) as archive:
        _check_archive(path, archive, _TIMES_PACKED)
        for member in archive.infolist():
            with archive.open(member) as entry:
                try:
                    shape, _, dtype = _array_header(entry)
                except ValueError:
                    continue  # No array; np.load() says what it makes of it.
                if math.prod(shape) * dtype.itemsize > member.file_size:
                    raise Corrupt(f"{path}: {member.filename!r} has fewer bytes than its shape {shape} needs")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _array_header(entry: Any) -> Any:
    version = np.lib.format.read_magic(entry)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(entry)


def _check_archive(path: str, archive: zipfile.ZipFile, times: int) -> None:
    total = 0
    for member in archive.infolist():
        total += member.file_size
        _check_room(path, member.filename, total, times)


def _write_npz(path: str, tensors: Mapping[str, Any]) -> None:
    arrays = {}
    for name, value in tensors.items():
        array = to_numpy(value, name)
        if array.dtype.kind not in "fiubc" or packed_of(array):
            raise Unsupported(f"tensor {name}: .npz has no {(packed_of(array) or [array.dtype])[0]}; .safetensors has")
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
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            _check_archive(path, archive, 1)  # PyTorch packs nothing.
    told = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(told, Mapping) and isinstance(told.get("state_dict"), Mapping):
        told = told["state_dict"]  # What Lightning writes.
    if not isinstance(told, Mapping):
        raise Corrupt(f"{path} holds a {type(told).__name__}, not tensors by name")
    total = 0
    for name, tensor in told.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(f"{path}: {check_name(name)} is a {type(tensor).__name__}, not a tensor")
        total += tensor.numel() * tensor.element_size()  # An expanded tensor has one number, and a shape of any size.
        _check_room(path, check_name(name), total, _TIMES_SHARED)
    return {check_name(name): _to_numpy(name, tensor) for name, tensor in told.items()}


def _write_torch(path: str, tensors: Mapping[str, Any]) -> None:
    torch = _library("torch", path)
    from .torch import _from_numpy
    written = {}
    for name, value in tensors.items():
        array = to_numpy(value, name)
        packed = packed_of(array)
        tensor = written[name] = _from_numpy(array.copy() if packed else np.array(array))
        if packed and tensor.dtype is torch.uint8:  # Its bytes, of which a reader would not know what they are.
            raise Unsupported(f"tensor {name}: PyTorch has no {packed[0]} of the shape {packed[1]}; .safetensors has")
    torch.save(written, path)


def _read_hdf5(path: str) -> Dict[str, np.ndarray]:
    h5py = _library("h5py", path)
    datasets: Dict[str, Any] = {}
    totals = {1: 0, _TIMES_PACKED: 0}

    def look(name: str, one: Any) -> None:
        if not isinstance(one, h5py.Dataset):
            return
        if one.is_virtual or one.external:
            raise InvalidArgument(f"{path}: {name} lies in another file")
        if one.dtype.hasobject:
            raise InvalidArgument(f"{path}: {name} is not an array of numbers: its dtype is {one.dtype}")
        # What filters packed comes whole chunk by whole chunk; anything else has its bytes in the file, or was never written.
        packed = one.chunks is not None and one.id.get_create_plist().get_nfilters() > 0
        shape = [-(-extent // chunk) * chunk for extent, chunk in zip(one.shape, one.chunks)] if packed else one.shape or ()
        times = _TIMES_PACKED if packed else 1
        totals[times] += math.prod(shape) * one.dtype.itemsize
        _check_room(path, name, totals[times], times)
        datasets[name] = one

    with h5py.File(path, "r") as file:
        file.visititems(look)
        return {name: np.asarray(one[()]) for name, one in datasets.items()}


def _check_hdf5_names(path: str, names: Iterable[str]) -> None:
    """InvalidArgument for a tensor whose name is the group of another one: HDF5's names are paths."""
    there = set(names)
    for name in there:
        parts = name.split("/")
        for count in range(1, len(parts)):
            group = "/".join(parts[:count])
            if group in there:
                raise InvalidArgument(f"{path}: tensor {group} stands beside {name}, which HDF5 would keep in a group of that name; "
                                      f".safetensors holds both")


def _write_hdf5(path: str, tensors: Mapping[str, Any]) -> None:
    h5py = _library("h5py", path)
    _check_hdf5_names(path, tensors)
    with h5py.File(path, "w") as file:
        for name, value in tensors.items():
            array = to_numpy(value, name)
            if array.dtype.kind not in "fiubc" or packed_of(array):
                raise Unsupported(f"tensor {name}: HDF5 has no {(packed_of(array) or [array.dtype])[0]}; .safetensors has")
            try:
                file.create_dataset(name, data=array)
            except (ValueError, TypeError, KeyError) as error:  # "", "/", "a//b" beside "a/b" and the like.
                raise InvalidArgument(f"{path}: HDF5 cannot hold tensor {name!r}: {error}; .safetensors can") from error
