# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of jobs with many ranks."""
from __future__ import annotations

import contextlib
import logging
import math
import re
import threading
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Sequence

import numpy as np

from . import _core
from ._arrays import _name_of, bytes_of, check_name, described, empty_of, in_place, shown, to_numpy
from ._device_arrays import OnDevice, is_torchs_on_gpu, on_device
from ._dlpack import keep_until
from ._errors import Error, FailedPrecondition, InvalidArgument
from ._handles import Handle, all_or_nothing
from ._numbers import whole

_log = logging.getLogger("freshet")


@dataclass(frozen=True)
class CheckpointTensor:
    """A whole tensor of a job's state, and who holds what of it.

    `layout`: "replicated" (every rank holds all of it), "split:A" (of axis A's d rows rank r has those from r*c to
    (r+1)*c, c = ceil(d/ranks)), "on:R" (rank R modulo ranks holds it), "own" (each rank has one of its own), "from:R"
    (every rank holds all of it; rank R modulo ranks stores its values, and every rank gets those back). `role`: "weight",
    "buffer", "optimizer" or "opaque"; a server takes the first two.
    """
    dtype: str
    shape: tuple[int, ...]
    layout: str = "replicated"
    role: str = "weight"


@dataclass(frozen=True)
class Restored:
    """What a job goes on from."""
    version: int
    step: int
    levels: tuple[str, ...]  # Where this rank's bytes came from: "memory", "local", "group", "external".
    rebuilt_bytes: int
    fresh: tuple[str, ...]  # Tensors that the version does not have for this rank; they are as they were.
    notes: tuple[str, ...]  # What was passed over, and why.
    left: tuple[str, ...] = ()  # Tensors of the version that no rank of this job holds; later versions lack them.


@dataclass(frozen=True)
class Captured:
    """What a rank captured: the loop stood still for `blocked` seconds, `bytes` of its share had changed."""
    version: int
    blocked: float
    bytes: int


