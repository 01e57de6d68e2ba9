# SPDX-License-Identifier: Apache-2.0
"""Keras 3, on TensorFlow, JAX or PyTorch.

    model.fit(x, y, callbacks=[freshet.keras.PublishCallback("digits")])      # the training loop
    served = freshet.keras.attach(model, sub); served.predict(x)              # the server
    t = freshet.keras.transfer(model, repo); model.fit(…); t.store("cand-7", quality=0.93)
"""
from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Dict, Iterable, List, Mapping

import keras
import numpy as np

from ._arrays import _name_of
from ._errors import FailedPrecondition, InvalidArgument, NotFound
from ._graph import graph_of, with_state
from ._keras_arrays import _arrays_of, _placed_arrays_of, _take, _variables_of, renamed
from ._keras_attach import Attached, attach
from ._keras_graph import graph, trace, weights_of
from ._place import place_of
from ._transfer import Model, Transfer
from ._version import Version
from .publisher import Publisher
from .repository import Repository, Resumed
from .scheduler import Scheduler
from .weights import newest_snapshot, opened_publisher

__all__ = ["Attached", "CheckpointCallback", "PublishCallback", "Transfer", "attach", "graph", "load", "load_model", "load_weights",
           "save_weights", "transfer"]

_OPTIMIZERS = "freshet.optimizers"  # The tag that says of which class the optimizer is.


def _numbers_of(logs: Any) -> Dict[str, float]:
    """The metrics that are one number. Some have a number for each class, F1Score(average=None) for example."""
    numbers: Dict[str, float] = {}
    for name, value in (logs or {}).items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # NumPy's and each backend's own words.
            numbers[name] = float(value)
    return numbers


