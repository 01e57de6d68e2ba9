# SPDX-License-Identifier: Apache-2.0
"""DeepHyper: candidates of a search learn from each other through a repository.

    def run(job):
        model = build(job.parameters)
        with freshet.deephyper.evaluate(job, model, "runs/") as e:
            e.objective = train(model)
        return e.result
    search = freshet.deephyper.retire_on_eviction(RegularizedEvolution(problem), "runs/")
"""
from __future__ import annotations

import collections
import heapq
import json
import logging
import math
import time
from typing import Any, Callable, Deque, Dict, List

from ._errors import FailedPrecondition, InvalidArgument, NotFound, TimedOut, Unavailable
from ._keeping import Retirer, at_least_one
from ._place import place_of
from ._transfer import Transfer, check_freeze
from ._version import Version
from .repository import Repository

__all__ = ["Evaluation", "best", "evaluate", "parameters", "retire_on_eviction"]

_log = logging.getLogger("freshet")
_TRIES = 1000  # Each means that another worker stored something better.


def _repository_at(place: Any) -> Repository:
    """One object for all candidates of a process; a forked worker has its own."""
    return place_of(place).open()


def _module_of(model: Any) -> Any:
    """freshet.keras or freshet.torch."""
    kinds = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    if "keras" in kinds:  # First: under its PyTorch backend a Keras model is a module, too.
        from . import keras
        return keras
    if "torch" in kinds:
        from . import torch
        return torch
    raise InvalidArgument(f"model: a {type(model).__name__} is neither a Keras model nor a PyTorch module")


class Evaluation:
    """One candidate; see evaluate(). Set `.objective` inside of its `with`; `.result` is for DeepHyper. `.match` and
    `.frozen` say what was transferred."""

    def __init__(self, job: Any, model: Any, place: Any, name: str, freeze: str) -> None:
        check_freeze(freeze)
        self._freeze = freeze
        self._place = place
        self._repository = _repository_at(place)
        self._name = name
        self._tags = {}
        if getattr(job, "id", None) is not None:
            self._tags["job"] = str(job.id)
        if getattr(job, "parameters", None) is not None:
            self._tags["parameters"] = json.dumps(dict(job.parameters), default=_plain)
        self._model = model
        self.objective: Any = None
        self._metadata: Dict[str, Any] = {"model": None, "parent": None, "lcp_layers": 0, "lcp_bytes": 0,
                                          "transfer_s": 0.0, "store_s": 0.0}

    def __enter__(self) -> "Evaluation":
        begin = time.perf_counter()
        self._transferred: Transfer = _module_of(self._model).transfer(self._model, self._repository, freeze=self._freeze)
        self.match = self._transferred.match
        self.frozen = self._transferred.frozen
        if self.match is not None:
            self._metadata.update(parent=str(self.match.version), lcp_layers=self.match.lcp_layers,
                                  lcp_bytes=self.match.lcp_bytes)
        self._metadata["transfer_s"] = time.perf_counter() - begin
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is not None:
                return
            if self.objective is None:
                raise InvalidArgument("objective: set it before the evaluation's `with` ends")
            if not isinstance(self.objective, (str, tuple, list)):
                self.objective = _finite(self.objective)
            if isinstance(self.objective, str):  # DeepHyper's word for a failure, which is no member of the population.
                return
            self._store()
        finally:
            self._transferred.close()

    def _store(self) -> None:
        begin = time.perf_counter()
        several = isinstance(self.objective, (tuple, list))
        quality = None if several else self.objective
        version = self._through_the_end_of_an_owner(lambda: self._transferred.store(self._name, quality, tags=self._tags))
        if quality is not None:
            self._through_the_end_of_an_owner(lambda: _keep_best(self._repository, version, quality))
        self._metadata.update(model=str(version), store_s=time.perf_counter() - begin)

    def _through_the_end_of_an_owner(self, call: Callable[[], Any]) -> Any:
        """What `call` answers. Where the process that had the folder ended, which may be while the candidate trained, the
        folder is opened anew, once. A put whose answer was lost may stand there twice then."""
        try:
            return call()
        except (Unavailable, TimedOut) as error:
            opened = _repository_at(self._place)
            if opened is self._repository:
                raise
            _log.info("%s was opened anew: %s", opened.place, error)
            self._repository = opened
            self._transferred.moved_to(opened)
            return call()

    @property
    def result(self) -> Dict[str, Any]:
        """What the run function returns: the objective, and the metadata that become columns `m:model` (the stored version; None
        for a failure), `m:parent`, `m:lcp_layers`, `m:lcp_bytes`, `m:transfer_s`, `m:store_s`."""
        if self.objective is None:
            raise FailedPrecondition("result: the evaluation has no objective yet")
        return {"objective": self.objective, "metadata": dict(self._metadata)}


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's; else its text."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "ndim", None) == 0 else str(value)


