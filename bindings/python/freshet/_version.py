# SPDX-License-Identifier: Apache-2.0
"""How people name versions."""
from __future__ import annotations


class Version(str):
    """A version's name, "m@3": text, with its parts."""

    __slots__ = ()

    @property
    def model(self) -> str:
        """The model's name: what stands before the "@"."""
        return self.partition("@")[0]

    @property
    def number(self) -> int:
        """0 where the name has none (the newest)."""
        number = self.partition("@")[2]
        return int(number) if number.isdigit() else 0

    def __repr__(self) -> str:
        return f"Version({str(self)!r})"
