# SPDX-License-Identifier: Apache-2.0
"""A second object for a PyTorch module, with tensors of its own that can lie in another version."""
from __future__ import annotations

import copy
import gc
import logging
import types
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Tuple

import torch

_log = logging.getLogger("freshet")
_PLAIN = (bool, int, float, str, type(None))
_HOLD_NOTHING = (bool, int, float, str, bytes, type(None), type, types.ModuleType, types.CodeType, logging.Logger)
_LOOKED_AT_MAX = 10_000  # Objects that twins share. With more of them a module counts as one that cannot be doubled.


class Twin(NamedTuple):
    module: torch.nn.Module
    named: Mapping[str, torch.Tensor]
    parts: List[Tuple[torch.nn.Module, torch.nn.Module]]  # The module's, and the twin's.


class Twins:
    """Makes twins of one module. They share what has no name in `state_dict()`: further tensors, and hooks."""

    def __init__(self, module: torch.nn.Module, named: Mapping[str, torch.Tensor],
                 copied: Callable[[Dict[int, Any]], torch.nn.Module]) -> None:
        self._module = module
        self._named = named
        self._copied = copied  # The module, with what is known of copies.
        self._known: Mapping[int, Any] = {}
        self._hooks: Mapping[int, Any] = {}  # That twins may share.
        self._can_be_doubled = True

    def make(self, known: Dict[int, Any]) -> Twin | None:
        """A twin, or None: the module cannot be doubled. `known` are objects that stay what they are, by their ids."""
        self._known = known
        self._can_be_doubled = self._can_be_doubled and not self._keeps_its_own([(self._module, False)])
        if not self._can_be_doubled:
            return None
        memo = dict(known)
        for part in self._module.modules():
            for tensor in _tensors_of(part):
                memo[id(tensor)] = tensor
        named = {name: _like(tensor) for name, tensor in self._named.items()}
        memo.update((id(tensor), named[name]) for name, tensor in self._named.items())
        try:
            twin = self._copied(memo)
        except Exception as error:  # Whatever a part of it says.
            self._can_be_doubled = False
            _log.info("the attached module cannot be doubled, so forwards wait for each other when a version comes: %s", error)
            return None
        parts = list(zip(self._module.modules(), twin.modules()))
        for mine, its in parts:
            vars(its).update((key, value) for key, value in vars(mine).items() if "_hooks" in key)
        self._hooks = {id(hook): hook for mine, _ in parts for hook in _hooks_of(mine)}
        return Twin(twin, named, parts)

    def bring_up_to_date(self, twin: Twin) -> bool:
        """With what was set on the module since. False: the module has other parts by now, or a hook that has one of them, so
        this is no twin of it any more."""
        now = list(self._module.modules())
        if len(now) != len(twin.parts) or any(mine is not part for part, (mine, _) in zip(now, twin.parts)):
            return False
        hooks = {id(hook): hook for part in now for hook in _hooks_of(part)}
        more: List[Tuple[Any, bool]] = [(hook, True) for key, hook in hooks.items() if key not in self._hooks]
        if more and self._keeps_its_own(more):
            return False
        self._hooks = hooks
        for mine, its in twin.parts:
            there = vars(its)
            for key, value in list(vars(mine).items()):  # Threads that are in it may set something.
                if there.get(key, twin) is not value and _is_plain(value):
                    there[key] = value
        return True

    def _keeps_its_own(self, todo: List[Tuple[Any, bool]]) -> bool:
        """Whether a twin would compute with parts of the module itself, in another version. A copy has copies of what the module
        has, except functions and hooks: these are the same in both, so they may hold no module, and no tensor of the module's."""
        ours = {id(tensor) for tensor in self._named.values()}
        seen: Dict[Tuple[int, bool], Any] = {(key, is_shared): one for key, one in self._known.items()
                                             for is_shared in (False, True)}
        shared_count = 0
        while todo:
            value, shared = todo.pop()
            if type(value) in weakref.ProxyTypes:
                return True
            if isinstance(value, _HOLD_NOTHING) or (id(value), shared) in seen:
                continue
            seen[id(value), shared] = value
            shared_count += shared
            if shared_count > _LOOKED_AT_MAX:
                return True
            if isinstance(value, torch.Tensor):
                if shared and (id(value) in ours or isinstance(value, torch.nn.Parameter)):
                    return True
            elif isinstance(value, torch.nn.Module):
                if shared or isinstance(value, torch.jit.ScriptModule) or hasattr(value, "_orig_mod"):
                    return True
                todo += _parts_of(value)
            elif isinstance(value, weakref.ref):
                there = value()  # A recurrent module has some of its own tensors, and its copy makes them anew.
                if shared or not isinstance(there, torch.Tensor):
                    todo.append((there, True))
            elif isinstance(value, types.FunctionType):
                todo += ((one, True) for one in _held_by(value))
            else:
                is_shared = shared or isinstance(value, types.BuiltinFunctionType) or hasattr(type(value), "__deepcopy__")
                todo += ((one, is_shared) for one in gc.get_referents(value))
        return False


def copied(module: torch.nn.Module, memo: Dict[int, Any]) -> torch.nn.Module:
    """What copy.deepcopy() makes of a module, whose own attribute `__deepcopy__` is not asked."""
    copier = getattr(type(module), "__deepcopy__", None)
    if copier is not None:
        return copier(module, memo)
    make, arguments, state = (*module.__reduce_ex__(4), None)[:3]
    made = memo[id(module)] = make(*copy.deepcopy(arguments, memo))
    made.__setstate__(copy.deepcopy(state, memo))
    return made


def _like(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    return tensor.detach()


def _is_plain(value: Any) -> bool:
    """A tuple may have modules in it; a twin has its own."""
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(_is_plain(one) for one in value))


def _hooks_of(part: torch.nn.Module) -> List[Any]:
    return [hook for key, hooks in list(vars(part).items()) if "_hooks" in key and "state_dict" not in key
            and isinstance(hooks, dict) for hook in list(hooks.values())]


def _parts_of(module: torch.nn.Module) -> Iterator[Tuple[Any, bool]]:
    """What a module has, and whether its twin has the very same. Hooks of state_dict() are in no forward; what compile() made of
    the module is in no copy."""
    for key, value in list(vars(module).items()):
        if key != "_compiled_call_impl" and not ("_hooks" in key and "state_dict" in key):
            yield value, "_hooks" in key


def _held_by(function: types.FunctionType) -> Iterator[Any]:
    """What a function may use beside its arguments. Of what is global only what it names, and no functions of other files: these
    are a library's."""
    yield from (function.__defaults__, function.__kwdefaults__, vars(function))
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # Nothing in it yet.
            pass
    codes = [function.__code__]
    for code in codes:
        codes += (one for one in code.co_consts if isinstance(one, types.CodeType))
        for name in code.co_names:
            one = function.__globals__.get(name)
            if not isinstance(one, types.FunctionType) or one.__globals__ is function.__globals__:
                yield one


def _tensors_of(part: torch.nn.Module) -> Iterator[torch.Tensor]:
    for value in [*part._parameters.values(), *part._buffers.values(), *vars(part).values()]:
        if isinstance(value, torch.Tensor):
            yield value
