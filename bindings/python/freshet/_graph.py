# SPDX-License-Identifier: Apache-2.0
"""Architectures, as graph files tell them (docs/graph-file.md)."""
from __future__ import annotations

import json
import os
from typing import Any, Mapping, Union

from . import _core
from ._errors import InvalidArgument, IoError, NotFound

GraphLike = Union[Mapping[str, Any], str, "os.PathLike[str]"]


def graph_of(graph: GraphLike | None) -> Any:
    """A graph as C++ has it: from a dictionary, a graph file's text, or its path."""
    if graph is None or isinstance(graph, _core.Graph):
        return graph
    if isinstance(graph, Mapping):
        try:
            text = json.dumps(graph)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"the graph is not what JSON can hold: {error}") from None
        return _core.Graph.parse(text)
    if isinstance(graph, str) and graph.lstrip().startswith("{"):
        return _core.Graph.parse(graph)
    if not isinstance(graph, (str, os.PathLike)):
        raise InvalidArgument(f"a graph is a dictionary, a graph file's text or its path, not {type(graph).__name__}")
    try:
        with open(graph, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        raise NotFound(f"the graph {os.fspath(graph)}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise IoError(f"the graph {os.fspath(graph)}: {error}") from None
    return _core.Graph.parse(text)


def pairs_of(given: Mapping[str, Any] | None, what: str, value: type) -> list[tuple[str, Any]]:
    """Metrics (float) or tags (str) as C++ takes them."""
    pairs = []
    for key, one in (given or {}).items():
        try:
            if not isinstance(key, str) or (value is str and not isinstance(one, str)):
                raise TypeError(f"{type(key).__name__}: {type(one).__name__}")
            pairs.append((key, value(one)))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{what} {key!r} is no {value.__name__} by a name that is text: {error}") from None
    return pairs


def with_state(graph: Any, tensors: Mapping[str, Any]) -> Any:
    """The graph with tensors that no layer has: a loop's state, (dtype, shape, role) by name. It stands in a layer of its own,
    which nothing reads, so the others are what they were."""
    told = json.loads(graph.json())
    names = {layer["name"] for layer in told["layers"]}
    name = "freshet/state"
    while name in names:
        name += "+"
    told["layers"].append({"name": name, "class": "freshet.State", "config": {}, "inputs": [], "tensors": {
        tensor: {"dtype": dtype, "shape": list(shape), "key": tensor, "role": role}
        for tensor, (dtype, shape, role) in tensors.items()}})
    if "tensor_order" in told:
        told["tensor_order"] += list(tensors)
    return _core.Graph.parse(json.dumps(told))
