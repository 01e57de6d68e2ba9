# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a Keras model and its optimizer, captured while fit() trains."""
from __future__ import annotations

import logging
from typing import Any, Dict, Mapping

import keras
import numpy as np

from ._arrays import _name_of
from ._errors import FailedPrecondition, InvalidArgument, OutOfSpace
from ._keras_fit import Position, build_optimizer, variables_beside_weights, warn_of_unknown_order
from ._keras_graph import weights_of
from .checkpointer import Captured, Checkpointer, CheckpointTensor, Restored, left_besides
from .keras import _arrays_of, _placed_arrays_of

_log = logging.getLogger("freshet")


class CheckpointCallback(keras.callbacks.Callback):
    """Checkpoints model and optimizer while fit() trains, and goes on where the job's last life ended.

        callback = freshet.keras.CheckpointCallback("digits", local="/scratch/ck")
        model.fit(x, y, epochs=20, callbacks=[callback])       # started again, it goes on with the next epoch
        callback.close()

    model      the name under which the versions stand.
    every      "epoch", or after so many batches. With `steps_per_execution` above 1, the checkpoint comes when the
               execution with the last of these batches ends. Training goes on in the middle of an epoch: the batches that
               were trained on are passed over. For a later fit() of the same program give another callback.
    version    the number of the version to go on from, in the place of the newest one.
    anew       True: begins anew, whatever versions there are.
    The rest is as freshet.Checkpointer takes it: `local`, `external`, `group`, `rank`, `ranks`, `meet` ….

    Every rank holds all of the model (data parallel), and stores its part. What comes back, bit by bit: weights, the
    optimizer's variables, and the random state of layers, NumPy, Python and (where it is the backend) PyTorch. TensorFlow's own
    shuffling has no state to ask for: with it, use one seed in all runs (keras.utils.set_random_seed), or be warned. Of several ranks rank 0 stores what is not trained (moving
    statistics), and every rank gets it back. The model has to be built and compiled before fit(); else FailedPrecondition, as
    for a version with tensors that this model lacks, unless allow_left=True. Unsupported: with this `steps_per_execution` no
    execution ends where the version's training stood; the model is as it was. `.restored` is what training went on from, or
    None. `.step` counts batches. With `steps_per_execution` above 1, an epoch's last execution counts as a whole one if
    Keras does not know the epoch's length, and up to `steps_per_epoch` if fit() has that. `.blocked` is for how long training
    stood, in seconds. A checkpoint that finds no room (OutOfSpace) is left out, which is logged. close()
    waits until every version is where it goes."""

    def __init__(self, model: str, *, every: str | int = "epoch", allow_left: bool = False, version: int | None = None,
                 anew: bool = False, **checkpointer: Any) -> None:
        super().__init__()
        if every != "epoch" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise InvalidArgument(f"every={every!r}: \"epoch\", or a number of batches")
        self._name = model
        self._every = every
        self._allow_left = allow_left
        self._version = version
        self._anew = anew
        self._options = checkpointer
        self._checkpointer: Checkpointer | None = None
        self._position = Position()
        self.restored: Restored | None = None
        self.blocked = 0.0

    @property
    def step(self) -> int:
        """Batches trained on, from the job's beginning."""
        return self._position.step

    @property
    def checkpointer(self) -> Checkpointer | None:
        """For wait(), poll() and events(); None before fit()."""
        return self._checkpointer

    def on_train_begin(self, logs: Any = None) -> None:
        warn_of_unknown_order()
        if self._checkpointer is not None:
            return
        if not self.model.built or getattr(self.model, "optimizer", None) is None:
            raise FailedPrecondition(f"{self.model.name}: build and compile it before fit(), so that there is something to fill")
        build_optimizer(self.model)
        variables = self._variables()
        arrays = {**_arrays_of({name: variable for name, (variable, _, _) in variables.items()}), **self._position.arrays()}
        own = set(Position.random_names())
        described = {}
        for name, array in arrays.items():
            _, role, layout = variables.get(name, (None, "opaque", "own" if name in own else "replicated"))
            described[name] = CheckpointTensor(_name_of(array.dtype, name), array.shape, layout, role)
        self._checkpointer = Checkpointer(self._name, described, **self._options)
        try:
            self._restore(variables, arrays)
        except BaseException:
            self._checkpointer.close()
            self._checkpointer = None
            raise

    def _restore(self, variables: Mapping[str, tuple[Any, str, str]], arrays: Mapping[str, np.ndarray]) -> None:
        assert self._checkpointer is not None
        filled = {name: np.empty_like(array, order="C") for name, array in arrays.items()}
        self.restored = self._checkpointer.restore(filled, self._version, anew=self._anew, allow_left=True)
        if self.restored is None:
            return
        random = {name for name, (_, _, layout) in variables.items() if layout == "own"} | set(Position.random_names())
        own = {f"{name}.r{self._checkpointer.rank}": name for name in random}
        for name in self.restored.fresh:
            if name not in own:
                raise FailedPrecondition(f"tensor {name}: {self._name}@{self.restored.version} does not have it; it is of "
                                         f"another model, or its layers have other names")
            del filled[own[name]]
        left = left_besides(self.restored.left, random)
        if left and not self._allow_left:
            raise FailedPrecondition(f"{self._name}@{self.restored.version} has tensors that this model and its optimizer "
                                     f"lack: {', '.join(left)}; allow_left=True goes on without them")
        self._position.check(self, filled)
        for name, (variable, _, _) in variables.items():
            if name in filled and self._checkpointer.held(name) is not None:
                variable.assign(filled[name])
        self._position.go_on_from(self, filled)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._position.begin_epoch(epoch)

    def on_train_end(self, logs: Any = None) -> None:
        self.model._initial_epoch = None  # Keras would begin every later fit() there.

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        trained = self._position.end_batch(self)
        if isinstance(self._every, int) and self._position.has_passed(self._every, trained):
            self._checkpoint()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._position.end_epoch(epoch)
        if self._every == "epoch":
            self._checkpoint()

    def _variables(self) -> Dict[str, tuple[Any, str, str]]:
        """By name, with role and layout. Names do not say how often a program made a model before: Keras counts on.
        Under JAX they have their values when the model is asked for its weights."""
        trainable = {id(variable) for variable in self.model.trainable_variables}
        found: Dict[str, tuple[Any, str, str]] = {}
        for path, variable in weights_of(self.model).items():
            is_trained = id(variable) in trainable
            found[path.removeprefix(f"{self.model.name}/")] = (variable, "weight" if is_trained else "buffer",
                                                              "replicated" if is_trained else "from:0")
        for name, (variable, role) in variables_beside_weights(self.model).items():
            found[name] = (variable, role, "replicated" if role == "optimizer" else "own")
        return found

    def _checkpoint(self) -> Captured | None:
        if self._checkpointer is None:
            raise FailedPrecondition("fit() has not begun")
        arrays = _placed_arrays_of({name: variable for name, (variable, _, _) in self._variables().items()})
        arrays.update(self._position.arrays())
        try:
            captured = self._checkpointer.checkpoint(self.step, arrays)
        except OutOfSpace as error:
            _log.warning("%s at step %d has no checkpoint: %s", self._name, self.step, error)
            return None
        self.blocked += captured.blocked
        return captured

    def close(self, timeout: float | None = None) -> None:
        """Collective: waits until each version has ended at each level, then ends the checkpointer. Raises the last version's error
        if no folder has it."""
        if self._checkpointer is None:
            return
        try:
            self._checkpointer.finish(timeout)
        finally:
            self._checkpointer.close()
            self._checkpointer = None
