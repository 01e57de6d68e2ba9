# SPDX-License-Identifier: Apache-2.0
"""What a PyTorch loop that goes on needs beside its module: optimizers' state, learning rates, random state, and the program's own
arrays."""
from __future__ import annotations

import collections
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import torch

from . import _random_state
from ._arrays import described, empty_of, shown, to_numpy
from ._errors import FailedPrecondition, InvalidArgument, Unsupported
from ._torch_arrays import _check
from .torch import _from_numpy, _named, _to_numpy


class TrainingState:
    """Of one loop. Each optimizer has the state that a step makes for every parameter; which of it is there stands in
    `optimizer/AT/present`: a parameter that got no gradient yet has none. Making one leaves the optimizers with all of that state, to be
    filled; put_back() leaves them as they were.

    InvalidArgument, Unsupported: what is no optimizer of this module's, or has state that is not made of tensors."""

    def __init__(self, module: torch.nn.Module, optimizer: Any, extra: Mapping[str, Any] | None) -> None:
        self.optimizers: List[torch.optim.Optimizer] = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        if not self.optimizers or not all(isinstance(one, torch.optim.Optimizer) for one in self.optimizers):
            raise InvalidArgument(f"optimizer={optimizer!r}: one of torch.optim, or several")
        self.module = module
        self.extra = dict(extra or {})
        self._made: List[_MadeState] = []
        try:
            for one in self.optimizers:
                self._made.append(_MadeState(one))
                self._made[-1].make()
            self._describe()
        except BaseException:
            self.put_back()
            raise

    def put_back(self) -> None:
        """The optimizers have the state that they had before."""
        for made in self._made:
            made.put_back()
        self._made = []

    def _describe(self) -> None:
        #: By name: dtype as C++ has it, shape, role. The module's tensors come first.
        self.described: Dict[str, Tuple[str, Tuple[int, ...], str]] = {}

        def add(name: str, value: Any, role: str) -> None:
            if name in self.described:
                raise InvalidArgument(f"two tensors are called {name}")
            if isinstance(value, torch.Tensor):  # No byte is looked at, wherever they lie.
                _check(name, value.detach())
                value = _to_numpy(name, torch.empty(value.shape, dtype=value.dtype))
            self.described[name] = (*described(value, name), role)

        parameters = {id(parameter) for parameter in self.module.parameters()}
        for name, tensor in self.tensors().items():
            add(name, tensor, "weight" if id(tensor) in parameters else "buffer")
        self._state_names: List[List[str]] = []
        for at, optimizer in enumerate(self.optimizers):
            states = self._states_of(optimizer)
            for name, state in states.items():
                add(name, state, "optimizer")
            self._state_names.append(list(states))
            add(f"optimizer/{at}/present", self._present(at, states), "optimizer")
            add(f"optimizer/{at}/lr", _rates_of(optimizer), "optimizer")
        for name, array in self.rest().items():
            add(name, array, "opaque")
        self.random_names = _random_state.names(with_torch=True)

    def tensors(self) -> Dict[str, torch.Tensor]:
        """The module's parameters and buffers, as they are now."""
        return _named(self.module)[0]

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> Dict[str, torch.Tensor]:
        """An optimizer's parameters by their names in the module."""
        names = {id(tensor): name for name, tensor in self.tensors().items()}
        found: Dict[str, torch.Tensor] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in names:
                    raise InvalidArgument("the optimizer has a parameter that the module does not have")
                found[names[id(parameter)]] = parameter
        return found

    def state_names_of(self, at: int) -> Sequence[str]:
        """The tensors of the state that a step of optimizer `at` writes."""
        return self._state_names[at]

    def state_of(self, at: int) -> Dict[str, Any]:
        """The state of optimizer `at`: arrays, and tensors of a GPU's memory as they are; zeros for what it does not have yet.
        FailedPrecondition names state that is not in `described`: no version has a place for it."""
        states = self._states_of(self.optimizers[at])
        late = sorted(states.keys() - set(self._state_names[at]))
        if late:
            raise FailedPrecondition(f"tensor {late[0]}: the optimizer made it for a parameter that was frozen, or not there, when "
                                     f"Checkpoints(…) or the first publish(optimizer=…) looked; freeze parameters after that")
        found: Dict[str, Any] = {}
        for name in self._state_names[at]:
            if name in states:
                found[name] = array_of(name, states[name])
                continue
            found[name] = empty_of(*self.described[name][:2])
            found[name].fill(0)
        found[f"optimizer/{at}/present"] = self._present(at, states)
        found[f"optimizer/{at}/lr"] = _rates_of(self.optimizers[at])
        return found

    def rest(self) -> Dict[str, np.ndarray]:
        """Random state and the program's own arrays."""
        found = _random_state.take(with_torch=True)
        for name in self.extra:
            if name in found:
                raise InvalidArgument(f"two tensors are called {name}")
            found[name] = self._extra_array(name)
        return found

    def beside_the_module(self) -> Dict[str, Any]:
        """All but the module's own tensors."""
        found: Dict[str, Any] = {}
        for at in range(len(self.optimizers)):
            found.update(self.state_of(at))
        found.update(self.rest())
        return found

    def fill(self, came: Mapping[str, np.ndarray], module: bool = True) -> None:
        """Makes everything so, as far as `came` has it; it was looked at before."""
        tensors = self.tensors() if module else {}
        for optimizer in self.optimizers:
            tensors.update(self._states_of(optimizer))
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name in came:
                    tensor.copy_(_from_numpy(came[name]))
        for at, optimizer in enumerate(self.optimizers):
            present = came[f"optimizer/{at}/present"]
            absent = {name for name, there in zip(self._state_names[at], present) if not there}
            for name, parameter in self.parameters_of(optimizer).items():
                state = optimizer.state.get(parameter, {})
                if any(f"optimizer/{name}/{key}" in absent for key in state):
                    del optimizer.state[parameter]
            for group, rate in zip(optimizer.param_groups, came[f"optimizer/{at}/lr"]):
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(float(rate))
                else:
                    group["lr"] = float(rate)
        for name in self.extra:
            if name in came:  # A rank that the version does not have keeps its own.
                np.copyto(self._extra_array(name), came[name])
        _random_state.put_back(came)
        self._made = []

    def check(self, came: Mapping[str, np.ndarray], names: Any, version: str) -> None:
        """FailedPrecondition names the tensor that did not come, or has another shape or type."""
        for name in names:
            if name not in came:
                raise FailedPrecondition(f"tensor {name}: {version} does not have it; it is of another module or optimizer, "
                                         f"or was published without its optimizer")
            has, wanted = described(came[name], name), self.described[name][:2]
            if has != wanted:
                raise FailedPrecondition(f"tensor {name}: {version} has {shown(*has)}, this loop {shown(*wanted)}")

    def _states_of(self, optimizer: torch.optim.Optimizer) -> Dict[str, torch.Tensor]:
        found: Dict[str, torch.Tensor] = {}
        for name, parameter in self.parameters_of(optimizer).items():
            for key, value in optimizer.state.get(parameter, {}).items():
                if value is None:
                    continue
                if not isinstance(value, torch.Tensor):
                    raise Unsupported(f"optimizer state {key} of {name}: a {type(value).__name__}, and no tensor")
                found[f"optimizer/{name}/{key}"] = value
        return found

    def _present(self, at: int, states: Mapping[str, Any]) -> np.ndarray:
        return np.array([name in states for name in self._state_names[at]], np.uint8)

    def _extra_array(self, name: str) -> np.ndarray:
        value = self.extra[name]
        return _to_numpy(name, value) if isinstance(value, torch.Tensor) else to_numpy(value, name)


