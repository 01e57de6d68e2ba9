# SPDX-License-Identifier: Apache-2.0
"""Where versions rest."""
from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import math
import os
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Union

import numpy as np

from . import _core
from ._arrays import Gathered, bytes_of, check_name, empty_of
from ._errors import FailedPrecondition, InvalidArgument, NotFound
from ._graph import GraphLike, graph_of, pairs_of
from ._handles import Handle, all_or_nothing, told_with
from ._keeping import SinkKeeper, at_least_one
from ._numbers import whole
from ._progress import Bar
from ._version import Version
from .publisher import path_of

_READ_AT_ONCE = 64 << 20  # Bytes, where somebody looks at the progress.
Selection = Union[str, Iterable[str], Mapping[str, str], None]


@dataclasses.dataclass(frozen=True)
class LineageRow:
    """A version in a line of ancestors. `ancestor` is None at the root."""

    version: Version
    ancestor: Optional[Version]
    quality: Optional[float]
    own_bytes: int
    inherited_bytes: int
    retired: bool


class Lineage(List[LineageRow]):
    """Rows, newest first or ascending as the call that answered says. A notebook shows them as a tree."""

    def _repr_html_(self) -> str:
        return _svg(self)


@dataclasses.dataclass(frozen=True)
class OwnerRow:
    """Who wrote a tensor's bytes; `owner` is None when that version was never stored here."""

    tensor: str
    owner: Optional[Version]
    bytes: int


@dataclasses.dataclass(frozen=True)
class MatchRow:
    """How much a version shares with a graph."""

    version: Version
    quality: Optional[float]
    lcp_layers: int
    lcp_parametric_layers: int
    lcp_bytes: int


@dataclasses.dataclass(frozen=True)
class Match(MatchRow):
    """The best version for a graph. `layers` and `tensors` tell for those of the graph that lie in the common prefix
    which ones of the version they are; get(version, tensors=tensors) reads them by the graph's names. `top`: the best
    versions, this one first."""

    layers: Mapping[str, str]
    tensors: Mapping[str, str]
    top: List[MatchRow]


@dataclasses.dataclass(frozen=True)
class Diff:
    """What `b` has that `a` has not, by `b`'s names, and the other way round."""

    layers_added: List[str]
    layers_removed: List[str]
    tensors_changed: List[str]
    quality_a: Optional[float]
    quality_b: Optional[float]


@dataclasses.dataclass(frozen=True)
class GcReport:
    freed_bytes: int
    live_bytes: int
    notes: List[str]


@dataclasses.dataclass(frozen=True)
class Retired:
    version: Version
    released_tensors: int
    released_bytes: int


@dataclasses.dataclass(frozen=True)
class Resumed:
    """What a run goes on from: `weights` (weights and buffers) and `state` (the rest), by name."""

    version: Version
    weights: dict
    state: dict
    step: int
    metrics: dict
    _record: Any = dataclasses.field(repr=False, compare=False)


class Stored(dict):
    """Arrays by name, which are the caller's, and what is known of the version that they came from: `.version` and `.tags`."""

    def __init__(self, arrays: Mapping[str, np.ndarray], version: Version, tags: Mapping[str, str]) -> None:
        super().__init__(arrays)
        self.version = version
        self.tags = dict(tags)

    def __reduce__(self) -> Any:
        return Stored, (dict(self), self.version, self.tags)


class Sink(Handle):
    """Stores every version that a publisher announces, in the background, until the sink is closed. Wait for the last
    version before you close the publisher: wait_for(receipt.version)."""

    @all_or_nothing
    def __init__(self, core: Any, model: str, repository: "Repository", keep: int | None) -> None:
        self.model = model
        self._place = repository.place
        self._core = core
        self._opened()
        self._keeper = None if keep is None else SinkKeeper(self, repository, keep)

    def close(self) -> None:
        """Ends it; later calls are FailedPrecondition. With `keep` it retires what is not to be kept, and gives the room back."""
        newest = 0
        with contextlib.suppress(FailedPrecondition):  # It was closed, or is the parent's.
            newest = self._core.status()["newest"]
        self._core.close()
        if self._keeper is not None and newest:
            self._keeper.end(newest)

    def _end_with_program(self) -> None:
        self._core.close()
        keeper = self.__dict__.get("_keeper")
        if keeper is not None:
            keeper.end(0)

    def wait_for(self, version: int, timeout: float | None = None) -> int:
        """Waits until the publisher's version of that number (`receipt.version`), or a later one, is stored. Returns the
        number of the newest version in the repository. The repository may give the version another number, for
        example after the publisher's host was started again. Only a publisher that answers can tell this, so the call
        also waits for one. TimedOut says what failed last."""
        with told_with(lambda: f"{self.model} into {self._place}"):
            return self._core.wait_for(whole(version, "version"), timeout)

    def _described(self) -> str:
        return f" of {self.model} into {self._place}"

    def status(self) -> dict:
        """How it stands, with C++'s names."""
        return self._core.status()