class PublishCallback(keras.callbacks.Callback):
    """Publishes the model while it trains.

        repo = freshet.Repository("runs/")
        callback = freshet.keras.PublishCallback("digits", optimizer=True, resume=(repo, "digits"))

    model      the name under which it is published.
    every      "epoch", or after so many batches. With `steps_per_execution` above 1, the version comes when the execution
               with the last of these batches ends.
    schedule   "online" and the like (docs/schedules.md): decided from the loss after each execution, and at each epoch's end, in the
               place of `every`. What would make training stand still for longer than it trains is left out. The warm-up is
               a tenth of what fit() is to train, and 100 batches at most.
    optimizer  the optimizer's variables travel along, the random state of layers, NumPy, Python and (where it is the backend)
               PyTorch, and where fit() is in its data. No server takes them; a repository has them for `resume`.
    resume     (repository, "digits" or "digits@3"): fit() goes on from that version. With the optimizer in it, as if nothing
               had been, bit by bit, also in the middle of an epoch: the batches that were trained on are passed over. Without,
               from its weights and step. Where the repository has nothing of that name yet, training begins anew.
               TensorFlow's own shuffling has no state to ask for: with it, use one seed in all runs
               (keras.utils.set_random_seed), or be warned.
    strict     False: `resume` takes a version that has tensors which this model or its optimizer lacks, or that another class
               of optimizer trained.
    The rest is as freshet.Publisher takes it.

    Whatever `every` and `schedule` say, the end of fit() is published, too.

    `.versions` are the numbers that were published, `.blocked` is for how long training stood, in seconds. `.step` counts batches, also
    those before `resume`; `.resumed` is what training went on from, or None. The publisher
    stays open after fit(), for servers that come late and for the next fit(), until close(). A version that finds no room
    is skipped, which is logged once. What is published is copied before the next batch, also under JAX, whose arrays
    nobody changes: fit() donates them to its next step, which would have to copy them itself, for longer, while they are kept. With `optimizer` or `resume` the model has to be built and compiled before fit(): else
    FailedPrecondition. Unsupported: with this `steps_per_execution` no execution ends where the training of `resume` stood; the
    model is as it was."""

    def __init__(self, model: str, every: str | int = "epoch", schedule: str | None = None, optimizer: bool = False,
                 resume: Any = None, strict: bool = True, **publisher: Any) -> None:
        super().__init__()
        if every != "epoch" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise InvalidArgument(f"every={every!r}: \"epoch\", or a number of batches")
        if resume is not None and (not isinstance(resume, tuple) or len(resume) != 2):
            raise InvalidArgument("resume: (repository, version)")
        self._name = model
        self._every = every
        self._with_optimizer = bool(optimizer)
        self._resume: Any = resume
        self._strict = strict
        self._options = publisher
        self._schedule = schedule
        self._scheduler = Scheduler(schedule) if schedule is not None else None
        self._published_step = 0
        self._publisher: Publisher | None = None
        self._position: Any = None
        self.versions: List[int] = []
        self.blocked = 0.0
        self.resumed: Resumed | None = None

    @property
    def step(self) -> int:
        """Batches trained on, from the run's beginning."""
        return self._position.step if self._position is not None else 0

    def on_train_begin(self, logs: Any = None) -> None:
        if self._with_optimizer:
            from ._keras_fit import warn_of_unknown_order
            warn_of_unknown_order()
        if self._publisher is None and (self._with_optimizer or self._resume is not None):
            if not self.model.built or getattr(self.model, "optimizer", None) is None:
                raise FailedPrecondition(f"{self.model.name}: build and compile it before fit(), so that there is something to "
                                         f"fill")
        if self.model.built:
            self._open()
        if self._schedule is not None and self.step == 0:
            batches = (self.params or {}).get("steps") or 0  # Keras may not know it.
            of_fit = batches * ((self.params or {}).get("epochs") or 0)
            self._scheduler = Scheduler(self._schedule, warmup_steps=min(100, max(1, of_fit // 10)) if of_fit else 100)

    def on_train_end(self, logs: Any = None) -> None:
        averaged = getattr(getattr(self.model, "optimizer", None), "use_ema", False)  # Keras puts the averages in just now.
        if self.step > 0 and (self.step != self._published_step or averaged):
            self._publish(logs)
        if self.resumed is not None:
            self.model._initial_epoch = None  # Keras would begin every later fit() there.

    def _open(self) -> Publisher:
        if self._publisher is not None:
            return self._publisher
        from ._keras_fit import Position, build_optimizer
        self._position = self._position or Position()
        told: Any = graph_of(graph(self.model))
        self._order = list(_variables_of(self.model))
        if self._with_optimizer:
            build_optimizer(self.model)
            state = self._state()
            told = with_state(told, {name: (_name_of(array.dtype, name), array.shape, role)
                                     for name, (array, role) in state.items()})
        options = dict(self._options)
        if self._resume is not None and self._has_begun():
            options["resume"] = self._resume
        publisher = Publisher(self._name, graph=told, **options)
        try:
            if publisher.resumed is not None:
                self._go_on_from(publisher.resumed)
        except BaseException:
            publisher.close()
            raise
        self._publisher = publisher
        self._published_step = self.step
        return publisher

    def _has_begun(self) -> bool:
        """Whether there is a version to go on from; NotFound for one that was named by its number."""
        repository, version = self._resume
        try:
            repository.quality(version)
            return True
        except NotFound:
            if "@" in str(version):
                raise
            return False

    def _state(self) -> Dict[str, tuple[np.ndarray, str]]:
        """What travels beside the weights, with its role."""
        from ._keras_fit import variables_beside_weights
        beside = variables_beside_weights(self.model)
        arrays = _arrays_of({name: variable for name, (variable, _) in beside.items()})
        state = {name: (array, beside[name][1]) for name, array in arrays.items()}
        state.update((name, (array, "opaque")) for name, array in self._position.arrays().items())
        return state

    def _go_on_from(self, resumed: Resumed) -> None:
        from ._keras_fit import variables_beside_weights
        source = str(resumed.version)
        if not self._with_optimizer:
            _take(self.model, resumed.weights, source, strict=self._strict)
            self._position.step = resumed.step
            self.resumed = resumed
            return
        state = self._state()
        if self._strict:
            self._check_nothing_is_left(resumed, state)
        for name, (array, _) in state.items():
            came = resumed.state.get(name)
            if came is None:
                raise FailedPrecondition(f"tensor {name}: {source} does not have it; it is of another model, or was published "
                                         f"without its optimizer")
            if came.shape != array.shape or came.dtype != array.dtype:
                raise FailedPrecondition(f"tensor {name}: {source} has {came.dtype} {came.shape}, this run {array.dtype} "
                                         f"{array.shape}")
        self._position.check(self, resumed.state)
        _take(self.model, resumed.weights, source, strict=self._strict)
        for name, (variable, _) in variables_beside_weights(self.model).items():
            variable.assign(np.array(resumed.state[name]))
        self._position.go_on_from(self, resumed.state)
        self.resumed = resumed

    def _check_nothing_is_left(self, resumed: Resumed, state: Mapping[str, Any]) -> None:
        trained, mine = resumed._record.tags().get(_OPTIMIZERS), type(self.model.optimizer).__name__
        if trained is not None and trained != mine:
            raise FailedPrecondition(f"{resumed.version} was trained by {trained}, this run has {mine}, which would go on with its "
                                     f"learning rate; strict=False takes what fits")
        for name in resumed.state:
            if name not in state and not name.startswith(("rng/", "fit/")):
                raise FailedPrecondition(f"tensor {name}: {resumed.version} has it, this run does not have it: it is of another "
                                         f"optimizer; strict=False leaves it out")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._position is not None:
            self._position.begin_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._position is None:
            from ._keras_fit import Position
            self._position = Position()
        trained = self._position.end_batch(self)
        if not trained:
            return
        if self._scheduler is not None:
            if self._scheduler.observe(self.step, _numbers_of(logs).get("loss", float("nan"))):
                self._publish(logs)
        elif isinstance(self._every, int) and self._position.has_passed(self._every, trained):
            self._publish(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._position is not None:
            self._position.end_epoch(epoch)
        if self._scheduler is not None:
            if self._scheduler.observe(self.step, _numbers_of(logs).get("loss", float("nan")), epoch_end=True) and \
                    self.step != self._published_step:
                self._publish(logs)
        elif self._every == "epoch":
            self._publish(logs)

    def _publish(self, logs: Any) -> None:
        publisher = self._open()  # Now, for a model that has no shapes before its first batch.
        begin = time.perf_counter()
        metrics = _numbers_of(logs)
        # Asked for anew: under JAX they have no values while it trains, until the model is asked for its weights.
        variables = weights_of(self.model)
        arrays = _placed_arrays_of({path: variables[path] for path in self._order})
        if self._with_optimizer:
            arrays.update((name, array) for name, (array, _) in self._state().items())
        tags = {_OPTIMIZERS: type(self.model.optimizer).__name__} if self._with_optimizer else None
        try:
            receipt = publisher.publish(arrays, step=self.step, metrics=metrics, tags=tags)
        finally:
            self.blocked += time.perf_counter() - begin
        if receipt.version is None:
            return
        self.versions.append(receipt.version)
        self._published_step = self.step
        if self._scheduler is not None:
            self._scheduler.published(time.perf_counter() - begin)

    def close(self) -> None:
        """Ends the publisher; servers keep what they have."""
        if self._publisher is not None:
            self._publisher.close()


def save_weights(model: keras.Model, name: str) -> int | None:
    """Publishes a model's weights under a name, in the place of `model.save_weights(file)`, with the config of which
    load_model() makes the model; which version they are, or None: there was no room for it. When this has returned, whoever
    loads gets this version or a newer one."""
    publisher = opened_publisher(name)
    told: Any = graph_of(graph(model))
    known = publisher._graph
    is_known = known is not None and known.json() == told.json()
    return publisher.publish(_placed_arrays_of(_variables_of(model)), graph=None if is_known else told, sync=True).version


def load_weights(model: keras.Model, name: str, layers: Iterable[str] | None = None, timeout: float | None = 10, *,
                 strict: bool = True) -> int:
    """Loads the newest published weights, of all layers or of those named: all, or, with FailedPrecondition naming the
    tensor that does not fit, none. A version with tensors that the model lacks is of another network: strict=False takes it. Waits
    so many seconds for a first version and for the publisher's answer. Which version they were."""
    with newest_snapshot(name, timeout) as snapshot:
        _take(model, snapshot, f"{name}@{snapshot.version}", layers, strict)
        return snapshot.version


def load(model: keras.Model, repository: Any, version: str, *, names: Mapping[str, str] | None = None, strict: bool = True) -> Version:
    """Fills a model with the weights of a stored version, all or none; which version it was.

        freshet.keras.load(model, "runs/", "net@3")

    repository   a Repository, or its place.
    version      "net@3", "net@best" for an alias, "net" for the newest.
    names        where layers have other names than the stored ones: the stored names by the model's, of layers, as
                 {"head": "dense_2"}, or of tensors, as {"head/kernel": "dense_2/kernel"}. The others are paired as load_weights() does.
    strict       False: leaves out tensors of the version that the model lacks.

    NotFound: there is no such version, or nothing has a name in `names`. FailedPrecondition names the tensor that does not
    fit."""
    stored = place_of(repository).open()._served(version)
    _take(model, renamed(model, stored, names or {}, str(stored.version)), str(stored.version), strict=strict)
    return stored.version


def load_model(name: str, repository: Repository | None = None, *, safe_mode: bool = True,
               timeout: float | None = 10) -> keras.Model:
    """Makes a model from the config that was published or stored with it, and loads its weights.

    name         a published model's; with `repository` a stored version's: "m", "m@3".
    safe_mode    refuses configs with code of their own (Lambda layers), as Keras does.

    FailedPrecondition: there is no config with it (it was published without freshet.keras)."""
    if repository is not None:
        repository = place_of(repository).open()
        return _made_of(repository.graph(name), repository._served(name), name, safe_mode)
    with newest_snapshot(name, timeout) as snapshot:
        return _made_of(snapshot.graph, snapshot, f"{name}@{snapshot.version}", safe_mode)


def _made_of(told: Mapping[str, Any], weights: Mapping[str, np.ndarray], source: str, safe_mode: bool) -> keras.Model:
    config = told.get("framework_config")
    if not config:
        raise FailedPrecondition(f"{source} has no Keras config with it; make the model, and load_weights() into it")
    try:
        model = keras.saving.deserialize_keras_object(json.loads(config), safe_mode=safe_mode)
    except Exception as error:  # Whatever Keras says of a config.
        raise InvalidArgument(f"{source}: Keras makes no model of its config: {error}") from error
    if not isinstance(model, keras.Model):
        raise InvalidArgument(f"{source}: its config is of a {type(model).__name__}, and no model")
    _take(model, weights, source)
    return model


def transfer(model: keras.Model, repository: Repository, *, freeze: str = "all", **query: Any) -> Transfer:
    """Finds the stored model that shares the longest prefix of layers with this one, loads these layers, and freezes them.
    Compile the model afterwards; then fit() trains the rest.

    freeze   "all", or "prefix": the last parametric layers train all the same: the model's last one, and the later two thirds of
             those that were loaded; or "none": all train.
    query    as Repository.match() takes it."""
    told, known = trace(model)
    layers = {one["name"]: known[one["name"]] for one in told["layers"]  # An operation of keras.ops has no weights.
              if getattr(known.get(one["name"]), "weights", [])}
    variables = weights_of(model)

    def load(came: Mapping[str, np.ndarray]) -> List[str]:
        for path, array in came.items():
            variables[path].assign(array)
        taken = {id(variables[path]) for path in came}
        return [name for name, layer in layers.items() if all(id(variable) in taken for variable in layer.weights)]

    def frozen(names: List[str]) -> List[str]:
        for name in names:
            layers[name].trainable = False
        return [layers[name].name for name in names]

    # A layer with nothing but moving averages does not train.
    parametric = [name for name, layer in layers.items() if layer.trainable_weights]
    return Transfer(place_of(repository).open(), Model(told, parametric or list(layers), load, frozen,
                                                       lambda: _arrays_of(_variables_of(model))), freeze, **query)


def __getattr__(name: str) -> Any:
    """What is wanted seldom."""
    if name == "CheckpointCallback":
        from ._keras_checkpoints import CheckpointCallback
        return CheckpointCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
