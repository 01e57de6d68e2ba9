# SPDX-License-Identifier: Apache-2.0
"""ONNX graphs whose initializers give way to published tensors."""
from __future__ import annotations

import errno
import os
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, NamedTuple, Tuple

import onnx

from ._errors import FailedPrecondition, InvalidArgument, IoError, NotFound

BYTES_MAX = 2**31 - 1  # A protobuf message is not larger.
PUBLISHED = "freshet"  # Where a stub says that its bytes are. There is no such file: onnxruntime is given the values.
_NAMES_SHOWN = 3
_OURS = {"FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16", "FLOAT8E4M3FN": "f8_e4m3",
         "FLOAT8E5M2": "f8_e5m2", "INT64": "i64", "INT32": "i32", "INT16": "i16", "INT8": "i8", "UINT64": "u64",
         "UINT32": "u32", "UINT16": "u16", "UINT8": "u8", "BOOL": "bool"}


class Initializer(NamedTuple):
    """What a tensor must be like to take an initializer's place."""

    elem_type: int                   # ONNX' number of its type.
    shape: Tuple[int, ...]
    is_input: bool                   # The file lets callers feed another value.
    cannot: str                      # Why no tensor can take its place; empty: one can.

    @property
    def dtype(self) -> str:
        name = onnx.TensorProto.DataType.Name(self.elem_type)  # type: ignore[arg-type]
        return _OURS.get(name, name.lower())


def listed(names: Iterable[str]) -> str:
    """Some names of many, for a message."""
    found = sorted(names)
    more = f" and {len(found) - _NAMES_SHOWN} more" if len(found) > _NAMES_SHOWN else ""
    return ", ".join(found[:_NAMES_SHOWN]) + more


