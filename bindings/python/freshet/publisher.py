# SPDX-License-Identifier: Apache-2.0
"""The training loop's side."""
from __future__ import annotations

import logging
import os
import time
from typing import Any, Callable, Iterable, Mapping

from . import _core
from ._arrays import Gathered, check_name
from ._dlpack import keep_until
from ._errors import AlreadyExists, Error, FailedPrecondition, InvalidArgument, OutOfSpace
from ._graph import GraphLike, graph_of, pairs_of
from ._handles import Handle, all_or_nothing, is_open_here, told_with
from ._numbers import real, whole
from ._html import table

Receipt = _core.Receipt
_LINGER_MAX = 1.0   # Seconds that close() waits for subscribers at most.
_NEWCOMERS = 0.25   # A subscriber that waited for the publisher has found it after so many seconds.
_LOOK = 0.002
_log = logging.getLogger("freshet")


def path_of(path: "str | os.PathLike[str] | None") -> str:
    return "" if path is None else os.fspath(path)


class Publisher(Handle):
    """Copies tensors into memory that servers map, and announces them as a new version.

        with freshet.Publisher("digits") as pub:
            pub.publish({"w": w}, step=1, metrics={"loss": 2.3})

    model           its name; AlreadyExists when a living process of this host publishes under it.
    listen          address for other hosts, "tcp://*:7070" (needs `keys` and `allow`, names of files).
    channels        data channels for other hosts: "auto", "none", or kinds with commas ("nccl,zmq").
    trusted_fabric  you trust everybody on the network: tensors may go over it unencrypted, by ucx and nccl (docs/security.md).
    directory       a folder of this host, "redis://…", or None for the default.
    graph           the architecture: a dictionary, a graph file's text or path; None guesses a chain of layers.
    keep_versions   so many of the last versions can be rolled back to; 0: one, two with `listen`.
    group_commit    subscribers that were opened `staged` get each version together.
    arena_copies    memory that is taken before a publish needs it, in copies of the model: 1 to 64. The first publish takes one
                    copy, and the others as far as versions change the model: a tenth of each, if `changed=` names a tenth. More
                    is taken when a version needs it, which takes that publish longer. 1 takes nothing ahead.
    device_memory   versions of tensors on a GPU have a second copy in its memory, which servers on the same GPU read: how much they
                    may take, in bytes (a whole number) or in copies of the model (a float, 1.0 to 64.0; 2.0 is enough where servers
                    keep up). None: nothing. A version that finds no room there is in host memory alone, and
                    stat()["device_memory_why"] says why. Other programs of this user can write such memory (docs/security.md).
    resume          (repository, "m" or "m@3"): the lineage goes on from there; what was restored is `resumed`.

    Tensors in an NVIDIA GPU's memory (PyTorch's, and what has `__cuda_array_interface__`) are copied behind the loop, which waits
    for nothing: a version has the values that the current stream had queued at the call, and what this stream does later comes
    after the copy.

    Any thread; after a fork each call of the child is FailedPrecondition.
    """

    _test_gpus: Any = None  # The package's tests have devices without a GPU.

    @all_or_nothing
    def __init__(self, model: str, *, listen: str | None = None, keys: str | None = None, allow: str | None = None,
                 channels: str = "auto", directory: str | None = None, graph: GraphLike | None = None,
                 keep_versions: int = 0, group_commit: bool = False, resume: Any = None,
                 arena_copies: float = 3.0, device_memory: int | float | None = None, trusted_fabric: bool = False) -> None:
        self.model = model
        copies = real(arena_copies, "arena_copies")
        device_bytes, device_copies = _device_memory(device_memory)
        self._training: Any = None  # What freshet.torch.publish() knows of the loop.
        self.resumed = None
        record = None
        if resume is not None:
            repository, version = resume
            self.resumed = repository.resume(version)
            record = self.resumed._record
        given = graph_of(graph)
        architecture = given or (record.graph() if record is not None else None)
        self._graph: Any = architecture
        self._begun: Bound | None = None  # Whose version is captured in parts.
        self._order: list[str] | None = architecture.tensor_names() if architecture is not None else None
        self._last = 0  # The last version that publish() told of.
        self._said_skipped = False
        self._skipped_graph: Any = None  # The architecture that came with a version for which there was no room.
        try:
            self._core = _core.Publisher.open(model, path_of(listen), path_of(keys), path_of(allow), channels,
                                              path_of(directory), given, keep_versions, group_commit, copies, device_bytes,
                                              device_copies, trusted_fabric, record, self._test_gpus)
        except AlreadyExists as error:
            if not is_open_here(Publisher, model):
                raise
            raise AlreadyExists(f"{error}, which is this program itself: it has an open publisher of {model}. Close that one first "
                                f"(close(), or open it in a with block); in a notebook, a cell that runs twice opens two") from None
        self._opened()
        self._since = time.monotonic()

    def _described(self) -> str:
        return f" of {self.model}, {f'last @{self._last}' if self._last else 'nothing published yet'}"

    def publish(self, tensors: Mapping[str, Any], *, step: int = 0, metrics: Mapping[str, float] | None = None,
                tags: Mapping[str, str] | None = None, changed: Any = None, graph: GraphLike | None = None,
                sync: bool = False, roles: Mapping[str, str] | None = None) -> Receipt:
        """Copies `tensors` and returns a receipt with `.version` (its number) and `.blocked` (seconds); the version
        follows in the background. Where readers hold so much memory that there is no room for it, the version is skipped, and
        the loop goes on: `.version` is None, `.skipped` says why and which reader holds what, the log says so once, and the
        next publish takes the changes along. So it is where tensors lie in a GPU's memory, and two versions before are still on their way.

        tensors   every tensor of the model: NumPy arrays, buffers, or whatever speaks DLPack, of any strides.
        changed   None finds out which changed; "all"; or names: others are not looked at.
        graph     the tensors have this architecture from now on.
        sync      returns once the version exists.
        roles     what tensors are for, where no graph says it: "weight" (all that are not named), "buffer", "optimizer" or
                  "opaque". Servers take the first two, repositories all.

        InvalidArgument names the tensor that is no array of numbers; FailedPrecondition the one of another shape or
        name than the model has.
        """
        bound = self.bind(tensors, roles)
        bound._fresh = True
        return bound.publish(step=step, metrics=metrics, tags=tags, changed=changed, graph=graph, sync=sync)

    def bind(self, tensors: Mapping[str, Any], roles: Mapping[str, str] | None = None) -> "Bound":
        """The same arrays for many publishes: names and shapes are looked at once. Their contents may change between
        publishes, their memory stays. `roles` as publish() takes them."""
        return Bound(self, tensors, roles)

    def _through(self, publish: Callable[[], Receipt]) -> Receipt:
        """What `publish` answers, or the receipt of a version for which there was no room."""
        begin = time.monotonic()
        try:
            receipt = publish()
        except OutOfSpace as error:
            return self._skipped(error, time.monotonic() - begin)
        if receipt.version is not None:
            self._last = receipt.version
        return receipt

    def _skipped(self, error: OutOfSpace, blocked: float) -> Receipt:
        if "not sealed yet" in str(error):  # The loop is ahead, and no reader can help it.
            return self._told_skipped(f"the loop is ahead of its versions: {error}", blocked)
        held = []
        for one in self._core.stat()["subscribers"]:
            numbers = ", ".join(f"@{number}" for number in one["held"])
            if numbers:
                held.append(f"{one['label'] or 'a reader'} (pid {one['pid']}) holds {numbers}")
        who = "; ".join(held) or "no reader that is connected holds a version"
        why = (f"there is no room for a version: {error}. {who}. Drop arrays and snapshots of older versions in the readers, or "
               f"end a reader; the next publish takes the changes along")
        return self._told_skipped(why, blocked)

    def _told_skipped(self, why: str, blocked: float) -> Receipt:
        if not self._said_skipped:
            self._said_skipped = True
            _log.warning("%s: a version was skipped: %s. This is said once; receipts have `.skipped`", self.model, why)
        return Receipt.without_room(blocked, why)

    def wait_committed(self, version: int, timeout: float | None = None) -> dict:
        """Waits until that version exists; what it came to, with C++'s names. TimedOut, NotFound."""
        with told_with(lambda: self.model):
            return self._core.wait_committed(whole(version, "version"), timeout)

    def rollback(self, version: int) -> dict:
        """Makes an older version current, and holds it until release(). NotFound when it is not kept any more."""
        if whole(version, "version") < 1:
            raise InvalidArgument("a rollback needs a version to go back to")
        return self._core.activate(version, True)

    def release(self) -> dict:
        """Lets go of a hold: the newest version becomes current."""
        return self._core.activate(0, False)

    def stat(self) -> dict:
        """How it stands, and its subscribers, with C++'s names; times are seconds."""
        return self._core.stat()

    def _repr_html_(self) -> str:
        if self.closed:
            return table(f"the publisher of {self.model}, closed", [], [])
        stat = self.stat()
        shown = ("label", "pid", "serving", "held", "channel", "gaps")
        return table(f"{stat['model']}@{stat['newest']}: {stat['versions_published']} versions, "
                     f"{stat['model_bytes']} bytes, {stat['versions_skipped']} skipped",
                     shown, [[one[key] for key in shown] for one in stat["subscribers"]])

    def close(self) -> None:
        """Ends it; later calls are FailedPrecondition. Waits until the last version exists and, for a second at most, until the
        subscribers that are connected serve it. One that waited for this publisher to begin has a quarter of a second from then
        on to connect. Closing twice does nothing."""
        try:
            self._linger()
        finally:
            self._core.close()

    def __exit__(self, kind: Any, *_: Any) -> None:
        """As close(); where the block raised, nobody is waited for."""
        if kind is None:
            self.close()
        else:
            self._core.close()

    def _end_with_program(self) -> None:
        self._core.close()

    def _linger(self) -> None:
        if self._last == 0 or self.closed:
            return
        end = time.monotonic() + _LINGER_MAX
        seen = False
        try:
            while time.monotonic() < end:
                stat = self._core.stat()
                subscribers = [one for one in stat["subscribers"] if not one["silent"]]
                seen = seen or bool(subscribers)
                wanted = stat["current"]["version"] if stat["current"]["hold"] else max(stat["newest"], self._last)
                late = any(max(one["serving"], one["staged"]) < wanted for one in subscribers)
                if not late and (seen or time.monotonic() > self._since + _NEWCOMERS):
                    return
                time.sleep(_LOOK)
        except Error:  # Another thread closed it, or it is the parent's.
            return

    @property
    def address(self) -> str:
        """Where subscribers of this host find it, for `at=`."""
        return self._core.address()


