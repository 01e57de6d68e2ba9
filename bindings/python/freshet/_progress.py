# SPDX-License-Identifier: Apache-2.0
"""Bars for long work, where somebody looks: on a terminal, or in a notebook. They come from tqdm, if it is installed."""
from __future__ import annotations

import sys
from typing import Any

_DELAY = 1.0  # Seconds: what is done by then shows nothing.


def wanted() -> bool:
    """Whether somebody looks."""
    shell = sys.modules.get("IPython")
    if shell is not None and type(getattr(shell, "get_ipython", lambda: None)()).__name__ == "ZMQInteractiveShell":
        return True
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # It was closed.
        return False


class Bar:
    """`total` bytes or other units of `what`; shows itself after a second. For `with`."""

    def __init__(self, what: str, total: int, unit: str = "B") -> None:
        self._bar: Any = None
        if not wanted():
            return
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        self._bar = tqdm(total=total, desc=what, unit=unit, unit_scale=unit == "B", delay=_DELAY, leave=False)

    @property
    def is_shown(self) -> bool:
        """Whether telling it is of use."""
        return self._bar is not None

    def add(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(done)

    def at(self, done: int, total: int) -> None:
        """So much of so much."""
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(done - self._bar.n)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()
