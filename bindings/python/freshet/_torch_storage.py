# SPDX-License-Identifier: Apache-2.0
"""PyTorch's checkpoints (torch.distributed.checkpoint) in a repository.

A checkpoint is a version of a model. It has the coordinator's share, by name, and last the tensor `.metadata`: JSON that says
what the whole state is and where each piece lies. Rank k's share is a version of `MODEL.rankK`, which the checkpoint
pins. The coordinator's version comes last, so a save that ended half-way is no checkpoint.
"""
from __future__ import annotations

import dataclasses
import io
import json
import math
import re
from typing import Any, Dict, Iterator, List, Mapping, Tuple

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import (LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner,
                                                  WriteItem, WriteItemType)
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ._errors import Corrupt, Error, FailedPrecondition, InvalidArgument, NotFound, Unavailable, Unsupported
from ._place import place_of
from ._version import Version
from .repository import Repository
from .torch import _from_numpy, _to_numpy

__all__ = ["StorageReader", "StorageWriter", "retire_checkpoint"]

_METADATA = ".metadata"
_PARTS = "freshet.parts"  # The tag that names the other ranks' versions, which the checkpoint pins.
_PART_OF = "freshet.part_of"  # The tag that such a version has: the checkpoint's model.
_READ_AT_ONCE = 64 << 20  # Bytes.


def _done(value: Any) -> Future:
    future: Future = Future()
    future.set_result(value)
    return future


def _newest(repository: Repository, model: str) -> Version | None:
    try:
        return next((row.version for row in reversed(repository.versions(model)) if not row.retired), None)
    except NotFound:
        return None


def _is_raw(dtype: torch.dtype) -> bool:
    """Types that no model's tensors may have, and that optimizers' state may: stored as bytes."""
    return dtype.is_complex or str(dtype).removeprefix("torch.") in (
        "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "complex32")


class StorageWriter(_StorageWriter):
    """For `dcp.save(state, storage_writer=…)` and `dcp.async_save`: each save is a version of `model`, whose ancestor is the save
    before. Tensors that did not change are not stored again. One job at a time saves a model.

    place    the repository: a folder, an address, or a Repository. The same for all ranks. A process that has a folder keeps it for the
             others until it ends.
    model    the name under which the checkpoint is stored. A `checkpoint_id` that is given to save() takes its place.
    step, metrics, tags   as Repository.put() takes them.

    `.version` is the newest checkpoint of this object, at the coordinator (rank 0); None elsewhere, before the first, and where
    another process saved. What is not stored whole raises, and is no version."""

    def __init__(self, place: Any, model: str, *, step: int = 0, metrics: Mapping[str, float] | None = None,
                 tags: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._place = place_of(place)
        self._model = self._named = model
        self._said: Dict[str, Any] = {"step": step, "metrics": metrics}
        self._tags = dict(tags or {})
        self._coordinates = True
        self._rank = 0
        self._own: Dict[str, np.ndarray] = {}
        self.version: Version | None = None

    def reset(self, checkpoint_id: Any = None) -> None:
        self._named = self._model if checkpoint_id is None else str(checkpoint_id)
        self._own = {}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, str) and bool(checkpoint_id)

    def storage_meta(self) -> None:
        return None

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise Unsupported("use_collectives=False: the ranks' shares are one version, so the ranks meet")
        self._coordinates = is_coordinator
        self._rank = int(kwargs.get("rank", 0 if is_coordinator else torch.distributed.get_rank()))
        self._repository = self._place.open()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        arrays: Dict[str, np.ndarray] = {}
        names = []
        for item in plan.items:
            name = _name_of(item)
            if name in arrays or name == _METADATA:
                raise InvalidArgument(f"tensor {name}: two pieces of the state have this name")
            arrays[name] = _array_of(name, item, planner)
            names.append(name)
        part = ""
        if self._coordinates:
            self._own = arrays  # Stored by finish(), with the metadata.
        elif arrays:
            model = f"{self._named}.rank{self._rank}"
            part = str(self._repository.put(model, arrays, ancestor=_newest(self._repository, model), dedup=True,
                                            tags={_PART_OF: self._named}))
        return _done([WriteResult(index=item.index, size_in_bytes=arrays[name].nbytes, storage_data=(part, name))
                      for item, name in zip(plan.items, names)])

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        stored = {one.index: one.storage_data for rank in results for one in rank}
        parts = sorted({part for part, _ in stored.values() if part})
        text = _to_json(metadata, stored)
        ancestor = _newest(self._repository, self._named)
        if ancestor is not None:  # In case that its save ended before it had pinned them all.
            _pin_parts(self._repository, ancestor)
        tags = {**self._tags, **({_PARTS: json.dumps(parts)} if parts else {})}
        self.version = self._repository.put(self._named, {**self._own, _METADATA: np.frombuffer(text, np.uint8)},
                                            ancestor=ancestor, tags=tags, dedup=True, **self._said)
        self._own = {}
        _pin_parts(self._repository, self.version)
        metadata.storage_data = stored
        for part in parts:
            _retire_what_was_left(self._repository, part, self._named)


def _parts_of(repository: Repository, version: Version) -> List[str]:
    """The shares of a checkpoint's other ranks. A tag alone makes none: whoever put the version may have written any. A share has
    its name from the checkpoint's model, says whose it is, and is pinned by the checkpoint, if by any."""
    try:
        told = json.loads(repository.tags(version).get(_PARTS, "[]"))
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, list):
        return []
    model = Version(version).model
    parts = []
    for part in told:
        if not isinstance(part, str) or not re.fullmatch(re.escape(model) + r"\.rank\d+@\d+", part):
            continue
        try:
            pins = repository.pins(part)
            is_its = str(version) in pins or not any(re.fullmatch(re.escape(model) + r"@\d+", holder) for holder in pins)
            if is_its and repository.tags(part).get(_PART_OF) == model:
                parts.append(part)
        except NotFound:
            continue  # Retired, or never there.
    return parts


