# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a PyTorch module and its optimizers, captured when the optimizer has stepped."""
from __future__ import annotations

import logging
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np
import torch

from ._arrays import _name_of, to_numpy
from ._errors import FailedPrecondition, InvalidArgument, OutOfSpace, Unsupported
from ._numbers import whole
from .checkpointer import Checkpointer, CheckpointTensor, Restored
from .torch import _named, _to_numpy

_log = logging.getLogger("freshet")
_RANDOM = "rng/torch"


class Checkpoints:
    """Checkpoints a module and its optimizer while they train, and goes on where the job's last life ended.

        with freshet.torch.Checkpoints("net", module, optimizer, every=10, local="/scratch/ck") as checkpoints:
            for step in range(checkpoints.step, steps):
                train(step)                           # optimizer.step() is what captures
                                                      # leaving it waits until every version is where it goes

    Every rank holds all of the module (data parallel), and stores its part. What comes back, bit by bit: parameters,
    buffers, the optimizer's state and learning rates, the random state of PyTorch on the CPU, and `extra`.

    module      its parameters and buffers, on any device.
    optimizer   one; or several, each of which steps once in a step. With one for each layer, stepped while the
                backward pass goes on (`Tensor.register_post_accumulate_grad_hook`), each layer is captured as soon as
                its update is done.
    every       steps between two checkpoints.
    extra       further tensors or arrays of this host's memory, by name, that are filled in place.
    The rest is as freshet.Checkpointer takes it: `local`, `external`, `group`, `rank`, `ranks`, `meet` ….

    `.step` counts the steps that are done, from the checkpoint on; `.restored` is what the job went on from, or None.
    A step that finds no room (OutOfSpace) has no checkpoint, which is logged. Unsupported: optimizers whose state is
    not made of tensors. A scheduler of learning rates is the program's to move to `.step`."""

    def __init__(self, name: str, module: torch.nn.Module, optimizer: Any, *, every: int = 1,
                 extra: Mapping[str, Any] | None = None, **checkpointer: Any) -> None:
        if whole(every, "every") < 1:
            raise InvalidArgument(f"every={every}: 1 or more steps")
        self._every = every
        self._optimizers: List[torch.optim.Optimizer] = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        if not self._optimizers or not all(isinstance(one, torch.optim.Optimizer) for one in self._optimizers):
            raise InvalidArgument(f"optimizer={optimizer!r}: one of torch.optim, or several")
        self._module = module
        self._extra = dict(extra or {})
        self._due: List[torch.optim.Optimizer] = []
        self._begun = False
        self.step = 0
        self.restored: Restored | None = None
        self._named = _named(module)[0]
        self._names = {id(tensor): key for key, tensor in self._named.items()}
        fresh = [_FreshState(one) for one in self._optimizers]
        try:
            self._checkpointer = Checkpointer(name, self._described(), **checkpointer)
            try:
                self._restore()
            except BaseException:
                self._checkpointer.close()
                raise
        finally:
            if self.restored is None:
                for one in fresh:
                    one.put_back()
        self._hooks = [one.register_step_post_hook(self._stepped) for one in self._optimizers]

    def finish(self, timeout: float | None = None) -> None:
        """Collective: waits until each version has ended at each level; the last call of a job that ends well."""
        self._checkpointer.finish(timeout)

    def close(self) -> None:
        """Ends it at once; what is still on its way is left."""
        for hook in self._hooks:
            hook.remove()
        self._checkpointer.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None and not self._checkpointer.closed:
                self.finish()
        finally:
            self.close()

    @property
    def checkpointer(self) -> Checkpointer:
        """For wait(), poll() and events()."""
        return self._checkpointer

    def _states_of(self, optimizer: torch.optim.Optimizer) -> Dict[str, torch.Tensor]:
        """The optimizer's state, by the names of its parameters."""
        found: Dict[str, torch.Tensor] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names.get(id(parameter))
                if name is None:
                    raise InvalidArgument("the optimizer has a parameter that is none of the module's")
                for key, value in optimizer.state.get(parameter, {}).items():
                    if value is None:
                        continue
                    if not isinstance(value, torch.Tensor):
                        raise Unsupported(f"optimizer state {key} of {name}: a {type(value).__name__}, and no tensor")
                    found[f"optimizer/{name}/{key}"] = value
        return found

    def _rates_of(self, optimizer: torch.optim.Optimizer) -> np.ndarray:
        return np.array([float(group["lr"]) for group in optimizer.param_groups], np.float64)

    def _described(self) -> Dict[str, CheckpointTensor]:
        parameters = {id(parameter) for parameter in self._module.parameters()}
        described: Dict[str, CheckpointTensor] = {}

        def add(name: str, array: np.ndarray, role: str, layout: str = "replicated") -> None:
            if name in described:
                raise InvalidArgument(f"two tensors are called {name}")
            described[name] = CheckpointTensor(_name_of(array.dtype, name), array.shape, layout, role)

        for name, tensor in self._named.items():
            add(name, _to_numpy(name, tensor), "weight" if id(tensor) in parameters else "buffer")
        for at, optimizer in enumerate(self._optimizers):
            for name, state in self._states_of(optimizer).items():
                add(name, _to_numpy(name, state), "optimizer")
            add(f"optimizer/{at}/lr", self._rates_of(optimizer), "optimizer")
        add(_RANDOM, torch.get_rng_state().numpy(), "opaque", "own")
        for name, value in self._extra.items():
            add(name, self._extra_array(name), "opaque")
        return described

    def _extra_array(self, name: str) -> np.ndarray:
        value = self._extra[name]
        return _to_numpy(name, value) if isinstance(value, torch.Tensor) else to_numpy(value, name)

    def _restore(self) -> None:
        tensors = dict(self._named)
        rates = {}
        for at, optimizer in enumerate(self._optimizers):
            tensors.update(self._states_of(optimizer))
            rates[f"optimizer/{at}/lr"] = self._rates_of(optimizer)
        random = torch.get_rng_state()
        arrays = {name: _to_numpy(name, tensor) for name, tensor in tensors.items()}
        arrays.update(rates)
        arrays[_RANDOM] = random.numpy()
        arrays.update({name: self._extra_array(name) for name in self._extra})
        self.restored = self._checkpointer.restore(arrays)
        if self.restored is None:
            return
        self.step = self.restored.step
        with torch.no_grad():
            for name, tensor in tensors.items():
                if tensor.device.type != "cpu":  # Its array is a copy, which was filled.
                    staged = torch.empty_like(tensor, device="cpu")
                    np.copyto(_to_numpy(name, staged), arrays[name])
                    tensor.copy_(staged)
        for at, optimizer in enumerate(self._optimizers):
            for group, rate in zip(optimizer.param_groups, rates[f"optimizer/{at}/lr"]):
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(float(rate))
                else:
                    group["lr"] = float(rate)
        if f"{_RANDOM}.r{self._checkpointer.rank}" not in self.restored.fresh:
            torch.set_rng_state(random)

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, how: Any) -> None:
        if not self._due:
            self._due = list(self._optimizers)
            self._begun = (self.step + 1) % self._every == 0 and self._begin()
        if not any(optimizer is one for one in self._due):
            raise FailedPrecondition("an optimizer stepped twice before the others stepped once")
        self._due = [one for one in self._due if one is not optimizer]
        if self._begun:
            self._capture_of(optimizer)
        if self._due:
            return
        self.step += 1
        if self._begun:
            self._begun = False
            self._capture_rest()
            captured = self._checkpointer.end()
            _log.debug("step %d is version %d", self.step, captured.version)

    def _begin(self) -> bool:
        try:
            self._checkpointer.begin(self.step + 1)
        except OutOfSpace as error:
            _log.warning("step %d has no checkpoint: %s", self.step + 1, error)
            return False
        self._captured: set[str] = set()
        return True

    def _capture(self, name: str, array: np.ndarray) -> None:
        self._checkpointer.capture({name: array})
        self._captured.add(name)

    def _capture_of(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names[id(parameter)]
                if name not in self._captured:
                    self._capture(name, _to_numpy(name, parameter))
        for name, state in self._states_of(optimizer).items():
            self._capture(name, _to_numpy(name, state))

    def _capture_rest(self) -> None:
        for name, tensor in self._named.items():
            if name not in self._captured:
                self._capture(name, _to_numpy(name, tensor))
        for at, optimizer in enumerate(self._optimizers):
            self._capture(f"optimizer/{at}/lr", self._rates_of(optimizer))
        self._capture(_RANDOM, torch.get_rng_state().numpy())
        for name in self._extra:
            self._capture(name, self._extra_array(name))


class _FreshState:
    """An optimizer's state as it was; meanwhile it has the tensors that a step makes, so that they can be filled."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._state = {parameter: {key: value.clone() if isinstance(value, torch.Tensor) else value
                                   for key, value in state.items()}
                       for parameter, state in optimizer.state.items()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if all(parameter in self._state for parameter in parameters):
            return
        # A step over gradients of zero, with a rate of zero. What it might do to parameters is taken back.
        gradients = [parameter.grad for parameter in parameters]
        values = [parameter.detach().clone() for parameter in parameters]
        rates = [group["lr"] for group in optimizer.param_groups]
        try:
            for parameter in parameters:
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            for group in optimizer.param_groups:
                group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
            try:
                optimizer.step()
            except TypeError as error:  # LBFGS wants a closure.
                raise Unsupported(f"{type(optimizer).__name__} cannot step by itself: {error}") from None
        finally:
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate
            with torch.no_grad():
                for parameter, gradient, value in zip(parameters, gradients, values):
                    parameter.grad = gradient
                    parameter.copy_(value)

    def put_back(self) -> None:
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
