# SPDX-License-Identifier: Apache-2.0
"""Where a repository is, for those who use it now and then."""
from __future__ import annotations

import threading
from typing import Any

from ._errors import Error
from .repository import Repository


class Place:
    """A repository that is opened when it is first asked for, and again when the process that had its folder has ended.
    Pickled as where it is. Any thread.

    place   a folder, an address, or a Repository, which is used as it is."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self._opened: Repository | None = place if isinstance(place, Repository) else None
        self._opening = threading.Lock()

    def __reduce__(self) -> Any:
        return Place, (self._place,)

    def open(self) -> Repository:
        """The repository; Unavailable and the like as Repository() has them."""
        with self._opening:
            if self._opened is not None:
                try:
                    self._opened.stat()
                    return self._opened
                except Error as error:
                    if isinstance(self._place, Repository) or error.code not in ("unavailable", "failed_precondition"):
                        raise
            self._opened = Repository(self._place)
            return self._opened