def _pin_parts(repository: Repository, version: Version) -> None:
    for part in _parts_of(repository, version):
        if str(version) not in repository.pins(part):
            repository.pin(part, str(version), stays=True)


def _retire_what_was_left(repository: Repository, part: str, model: str) -> None:
    """What saves that never ended stored of the same rank: between this part and the one that the checkpoint before pins.
    Versions that somebody else put under this name stay."""
    for row in reversed(repository.versions(Version(part).model)):
        if row.retired or str(row.version) == part:
            continue
        if repository.pins(row.version) or repository.tags(row.version).get(_PART_OF) != model:
            return
        try:
            repository.retire(row.version)
        except FailedPrecondition:
            return  # Somebody just pinned it.


def retire_checkpoint(repository: Repository, version: str) -> None:
    """Retires a checkpoint with the shares of all its ranks. FailedPrecondition says who else pins it or a share, and then
    nothing is retired. Killed on the way, it leaves shares that the retired checkpoint pins: retire them by hand
    (`freshet repo unpin --by`)."""
    checkpoint = repository.lineage(version)[0].version  # What an alias means.
    parts = _parts_of(repository, checkpoint)
    for part in parts:
        others = [holder for holder in repository.pins(part) if holder != str(checkpoint)]
        if others:
            raise FailedPrecondition(f"{part}, a share of {checkpoint}, is pinned by {', '.join(others)}")
    repository.retire(checkpoint)
    for part in parts:
        repository.unpin(part, str(checkpoint))
        repository.retire(part)


def _name_of(item: WriteItem) -> str:
    """A piece is called by where it begins in its tensor; what is whole has the plain name."""
    fqn = item.index.fqn
    if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
        return fqn
    chunk = item.tensor_data.chunk
    if tuple(chunk.sizes) == tuple(item.tensor_data.size):
        return fqn
    return f"{fqn}[{','.join(str(offset) for offset in chunk.offsets)}]"


def _array_of(name: str, item: WriteItem, planner: SavePlanner) -> np.ndarray:
    data: Any = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        return np.frombuffer(data.getbuffer(), np.uint8)
    if _is_raw(data.dtype):
        if data.device.type == "meta" or data.layout is not torch.strided:
            raise InvalidArgument(f"tensor {name}: it has no bytes in this process")
        return data.detach().cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _to_numpy(name, data)