class Repository(Handle):
    """Keeps versions of models, each tensor once, with their lineage.

        repo = freshet.Repository("runs/")
        m = repo.match(graph)
        weights = repo.get(m.version, tensors=m.tensors)
        v = repo.put("cand-7", graph=graph, tensors=new, ancestor=m.version, quality=0.93)

    `place` is a folder (made when there is none) or a server's address, "tcp://host:port", which needs `keys` and
    `server_key` off this host. A folder belongs to one process at a time, the first; others of this user go through it,
    and see and change the same. Pickled as its place and names of key files. Any thread; after a fork each call of the
    child is FailedPrecondition.

    Versions are named "m@3", "m" for the newest, or "m@alias".
    """

    @all_or_nothing
    def __init__(self, place: str, *, keys: str | None = None, server_key: str | None = None) -> None:
        self.place = path_of(place)
        if "://" not in self.place:  # Another process, or this one after a chdir(), means the same folder.
            self.place = os.path.abspath(self.place)
        self._keys = path_of(keys)
        self._server_key = path_of(server_key)
        self._core = _core.Repository.open(self.place, self._keys, self._server_key)
        self._opened()

    def __reduce__(self) -> Any:
        return _reopen, (self.place, self._keys, self._server_key)

    def __repr__(self) -> str:
        return f"freshet.Repository({self.place!r})"

    def put(self, model: str, tensors: Mapping[str, Any] | None = None, *, graph: GraphLike | None = None,
            ancestor: str | None = None, quality: float | None = None, step: int = 0,
            metrics: Mapping[str, float] | None = None, tags: Mapping[str, str] | None = None, dedup: bool = False,
            deltas: bool = False, roles: Mapping[str, str] | None = None) -> Version:
        """Stores a version, durably, all of it or nothing, and says which it is.

        tensors    by name, as Publisher.publish() takes them; None stores a graph that was never trained. What the
                   ancestor's common prefix has may be left out.
        graph      the architecture: a dictionary, a graph file's text or its path; None guesses a chain of layers.
        ancestor   the version that it was transferred from.
        quality    larger is better; None where there is none, as for a run that diverged.
        dedup      tensors of equal content are inherited, whoever wrote them.
        deltas     what was fine-tuned from the ancestor is kept as lossless differences.
        roles      what tensors are for, where no graph says it, as Publisher.publish() takes them; resume() gives those that
                   are "optimizer" or "opaque" back as `state`.

        InvalidArgument names the tensor that is missing, unknown or of another shape; FailedPrecondition: the ancestor
        was retired.
        """
        architecture = graph_of(graph)
        gathered = None if tensors is None else Gathered(tensors, roles=roles).core
        with Bar(f"put {model}", 0) as bar:
            return Version(self._core.put(model, gathered, architecture, ancestor or "", quality, whole(step, "step"),
                                          pairs_of(metrics, "metric", float), pairs_of(tags, "tag", str), dedup, deltas,
                                          bar.at if bar.is_shown else None))

    def get(self, version: str, tensors: Selection = None) -> Stored:
        """A version's arrays by name, in memory of their own, each checked against its digest: a dictionary, with the version's
        `.version` and `.tags`.

        tensors   names and globs, each of which must name one; or {new name: stored name}, of which there are no tags; None: all.
        """
        record = self._core.record(version)
        tags = {} if isinstance(tensors, Mapping) else record.tags()  # They name tensors, as "freshet.tied" does.
        return Stored(self._get(record, tensors), Version(record.version()), tags)

    def _get(self, record: Any, tensors: Selection) -> dict:
        if not record.has_weights():
            raise FailedPrecondition(f"{record.version()} has no weights: it is a graph that was never trained")
        specs = record.specs()
        chosen = _chosen(specs, tensors, record.version())
        arrays, reads = {}, []
        for name, index in chosen:
            _, dtype, shape, _ = specs[index]
            arrays[name] = empty_of(dtype, shape)
            reads.append((index, bytes_of(arrays[name])))
        with Bar(f"get {record.version()}", sum(array.size for _, array in reads)) as bar:
            for batch in _batches(reads) if bar.is_shown else [reads]:
                self._core.read(record, batch)
                bar.add(sum(array.size for _, array in batch))
        return arrays

    def _served(self, version: str) -> Stored:
        """What a server takes of a version: weights and buffers."""
        record = self._core.record(version)
        served = [name for name, _, _, role in record.specs() if role in ("weight", "buffer")]
        return Stored(self._get(record, served), Version(record.version()), record.tags())

    def resume(self, model: str, version: int | str | None = None) -> Resumed:
        """What a run of `model` goes on from: the newest version, or that one (a number, or its name "m@3")."""
        named = isinstance(version, str) and "@" in version
        record = self._core.record(version if named else model if version is None else f"{model}@{version}")
        every = self._get(record, None)
        served = {name for name, _, _, role in record.specs() if role in ("weight", "buffer")}
        return Resumed(version=Version(record.version()), step=record.step(), metrics=record.metrics(),
                       weights={name: array for name, array in every.items() if name in served},
                       state={name: array for name, array in every.items() if name not in served}, _record=record)

    def match(self, graph: GraphLike, *, objective: str = "layers", top: int = 1, any: bool = False, pin: str = "",
              min_quality: float | None = None, tags: Mapping[str, str] | None = None,
              exclude: str | None = None) -> Match | None:
        """The version that shares the longest prefix with a graph; None when none shares anything.

        objective     what to maximise: "layers", "parametric" (layers with tensors) or "bytes".
        any           graphs that were never trained, too.
        pin           the best one is pinned by this holder before the answer is given. The pin ends two minutes after
                      this repository object is gone, unless unpin() takes it away before.
        min_quality, tags, exclude   only versions with at least that quality, with these tags, outside of that lineage.
        """
        if graph is None:
            raise InvalidArgument("match() wants a graph: a dictionary, a graph file's text or its path")
        found = self._core.match(graph_of(graph), objective, whole(top, "top"), any, pin, min_quality, pairs_of(tags, "tag", str),
                                 exclude or "")
        if found is None:
            return None
        rows, layers, tensors = found
        for row in rows:
            row["version"] = Version(row["version"])
        return Match(**rows[0], layers=layers, tensors=tensors, top=[MatchRow(**row) for row in rows])

    def graph(self, version: str) -> dict:
        """The architecture as a graph file has it (docs/graph-file.md)."""
        return json.loads(self._core.record(version).graph().json())

    def _repr_html_(self) -> str:
        """What a notebook shows: every version of every model, and who came from whom."""
        return _svg([_row(row) for row in self._core.all_versions()], self.place)

    def lineage(self, version: str) -> Lineage:
        """The version and its ancestors, newest first; retired ones keep their place."""
        return Lineage(_row(row) for row in self._core.lineage(version))

    def versions(self, model: str) -> Lineage:
        """All of a model, ascending."""
        return Lineage(_row(row) for row in self._core.versions(model))

    def models(self) -> List[str]:
        """The names of the models that have versions here."""
        return self._core.models()

    def owners(self, version: str) -> List[OwnerRow]:
        """Who wrote each tensor's bytes."""
        return [OwnerRow(tensor, _name(owner), size) for tensor, owner, size in self._core.owners(version)]

    def mrca(self, a: str, b: str) -> Version | None:
        """The most recent version on both lines of ancestors."""
        return _name(self._core.mrca(a, b))

    def diff(self, a: str, b: str) -> Diff:
        """What differs between two versions: layers by their computation, tensors by content, and both qualities. NotFound."""
        return Diff(**self._core.diff(a, b))

    def pin(self, version: str, by: str, *, stays: bool = False) -> None:
        """A pinned version cannot be retired. Counted per version and holder. The pin ends two minutes after this
        repository object is gone, unless unpin() takes it away before, or it `stays`."""
        self._core.pin(version, by, stays)

    def unpin(self, version: str, by: str) -> None:
        """Takes one pin of that holder away. NotFound when the holder has none."""
        self._core.unpin(version, by)

    def pins(self, version: str) -> List[str]:
        """Who pins it."""
        return self._core.pins(version)

    def aliases(self, model: str) -> dict:
        """Which version each of a model's aliases means, as a number."""
        return self._core.aliases(model)

    def set_alias(self, model: str, alias: str, version: int, *, expected: int | None = None) -> None:
        """From now on "MODEL@ALIAS" is that version, which cannot be retired meanwhile; 0 takes the alias away.

        expected   what it has to mean until now (0: nothing), for several who may move it at once; else
                   FailedPrecondition says what it means, and nothing changes. None: whatever it means."""
        self._core.set_alias(model, alias, whole(version, "version"),
                             None if expected is None else whole(expected, "expected"))

    def quality(self, version: str) -> float | None:
        """What a version was said to be worth; None: nothing was said."""
        return self._core.record(version).quality()

    def best(self, model: str, metric: str | None = None, *, lowest: bool = False) -> Version:
        """The version of a model with the largest quality, or with the largest value of a metric: "loss" with `lowest` for the smallest
        one. Of equal ones the newest. freshet.torch.load() and the like take it: load(module, repo, repo.best("net", "accuracy")).

        NotFound: no version has a quality, or that metric, which is a number. A metric is read of each version, one after the
        other."""
        found = []
        for row in self.versions(model):
            if row.retired:
                continue
            value = row.quality
            if metric is not None:
                with contextlib.suppress(NotFound):  # It was retired meanwhile.
                    value = self._core.record(row.version).metrics().get(metric)
            if value is not None and not math.isnan(value):
                found.append((-value if lowest else value, row.version.number, row.version))
        if not found:
            raise NotFound(f"no version of {model} has {'a quality' if metric is None else f'the metric {metric}'}")
        return max(found)[2]

    def tags(self, version: str) -> dict:
        """What is said of a version, when it was put or since (freshet repo set), as texts."""
        return self._core.record(version).tags()

    def retire(self, version: str, wait: float = 0) -> Retired:
        """Takes a version out of the repository; its line in the lineage stays. Waits so many seconds for those who pin
        it, then FailedPrecondition names them. Its bytes go with the next gc(), if no other version names them."""
        answer = self._core.retire(version, wait)
        answer["version"] = Version(answer["version"])
        return Retired(**answer)

    def gc(self, *, dry_run: bool = False) -> GcReport:
        """Erases the bytes that no version names; a dry run says how many that would be. A signal handler that runs meanwhile
        must not write to this repository: it would wait for gc(), and gc() for it."""
        with Bar(f"gc {self.place}", 0, "tensors") as bar:
            return GcReport(**self._core.gc(dry_run, bar.at if bar.is_shown else None))

    def stat(self) -> dict:
        """Versions, bytes and the like, with C++'s names."""
        return self._core.stat()

    def sink(self, model: str, directory: str | None = None, *, at: str | None = None, keys: str | None = None,
             server_key: str | None = None, keep: int | None = None) -> Sink:
        """Stores every version of `model` from now on, until the sink is closed.

        keep   so many of the model's newest versions stay. The sink retires older ones, those of before too, and gives their room
               back after some of them. close() does what is left; the end of a program leaves it to the next sink. A version that is pinned or has an alias stays until it has
               neither. Retired ones keep their place in the lineage, and the bytes that a kept version inherits stay. None: all
               stay."""
        if keep is not None:
            at_least_one(keep, "versions")
        return Sink(self._core.sink(model, path_of(directory), at or "", path_of(keys), path_of(server_key)), model, self, keep)


