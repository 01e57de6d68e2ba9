# SPDX-License-Identifier: Apache-2.0
"""Learning from what is stored: what Keras and PyTorch share of it."""
from __future__ import annotations

import logging
import uuid
from typing import Any, Callable, Dict, List, Mapping

import numpy as np

from ._errors import Error, FailedPrecondition, NotFound
from ._version import Version
from .repository import Match, Repository

_log = logging.getLogger("freshet")

#: Takes arrays by the graph's names for its tensors, and the match's layers; says which layers it froze.
Load = Callable[[Mapping[str, np.ndarray], Mapping[str, str]], List[str]]


class Transfer:
    """What transfer() found: `.match` (None: nothing to transfer from) and `.frozen`, the names of the layers that were
    loaded and frozen. The ancestor stays pinned until store() or close(), or until two minutes after the repository object
    is gone."""

    def __init__(self, repository: Repository, graph: Mapping[str, Any], load: Load,
                 arrays: Callable[[], Dict[str, np.ndarray]], **query: Any) -> None:
        self._repository = repository
        self._graph = graph
        self._arrays = arrays
        self._holder = f"transfer {uuid.uuid4()}"
        self.match: Match | None = repository.match(graph, pin=self._holder, **query)
        self.frozen: List[str] = []
        if self.match is None:
            return
        try:
            came = repository.get(self.match.version, tensors=self.match.tensors) if self.match.tensors else {}
            self.frozen = load(came, self.match.layers)
        except BaseException:
            self.close()
            raise

    def store(self, name: str, quality: float | None = None, **more: Any) -> Version:
        """Stores the trained model as a child of what it was transferred from; tensors that did not change are inherited.
        `more` is as Repository.put() takes it."""
        ancestor = self.match.version if self.match is not None else None
        version = self._repository.put(name, self._arrays(), graph=self._graph, ancestor=ancestor, quality=quality, **more)
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