class Checkpointer(Handle):
    """Checkpoints a job of N ranks for one copy of each rank's share; other ranks go on from them.

        tensors = {"w": w, "rng": freshet.CheckpointTensor("u64", (4,), layout="own", role="opaque")}
        with freshet.Checkpointer("net", tensors, local=["/scratch/ck"], external="runs/") as ck:
            restored = ck.restore(state)                    # collective; fills the arrays of `state`
            for step in range(restored.step + 1 if restored else 1, steps):
                train(state)
                if step % 10 == 0:
                    ck.checkpoint(step, state)              # or begin(), capture() layer by layer, end()
            ck.finish()                                     # collective

    `tensors`: by name, an array that every rank holds whole, of a dtype that publish() takes, or a CheckpointTensor.
    `local`: folders, the first is written, all are read. `external`: a repository's folder or address. `group`: with
    "partner" each rank keeps a copy of another host's shards, with "xor" or "rs:F" parity, so that one host or any F
    may be lost; `host` is what this rank's host is called (default: the machine's name). `rank`, `ranks` and `meet`
    ("tcp://HOST:PORT", where rank 0 listens) are what mpirun, srun or torchrun put into the environment where `rank`
    and `ranks` are not given. These two go together; who gives them for several ranks gives `meet`, too. `job` is the
    job's name: ranks of two jobs do not meet (default: as mpirun, srun or torchrun name it). `keep`: versions by
    level, as {"local": 2}. `when_behind`: "skip" passes versions over where a level is behind, "wait" lets the loop
    wait. `patience`: seconds for peers to come. `lost_after`: seconds of silence after which a peer is lost; it
    is lost at once when its process ends. `external_server_key`: the public key of the provider at `external`.
    `on_reached(version, step, level)` is called on a thread of its own, version by version; what it raises is logged.
    docs/checkpoints.md says what each level survives.

    Raises InvalidArgument (a bad tensor; ranks started unlike each other), AlreadyExists (the folder is another
    process's), Unavailable (peers that do not come, or are lost). Ctrl-C ends the wait for peers. begin(), capture(),
    wait_for_copies(), end(), checkpoint(), restore() and finish() are for one thread at a time.

    Tensors in an NVIDIA GPU's memory (PyTorch's, JAX's, and what has `__cuda_array_interface__`) are copied behind the loop, which does
    not wait for the GPU: a version has the values that the current stream had queued when capture() was called, and what this stream does
    later comes after the copy.
    """

    _test_gpus: Any = None  # The package's tests have devices without a GPU.

    @all_or_nothing
    def __init__(self, model: str, tensors: Mapping[str, Any], *, local: str | Sequence[str], rank: int | None = None,
                 ranks: int | None = None, meet: str = "", job: str = "", host: str = "", external: str = "",
                 group: str = "none", when_behind: str = "skip", keep: Mapping[str, int] | None = None,
                 limit_mib_s: float = 0, patience: float = 30, lost_after: float = 10, keys: str = "", allow: str = "",
                 server_key: str = "", external_server_key: str = "",
                 on_reached: Callable[[int, int, str], Any] | None = None) -> None:
        self.model = model
        given = [self._given(name, value) for name, value in tensors.items()]
        folders = [local] if isinstance(local, str) else [str(folder) for folder in local]
        kept = [(level, whole(count, f"keep[{level!r}]")) for level, count in (keep or {}).items()]
        self._caller: threading.Thread | None = None
        self._core = core = _core.Checkpointer.open(
            model=model, tensors=given, local=folders, rank=rank, ranks=ranks, meet=meet, job=job, host=host, external=str(external),
            group=group, when_behind=when_behind, keep=kept, limit_mib_s=float(limit_mib_s), patience=float(patience), keys=keys,
            allow=allow, server_key=server_key, external_server_key=external_server_key, lost_after=lost_after,
            calls=on_reached is not None, gpus=self._test_gpus)
        self._version = 0
        self._kept: list[Any] = []  # What copies out of GPUs' memory read, of the version that was begun last.
        self._opened()
        if on_reached is not None:
            caller = threading.Thread(target=_call, args=(core, on_reached), name="freshet-reached", daemon=True)
            caller.start()
            self._caller = caller
        self._index = {one[0]: i for i, one in enumerate(given)}
        self._dtypes = [one[1] for one in given]
        self._shapes: list[tuple[int, ...] | None] = []
        for one in given:
            shape, elsewhere = _core.held_shape(one, core.ranks(), core.rank())
            self._shapes.append(None if elsewhere else tuple(shape))
        self._stored = [core.stored(at) for at in range(len(given))]

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._core.rank()

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self._core.ranks()

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that this job has, in order."""
        return tuple(self._core.levels())

    def held(self, name: str) -> tuple[int, ...] | None:
        """The shape of what this rank holds of a tensor; None when another rank has it."""
        return self._shapes[self._at(name)]

    def restore(self, tensors: Mapping[str, Any], version: int | None = None, *, anew: bool = False,
                allow_left: bool = False) -> Restored | None:
        """Fills the arrays of `tensors` with what this rank holds of the newest version that all folders and the
        repository can complete, or of `version`; every byte is proved. None: there is no version, or `anew`; the arrays
        are as they were. PyTorch's tensors on a GPU are filled, too; for other arrays there, give arrays of the host's memory. Collective.
        A job calls it before the first begin(); it may call it again later, to go back.

        Raises Corrupt when something was acknowledged and nothing can be completed, FailedPrecondition when shapes or
        types differ, and when the version has a tensor that no rank takes while it lacks one of this job's, which may be
        the same under a new name (`allow_left` goes on: `Restored` has both lists), NotFound for a version that is not there.
        """
        arrays: list[np.ndarray] = []
        strided: list[tuple[np.ndarray, np.ndarray]] = []
        on_gpu: list[tuple[str, np.ndarray]] = []
        for name, at in self._index.items():
            shape = self._shapes[at]
            if shape is None:
                arrays.append(np.empty(0, np.uint8))
                continue
            if is_torchs_on_gpu(tensors.get(name)):
                from ._torch_on_device import form_of
                self._check_form(name, at, form_of(tensors[name], name))
                on_gpu.append((name, empty_of(self._dtypes[at], shape)))
                arrays.append(bytes_of(on_gpu[-1][1]))
                continue
            array = self._array(tensors, name, in_place)
            if not array.flags.writeable:
                raise InvalidArgument(f"tensor {name}: its array is read-only")
            if not array.flags.c_contiguous:
                strided.append((array, np.ascontiguousarray(array)))
                array = strided[-1][1]
            arrays.append(bytes_of(array))
        found = self._core.restore(arrays, version, anew, allow_left)
        if found is None:
            return None
        for array, copy in strided:
            np.copyto(array, copy)
        for name, copy in on_gpu:
            if not {name, f"{name}.r{self.rank}"} & set(found["fresh"]):
                from ._torch_on_device import fill
                fill(tensors[name], copy)
        return Restored(found["version"], found["step"], tuple(found["from"]), found["rebuilt_bytes"],
                        tuple(found["fresh"]), tuple(found["notes"]), tuple(found["left"]))

    def begin(self, step: int) -> int:
        """Begins the version of a step, and returns its number. All ranks checkpoint the same steps. OutOfSpace: the
        levels are so far behind that no memory is free, or two versions are not copied from a GPU yet; the step has no checkpoint."""
        self._version = self._core.begin(whole(step, "step"))
        return self._version

    def capture(self, tensors: Mapping[str, Any], *, beside: bool = False) -> None:
        """Copies what this rank stores of these tensors; when it returns, they may change. Call it for each layer as
        soon as its update is done. Tensors that another rank holds may be left out.

        beside  a thread of the checkpointer copies while the next layer computes. The program must not change these
                tensors until end(), or wait_for_copies() of their names, returns. Tensors on a GPU may change at once, in their stream's
                order, in both cases."""
        capture = self._core.capture_beside if beside else self._core.capture
        here: dict[str, Any] = {}
        placed: list[tuple[int, OnDevice]] = []
        for name, value in tensors.items():
            at = self._at(name)
            if self._shapes[at] is None:
                continue
            one = on_device(value, name, self._test_gpus is not None, self._stored[at])
            if one is None:
                here[name] = value
                continue
            self._check_form(name, at, (_name_of(one.dtype, name), one.shape))
            placed.append((at, one))
        if placed:  # They are copied while the processor copies the others.
            self._kept.extend(one.kept for _, one in placed)
            self._core.capture_on_gpus([(at, one.address, one.dtype.itemsize * math.prod(one.shape), one.device, one.current())
                                        for at, one in placed])
        for name, value in here.items():
            capture(self._at(name), bytes_of(np.ascontiguousarray(self._array({name: value}, name))))

    def wait_for_copies(self, names: Iterable[str]) -> None:
        """Returns when no copy of these tensors is under way: they may change."""
        for name in names:
            self._core.wait_for_copy(self._at(name))

    def end(self) -> Captured:
        """Ends the version, when the copies beside the loop are done: the loop may go on. FailedPrecondition names a
        tensor that was not captured."""
        for at, shape in enumerate(self._shapes):
            if shape is None:
                self._core.capture(at, np.empty(0, np.uint8))
        try:
            captured = self._core.end()
        finally:
            kept, self._kept = self._kept, []
            copies = self._core.copies() if kept else None
            if copies is not None:
                keep_until(copies.wait, self._version, kept)
        return Captured(captured["version"], captured["blocked"], captured["bytes"])

    def checkpoint(self, step: int, tensors: Mapping[str, Any]) -> Captured:
        """begin(), capture() and end() at once."""
        missing = [name for name, at in self._index.items() if self._shapes[at] is not None and name not in tensors]
        if missing:
            raise FailedPrecondition(f"tensor {missing[0]} is missing")
        self.begin(step)
        try:
            self.capture({name: tensors[name] for name in self._index if name in tensors})
        except Exception:
            with contextlib.suppress(Error):  # The version fails at all ranks, for the reason that is raised here.
                self.end()
            raise
        return self.end()

    def poll(self, version: int, level: str) -> bool:
        """Whether the version reached the level; its error when it failed there."""
        return self._core.poll(whole(version, "version"), level)

    def wait(self, version: int, level: str, timeout: float | None = None) -> None:
        """Returns when the version reached the level. TimedOut after `timeout` seconds; the version's error."""
        self._core.wait(whole(version, "version"), level, timeout)

    def events(self) -> list[dict]:
        """What happened since the last call (the newest 4096): {"event": "reached" or "failed", "version", "step", "level", "seconds",
        "error"}, or {"event": "lost", "peers", "error"}."""
        return self._core.events()

    def finish(self, timeout: float | None = None) -> None:
        """Collective, the last call: waits until each version has ended at each level and was told to `on_reached`, then
        lets the ranks go. If no folder has the last version that end() or checkpoint() returned, this raises the version's error
        then: OutOfSpace for a full disk, for example."""
        self._core.finish(timeout)
        self._end_calls()
        self._core.check_stored()

    def close(self) -> None:
        """Ends it; later calls are FailedPrecondition. Another thread's call that waits ends with Cancelled. Closing twice does
        nothing."""
        super().close()
        self._kept = []
        self._end_calls()

    def _end_calls(self) -> None:
        self._core.end_news()
        caller, self._caller = self._caller, None
        if caller is not None and caller is not threading.current_thread():
            caller.join()

    def _at(self, name: str) -> int:
        if name not in self._index:
            raise InvalidArgument(f"this job has no tensor {name!r}")
        return self._index[name]

    def _array(self, tensors: Mapping[str, Any], name: str, convert: Callable[[Any, str], np.ndarray] = to_numpy) -> np.ndarray:
        at = self._at(name)
        if name not in tensors:
            raise InvalidArgument(f"tensor {name} is missing")
        array = convert(tensors[name], name)
        self._check_form(name, at, described(array, name))
        return array

    def _check_form(self, name: str, at: int, came: tuple[str, tuple[int, ...]]) -> None:
        held = self._dtypes[at], self._shapes[at] or ()
        if came != held:
            raise InvalidArgument(f"tensor {name}: {shown(*came)} came, this rank holds {shown(*held)}")

    def _given(self, name: Any, value: Any) -> tuple[str, str, list[int], str, str]:
        check_name(name)
        if isinstance(value, CheckpointTensor):
            return name, value.dtype, [whole(extent, f"an extent of {name}") for extent in value.shape], value.role, \
                value.layout
        one = on_device(value, name, self._test_gpus is not None, (0, 0))
        dtype, shape = described(to_numpy(value, name), name) if one is None else (_name_of(one.dtype, name), one.shape)
        return name, dtype, list(shape), "weight", "replicated"


def _call(core: Any, on_reached: Callable[[int, int, str], Any]) -> None:
    while (reached := core.next_reached()) is not None:
        try:
            on_reached(*reached)
        except Exception:
            _log.exception("on_reached%s", reached)


def left_besides(left: Sequence[str], own: Iterable[str]) -> list[str]:
    """Of `Restored.left`, the tensors that are not a vanished rank's own one of these names."""
    own = set(own)
    return [name for name in left if re.sub(r"\.r\d+$", "", name) not in own]
