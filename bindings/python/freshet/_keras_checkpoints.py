# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a Keras model and its optimizer, captured while fit() trains."""
from __future__ import annotations

import logging
from typing import Any, Dict

import keras
import numpy as np

from ._arrays import _name_of
from ._errors import FailedPrecondition, InvalidArgument, OutOfSpace
from ._keras_graph import weights_of
from .checkpointer import Captured, Checkpointer, CheckpointTensor, Restored
from .keras import _arrays_of

_log = logging.getLogger("freshet")
_PROGRESS = "fit/progress"


class CheckpointCallback(keras.callbacks.Callback):
    """Checkpoints model and optimizer while fit() trains, and goes on where the job's last life ended.

        callback = freshet.keras.CheckpointCallback("digits", local="/scratch/ck")
        model.fit(x, y, epochs=20, callbacks=[callback])       # started again, it goes on with the next epoch
        callback.close()

    model      the name under which the versions stand.
    every      "epoch", or after so many batches. Training goes on with the epoch that was under way, from its first batch.
    The rest is as freshet.Checkpointer takes it: `local`, `external`, `group`, `rank`, `ranks`, `meet` ….

    Every rank holds all of the model (data parallel), and stores its part. What comes back, bit by bit: weights, the
    optimizer's variables, and the random state of layers. The model has to be built and compiled before fit(); else
    FailedPrecondition. `.restored` is what training went on from, or None; `.step` counts batches; `.blocked` is for how
    long training stood, in seconds. A checkpoint that finds no room (OutOfSpace) is left out, which is logged. close()
    waits until every version is where it goes."""

    def __init__(self, model: str, *, every: str | int = "epoch", **checkpointer: Any) -> None:
        super().__init__()
        if every != "epoch" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise InvalidArgument(f"every={every!r}: \"epoch\", or a number of batches")
        self._name = model
        self._every = every
        self._options = checkpointer
        self._checkpointer: Checkpointer | None = None
        self._epoch = 0
        self.step = 0
        self.restored: Restored | None = None
        self.blocked = 0.0

    @property
    def checkpointer(self) -> Checkpointer | None:
        """For wait(), poll() and events(); None before fit()."""
        return self._checkpointer

    def on_train_begin(self, logs: Any = None) -> None:
        if self._checkpointer is not None:
            return
        if not self.model.built or getattr(self.model, "optimizer", None) is None:
            raise FailedPrecondition(f"{self.model.name}: build and compile it before fit(), so that there is something to fill")
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        variables = self._variables()
        arrays = _arrays_of({name: variable for name, (variable, _, _) in variables.items()})
        described = {name: CheckpointTensor(_name_of(arrays[name].dtype, name), arrays[name].shape, layout, role)
                     for name, (_, role, layout) in variables.items()}
        described[_PROGRESS] = CheckpointTensor("i64", (2,), role="opaque")
        self._checkpointer = Checkpointer(self._name, described, **self._options)
        filled = {name: np.empty_like(array, order="C") for name, array in arrays.items()}
        filled[_PROGRESS] = np.zeros(2, np.int64)
        self.restored = self._checkpointer.restore(filled)
        if self.restored is None:
            return
        fresh = set(self.restored.fresh)
        for name, (_, _, layout) in variables.items():
            if layout != "own" and name in fresh:
                self._checkpointer.close()
                raise FailedPrecondition(f"tensor {name}: {self._name}@{self.restored.version} does not have it; it is of "
                                         f"another model, or its layers have other names")
        for name, (variable, _, layout) in variables.items():
            if layout != "own" or f"{name}.r{self._checkpointer.rank}" not in fresh:
                variable.assign(filled[name])
        self._epoch, self.step = (int(value) for value in filled[_PROGRESS])
        self.model._initial_epoch = self._epoch  # What Keras' own BackupAndRestore sets.

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step += 1
        if isinstance(self._every, int) and self.step % self._every == 0:
            self._checkpoint()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch + 1
        if self._every == "epoch":
            self._checkpoint()

    def _variables(self) -> Dict[str, tuple[Any, str, str]]:
        """By name, with role and layout. Names do not say how often a program made a model before: Keras counts on.
        Under JAX they have their values when the model is asked for its weights."""
        trainable = {id(variable) for variable in self.model.trainable_variables}
        found: Dict[str, tuple[Any, str, str]] = {}
        known = {id(variable) for variable in self.model.metrics_variables}
        for path, variable in weights_of(self.model).items():
            found[path.removeprefix(f"{self.model.name}/")] = (variable, "weight" if id(variable) in trainable else "buffer", "replicated")
            known.add(id(variable))
        for at, variable in enumerate(self.model.optimizer.variables):
            found[f"optimizer/{at}/{variable.name.rpartition('_')[2]}"] = (variable, "optimizer", "replicated")
            known.add(id(variable))
        random = [variable for variable in self.model.variables if id(variable) not in known]
        for at, variable in enumerate(random):  # The random state of layers, which each rank has for itself.
            found[f"rng/{at}"] = (variable, "opaque", "own")
        return found

    def _checkpoint(self) -> Captured | None:
        if self._checkpointer is None:
            raise FailedPrecondition("fit() did not begin")
        arrays = _arrays_of({name: variable for name, (variable, _, _) in self._variables().items()})
        arrays[_PROGRESS] = np.array([self._epoch, self.step], np.int64)
        try:
            captured = self._checkpointer.checkpoint(self.step, arrays)
        except OutOfSpace as error:
            _log.warning("%s at step %d has no checkpoint: %s", self._name, self.step, error)
            return None
        self.blocked += captured.blocked
        return captured

    def close(self, timeout: float | None = None) -> None:
        """Collective: waits until each version has ended at each level, then ends the checkpointer."""
        if self._checkpointer is None:
            return
        try:
            self._checkpointer.finish(timeout)
        finally:
            self._checkpointer.close()