def _finite(objective: Any) -> Any:
    """A number of any kind as Python's, or DeepHyper's word for a failure."""
    try:
        number = float(objective)
    except (TypeError, ValueError):
        raise InvalidArgument(f"objective: a {type(objective).__name__} is no number") from None
    return number if math.isfinite(number) else "F_objective_not_finite"


def _keep_best(repository: Repository, version: Version, quality: float) -> None:
    """The alias `best` moves by compare-and-swap, so of several workers the best one stays."""
    for _ in range(_TRIES):
        best = repository.aliases(version.model).get("best", 0)
        if best:
            try:
                known = repository.quality(f"{version.model}@{best}")
            except NotFound:
                continue  # It was moved and retired meanwhile.
            if known is not None and known >= quality:
                return
        try:
            repository.set_alias(version.model, "best", version.number, expected=best)
            return
        except FailedPrecondition:
            continue  # Another worker moved it meanwhile.
    _log.warning("%s@best was moved by others all the while; %s is not compared with it", version.model, version)


def evaluate(job: Any, model: Any, repository: Any, name: str = "search", freeze: str = "prefix") -> Evaluation:
    """A candidate of a search, for `with`: at its begin the stored model that shares the longest prefix of layers is found and pinned, and
    these layers are loaded, and frozen as `freeze` says; at its end the candidate is stored as its child, with the job's
    parameters, and the pin goes. A block that raises stores nothing.

    job          as DeepHyper gives it to the run function.
    model        a Keras model that is not compiled yet, or a PyTorch module.
    repository   its place, or a Repository. A process opens it once.
    name         candidates are versions of this model; `NAME@best` is the one with the largest objective so far.
    freeze       "prefix": the layers that were loaded are frozen but for the last parametric ones, so that every candidate trains: the
                 model's last one, and the later two thirds of those that were loaded. "none": all train, and little is inherited.
                 "all": all that were loaded are frozen; a candidate whose layers are all stored has nothing to train then.

    An objective that is a text ("F…", DeepHyper's failures) or not finite stores nothing. One with several values is
    stored without a quality, and moves no alias."""
    return Evaluation(job, model, repository, name, freeze)


def parameters(repository: Any, version: str = "search@best") -> Dict[str, Any]:
    """The parameters of the job that trained a stored candidate, of which the program makes the model again:

        model = build(freshet.deephyper.parameters(repository))

    best() also loads the weights. NotFound: there is no such version, or it was stored without parameters."""
    told = _repository_at(repository).tags(version).get("parameters")
    if told is None:
        raise NotFound(f"{version} was stored without the parameters of a job")
    return json.loads(told)


