# SPDX-License-Identifier: Apache-2.0
"""What fit() needs beside a model's weights to go on as if nothing had been: the optimizer's variables, random states, and where it is in
its data."""
from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from typing import Any, Dict, List, Mapping, Tuple

import keras
import numpy as np

from . import _random_state
from ._errors import Corrupt, Unsupported
from ._keras_graph import weights_of

_log = logging.getLogger("freshet")
_POSITION = "fit/position"
_AT_EPOCH = "fit/epoch/"  # Before names of the random state when the epoch began: its order of the data came of it.


def _with_torch() -> bool:
    return keras.backend.backend() == "torch"


_warned_of_order = False


def _epoch_iterator_of_fit() -> Any:
    """What the fit() that called this takes its batches from; None if there is none. Keras tells callbacks nothing of it, so the
    frame of fit() is asked."""
    frame: Any = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_name == "fit" and "epoch_iterator" in frame.f_locals):
        frame = frame.f_back
    return frame.f_locals["epoch_iterator"] if frame is not None else None


def _is_seeded() -> bool:
    """Whether the program gave TensorFlow a seed: then it shuffles arrays alike in each epoch and each run."""
    context = importlib.import_module("tensorflow.python.eager.context")  # tf.random has no call that tells it.
    return context.global_seed() is not None


def warn_of_unknown_order() -> None:
    """Says, once in a process, when the fit() that called this lets TensorFlow shuffle without a seed: no training that goes on can
    have the same order then."""
    global _warned_of_order
    if _warned_of_order or keras.backend.backend() != "tensorflow":
        return
    adapter = getattr(_epoch_iterator_of_fit(), "data_adapter", None)
    if getattr(adapter, "_shuffle", False) and hasattr(adapter, "_inputs") and not _is_seeded():  # Arrays.
        _warned_of_order = True
        _log.warning("TensorFlow shuffles the data of this fit(), and cannot be asked for the state of its shuffling: training that "
                     "goes on from here has another order, and other bits. Call keras.utils.set_random_seed() with the same seed "
                     "in each run, or give fit(shuffle=False) data in an order that NumPy or Python chose")


def _pass_over_epochs(count: int) -> None:
    """A tf.data dataset counts the iterators that are made of it: its shuffle() has another order for each. So as many are made as
    Keras made in `count` epochs. Nothing is read from them."""
    iterator = _epoch_iterator_of_fit()
    if iterator is None or iterator.steps_per_epoch is not None or not iterator.num_batches:
        return  # One iterator for several epochs; or nobody knows yet when an epoch ends.
    if not hasattr(iterator.data_adapter, "_dataset"):
        return
    for _ in range(count):
        for _ in iterator.enumerate_epoch():
            pass