os.register_at_fork(after_in_child=_core.end_child_without_destructors)


def _reopen(place: str, keys: str, server_key: str) -> Repository:
    return Repository(place, keys=keys or None, server_key=server_key or None)


def _name(text: str) -> Version | None:
    return Version(text) if text else None


def _row(row: Any) -> LineageRow:
    version, ancestor, quality, own_bytes, inherited_bytes, retired = row
    return LineageRow(Version(version), _name(ancestor), quality, own_bytes, inherited_bytes, retired)


def _svg(rows: Iterable[LineageRow], title: str = "") -> str:
    return _core.Repository.svg([(str(row.version), str(row.ancestor or ""), row.quality, row.own_bytes,
                                  row.inherited_bytes, row.retired) for row in rows], title)


def _batches(reads: List[Any]) -> Iterator[List[Any]]:
    """In pieces that take a moment each."""
    batch: List[Any] = []
    size = 0
    for one in reads:
        batch.append(one)
        size += one[1].size
        if size >= _READ_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _chosen(specs: Any, tensors: Selection, version: str) -> list:
    """[(name in the answer, index)]."""
    place = {spec[0]: index for index, spec in enumerate(specs)}
    if tensors is None:
        return list(place.items())
    if isinstance(tensors, Mapping):
        for new, stored in tensors.items():
            check_name(new)
            if check_name(stored) not in place:
                raise NotFound(f"{version} has no tensor {stored}")
        return [(new, place[stored]) for new, stored in tensors.items()]
    chosen: dict = {}
    for glob in [tensors] if isinstance(tensors, str) else tensors:
        if check_name(glob) in place:
            chosen[glob] = place[glob]
            continue
        names = [name for name in place if fnmatch.fnmatchcase(name, glob)]
        if not names:
            raise NotFound(f"{version}: none of its {len(place)} tensors is named like {glob}")
        chosen.update((name, place[name]) for name in names)
    return list(chosen.items())
