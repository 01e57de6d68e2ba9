# SPDX-License-Identifier: Apache-2.0
"""Where a repository is, for those who use it now and then."""
from __future__ import annotations

import os
import threading
import time
from typing import Any, Dict, Tuple

from ._errors import Error, Unavailable
from .repository import Repository

_PATIENCE = 10  # Seconds.
_places: Dict[Tuple[int, str], "Place"] = {}


def place_of(place: Any) -> "Place":
    """One for all who name the same folder or address in this process; a forked child has its own. Its repository stays open until the
    process ends: other processes go through the one that has a folder, and are not to lose it while they save.

    place   a folder, an address, or a Repository, which is used as it is."""
    if isinstance(place, Repository):
        return Place(place)
    text = os.fspath(place)
    text = text if "://" in text else os.path.abspath(text)
    return _places.setdefault((os.getpid(), text), Place(text))


class Place:
    """A repository that is opened when it is first asked for, and again when the process that had its folder has ended, or another
    folder is in its place. Pickled as where it is. Any thread."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self._opened: Repository | None = place if isinstance(place, Repository) else None
        self._folder: Tuple[int, int] | None = None
        self._opening = threading.Lock()

    def __reduce__(self) -> Any:
        return place_of, (self._place,)

    def open(self) -> Repository:
        """The repository; Unavailable and the like as Repository() has them."""
        with self._opening:
            if self._opened is not None and not isinstance(self._place, Repository) and self._folder != self._folder_now():
                self._opened.close()  # Its files are those of a folder that is gone.
                self._opened = None
            if self._opened is not None:
                try:
                    self._opened.stat()
                    return self._opened
                except Error as error:
                    if isinstance(self._place, Repository) or error.code not in ("unavailable", "failed_precondition"):
                        raise
            self._opened = self._open_patiently()
            self._folder = self._folder_now()
            return self._opened

    def _folder_now(self) -> Tuple[int, int] | None:
        if "://" in self._place:
            return None
        try:
            status = os.stat(self._place)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _open_patiently(self) -> Repository:
        """Who has the folder may be about to end: then the folder is free a moment later."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return Repository(self._place)
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.02)