class Graph:
    """A model file, and the models that come of it when published tensors take the place of initializers. One thread
    at a time.

    NotFound and IoError name the file that cannot be read, InvalidArgument the one that is no ONNX model."""

    def __init__(self, path_or_bytes: Any) -> None:
        if isinstance(path_or_bytes, bytes):
            self.what, self._folder = "the model in bytes", None
        else:
            try:
                self.what = os.fspath(path_or_bytes)
            except TypeError:
                raise InvalidArgument(f"an ONNX model is a path or bytes, not {type(path_or_bytes).__name__}") from None
            self._folder = os.path.dirname(os.path.abspath(self.what))
        self._rest = self._loaded(path_or_bytes)  # Without the values that settle() dropped.
        self._left: "Tuple[FrozenSet[str], onnx.ModelProto] | None" = None  # Which ones the last model took out of it, and what stayed.
        self._settled: FrozenSet[str] = frozenset()
        self.initializers: Dict[str, Initializer] = {}
        inputs = {one.name for one in self._rest.graph.input}
        for graph, tensor in _tensors(self._rest.graph):
            self._check_type(tensor.name, tensor.data_type)
            self.initializers[tensor.name] = self._described(graph, tensor, inputs)
        for graph in _graphs(self._rest.graph):
            for sparse in graph.sparse_initializer:
                self._check_type(sparse.values.name, sparse.values.data_type)
                self.initializers[sparse.values.name] = Initializer(
                    sparse.values.data_type, tuple(sparse.dims), False, "it is sparse: make it dense in the file")

    def _loaded(self, path_or_bytes: Any) -> onnx.ModelProto:
        try:
            if isinstance(path_or_bytes, bytes):
                model = onnx.load_model_from_string(path_or_bytes)
            else:
                model = onnx.load_model(self.what, format="protobuf", load_external_data=False)
        except OSError as error:
            kind = NotFound if error.errno in (errno.ENOENT, errno.ENOTDIR) else IoError
            raise kind(f"open {self.what}: {error.strerror}; give the path of an .onnx file") from None
        except Exception as error:  # Protobuf's own, of several classes.
            raise InvalidArgument(f"{self.what} is no ONNX model: {error}") from None
        if not model.graph.output:  # Protobuf takes an empty file, and much noise, for a message.
            raise InvalidArgument(f"{self.what} is no ONNX model: it has no graph with outputs")
        return model

    def _described(self, graph: Any, tensor: Any, inputs: Any) -> Initializer:
        cannot = ""
        if tensor.name in self.initializers:
            cannot = "several subgraphs have an initializer of this name: rename all but one"
        elif onnx.TensorProto.DataType.Name(tensor.data_type) not in _OURS:
            cannot = "no tensor has its type"
        elif graph is not self._rest.graph and tensor.name in {one.name for one in graph.input}:
            cannot = "its subgraph has an input of this name"
        return Initializer(tensor.data_type, tuple(tensor.dims), tensor.name in inputs, cannot)

    def _check_type(self, name: str, elem_type: int) -> None:
        if elem_type not in onnx.TensorProto.DataType.values():
            raise InvalidArgument(f"{self.what}: the initializer {name} has type {elem_type}, and onnx {onnx.__version__} knows no "
                                  f"such type: export the model anew, or install a newer onnx")

    def check_fits(self, bound: Mapping[str, str], tensors: Mapping[str, Tuple[str, Tuple[int, ...]]], version: str) -> None:
        """FailedPrecondition names the tensor that cannot take its initializer's place.

        bound     tensors by initializers.
        tensors   the version's types and shapes by name."""
        for name, tensor in bound.items():
            wanted = self.initializers[name]
            called = f"tensor {tensor}" if tensor == name else f"tensor {tensor} (for the initializer {name})"
            if tensor not in tensors:
                raise FailedPrecondition(f"{version} has no {called}, which {self.what} is served with: publish it, too")
            if wanted.cannot:
                raise FailedPrecondition(f"{version}: {called} cannot take the initializer's place in {self.what}: {wanted.cannot}")
            dtype, shape = tensors[tensor]
            if dtype != wanted.dtype:
                raise FailedPrecondition(f"{version}: {called} is {dtype}, and {self.what} needs {wanted.dtype}: "
                                         f"convert it before publish()")
            if tuple(shape) != wanted.shape:
                raise FailedPrecondition(f"{version}: {called} has shape {list(shape)}, and {self.what} needs {list(wanted.shape)}: "
                                         f"publish a model of that architecture, or export the file anew")

    def with_inputs(self, names: Iterable[str]) -> bytes:
        """The model with graph inputs in the place of these initializers."""
        model = self._without(names)
        known = {one.name for one in model.graph.input}
        for name in names:
            if name not in known:
                one = self.initializers[name]
                model.graph.input.append(onnx.helper.make_tensor_value_info(name, one.elem_type, one.shape))
        return self._written(model)

    def with_stubs(self, names: Iterable[str]) -> bytes:
        """The model with these initializers as names and shapes, whose values are given to onnxruntime beside it."""
        model = self._without(names)
        for name in names:
            one = self.initializers[name]
            stub = model.graph.initializer.add(name=name, data_type=one.elem_type, dims=one.shape)
            if 0 in one.shape:
                stub.raw_data = b""
                continue
            stub.data_location = onnx.TensorProto.EXTERNAL
            stub.external_data.add(key="location", value=PUBLISHED)
        return self._written(model)

    def with_values(self, values: Mapping[str, bytes]) -> bytes:
        """The model with these bytes in its initializers."""
        model = self._without(values)
        for name, value in values.items():
            one = self.initializers[name]
            model.graph.initializer.add(name=name, data_type=one.elem_type, dims=one.shape, raw_data=value)
        return self._written(model)

    def settle(self, names: Iterable[str]) -> None:
        """From now on each model is without these initializers: their values in the file are dropped."""
        gone = frozenset(names)
        if gone <= self._settled:
            return
        if self._left is not None and self._left[0] == gone:
            self._rest = self._left[1]
        else:  # Another model was made since.
            _take_out(self._rest, gone)
        self._left = None
        self._settled = gone

    def _without(self, names: Iterable[str]) -> onnx.ModelProto:
        """A copy of what is left. A subgraph that had one of these initializers sees what the graph around it has instead."""
        gone = frozenset(names)
        left = onnx.ModelProto()
        left.CopyFrom(self._rest)
        _take_out(left, gone)
        self._fill_in(left)
        self._left = None if gone <= self._settled else (gone, left)
        model = onnx.ModelProto()
        model.CopyFrom(left)
        return model

    def _fill_in(self, model: onnx.ModelProto) -> None:
        """Values of kept initializers that lie in other files."""
        try:
            if self._folder is not None:
                onnx.load_external_data_for_model(model, self._folder)
                return
        except Exception as error:  # The checker's, OSError and more.
            raise InvalidArgument(f"{self.what}: the external data of its unpublished initializers cannot be read: {error}") from None
        outside = [tensor.name for _, tensor in _tensors(model.graph) if tensor.data_location == onnx.TensorProto.EXTERNAL]
        if outside:
            raise InvalidArgument(f"{self.what} has external data ({listed(outside)}): give the file's path, not its bytes")

    def _written(self, model: onnx.ModelProto) -> bytes:
        try:
            if model.ByteSize() <= BYTES_MAX:
                return model.SerializeToString()
        except Exception:  # Protobuf's own, for what is too large.
            pass
        raise InvalidArgument(f"{self.what}: more than 2 GiB of it would have to be in one message. Publish more of its "
                              f"initializers; with mode=\"session\" give sess_options as a function that makes them")


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            inner: List[Any] = [attribute.g] if attribute.HasField("g") else []
            for one in (*inner, *attribute.graphs):
                yield from _graphs(one)


def _tensors(graph: Any) -> Iterator[Tuple[Any, Any]]:
    for one in _graphs(graph):
        for tensor in one.initializer:
            yield one, tensor


def _take_out(model: onnx.ModelProto, names: FrozenSet[str]) -> None:
    _drop(model.graph.value_info, names)
    for graph in _graphs(model.graph):
        _drop(graph.initializer, names)


def _drop(repeated: Any, names: Any) -> None:
    for index in reversed(range(len(repeated))):
        if repeated[index].name in names:
            del repeated[index]
