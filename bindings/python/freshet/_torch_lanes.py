# SPDX-License-Identifier: Apache-2.0
"""What an attached PyTorch module is made of: the lanes of its versions, and what is on its way in them."""
from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, Mapping

import torch

from ._torch_twin import Twin
from .subscriber import Snapshot


class Lane:
    """A module with a version in it: the user's, or a twin with other tensors, for forwards that begin while the user's is
    still in use with an older version."""

    def __init__(self, module: torch.nn.Module, named: Mapping[str, torch.Tensor], twin: Twin | None = None) -> None:
        self.module = module
        self.named = named
        self.forward = module.forward
        self.twin = twin
        self.version = 0
        self.came: Mapping[str, torch.Tensor] | None = None  # What its tensors are views of.
        self.taking: Mapping[str, torch.Tensor] | None = None  # While it is half of another version.
        self.source: Snapshot | None = None  # Of `taking`.
        self.snapshot: Snapshot | None = None
        self.inside: Dict["Use", float] = {}  # Since when.

    def is_free(self) -> bool:
        """One that ended may still be there, if Ctrl-C came when it was about to be taken away."""
        self.inside = {use: since for use, since in self.inside.items() if not use.ended}
        return not self.inside


class Use:
    """A forward, a method or a hold() that is on its way."""

    def __init__(self, holds: bool = False, suspends: bool = False) -> None:
        self.holds = holds
        self.is_waited_for = not holds and not suspends  # Else it may need the very thread that would wait, to go on.
        self.lane: Lane | None = None
        self.version = 0
        self.ended = False  # Contexts that were copied meanwhile still have it.


def computed(forward: Callable[..., Any], inputs: Any, how: Any) -> Any:
    """What torch.compile begins with, if the module was compiled: it begins with no function of PyTorch's own."""
    return forward(*inputs, **how)


def methods_of(kind: type) -> List[str]:
    """What a class of modules has beside forward() for its users."""
    return [name for name in dir(kind) if not name.startswith("_") and not hasattr(torch.nn.Module, name)
            and inspect.isfunction(one := inspect.getattr_static(kind, name))
            and not inspect.isgeneratorfunction(one) and not inspect.isasyncgenfunction(one)]
