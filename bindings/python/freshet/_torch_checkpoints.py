# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a PyTorch module and its optimizers, captured when the optimizer has stepped."""
from __future__ import annotations

import contextlib
import logging
from typing import Any, Dict, List, Mapping

import torch

from ._arrays import empty_of
from ._errors import Error, FailedPrecondition, InvalidArgument, OutOfSpace
from ._numbers import whole
from ._torch_state import TrainingState, array_of
from .checkpointer import Checkpointer, CheckpointTensor, Restored, left_besides

_log = logging.getLogger("freshet")


class Checkpoints:
    """Checkpoints a module and its optimizer while they train, and goes on where the job's last life ended.

        with freshet.torch.Checkpoints("net", module, optimizer, every=10, local="/scratch/ck") as checkpoints:
            for step in range(checkpoints.step, steps):
                train(step)                           # optimizer.step() is what captures
                                                      # leaving it waits until every version is where it goes

    Every rank holds all of the module (data parallel), and stores its part. What comes back, bit by bit: parameters,
    buffers, the optimizer's state and learning rates, the random state of PyTorch, NumPy and Python, and `extra`. Of several ranks
    rank 0 stores the buffers, and every rank gets them back. Random state and `extra` are each rank's own: a rank that the
    version does not have keeps what it begins with, and `.restored.fresh` names it.

    module      its parameters and buffers, on any device. What lies on an NVIDIA GPU, the optimizer's state too, is copied behind the
                loop: step() does not wait for the GPU. A checkpoint for which the GPU is too far behind is left out (OutOfSpace).
    optimizer   one, or several. A step is done when each of them has stepped. With one for each layer, stepped while the
                backward pass goes on (`Tensor.register_post_accumulate_grad_hook`), each layer is captured as soon as
                its update is done, and copied while the layers below it compute. An optimizer that steps again waits
                for its own copies. A parameter of several optimizers is captured when the last of them has stepped. A
                program that itself changes a parameter between its optimizer's step and the last optimizer's gives
                beside=False.
    beside      False: the last optimizer's step() copies all, and returns when that is done. With one optimizer alone it
                always does.
    every       steps between two checkpoints.
    extra       further tensors or arrays of this host's memory, by name, that are filled in place. Each rank stores all
                of its own.
    allow_left  goes on from a version that has tensors which the module lacks; later versions lack them, too.
    version     the number of the version to go on from, in the place of the newest one.
    anew        True: begins anew, whatever versions there are.
    The rest is as freshet.Checkpointer takes it: `local`, `external`, `group`, `rank`, `ranks`, `meet` ….

    `.step` counts the steps that the optimizer took, from the checkpoint on (a GradScaler may leave some out);
    `.restored` is what the job went on from, or None. An optimizer that steps again before the others did ends the step,
    which has no checkpoint then. A step that finds no room (OutOfSpace) has no checkpoint, which is logged. Unsupported:
    optimizers whose state is not made of tensors. FailedPrecondition: the version is of a module with other names or
    shapes, or has tensors that this one lacks; this one is as it was. optimizer.step() raises
    FailedPrecondition if a parameter was frozen when Checkpoints was made and is trained now: make Checkpoints first, then
    freeze parameters. The program itself moves a scheduler of learning rates to `.step`."""

    def __init__(self, name: str, module: torch.nn.Module, optimizer: Any, *, every: int = 1,
                 extra: Mapping[str, Any] | None = None, allow_left: bool = False, beside: bool = True,
                 version: int | None = None, anew: bool = False, **checkpointer: Any) -> None:
        if whole(every, "every") < 1:
            raise InvalidArgument(f"every={every}: 1 or more steps")
        self._every = every
        self._allow_left = allow_left
        self._due: List[torch.optim.Optimizer] = []
        self._begun = False
        self._captured: set[str] = set()
        self.step = 0
        self.restored: Restored | None = None
        self._state = TrainingState(module, optimizer, extra)
        self._beside = beside and len(self._state.optimizers) > 1
        try:
            # Of several ranks rank 0 stores the buffers, for all; each has its own random state and arrays.
            layouts = {"buffer": "from:0", "opaque": "own"}
            described = {tensor: CheckpointTensor(dtype, shape, layouts.get(role, "replicated"), role)
                         for tensor, (dtype, shape, role) in self._state.described.items()}
            self._checkpointer = Checkpointer(name, described, **checkpointer)
            try:
                self._restore(version, anew)
            except BaseException:
                self._checkpointer.close()
                raise
        finally:
            if self.restored is None:
                self._state.put_back()
        self._hooks = [one.register_step_pre_hook(self._will_step) for one in self._state.optimizers]
        self._hooks += [one.register_step_post_hook(self._stepped) for one in self._state.optimizers]

    def finish(self, timeout: float | None = None) -> None:
        """Collective: waits until each version has ended at each level; the last call of a job that ends well. Raises the last
        version's error if no folder has it, as the end of a `with` does."""
        self._abandon()
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

    def _restore(self, version: int | None, anew: bool) -> None:
        came = {name: empty_of(dtype, shape) for name, (dtype, shape, _) in self._state.described.items()}
        restored = self._checkpointer.restore(came, version, anew=anew, allow_left=True)  # What is left is told below.
        if restored is None:
            return
        own_names = [*self._state.random_names, *self._state.extra]
        rank = self._checkpointer.rank
        own = {f"{name}.r{rank}": name for name in own_names}
        is_new_rank = f"{self._state.random_names[0]}.r{rank}" in restored.fresh  # Every rank of a version has that.
        for name in restored.fresh:
            if name not in own or (not is_new_rank and own[name] in self._state.extra):
                raise FailedPrecondition(f"tensor {name}: version {restored.version} does not have it; it is of another "
                                         f"module, or its parts have other names")
            del came[own[name]]
        left = left_besides(restored.left, own_names)
        if left and not self._allow_left:
            raise FailedPrecondition(f"version {restored.version} has tensors that this module and its optimizers lack: "
                                     f"{', '.join(left)}; allow_left=True goes on without them")
        self._state.fill({name: array for name, array in came.items() if self._checkpointer.held(name) is not None})
        self.restored = restored
        self.step = restored.step

    def _will_step(self, optimizer: torch.optim.Optimizer, args: Any, how: Any) -> None:
        """What it writes is not being copied any more: an optimizer may step twice, or share a parameter."""
        if self._begun and self._beside:
            self._checkpointer.wait_for_copies(self._state.parameters_of(optimizer))
            self._checkpointer.wait_for_copies(self._state.state_names_of(self._index_of(optimizer)))

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, how: Any) -> None:
        if self._due and not any(optimizer is one for one in self._due):
            self._abandon()
            self.step += 1
        try:
            if not self._due:
                self._due = list(self._state.optimizers)
                self._begun = (self.step + 1) % self._every == 0 and self._begin()
            self._due = [one for one in self._due if one is not optimizer]
            if self._begun and self._beside:
                self._capture_of(optimizer)
            if self._due:
                return
            if self._begun:
                self._capture_rest()
                self._checkpointer.end()
                self._begun = False
            self.step += 1
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """The step under way has no checkpoint: at no rank."""
        self._due = []
        if self._begun:
            self._begun = False
            with contextlib.suppress(Error):
                self._checkpointer.end()

    def _begin(self) -> bool:
        try:
            self._checkpointer.begin(self.step + 1)
        except OutOfSpace as error:
            _log.warning("step %d has no checkpoint: %s", self.step + 1, error)
            return False
        self._captured = set()
        return True

    def _capture(self, tensors: Mapping[str, Any]) -> None:
        self._checkpointer.capture(tensors, beside=self._beside)
        self._captured.update(tensors)

    def _capture_of(self, optimizer: torch.optim.Optimizer) -> None:
        not_done = {id(parameter) for one in self._due for group in one.param_groups for parameter in group["params"]}
        tensors: Dict[str, Any] = {name: array_of(name, parameter) for name, parameter in self._state.parameters_of(optimizer).items()
                                   if name not in self._captured and id(parameter) not in not_done}
        self._capture({**tensors, **self._state.state_of(self._index_of(optimizer))})

    def _index_of(self, optimizer: torch.optim.Optimizer) -> int:
        return next(i for i, one in enumerate(self._state.optimizers) if one is optimizer)

    def _capture_rest(self) -> None:
        tensors = {name: array_of(name, tensor) for name, tensor in self._state.tensors().items() if name not in self._captured}
        self._capture({**tensors, **(self._state.rest() if self._beside else self._state.beside_the_module())})
