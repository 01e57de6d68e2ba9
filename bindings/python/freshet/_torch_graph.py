# SPDX-License-Identifier: Apache-2.0
"""What a PyTorch module computes, as a graph file tells it (docs/graph-file.md)."""
from __future__ import annotations

import math
from typing import Any, Dict, List

import torch
import torch.fx

from ._errors import InvalidArgument

_DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
           torch.float8_e4m3fn: "f8_e4m3", torch.float8_e5m2: "f8_e5m2", torch.int64: "i64", torch.int32: "i32",
           torch.int16: "i16", torch.int8: "i8", torch.uint64: "u64", torch.uint32: "u32", torch.uint16: "u16",
           torch.uint8: "u8", torch.bool: "bool", torch.complex64: "c64", torch.float8_e4m3fnuz: "f8_e4m3fnuz",
           torch.float8_e5m2fnuz: "f8_e5m2fnuz"}
# Types that came with later versions of PyTorch.
for _theirs, _ours in (("float8_e8m0fnu", "f8_e8m0"), ("float4_e2m1fn_x2", "f4")):
    if hasattr(torch, _theirs):
        _DTYPES[getattr(torch, _theirs)] = _ours


def unwrapped(module: Any) -> torch.nn.Module:
    """The user's module inside of what DDP and torch.compile put around it."""
    while True:
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            module = module.module
        elif hasattr(module, "_orig_mod"):
            module = module._orig_mod
        else:
            return module


def graph(module: torch.nn.Module, example: Any = None) -> Dict[str, Any]:
    """A module's architecture, as Repository.match() and put() take it: a dictionary. Its tensors have the names of
    `state_dict()`, tied ones the first.

    torch.fx traces the module. Where it cannot (a forward that asks for shapes), torch.export does, if there is an
    `example`. Where that cannot either (control flow that depends on data), the layers are the module tree's, one after the
    other, as they were registered, which says less: two such graphs share a prefix only where all layers before are equal.
    The key `traced_by` says which it was: "torch.fx", "torch.export" or "module tree". Graphs that came by different ways
    share nothing but parameters that stand in layers of their own.

    example   the forward's arguments, a tensor or a tuple: types and shapes of the inputs, without the batch, then take
              part in identity."""
    module = unwrapped(module)
    examples = () if example is None else example if isinstance(example, (tuple, list)) else (example,)
    try:
        traced = torch.fx.Tracer().trace(module)
    except Exception:  # Whatever the module's own code raised when it met a proxy.
        pass
    else:
        return _Builder(module).by_trace(traced, list(examples))
    if examples:
        try:
            return _Builder(module).by_export(_exported(module, tuple(examples)))
        except InvalidArgument:
            raise
        except Exception:  # The exporter has many for what it cannot follow.
            pass
    return _Builder(module).by_tree()


def _exported(module: torch.nn.Module, examples: tuple) -> Any:
    trains = [one for one in module.modules() if one.training]
    module.eval()  # Layers that do nothing for inference are not part of what it computes.
    try:
        return torch.export.export(module, examples)
    finally:
        for one in trains:
            one.training = True


