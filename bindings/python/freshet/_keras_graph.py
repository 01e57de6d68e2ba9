# SPDX-License-Identifier: Apache-2.0
"""What a Keras 3 model computes, as a graph file tells it (docs/graph-file.md). The same under all its backends."""
from __future__ import annotations

import json
import math
import re
from typing import Any, Callable, Dict, Iterable, List, Tuple

import keras

from ._errors import InvalidArgument

Ref = List[Any]  # [layer's name, output]

# What does not change the computation's structure.
_LEFT_OUT = {"name", "trainable", "seed", "batch_shape", "shared_object_id", "build_config", "quantization_config"}
_DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3",
           "float8_e5m2": "f8_e5m2", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint64": "u64",
           "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "bool"}


def graph(model: keras.Model) -> Dict[str, Any]:
    """A model's architecture, as Repository.match() and put() take it: a dictionary. Nested models are taken apart, shared
    layers stand once for each call, their tensors once, named as their variables' paths. The key `framework_config` has what
    freshet.keras.load_model() makes the model of.

    A subclassed model tells nothing of its calls: its layers stand one after the other. The key `traced_by` says which it
    was: "keras" or "layers". FailedPrecondition: the model was not built yet."""
    return trace(model)[0]


def trace(model: keras.Model) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """The graph, and the Keras layers by the graph's names."""
    builder = _Builder()
    functional = _functional_of(model)
    if functional is not None:
        outputs, traced_by = builder.model(functional, None), "keras"
    else:
        outputs, traced_by = builder.one_after_the_other(model), "layers"
    builder.add_the_rest(model)
    made = {"freshet_graph": 1, "name": model.name, "layers": builder.layers, "outputs": [output[0] for output in outputs],
            "traced_by": traced_by}
    try:
        made["framework_config"] = model.to_json()
    except Exception:  # A subclassed model without get_config().
        pass
    return made, builder.keras_layers


def weights_of(model: keras.Model) -> Dict[str, Any]:
    """A model's variables by their paths; InvalidArgument where two have one path, which Keras allows."""
    named: Dict[str, Any] = {}
    for variable in model.weights:
        if named.setdefault(variable.path, variable) is not variable:
            raise InvalidArgument(f"tensor {variable.path}: two variables have this path; name their layers apart")
    return named


def counterparts(model: keras.Model, paths: Iterable[str], came: Iterable[str]) -> Dict[str, str]:
    """Which of the tensors that came is which of the model's variables, by their paths; a variable without one is not in the answer.

    A layer that the program named has its own weights only. Names that Keras made count on in a process (dense_3 for dense), so
    among these, and nowhere else, the order tells; and the name of the model itself is what the program likes."""
    mine, theirs = list(paths), list(came)
    if set(mine) == set(theirs):
        return {path: path for path in mine}
    counted = _names_that_keras_made(model)
    my_root, their_root = _common_root(mine), _common_root(theirs)
    own = my_root if my_root == model.name else ""
    best: Dict[str, str] = {}
    for roots in dict.fromkeys([(own, their_root), ("", ""), (own, ""), ("", their_root)]):
        for told_by in (lambda rest: rest, lambda rest: "/".join(rest.split("/")[-2:])):
            pairs = _pairs(mine, theirs, counted, roots, told_by)
            if len(pairs) == len(mine):
                return pairs
            best = max(best, pairs, key=len)
    left = set(theirs) - set(best.values())
    return {**{path: path for path in mine if path in left}, **best}


def _names_that_keras_made(model: keras.Model) -> set[str]:
    """Without what counts on."""
    found = set()
    for layer in model._flatten_layers():
        kind = keras.src.utils.naming.to_snake_case(type(layer).__name__)
        base = re.sub(r"_\d+$", "", layer.name)
        if base.removeprefix("forward_").removeprefix("backward_") == kind:  # Of Bidirectional's two layers.
            found.add(base)
    return found


def _common_root(paths: List[str]) -> str:
    roots = {path.partition("/")[0] if "/" in path else "" for path in paths}
    return roots.pop() if len(roots) == 1 else ""


def _pairs(mine: List[str], theirs: List[str], counted: set[str], roots: Tuple[str, str],
           told_by: Callable[[str], str]) -> Dict[str, str]:
    """Those that are told by the same, where one path, without its root, is the end of the other: a model within a model may
    have its name before its layers', or not yet."""
    groups: Dict[str, Tuple[Dict[str, str], Dict[str, str]]] = {}  # On each side: the rest of a path, and the path.
    plain: Dict[str, str] = {}
    for side, (paths, root) in enumerate(zip((mine, theirs), roots)):
        for path in paths:
            rest = path.removeprefix(f"{root}/" if root else "")
            parts = [(re.sub(r"_\d+$", "", part), part) for part in rest.split("/")]
            plain[rest] = "/".join(base if base in counted else part for base, part in parts)
            groups.setdefault(told_by(plain[rest]), ({}, {}))[side][rest] = path
    pairs: Dict[str, str] = {}
    for here, there in groups.values():
        if set(here) == set(there):
            pairs.update((path, there[rest]) for rest, path in here.items())
            continue
        ours, others = (sorted(side, key=lambda rest: _counts(rest, counted)) for side in (here, there))
        if len(here) == len(there) and all(f"/{plain[a]}".endswith(f"/{plain[b]}") or f"/{plain[b]}".endswith(f"/{plain[a]}")
                                           for a, b in zip(ours, others)):
            pairs.update((here[a], there[b]) for a, b in zip(ours, others))
    return pairs


