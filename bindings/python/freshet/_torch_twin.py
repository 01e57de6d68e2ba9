# SPDX-License-Identifier: Apache-2.0
"""A second object for a PyTorch module, with tensors of its own that can lie in another version."""
from __future__ import annotations

import copy
import logging
from typing import Any, Dict, Iterator, Mapping, NamedTuple

import torch

_log = logging.getLogger("freshet")
_PLAIN = (bool, int, float, str, type(None), tuple)


class Twin(NamedTuple):
    module: torch.nn.Module
    named: Mapping[str, torch.Tensor]


class Twins:
    """Makes twins of one module. They share what has no name in `state_dict()`: further tensors, and hooks."""

    def __init__(self, module: torch.nn.Module, named: Mapping[str, torch.Tensor]) -> None:
        self._module = module
        self._named = named

    def make(self, known: Dict[int, Any]) -> Twin | None:
        """A twin, or None: the module cannot be doubled. `known` are objects that stay what they are, by their ids."""
        if any(_keeps_its_own(part) for part in self._module.modules()):
            return None
        memo = dict(known)
        for part in self._module.modules():
            for tensor in _tensors_of(part):
                memo[id(tensor)] = tensor
        named = {name: _like(tensor) for name, tensor in self._named.items()}
        memo.update((id(tensor), named[name]) for name, tensor in self._named.items())
        try:
            twin = copy.deepcopy(self._module, memo)
        except Exception as error:  # Whatever a part of it says.
            _log.info("the attached module cannot be doubled, so forwards wait for each other when a version comes: %s", error)
            return None
        for mine, its in zip(self._module.modules(), twin.modules()):
            vars(its).update((key, value) for key, value in vars(mine).items() if "_hooks" in key)
        return Twin(twin, named)

    def bring_up_to_date(self, twin: torch.nn.Module) -> None:
        """With what was set on the module since."""
        for mine, its in zip(self._module.modules(), twin.modules()):
            there = vars(its)
            for key, value in vars(mine).items():
                if isinstance(value, _PLAIN) and there.get(key, twin) is not value:
                    there[key] = value


def _like(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    return tensor.detach()


def _keeps_its_own(part: torch.nn.Module) -> bool:
    """A forward that was put into an object is a closure, mostly, over the object."""
    return isinstance(part, torch.jit.ScriptModule) or hasattr(part, "_orig_mod") or \
        any(_is_over_a_module(value) for value in vars(part).values())


def _is_over_a_module(value: Any) -> bool:
    for cell in getattr(value, "__closure__", None) or ():
        try:
            if isinstance(cell.cell_contents, torch.nn.Module):
                return True
        except ValueError:  # Nothing in it yet.
            pass
    return False


def _tensors_of(part: torch.nn.Module) -> Iterator[torch.Tensor]:
    for value in [*part._parameters.values(), *part._buffers.values(), *vars(part).values()]:
        if isinstance(value, torch.Tensor):
            yield value