class _Builder:
    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.layers: List[Dict[str, Any]] = []
        self.first_name: Dict[int, str] = {}
        self.by_name: Dict[str, torch.Tensor] = {}
        owners: Dict[int, int] = {}
        for name, tensor in module.state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.Tensor):
                self.first_name.setdefault(id(tensor), name)
                self.by_name[name] = tensor
                owners[id(tensor)] = owners.get(id(tensor), 0) + 1
        self.tied = {tensor for tensor, count in owners.items() if count > 1}
        self.owned: Dict[int, str] = {}   # Tensors that a layer has, and which.
        self.calls: Dict[str, str] = {}   # The first call of each module.
        self.names: set = set()

    def add(self, name: str, **layer: Any) -> str:
        unique, count = name, 1
        while unique in self.names:
            count += 1
            unique = f"{name}#{count}"
        self.names.add(unique)
        self.layers.append({"name": unique, **layer})
        return unique

    def describe(self, tensor: torch.Tensor) -> Dict[str, Any]:
        if tensor.dtype not in _DTYPES:
            raise InvalidArgument(f"tensor {self.first_name[id(tensor)]}: dtype {tensor.dtype} is not one of "
                                  f"Freshet's")
        shape = list(tensor.shape)
        if _DTYPES[tensor.dtype] == "f4" and shape:
            shape[-1] *= 2  # PyTorch counts pairs.
        return {"dtype": _DTYPES[tensor.dtype], "shape": shape, "key": self.first_name[id(tensor)],
                "role": "weight" if isinstance(tensor, torch.nn.Parameter) else "buffer"}

    def parameter(self, tensor: torch.Tensor) -> str:
        """The layer of a tensor that several layers read, or a function."""
        if id(tensor) not in self.owned:
            self.owned[id(tensor)] = self.add(self.first_name[id(tensor)], **{"class": "Parameter", "config": {}},
                                              inputs=[], tensors={"value": self.describe(tensor)})
        return self.owned[id(tensor)]

    def call(self, target: str, name: str, inputs: List[Any]) -> str:
        """A call of a leaf module. Tied tensors are inputs, and stand in layers of their own."""
        leaf = self.module.get_submodule(target)
        what = {"class": _class_of(leaf), "config": _config_of(leaf)}
        if target in self.calls:
            return self.add(name, **what, inputs=inputs, tensors_of=self.calls[target])
        own: Dict[str, Any] = {}
        prefix = target + "." if target else ""
        for key, tensor in self.by_name.items():
            if not key.startswith(prefix):
                continue
            if id(tensor) in self.tied:
                inputs = [*inputs, self.parameter(tensor)]
            elif id(tensor) not in self.owned:
                own[key[len(prefix):]] = self.describe(tensor)
        made = self.add(name, **what, inputs=inputs, **({"tensors": own} if own else {}))
        for key in own:
            self.owned[id(self.by_name[prefix + key])] = made
        if own:
            self.calls[target] = made
        return made

    def by_trace(self, traced: torch.fx.Graph, examples: List[Any]) -> Dict[str, Any]:
        layer_of: Dict[torch.fx.Node, str] = {}

        def inputs_of(node: torch.fx.Node) -> List[str]:
            return [layer_of[one] for one in node.all_input_nodes if one in layer_of]

        outputs: List[str] = []
        for node in traced.nodes:
            if node.op == "placeholder":
                shown = examples.pop(0) if examples else None
                config = {"dtype": _DTYPES.get(shown.dtype, str(shown.dtype)), "shape": [None, *shown.shape[1:]]} \
                    if isinstance(shown, torch.Tensor) else {}
                layer_of[node] = self.add(node.name, **{"class": "Input", "config": config}, inputs=[])
            elif node.op == "call_module":
                layer_of[node] = self.call(str(node.target), str(node.target), inputs_of(node))
            elif node.op == "get_attr":
                tensor = _attribute(self.module, str(node.target))
                if id(tensor) in self.first_name:
                    layer_of[node] = self.parameter(tensor)
                else:  # A constant, or a buffer that is not stored.
                    layer_of[node] = self.add(node.name, **{"class": "torch.constant", "config": {"name": str(node.target)}},
                                              inputs=[])
            elif node.op in ("call_function", "call_method"):
                target = node.target if isinstance(node.target, str) else \
                    f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__name__', node.target)}"
                config = {"args": _plain(node.args), "kwargs": _plain(node.kwargs)}
                name = target.rsplit(".", 1)[-1]
                kind = {"add": "torch.Add", "mul": "torch.Multiply"}.get(name, "torch." + target)
                layer_of[node] = self.add(node.name, **{"class": kind, "config": config}, inputs=inputs_of(node))
            elif node.op == "output":
                outputs = inputs_of(node)
        return self.finished("torch.fx", outputs)

    def by_export(self, program: Any) -> Dict[str, Any]:
        """Parameters come as inputs; each belongs to the operation that alone reads it."""
        signature = program.graph_signature
        stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        layer_of: Dict[torch.fx.Node, str] = {}
        outputs: List[str] = []
        for node in program.graph.nodes:
            if node.op == "placeholder" and node.name not in stored:
                value = node.meta.get("val")
                config = {"dtype": _DTYPES.get(value.dtype, str(value.dtype)), "shape": [None, *map(str, value.shape[1:])]} \
                    if isinstance(value, torch.Tensor) else {}
                layer_of[node] = self.add(node.name, **{"class": "Input", "config": config}, inputs=[])
            elif node.op == "call_function":
                own: Dict[str, Any] = {}
                inputs: List[str] = []
                for one in node.all_input_nodes:
                    tensor = self.by_name.get(stored.get(one.name, ""))
                    if one in layer_of:
                        inputs.append(layer_of[one])
                    elif tensor is not None and (len(one.users) > 1 or id(tensor) in self.tied):
                        inputs.append(self.parameter(tensor))
                    elif tensor is not None:
                        own[stored[one.name].rpartition(".")[2]] = self.describe(tensor)
                        self.owned[id(tensor)] = node.name
                layer_of[node] = self.add(node.name, **{
                    "class": f"torch.{node.target}", "config": {"args": _plain(node.args), "kwargs": _plain(node.kwargs)}},
                    inputs=inputs, **({"tensors": own} if own else {}))
            elif node.op == "output":
                outputs = [layer_of[one] for one in node.all_input_nodes if one in layer_of]
        return self.finished("torch.export", outputs)

    def by_tree(self) -> Dict[str, Any]:
        last: List[str] = []
        for name, leaf in self.module.named_modules():
            if any(True for _ in leaf.children()) or (not name and not self.by_name):
                continue
            last = [self.call(name, name or "module", last)]
        return self.finished("module tree", last)

    def finished(self, traced_by: str, outputs: List[str]) -> Dict[str, Any]:
        for tensor in self.by_name.values():  # What no call used.
            if id(tensor) not in self.owned:
                self.parameter(tensor)
        return {"freshet_graph": 1, "name": type(self.module).__name__, "layers": self.layers, "outputs": outputs,
                "traced_by": traced_by}


def _class_of(leaf: torch.nn.Module) -> str:
    kind = type(leaf)
    home = kind.__module__
    return f"torch.nn.{kind.__name__}" if home.startswith("torch.nn.") else f"{home}.{kind.__qualname__}"


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, type(None)))


def _plain(value: Any) -> Any:
    """What takes part in identity of a value: numbers and text as they are, the result of another layer as its place."""
    if isinstance(value, torch.fx.Node):
        return "<input>"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
        return value
    if isinstance(value, int):
        return value if abs(value) <= 2**53 else str(value)
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, slice):
        return ["slice", _plain(value.start), _plain(value.stop), _plain(value.step)]
    return str(value)


def _config_of(leaf: torch.nn.Module) -> Dict[str, Any]:
    """The public attributes that are numbers, text, or lists of them: what the constructor was given."""
    config = {}
    for key, value in vars(leaf).items():
        plain = _is_plain(value) or (isinstance(value, (tuple, list)) and all(_is_plain(one) for one in value))
        if plain and not key.startswith("_") and key != "training":
            config[key] = _plain(value)
    return config


def _attribute(module: torch.nn.Module, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value
