# SPDX-License-Identifier: Apache-2.0
"""A Keras model's variables as arrays, and back."""
from __future__ import annotations

import warnings
from typing import Any, Dict, Iterable, List, Mapping

import keras
import numpy as np

from ._errors import FailedPrecondition, NotFound
from ._keras_graph import counterparts, trace, weights_of


def _variables_of(model: keras.Model) -> Dict[str, Any]:
    """By their paths, in the graph's order."""
    variables = weights_of(model)
    return {tensor["key"]: variables[tensor["key"]] for layer in trace(model)[0]["layers"]
            for tensor in layer.get("tensors", {}).values()}


def _arrays_of(variables: Mapping[str, Any]) -> Dict[str, np.ndarray]:
    with warnings.catch_warnings():
        # Keras reads its variables by a way that NumPy 2 finds old.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message="__array__ implementation")
        if keras.backend.backend() == "jax":  # Keras makes a copy; an array of JAX on the CPU shows its own memory.
            return {path: np.asarray(variable.value) for path, variable in variables.items()}
        return {path: np.asarray(keras.ops.convert_to_numpy(variable)) for path, variable in variables.items()}


def _placed_arrays_of(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """For a publisher: what PyTorch or JAX has on a GPU stays there, and the publisher reads it in their order."""
    backend = keras.backend.backend()
    if backend == "torch":
        on_gpu = {path: variable.value for path, variable in variables.items() if variable.value.is_cuda}
    elif backend == "jax":
        on_gpu = {path: variable.value for path, variable in variables.items()
                  if all(device.platform == "gpu" for device in variable.value.devices())}
    else:
        on_gpu = {}
    others = _arrays_of({path: variable for path, variable in variables.items() if path not in on_gpu})
    return {path: on_gpu[path] if path in on_gpu else others[path] for path in variables}


def _ending(names: Iterable[str], wanted: str) -> List[str]:
    """That name, or those that end with it: Keras puts the names of models before the layers' own."""
    return [name for name in names if name == wanted] or [name for name in names if name.endswith("/" + wanted)]


def renamed(model: keras.Model, came: Mapping[str, np.ndarray], names: Mapping[str, str], source: str) -> Dict[str, np.ndarray]:
    """The arrays that came, by the model's paths where `names` says which those are: of tensors, or of whole layers."""
    paths = _variables_of(model)
    wanted: Dict[str, str] = {}  # The stored name by the model's path.
    for mine, theirs in names.items():
        pairs = {path: theirs for path in _ending(paths, mine)}
        for path in paths if not pairs else ():
            _, layer, rest = f"/{path}".partition(f"/{mine}/")
            if layer:
                pairs[path] = f"{theirs}/{rest}"
        if not pairs:
            raise NotFound(f"names: {model.name} has no tensor or layer {mine}")
        for path, name in pairs.items():
            found = _ending(came, name)
            if len(found) != 1:
                raise NotFound(f"names: {source} has {'several tensors' if found else 'no tensor'} {name} for {path}")
            wanted[path] = found[0]
    others = {name: array for name, array in came.items() if name not in wanted and name not in wanted.values()}
    return {**others, **{path: came[theirs] for path, theirs in wanted.items()}}


def _take(model: keras.Model, came: Mapping[str, np.ndarray], source: str, layers: Iterable[str] | None = None,
          strict: bool = True) -> None:
    """Assigns all variables (of those layers), or none: everything is looked at first. FailedPrecondition names the tensor that
    does not fit, or, if `strict`, that the model does not have."""
    variables = _variables_of(model)
    stored = counterparts(model, variables, came)
    more = [name for name in came if name not in set(stored.values())]
    if strict and layers is None and len(stored) == len(variables) and more:
        raise FailedPrecondition(f"tensor {more[0]}: {source} has it, the model does not have it: it would compute what no trained "
                                 f"network does; strict=False leaves out what the model lacks")
    if layers is not None:
        chosen: Dict[str, Any] = {}
        for name in [layers] if isinstance(layers, str) else layers:
            try:
                owned = {id(variable) for variable in model.get_layer(name).weights}
            except ValueError:
                raise NotFound(f"{model.name} has no layer {name}") from None
            chosen.update({path: variable for path, variable in variables.items() if id(variable) in owned})
        variables = chosen
    for path, variable in variables.items():
        if path not in stored:
            raise FailedPrecondition(f"tensor {path}: {source} does not have it")
        array = came[stored[path]]
        if tuple(array.shape) != tuple(variable.shape) or array.dtype.name != str(variable.dtype):
            raise FailedPrecondition(f"tensor {path}: {source} has {array.dtype} {array.shape}, the model {variable.dtype} "
                                     f"{tuple(variable.shape)}")

    def assign() -> None:
        for path, variable in variables.items():
            variable.assign(np.array(came[stored[path]]))  # A copy: a backend may keep the memory that it is given.

    try:
        assign()
    except BaseException:  # Ctrl-C: the model has all of it, and no half.
        assign()
        raise
