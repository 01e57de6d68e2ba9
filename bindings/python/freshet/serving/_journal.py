# SPDX-License-Identifier: Apache-2.0
"""The journal of a server's answers."""
from __future__ import annotations

import os
from typing import Any

from .. import _core
from .._errors import InvalidArgument, check_type
from .._handles import Handle, all_or_nothing
from .._numbers import whole
from ..subscriber import Snapshot


class Journal(Handle):
    """Notes for each answer which version gave it. `freshet why REQUEST --journal PATH` finds an answer again.

        journal = freshet.serving.Journal("answers.jsonl")
        with subscriber.snapshot() as weights:
            answer = predict(weights, request)
            journal.record(request_id, weights)

    path         the file; one JSON object a line. Several threads and processes may share it.
    bytes_max    when the file has so many bytes, it becomes `path`.1, that one becomes `path`.2, and so on
    files_max    so many files stay, `path` among them

    A line is written whole, or not at all. A full disk fails no answer: lines are lost, `lost` counts them, and the
    logger `freshet` says once that it began and once that it is over. Any thread; after a fork each call of the child is
    FailedPrecondition: open a journal in the child.
    """

    @all_or_nothing
    def __init__(self, path: str | os.PathLike[str], *, bytes_max: int = 64 << 20, files_max: int = 4) -> None:
        self.path = os.path.abspath(os.fsdecode(path))
        self._core = _core.Journal.open(self.path, whole(bytes_max, "bytes_max"), whole(files_max, "files_max"))
        self._record = self._core.record
        self._opened()

    def record(self, request: str, snapshot: Snapshot) -> bool:
        """Notes that the request was answered from the snapshot's version, now. `request` is 1 to 128 bytes without control
        characters. Whether the line was written; InvalidArgument for another `request`."""
        try:
            return self._record(request, snapshot._pin)
        except (AttributeError, TypeError, UnicodeEncodeError):
            raise _wrong(request, snapshot) from None

    @property
    def lost(self) -> int:
        """The lines that could not be written."""
        return self._core.lost()


def _wrong(request: Any, snapshot: Any) -> Exception:
    """What is wrong with the arguments of a record()."""
    try:
        check_type("a request's id", request, str)
        check_type("snapshot", snapshot, Snapshot)
        snapshot._here()
        request.encode()
    except UnicodeEncodeError:
        return InvalidArgument(f"a request's id is UTF-8, not {request!r:.80}")
    except Exception as error:
        return error
    return TypeError("record() takes a request's id and a snapshot")