def build_optimizer(model: keras.Model) -> None:
    """Makes the optimizer's variables, if fit() did not yet."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def variables_beside_weights(model: keras.Model) -> Dict[str, Tuple[Any, str]]:
    """The optimizer's variables and the random state of layers, by name, with their role. Names do not say how often a program
    made a model before: Keras counts on."""
    known = {id(variable) for variable in [*model.metrics_variables, *weights_of(model).values(), *model.optimizer.variables]}
    found = {f"optimizer/{at}/{variable.name.rpartition('_')[2]}": (variable, "optimizer")
             for at, variable in enumerate(model.optimizer.variables)}
    random = [variable for variable in model.variables if id(variable) not in known]
    found.update({f"rng/{at}": (variable, "opaque") for at, variable in enumerate(random)})
    return found


class Position:
    """Where fit() is in its data. A callback tells it of epochs and batches; go_on_from() takes fit() there, and then skips the batches of
    the epoch that were trained on before.

    The order of an epoch's data is what it was where it comes of PyTorch's, NumPy's or Python's random state, or is fixed.
    TensorFlow's own shuffling cannot be asked for its state, but with one seed in all runs it repeats what it did."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0  # Batches of this epoch that were trained on, or skipped.
        self.step = 0   # Batches of all epochs that were trained on.
        self._at_epoch = _random_state.take(_with_torch(), _AT_EPOCH)
        self._at_once = 0  # Batches of an execution; 0: not asked yet in this epoch.
        self._skip = 0     # Executions.
        self._skipped = False

    def arrays(self) -> Dict[str, np.ndarray]:
        """Position and random states, of all who have a say in the order of data and in what is dropped."""
        now = _random_state.take(_with_torch())
        at_epoch = self._at_epoch if self.batch > 0 else {_AT_EPOCH + name: state for name, state in now.items()}
        return {_POSITION: np.array([self.epoch, self.batch, self.step], np.int64), **now, **at_epoch}

    @staticmethod
    def random_names() -> List[str]:
        """Those of arrays() that each process has for itself."""
        return [*_random_state.names(_with_torch()), *_random_state.names(_with_torch(), _AT_EPOCH)]

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.batch, self._at_once = epoch, 0, 0
        self._at_epoch = _random_state.take(_with_torch(), _AT_EPOCH)

    def end_batch(self, callback: keras.callbacks.Callback) -> int:
        """Counts the batches of one on_train_batch_end(), and says how many were trained on: `steps_per_execution` of the model,
        fewer where the epoch ends and Keras knows its length; 0 if they were skipped. The last one does not end the epoch: what Keras does then may draw
        random numbers."""
        if self._at_once == 0:  # Once: under JAX a callback's model is brought up to date whenever it is asked for.
            self._at_once = callback.model.steps_per_execution
        before, self.batch = self.batch, self.batch + self._at_once
        of_epoch = _batches_of_epoch(callback)
        if of_epoch:
            self.batch = min(self.batch, of_epoch)
        if self._skipped:
            self._skipped = False
            return 0
        self.step += self.batch - before
        return self.batch - before

    def has_passed(self, every: int, trained: int) -> bool:
        """Whether a multiple of `every` is among the last `trained` steps."""
        return self.step // every > (self.step - trained) // every

    def end_epoch(self, epoch: int) -> None:
        self.epoch, self.batch = epoch + 1, 0

    def check(self, callback: keras.callbacks.Callback, came: Mapping[str, np.ndarray]) -> None:
        """Before anything of the version is taken. Unsupported: its place is in the middle of an execution of several batches."""
        if min(came[_POSITION]) < 0:
            raise Corrupt(f"tensor {_POSITION}: {came[_POSITION]} is not a position in the data")
        batches, at_once = int(came[_POSITION][1]), callback.model.steps_per_execution
        if batches % at_once != 0 and batches != _batches_of_epoch(callback):
            raise Unsupported(f"training goes on after {batches} batches of an epoch: with steps_per_execution={at_once} no "
                              f"execution ends there")

    def go_on_from(self, callback: keras.callbacks.Callback, came: Mapping[str, np.ndarray]) -> None:
        """To be called when fit() begins, after check()."""
        model = callback.model
        epoch, batches, step = (int(value) for value in came[_POSITION])
        at_once = model.steps_per_execution
        self.epoch, self._skip, self.step = epoch, -(-batches // at_once), step
        model._initial_epoch = self.epoch  # What Keras' own BackupAndRestore sets.
        if keras.backend.backend() == "tensorflow":
            _pass_over_epochs(self.epoch)
        if self._skip == 0:
            _random_state.put_back(came)
            return
        _random_state.put_back(came, _AT_EPOCH)
        train_function = model.train_function

        def skip(*given: Any) -> Any:
            self._skip -= 1
            self._skipped = True
            if self._skip == 0:
                model.train_function = train_function
            answer = _passed_over(model, given)
            if self._skip == 0:
                _random_state.put_back(came)
            return answer

        model.train_function = skip


def _batches_of_epoch(callback: keras.callbacks.Callback) -> int | None:
    """None where Keras does not know before the epoch's end."""
    return (callback.params or {}).get("steps")


def _passed_over(model: keras.Model, given: Tuple[Any, ...]) -> Any:
    """What the training function of a backend answers for data that it only takes: no logs."""
    backend = keras.backend.backend()
    if backend == "torch":  # It is handed the data.
        return {}
    data = next(given[-1])
    with contextlib.suppress(StopIteration):  # The epoch may end within an execution.
        for _ in range(model.steps_per_execution - 1):
            next(given[-1])
    if backend == "jax":
        return {}, given[0]
    model._symbolic_build(data_batch=data)  # The metrics are asked for at the epoch's end, also where nothing is left of it.
    return {}