def array_of(name: str, tensor: torch.Tensor) -> Any:
    """The tensor itself where it lies on an NVIDIA GPU: who publishes it reads it there, in the current stream's order."""
    return tensor if tensor.is_cuda else _to_numpy(name, tensor)


def _rates_of(optimizer: torch.optim.Optimizer) -> np.ndarray:
    return np.array([float(group["lr"]) for group in optimizer.param_groups], np.float64)


class _MadeState:
    """An optimizer's state as it was; after make() it has the tensors that a step makes, so that they can be filled."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._before: Dict[Any, Any] | None = None

    def make(self) -> None:
        """A step over gradients of zero, with a rate of zero, of which no hook hears. What it might do to parameters is taken
        back."""
        optimizer = self._optimizer
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if all(parameter in optimizer.state for parameter in parameters):
            return
        self._before = {parameter: {key: value.clone() if isinstance(value, torch.Tensor) else value
                                    for key, value in state.items()}
                        for parameter, state in optimizer.state.items()}
        gradients = [parameter.grad for parameter in parameters]
        values = [parameter.detach().clone() for parameter in parameters]
        rates = [group["lr"] for group in optimizer.param_groups]
        hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        optimizer._optimizer_step_pre_hooks = collections.OrderedDict()
        optimizer._optimizer_step_post_hooks = collections.OrderedDict()
        try:
            for parameter in parameters:
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            for group in optimizer.param_groups:
                group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
            try:
                type(optimizer).step(optimizer)  # Schedulers count the calls of `optimizer.step`.
            except (TypeError, RuntimeError) as error:  # LBFGS wants a closure, SparseAdam sparse gradients.
                raise Unsupported(f"{type(optimizer).__name__} cannot step by itself: {error}") from None
        finally:
            optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate
            with torch.no_grad():
                for parameter, gradient, value in zip(parameters, gradients, values):
                    parameter.grad = gradient
                    parameter.copy_(value)

    def put_back(self) -> None:
        if self._before is not None:
            self._optimizer.state.clear()
            self._optimizer.state.update(self._before)