def best(build: Callable[[Dict[str, Any]], Any], repository: Any, version: str = "search@best") -> Any:
    """Makes the best candidate of a search again, with the weights that it was stored with:

        model = freshet.deephyper.best(build, "runs/")

    build        the program's function that makes a model of a job's parameters; PyTorch or Keras.
    repository   as evaluate() takes it.
    version      another candidate: "search@7".

    NotFound: there is no such version, or it was stored without parameters. FailedPrecondition names the tensor that the
    version lacks, or has in another shape: `build` makes another model than it did in the search."""
    opened = _repository_at(repository)
    stored = str(opened.get(version, []).version)  # The alias may move meanwhile.
    model = build(parameters(opened, stored))
    _module_of(model).load(model, opened, stored)
    return model


class _Retirer:
    """Follows a search's population: what drops out of it is retired."""

    def __init__(self, search: Any, place: Any) -> None:
        if not isinstance(getattr(search, "_population", None), collections.deque):
            raise InvalidArgument(f"search: a {type(search).__name__} has no population that drops members (as "
                                  f"RegularizedEvolution has): say with keep= how many candidates stay")
        self._search = search
        self._stored: Dict[str, Deque[str]] = {}  # Versions by their parameters, in the order in which they were told.
        self._dropped: List[str] = []   # Parameters.
        self._retirer = Retirer(lambda: _repository_at(place), search._population.maxlen)
        _repository_at(place)  # Now: a folder belongs to the process that opens it first, and workers come and go.
        self._tell, self._extend = search._tell, search.history.extend
        search._tell, search.history.extend = self.tell, self.extend

    def tell(self, results: Any) -> None:
        population = self._search._population
        for result in results:  # One at a time: each can drop one.
            oldest = population[0] if population and len(population) == population.maxlen else None
            self._tell([result])
            if oldest is not None and population[0] is not oldest:
                self._dropped.append(_key_of(oldest[0]))

    def extend(self, jobs: Any) -> None:
        """DeepHyper calls it after tell(), with what the jobs said."""
        for job in jobs:
            version = job.metadata.get("model")
            if version:
                self._stored.setdefault(_key_of(job.args), collections.deque()).append(version)
        self._extend(jobs)
        self._retire()

    def _retire(self) -> None:
        self._retirer.retire([self._stored[parameters].popleft() for parameters in self._dropped if self._stored.get(parameters)])
        self._dropped.clear()


class _Keeper:
    """Follows a search: of its stored candidates the best ones stay."""

    def __init__(self, search: Any, place: Any, keep: int) -> None:
        self._keep = keep
        self._best: List[tuple[float, int, str]] = []  # Quality, in which order they came (the earlier one stays), version.
        self._came = 0
        self._retirer = Retirer(lambda: _repository_at(place), keep)
        _repository_at(place)
        self._extend = search.history.extend
        search.history.extend = self.extend

    def extend(self, jobs: Any) -> None:
        dropped = []
        for job in jobs:
            version = job.metadata.get("model")
            if not version:
                continue
            objective = job.objective
            several = isinstance(objective, (tuple, list))  # Such a candidate has no rank; the newest stay.
            self._came += 1
            heapq.heappush(self._best, (0.0 if several else float(objective), self._came if several else -self._came, version))
            if len(self._best) > self._keep:
                dropped.append(heapq.heappop(self._best)[2])
        self._extend(jobs)
        self._retirer.retire(dropped)


def _key_of(parameters: Any) -> str:
    return json.dumps(dict(parameters), sort_keys=True, default=str)


def retire_on_eviction(search: Any, repository: Any, keep: int | None = None) -> Any:
    """Makes a search retire the stored candidates that drop out of its population, and gives their room back now and then. The one that
    `best` names, and those that somebody learns from just now, wait. Returns the search.

    search       deephyper.hpo.RegularizedEvolution, or what has such a population; with `keep` any search.
    repository   as evaluate() takes it.
    keep         so many of the best candidates stay, in the place of a population; of several objectives, the newest."""
    if keep is None:
        _Retirer(search, repository)
    else:
        _Keeper(search, repository, at_least_one(keep, "candidates"))
    return search
