# SPDX-License-Identifier: Apache-2.0
"""Learning from what is stored: what Keras and PyTorch share of it."""
from __future__ import annotations

import logging
import uuid
from typing import Any, Callable, Dict, List, Mapping, NamedTuple

import numpy as np

from ._errors import Error, FailedPrecondition, InvalidArgument, NotFound
from ._version import Version
from .repository import Match, Repository

_log = logging.getLogger("freshet")

class Model(NamedTuple):
    """What Transfer asks of a framework's model."""

    graph: Mapping[str, Any]
    parametric: List[str]  # The layers that can train, by the graph's names and in its order.
    #: Takes arrays by the graph's names for its tensors; says which of the parametric layers have all of theirs now.
    load: Callable[[Mapping[str, np.ndarray]], List[str]]
    freeze: Callable[[List[str]], List[str]]  # These layers; says how the framework calls them.
    arrays: Callable[[], Dict[str, np.ndarray]]


def check_freeze(freeze: str) -> None:
    if freeze not in ("prefix", "none", "all"):
        raise InvalidArgument(f"freeze={freeze!r}: \"prefix\", \"none\" or \"all\"")


def _frozen_of(parametric: List[str], loaded: List[str], freeze: str) -> List[str]:
    """Of "prefix": the first third of the layers that came, and at least one; not the model's last one, or a candidate whose
    layers are all stored would have nothing to train. With more of them frozen a search of few epochs ends below one without
    transfer: the later layers were fitted to the ancestor's (examples/python/deephyper_arms.py prints a table)."""
    if freeze == "none":
        return []
    if freeze == "all":
        return loaded
    return [name for name in loaded[:max(1, len(loaded) // 3)] if name != parametric[-1]]


class Transfer:
    """What transfer() found: `.match` (None: nothing to transfer from) and `.frozen`, the names of those of the loaded layers
    that were frozen. The ancestor stays pinned until store() or close(), or until two minutes after the repository object
    is gone."""

    def __init__(self, repository: Repository, model: Model, freeze: str, **query: Any) -> None:
        check_freeze(freeze)
        self._repository = repository
        self._model = model
        self._holder = f"transfer {uuid.uuid4()}"
        self.match: Match | None = repository.match(model.graph, pin=self._holder, **query)
        self.frozen: List[str] = []
        if self.match is None:
            return
        try:
            came = repository.get(self.match.version, tensors=self.match.tensors) if self.match.tensors else {}
            self.frozen = model.freeze(_frozen_of(model.parametric, model.load(came), freeze))
        except BaseException:
            self.close()
            raise

    def store(self, name: str, quality: float | None = None, **more: Any) -> Version:
        """Stores the trained model as a child of what it was transferred from; tensors that did not change are inherited.
        `more` is as Repository.put() takes it."""
        ancestor = self.match.version if self.match is not None else None
        version = self._repository.put(name, self._model.arrays(), graph=self._model.graph, ancestor=ancestor, quality=quality, **more)
        self.close()
        return version

    def moved_to(self, repository: Repository) -> None:
        """The process that had the repository has ended: it is this object from now on. An ancestor that was retired with
        its pin is done without."""
        self._repository = repository
        if self.match is None:
            return
        try:
            if self._holder not in repository.pins(self.match.version):  # A folder remembers pins for two minutes.
                repository.pin(self.match.version, self._holder)
        except (FailedPrecondition, NotFound) as error:
            _log.warning("%s is not the ancestor any more: %s", self.match.version, error)
            self.match = None

    def close(self) -> None:
        """Lets go of the ancestor, which cannot be retired until then. store() does it. A repository that cannot be asked
        lets go by itself."""
        holder, self._holder = self._holder, ""
        if holder and self.match is not None:
            try:
                self._repository.unpin(self.match.version, holder)
            except Error as error:
                _log.warning("%s stays pinned for two minutes: %s", self.match.version, error)