def _counts(rest: str, counted: set[str]) -> List[int]:
    """How far Keras had counted at each name that it made, the layer's before those of models around it: a file that is in order of
    its names has dense_10 before dense_9."""
    parts = (re.fullmatch(r"(.*?)(?:_(\d+))?", part) for part in reversed(rest.split("/")))
    return [int(part[2] or 0) for part in parts if part is not None and part[1] in counted]


def _functional_of(model: Any) -> Any:
    if isinstance(model, keras.Sequential):
        return getattr(model, "_functional", None)
    return model if hasattr(model, "_nodes_by_depth") else None


class _Builder:
    def __init__(self) -> None:
        self.layers: List[Dict[str, Any]] = []
        self.keras_layers: Dict[str, Any] = {}
        self.owned: set = set()
        self.first_call: Dict[int, str] = {}
        self.names: set = set()

    def add(self, name: str, kind: str, config: Dict[str, Any], inputs: List[Any], **more: Any) -> str:
        unique, count = name, 1
        while unique in self.names:
            count += 1
            unique = f"{name}#{count}"
        self.names.add(unique)
        self.layers.append({"name": unique, "class": kind, "config": config,
                            "inputs": [one[0] if one[1] == 0 else one for one in inputs], **more})
        return unique

    def model(self, functional: Any, inputs: Any, prefix: str = "") -> List[Ref]:
        """The calls of a functional model; `inputs` are what its inputs are outside of it, None for placeholders."""
        refs: Dict[int, Ref] = {}
        for place, tensor in enumerate(functional.inputs):
            if inputs is not None:
                refs[id(tensor)] = inputs[place]
                continue
            config = {"dtype": _DTYPES.get(str(tensor.dtype), str(tensor.dtype)), "shape": [None, *tensor.shape[1:]]}
            refs[id(tensor)] = [self.add(prefix + tensor._keras_history.operation.name, "Input", config, []), 0]
        for depth in sorted(functional._nodes_by_depth, reverse=True):
            for node in functional._nodes_by_depth[depth]:
                if node.is_input:
                    continue
                given = [refs[id(tensor)] for tensor in node.arguments.keras_tensors]
                inner = _functional_of(node.operation)
                if inner is not None:
                    produced = self.model(inner, given, f"{prefix}{node.operation.name}/")
                else:
                    name = self.call(node.operation, given, prefix, _constants_of(node))
                    produced = [[name, port] for port in range(len(node.outputs))]
                for tensor, ref in zip(node.outputs, produced):
                    refs[id(tensor)] = ref
        return [refs[id(tensor)] for tensor in functional.outputs]

    def call(self, operation: Any, inputs: List[Ref], prefix: str = "", constants: Any = None) -> str:
        config = _config_of(operation)
        if constants:
            config["arguments"] = constants
        home = type(operation).__module__
        kind = f"keras.{type(operation).__name__}" if home.startswith("keras.") else \
            f"{home}.{type(operation).__qualname__}"
        name = prefix + operation.name
        if id(operation) in self.first_call:
            return self.add(name, kind, config, inputs, tensors_of=self.first_call[id(operation)])
        tensors = {}
        for variable in getattr(operation, "weights", []):
            if id(variable) in self.owned:
                continue
            self.owned.add(id(variable))
            local = variable.path.rsplit(operation.name + "/", 1)[-1]
            tensors[local if local not in tensors else variable.path] = _describe(variable)
        made = self.add(name, kind, config, inputs, **({"tensors": tensors} if tensors else {}))
        if tensors:
            self.first_call[id(operation)] = made
        self.keras_layers[made] = operation
        return made

    def one_after_the_other(self, model: keras.Model) -> List[Ref]:
        last: List[Ref] = []
        for layer in model._flatten_layers(include_self=False, recursive=True):
            if not list(layer._flatten_layers(include_self=False, recursive=False)):
                last = [[self.call(layer, last), 0]]
        return last

    def add_the_rest(self, model: keras.Model) -> None:
        """Variables that no call has: a subclassed model's own."""
        for variable in model.weights:
            if id(variable) not in self.owned:
                self.owned.add(id(variable))
                self.add(variable.path, "Parameter", {}, [], tensors={"value": _describe(variable)})


def _describe(variable: Any) -> Dict[str, Any]:
    dtype = str(variable.dtype)
    if dtype not in _DTYPES:
        raise InvalidArgument(f"tensor {variable.path}: dtype {dtype} is not one of Freshet's")
    return {"dtype": _DTYPES[dtype], "shape": list(variable.shape), "key": variable.path, "role": "weight"}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, keras.KerasTensor):
        return "<input>"
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        if value.get("class_name") == "DTypePolicy":
            return value["config"]["name"]
        return {str(key): _plain(one) for key, one in value.items() if key not in _LEFT_OUT and key != "registered_name"}
    try:
        return _plain(json.loads(json.dumps(keras.saving.serialize_keras_object(value), default=str)))
    except Exception:
        return type(value).__name__


def _config_of(operation: Any) -> Dict[str, Any]:
    try:
        config = operation.get_config()
    except Exception:  # An operation of keras.ops, or a layer of the user's without one.
        return {}
    return {key: _plain(value) for key, value in config.items()
            if key not in _LEFT_OUT and not key.endswith(("_initializer", "_regularizer", "_constraint"))}


def _constants_of(node: Any) -> Any:
    """What a call was given beside tensors, as `x * 2.0`."""
    arguments = [_plain(one) for one in node.arguments.args]
    named = {key: _plain(one) for key, one in node.arguments.kwargs.items() if one is not None}
    if all(one == "<input>" or (isinstance(one, list) and set(one) == {"<input>"}) for one in arguments) and not named:
        return None
    return [arguments, named]