def _to_json(metadata: Metadata, stored: Mapping[MetadataIndex, Tuple[str, str]]) -> bytes:
    """No pickle: only what is listed here travels."""
    tensors: Dict[str, Any] = {}
    for fqn, one in metadata.state_dict_metadata.items():
        if isinstance(one, BytesStorageMetadata):
            tensors[fqn] = None
            continue
        of: Any = one.properties
        tensors[fqn] = {"dtype": str(of.dtype).removeprefix("torch."), "size": list(one.size),
                        "requires_grad": bool(of.requires_grad),
                        "strides": None if getattr(of, "strides", None) is None else list(of.strides),
                        "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in one.chunks]}
    planner = metadata.planner_data
    if planner is not None:
        if not isinstance(planner, Mapping) or not all(
                isinstance(key, str) and isinstance(path, (tuple, list)) and all(isinstance(step, (str, int)) for step in path)
                for key, path in planner.items()):
            raise Unsupported("this planner's data are not those of PyTorch's default planner, and would have to be pickled")
        planner = {key: list(path) for key, path in planner.items()}
    return json.dumps({"freshet_checkpoint": 1, "tensors": tensors, "planner": planner,
                       "stored": [[index.fqn, None if index.offset is None else list(index.offset), index.index, part, name]
                                  for index, (part, name) in stored.items()]}, separators=(",", ":")).encode()


def _from_json(text: bytes, version: str) -> Metadata:
    try:
        told = json.loads(text)
        if told["freshet_checkpoint"] != 1:
            raise Unsupported(f"{version}: its checkpoint has format {told['freshet_checkpoint']}; this Freshet reads 1")
        tensors: Dict[str, Any] = {}
        for fqn, one in told["tensors"].items():
            if one is None:
                tensors[fqn] = BytesStorageMetadata()
                continue
            dtype = getattr(torch, one["dtype"])
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"{one['dtype']} is not a dtype of tensors")
            strides: Dict[str, Any] = {"strides": tuple(one["strides"])} if one["strides"] is not None and any(
                field.name == "strides" for field in dataclasses.fields(TensorProperties)) else {}
            tensors[fqn] = TensorStorageMetadata(
                properties=TensorProperties(dtype=dtype, requires_grad=one["requires_grad"], **strides),
                size=torch.Size(one["size"]),
                chunks=[ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in one["chunks"]])
        planner = told["planner"]
        stored = {MetadataIndex(fqn, offset, index): (part or version, name)
                  for fqn, offset, index, part, name in told["stored"]}
        return Metadata(state_dict_metadata=tensors, storage_data=stored,
                        planner_data=None if planner is None else {key: tuple(path) for key, path in planner.items()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, Error):
            raise
        raise Corrupt(f"{version}: its tensor {_METADATA} cannot be read: {error}") from error


class StorageReader(_StorageReader):
    """For `dcp.load(state, storage_reader=…)`: a checkpoint that StorageWriter stored, by any number of ranks.

    place     as StorageWriter takes it.
    version   "net@3", or "net" for the newest. A `checkpoint_id` that is given to load() takes its place.
    weights_only   what is no tensor ("step", an optimizer's param_groups) was pickled by PyTorch when it was saved. It is unpickled
              as `torch.load(weights_only=True)` does: tensors, numbers, texts, their containers, and what
              `torch.serialization.add_safe_globals()` allows. Anything else is Unsupported, as whoever can write to the repository
              could run code in this process. False unpickles all: trust the writers as this program's own."""

    def __init__(self, place: Any, version: str, *, weights_only: bool = True) -> None:
        super().__init__()
        self._weights_only = bool(weights_only)
        self._place = place_of(place)
        self._version = self._named = str(version)
        self._read = ""
        self._stored: Mapping[MetadataIndex, Tuple[str, str]] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        self._named = self._version if checkpoint_id is None else str(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, str) and bool(checkpoint_id)

    def read_metadata(self) -> Metadata:
        self._repository = self._place.open()
        record = self._repository._core.record(self._named)  # Looked up once: "net" may mean another version soon.
        self._read = record.version()
        try:
            text = self._repository._get(record, [_METADATA])[_METADATA]
        except NotFound:
            raise FailedPrecondition(f"{self._read} is not a checkpoint of torch.distributed.checkpoint") from None
        self._metadata = _from_json(text.tobytes(), self._read)
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        self._stored = metadata.storage_data
        self._tensors = metadata.state_dict_metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, storage_data=self._read)

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        versions = sorted({plan.storage_data for plan in plans})
        if len(versions) > 1:
            raise Unavailable(f"a new version came while the ranks looked ({' and '.join(versions)}): load again, or name one")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        wanted: Dict[str, Dict[str, List[ReadItem]]] = {}
        for item in plan.items:
            if item.storage_index not in self._stored:
                raise Corrupt(f"{self._read}: nothing says where {item.storage_index} is stored")
            part, name = self._stored[item.storage_index]
            wanted.setdefault(part, {}).setdefault(name, []).append(item)
        for part, names in wanted.items():
            for batch in self._batches(names):
                for name, array in self._repository.get(part, tensors=batch).items():
                    for item in names[name]:
                        self._give(item, array, planner)
        return _done(None)

    def _batches(self, names: Mapping[str, List[ReadItem]]) -> Iterator[List[str]]:
        batch: List[str] = []
        size = 0
        for name, items in names.items():
            batch.append(name)
            size += self._bytes_of(items[0])
            if size >= _READ_AT_ONCE:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _chunk_of(self, index: MetadataIndex) -> Tuple[torch.dtype, torch.Size]:
        told: Any = self._tensors[index.fqn]
        for chunk in told.chunks:
            if index.offset is None or chunk.offsets == index.offset:
                return told.properties.dtype, chunk.sizes
        raise Corrupt(f"{self._read} has no piece {index}")

    def _bytes_of(self, item: ReadItem) -> int:
        if item.type == LoadItemType.BYTE_IO:
            return 1 << 16
        dtype, sizes = self._chunk_of(item.storage_index)
        return math.prod(sizes) * dtype.itemsize

    def _object_in(self, fqn: str, array: np.ndarray) -> io.BytesIO:
        """What planners unpickle without looking: the object's own bytes only when asked for, else those of its copy."""
        stored = io.BytesIO(array.tobytes())
        if not self._weights_only:
            return stored
        try:
            told = torch.load(stored, map_location="cpu", weights_only=True)
        except Exception as error:  # Each way of damaging a pickle has an exception of its own.
            reason = next((line for line in str(error).split("\n") if "Unpickler error" in line), "no pickle of PyTorch").strip()
            raise Unsupported(f"{self._read}: {fqn!r} is no plain object, or damaged ({reason}); "
                              f"StorageReader(…, weights_only=False) unpickles it, which runs what its writer stored") from None
        copy = io.BytesIO()
        torch.save(told, copy)
        copy.seek(0)
        return copy

    def _give(self, item: ReadItem, array: np.ndarray, planner: LoadPlanner) -> None:
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, self._object_in(item.storage_index.fqn, array))
            return
        dtype, sizes = self._chunk_of(item.storage_index)
        stored = _from_numpy(array)
        if _is_raw(dtype):
            stored = stored.view(dtype).reshape(sizes)
        if stored.shape != sizes or stored.dtype != dtype:
            raise Corrupt(f"{self._read}: tensor {item.storage_index.fqn} is stored as {stored.dtype} {tuple(stored.shape)}, "
                          f"and was {dtype} {tuple(sizes)}")
        for axis, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths)):
            stored = stored.narrow(axis, offset, length)
        target = planner.resolve_tensor(item).detach()
        if target.shape != stored.shape:
            raise FailedPrecondition(f"tensor {item.dest_index.fqn}: {self._read} has {tuple(stored.shape)} for a place of "
                                     f"{tuple(target.shape)}")
        target.copy_(stored)
        planner.commit_tensor(item, target)
