# SPDX-License-Identifier: Apache-2.0
"""The tensors of a PyTorch module that lie on GPUs: copies of versions into them, on PyTorch's current streams."""
from __future__ import annotations

import logging
from typing import Any, Dict, List, Mapping, Set, Tuple

import torch

from . import _core
from ._errors import Error, Unsupported
from .subscriber import Snapshot

_log = logging.getLogger("freshet")
_DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
           torch.float8_e4m3fn: "f8_e4m3", torch.float8_e5m2: "f8_e5m2", torch.int64: "i64", torch.int32: "i32",
           torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool"}
_DTYPES.update({getattr(torch, theirs): ours for theirs, ours in (("uint16", "u16"), ("uint32", "u32"), ("uint64", "u64"))
                if hasattr(torch, theirs)})


def _device_of(tensor: torch.Tensor) -> Any:
    """The NVIDIA device that has the tensor's memory; None: PyTorch copies."""
    is_plain = tensor.layout is torch.strided and tensor.dtype in _DTYPES and tensor.is_contiguous() and not tensor.is_neg()
    return tensor.device if is_plain and tensor.device.type == "cuda" and torch.version.hip is None else None


def _open(device: Any) -> Any:
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        raise Unsupported(f"PyTorch {torch.__version__} does not tell a device's UUID")
    return _core.Device.open(str(uuid))


def _stream_of(device: Any) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def _is_capturing() -> bool:
    """Whether this thread records a CUDA graph: what is queued then runs again with each replay."""
    return torch.cuda.is_current_stream_capturing()


def _synchronize(device: Any) -> None:
    torch.cuda.synchronize(device)


class _Table:
    """The tensors on one device, at the addresses that they had when it was made."""

    def __init__(self, opened: Any, named: Mapping[str, torch.Tensor]) -> None:
        self.addresses = {name: tensor.data_ptr() for name, tensor in named.items()}
        self.writes = {name: _writes_of(tensor) for name, tensor in named.items()}
        rows = [(name, _DTYPES[tensor.dtype], list(tensor.shape), tensor.data_ptr()) for name, tensor in named.items()]
        self.core = _core.DeviceTensors.bind(opened, rows)

    def forget_written(self, named: Mapping[str, torch.Tensor]) -> None:
        """Those that the program wrote: their owner is not what the table knows. PyTorch counts no writes of inference tensors."""
        for name, tensor in named.items():
            if tensor.is_inference():
                self.core.forget(name)
                continue
            writes = _writes_of(tensor)
            if writes != self.writes[name]:
                self.writes[name] = writes
                self.core.forget(name)


class DeviceCopies:
    """One thread at a time."""

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._named = named
        self._tables: Dict[Any, _Table] = {}
        self._not_ours: Dict[Any, bool] = {}  # Devices whose tensors PyTorch copies.
        self._failed_half_way = False  # The tensors are of several versions.
        self._bind()

    def _bind(self) -> None:
        """A table for each device; a new one where addresses changed since."""
        on: Dict[Any, Dict[str, torch.Tensor]] = {}
        for name, tensor in self._named.items():
            device = _device_of(tensor)
            if device is not None and device not in self._not_ours:
                on.setdefault(device, {})[name] = tensor
        for device in [device for device in self._tables if device not in on]:
            self._drop(device)
        for device, named in on.items():
            table = self._tables.get(device)
            if table is not None and table.addresses == {name: tensor.data_ptr() for name, tensor in named.items()}:
                continue
            self._drop(device)
            try:
                self._tables[device] = _Table(_open(device), named)
            except Error as error:
                self._not_ours[device] = True
                _log.warning("PyTorch copies versions to %s, slowly, and the forward waits for it: %s", device, error)

    def _drop(self, device: Any) -> None:
        table = self._tables.pop(device, None)
        if table is not None:
            _synchronize(device)  # No stream may use the new addresses while older work has them.
            table.core.close()

    def prepare(self, snapshot: Snapshot) -> None:
        for table in self._tables.values():
            table.core.prepare(snapshot._here())

    def refresh(self, snapshot: Snapshot) -> List[str]:
        """Queues the copies, and names the tensors that are left to PyTorch."""
        self._bind()
        copied: Set[str] = set()
        try:
            for device, table in self._tables.items():
                named = {name: self._named[name] for name in table.addresses}
                table.forget_written(named)
                table.core.refresh(snapshot._here(), _stream_of(device))
                copied.update(named)
        except BaseException:
            self._failed_half_way = self.is_mixed or len({table.core.version() for table in self._tables.values()}) > 1
            raise
        self._failed_half_way = False
        return [name for name in self._named if name not in copied]

    def use(self) -> None:
        """What the current streams get from now on runs after the last refresh, and before the next."""
        if self._tables and not _is_capturing():
            for device, table in self._tables.items():
                table.core.use(_stream_of(device))

    def forget(self) -> None:
        """The program wrote tensors in a way that PyTorch does not count: the next refresh copies all."""
        for table in self._tables.values():
            table.core.forget(None)

    @property
    def is_mixed(self) -> bool:
        """Some tensors are not of the version: a refresh failed half-way, or the GPU found a wrong result after one."""
        return self._failed_half_way or any(table.core.is_mixed() for table in self._tables.values())

    @property
    def may_refresh(self) -> bool:
        return not self._tables or not _is_capturing()

    def close(self) -> None:
        for table in self._tables.values():
            table.core.close()
        self._tables = {}


def _writes_of(tensor: torch.Tensor) -> int:
    """How often PyTorch wrote the tensor in place, but for writes to `.data`."""
    return 0 if tensor.is_inference() else tensor._version


def mode_for(named: Mapping[str, torch.Tensor]) -> str:
    """Nothing can be swapped in on a GPU. On `meta` nothing can be had at all, which "swap" says."""
    return "swap" if all(tensor.device.type in ("cpu", "meta") for tensor in named.values()) else "copy"


def copies_for(named: Mapping[str, torch.Tensor]) -> DeviceCopies | None:
    """None for a module without tensors on a GPU."""
    return DeviceCopies(named) if any(_device_of(tensor) is not None for tensor in named.values()) else None


__all__: Tuple[str, ...] = ("DeviceCopies", "copies_for", "mode_for")
