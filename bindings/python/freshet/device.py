# SPDX-License-Identifier: Apache-2.0
"""A server's tensors in a GPU's memory, which copies from snapshots keep fresh."""
from __future__ import annotations

from typing import Any, List, Mapping, Tuple

from . import _core
from ._arrays import _name_of, check_name
from ._device_arrays import interface_of
from ._errors import InvalidArgument, check_type
from ._handles import Closing
from ._numbers import whole
from .subscriber import Snapshot

_left: List[Any] = []  # Arrays that copies still write.


class DeviceTensors(Closing):
    """Tensors of yours in a GPU's memory, by the names that the model gives them: refresh() copies a version into them.

        tensors = freshet.DeviceTensors({"w": w}, device="GPU-3f2a…")   # w: a CuPy, Numba or PyTorch array
        ...
        with sub.snapshot() as snapshot:
            tensors.refresh(snapshot, stream=stream)                    # between two forwards; does not wait for the copies

    tensors   objects with `__cuda_array_interface__`, each in one piece. They are kept as long as this is, and their addresses
              stay, so CUDA graphs go on with the new values.
    device    the GPU's UUID, as `nvidia-smi -L` prints it. None: the machine has one GPU.

    Streams are numbers (`cudaStream_t`): 0 is the default stream. All calls: Unavailable without a driver of release 580 or
    later, FailedPrecondition where the device is lost or this was closed. Any thread."""

    def __init__(self, tensors: Mapping[str, Any], device: str | None = None) -> None:
        check_type("DeviceTensors(tensors)", tensors, Mapping)
        rows = [_row(check_name(name), value) for name, value in tensors.items()]
        self._core = _core.DeviceTensors.bind(_core.Device.open(device or ""), rows)
        self._kept: Any = dict(tensors)

    def refresh(self, snapshot: Snapshot, stream: int = 0) -> int:
        """Queues copies on `stream` of the tensors that another version wrote than the device has, and says how many these are. What
        the streams of use() have queued runs before them. The version stays pinned until the copies are done.

        FailedPrecondition names the tensor that the version lacks, or has in another type or shape; then nothing was copied. After
        another error `mixed` tells whether some tensors are of that version, until the next refresh has succeeded."""
        check_type("refresh(snapshot, …)", snapshot, Snapshot)
        return self._core.refresh(snapshot._here(), whole(stream, "stream"))

    def prepare(self, snapshot: Snapshot) -> None:
        """Registers the version's memory with the driver, which the first refresh() does otherwise: about 0.2 seconds a GiB, once."""
        check_type("prepare(snapshot)", snapshot, Snapshot)
        self._core.prepare(snapshot._here())

    def use(self, stream: int = 0) -> None:
        """To be called before a forward: what `stream` gets from now on runs after the last refresh(), and before the next one.

        The stream must stay until a refresh() after the call has copied something, or until close(); take it from a pool. OutOfSpace
        where 1024 streams wait for such a refresh. InvalidArgument for a stream that is none of the device's."""
        self._core.use(whole(stream, "stream"))

    def forget(self, name: str | None = None) -> None:
        """Somebody else wrote that tensor, or all of them: the next refresh() copies them again."""
        self._core.forget(None if name is None else check_name(name))

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the copies are done. TimedOut."""
        self._core.wait(timeout)

    @property
    def version(self) -> int:
        """The version whose copies were all queued; 0: none."""
        return self._core.version()

    @property
    def mixed(self) -> bool:
        """A refresh failed amid its copies: do not compute with the tensors before the next one has succeeded."""
        return self._core.is_mixed()

    def close(self) -> None:
        """Waits up to half a minute for the copies, and lets go of the tensors. If that was too short, the tensors stay until the
        process ends, as the copies still write them; the log says so."""
        kept = self._kept
        if not self._core.close():
            _left.append(kept)
        self._kept = None

    def __del__(self) -> None:
        if hasattr(self, "_kept"):
            self.close()  # Before Python gives the arrays back.


def _row(name: str, value: Any) -> Tuple[str, str, List[int], int]:
    """Name, type, shape and address, as the array's interface tells them."""
    told = interface_of(value, name)
    if told.is_read_only:
        raise InvalidArgument(f"tensor {name}: its array is read-only")
    if told.fault:
        raise InvalidArgument(told.fault)
    return name, _name_of(told.dtype, name), list(told.shape), told.address