class Bound:
    """Tensors bound to a publisher. One thread at a time."""

    def __init__(self, publisher: Publisher, tensors: Mapping[str, Any], roles: Mapping[str, str] | None) -> None:
        self._publisher = publisher
        self._tensors = tensors
        self._roles = roles
        self._gathered: Gathered | None = None
        self._core: Any = None
        if not publisher.closed:  # A closed one says so itself.
            self._gathered, self._core = self._gather(publisher._order)
        self._fresh = False  # True: the copies were made just now, and the next publish need not make them again.
        self._captured: set[int] = set()
        self._no_room: OutOfSpace | None = None  # Of the version that was begun: the rest of it is not captured.

    def __repr__(self) -> str:
        return f"<freshet.publisher.Bound, {len(self._tensors)} tensors of {self._publisher.model}>"

    def _gather(self, order: Iterable[str] | None) -> tuple[Gathered, Any]:
        gathered = Gathered(self._tensors, order, self._roles, self._publisher._test_gpus or True)
        return gathered, self._publisher._core.bind(gathered.core)  # C++ compares names and shapes once for each of these.

    def begin(self) -> None:
        """A version that is captured in parts begins: from now on capture() copies tensors whose update is done, while the
        others are still computed, and end() makes the version. FailedPrecondition when one was begun already."""
        publisher = self._publisher
        if self._gathered is None or publisher._order not in (None, self._gathered.names):
            self._gathered, self._core = self._gather(publisher._order)
        self._gathered.follow_streams(self._core)
        self._no_room = None
        try:
            publisher._core.begin(self._core)
        except OutOfSpace as error:  # The loop is ahead of its versions: this one is skipped.
            self._no_room = error
        publisher._begun = self  # Its arrays stay.
        self._captured = set()

    def capture(self, names: Iterable[str]) -> None:
        """Copies these tensors, which may be written again afterwards. One that is captured again is copied again. Where there
        is no room, nothing is copied any more, and end() says so."""
        self._check_begun("capture")
        assert self._gathered is not None
        indices = indices_of(names, self._gathered.names)
        if self._no_room is not None:
            return
        self._gathered.follow_streams(self._core)
        self._gathered.refresh(indices)
        try:
            self._publisher._core.capture(indices)
        except OutOfSpace as error:
            self._no_room = error
            return
        self._captured.update(indices)

    def end(self, *, step: int = 0, metrics: Mapping[str, float] | None = None, tags: Mapping[str, str] | None = None,
            sync: bool = False) -> Receipt:
        """Copies what was not captured, and makes the version; else as publish()."""
        self._check_begun("end")
        assert self._gathered is not None
        publisher = self._publisher
        given = whole(step, "step"), pairs_of(metrics, "metric", float), pairs_of(tags, "tag", str), sync
        if self._no_room is not None:
            publisher._begun = None
            return publisher._skipped(self._no_room, 0.0)
        self._gathered.follow_streams(self._core)
        self._gathered.refresh(set(range(len(self._gathered.names))) - self._captured)
        self._fresh = False
        receipt = publisher._through(lambda: publisher._core.end(*given))
        publisher._begun = None
        self._keep(receipt, self._gathered)
        publisher._order = self._gathered.names
        return receipt

    def abandon(self) -> None:
        """Gives up the version that was begun, if there is one; the next one takes its changes along."""
        self._publisher._core.abandon()
        self._publisher._begun = None

    def _check_begun(self, what: str) -> None:
        if self._publisher._begun is not self:
            raise FailedPrecondition(f"{what}() without begin() of these tensors")

    def publish(self, *, step: int = 0, metrics: Mapping[str, float] | None = None,
                tags: Mapping[str, str] | None = None, changed: Any = None, graph: GraphLike | None = None,
                sync: bool = False) -> Receipt:
        """As Publisher.publish(), of the bound arrays."""
        publisher = self._publisher
        gathered, core = self._gathered, self._core
        architecture = graph_of(graph) or publisher._skipped_graph
        if architecture is not None:
            gathered, core = self._gather(architecture.tensor_names())
        elif gathered is None or publisher._order not in (None, gathered.names):
            gathered, core = self._gather(publisher._order)  # Another binding was first.
        elif not self._fresh:
            gathered.follow_streams(core)
            gathered.refresh()
        self._fresh = False
        indices = None
        everything = isinstance(changed, str) and changed == "all"
        if changed is not None and not everything:
            indices = indices_of(changed, gathered.names)
        given = whole(step, "step"), pairs_of(metrics, "metric", float), pairs_of(tags, "tag", str)
        receipt = publisher._through(lambda: publisher._core.publish(core, *given, everything, indices, architecture, sync))
        self._keep(receipt, gathered)
        if receipt.version is None:
            publisher._skipped_graph = architecture
            return receipt
        publisher._skipped_graph = None
        self._gathered, self._core = gathered, core  # Only now: a version that was begun still reads the arrays of before.
        publisher._order = gathered.names
        if architecture is not None:
            publisher._graph = architecture
        return receipt

    def _keep(self, receipt: Receipt, gathered: Gathered) -> None:
        if receipt.version is not None and gathered.lent:
            core, version = self._publisher._core, receipt.version
            keep_until(lambda: core.wait_committed(version, None), version, gathered.lent)


def _device_memory(given: Any) -> tuple[int, float]:
    """In bytes and in copies of the model, one of both 0."""
    if given is None:
        return 0, 0.0
    if isinstance(given, float):
        if given == 0:
            raise InvalidArgument("device_memory=0.0: 1.0 to 64.0 copies of the model, or None")
        return 0, given
    size = whole(given, "device_memory")
    if 0 < size <= 64:
        raise InvalidArgument(f"device_memory={size}: {size} bytes hold no model; copies of the model are a float, {size}.0")
    return size, 0.0


def indices_of(changed: Iterable[str], names: list[str]) -> list[int]:
    if isinstance(changed, str):
        raise InvalidArgument(f"changed={changed!r} is neither None nor \"all\" nor a list of names")
    place = {name: index for index, name in enumerate(names)}
    indices = []
    for name in changed:
        if check_name(name) not in place:
            raise InvalidArgument(f"tensor {name}: named as changed, but it was not given")
        indices.append(place[name])
    return indices
