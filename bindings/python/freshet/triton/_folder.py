# SPDX-License-Identifier: Apache-2.0
"""Writes the folder of a new model: config.pbtxt and 1/model.py."""
from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from .._errors import AlreadyExists, Error, FailedPrecondition, InvalidArgument
from ..subscriber import Subscriber
from ._config import FILES, TYPES, VERSION_OUTPUT

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_WAITERS = 128  # So many requests of an instance may wait for their min_version, or be on their way, at a time.
_SHOWN = 30     # Tensors that the comment in model.py names.
_DIM_MAX = 2 ** 63 - 1
_PUT_BACK = f"""\
# A request that waits for its min_version goes back to the queue meanwhile, and stops no other. Of an instance, so many may wait
# or be on their way.
sequence_batching {{
  iterative_sequence: true
  max_sequence_idle_microseconds: 600000000
  oldest {{ max_candidate_sequences: {_WAITERS} }}
}}
"""
# Triton puts back only requests of one row.
_BATCHES = """\
# The server makes batches of requests. A request that waits for its min_version stops its instance meanwhile.
dynamic_batching { }
"""


class Port(NamedTuple):
    """An input or an output."""
    name: str
    type: str
    dims: Tuple[int, ...]


def port_of(text: str) -> Port:
    """NAME:TYPE:DIMS, as x:FP32:-1,64. InvalidArgument."""
    name, _, rest = text.partition(":")
    kind, _, dims = rest.partition(":")
    kind = kind.upper() if kind.upper().startswith("TYPE_") else f"TYPE_{kind.upper()}"
    if not _NAME.fullmatch(name) or kind not in TYPES or not re.fullmatch(r"(-1|[1-9]\d*)(,(-1|[1-9]\d*))*", dims):
        raise InvalidArgument(f"{text!r} is not NAME:TYPE:DIMS, as x:FP32:-1,64; the types are "
                              f"{', '.join(one[len('TYPE_'):] for one in TYPES)}")
    sizes = tuple(map(int, dims.split(",")))
    if max(sizes) > _DIM_MAX:
        raise InvalidArgument(f"{text!r}: a dimension is larger than {_DIM_MAX}")
    return Port(name, kind, sizes)


class Wanted(NamedTuple):
    """What the folder is written for."""
    folder: str
    settings: Dict[str, str]    # Of freshet.triton.Model, by their names; without "model": the folder's name.
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    instances: int
    max_batch: int


_Tensors = List[Tuple[str, str, Tuple[int, ...]]]


def new(wanted: Wanted, timeout: float) -> Dict[str, Any]:
    """Writes the folder, whole or not at all; says what it wrote. Without inputs and outputs it looks at the published version,
    which must be a linear layer: then infer() is written, too."""
    folder = os.path.abspath(wanted.folder)
    name = os.path.basename(folder)
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{name!r} cannot be a model's name: it may have letters, digits, _, - and .")
    if os.path.lexists(folder):
        raise AlreadyExists(f"{folder} is there already: give another name, or remove it")
    model = wanted.settings.get("model") or name
    # As the model will read them: names of files count from its folder.
    settings = {key: os.path.normpath(os.path.join(folder, value)) if key in FILES else value for key, value in wanted.settings.items()}
    published, why_not = _published(model, settings, timeout)
    linear = _linear(published)
    inputs, outputs, answer = list(wanted.inputs), list(wanted.outputs), None
    if bool(inputs) != bool(outputs):
        raise InvalidArgument("a model needs inputs and outputs: give --input and --output, or neither")
    if not inputs:
        if linear is None:
            seen = why_not or f"{model}: the published version is no single linear layer: {_told(published)}"
            raise FailedPrecondition(f"{seen}. Give --input NAME:TYPE:DIMS and --output NAME:TYPE:DIMS, as x:FP32:-1,64")
        inputs, outputs, answer = linear
        if wanted.max_batch:
            inputs, outputs = ([Port(one.name, one.type, one.dims[1:]) for one in ports] for ports in (inputs, outputs))
    texts = {"config.pbtxt": _config(wanted, inputs, outputs),
             os.path.join("1", "model.py"): _model(model, inputs, outputs, published, answer)}
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    beside = tempfile.mkdtemp(prefix=f".{name}-", dir=os.path.dirname(folder))
    try:
        os.chmod(beside, 0o755)
        for path, text in texts.items():
            os.makedirs(os.path.dirname(os.path.join(beside, path)), exist_ok=True)
            with open(os.path.join(beside, path), "w", encoding="utf-8") as file:
                file.write(text)
        os.rename(beside, folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return {"folder": folder, "model": model, "files": sorted(texts), "infer": "written" if answer else "to be written"}


def _published(model: str, settings: Dict[str, str], timeout: float) -> Tuple[_Tensors, str]:
    """The tensors of the served version; or none, and why."""
    how = {name: settings[name] for name in ("at", "keys", "server_key", "channel", "directory") if name in settings}
    try:
        with Subscriber(model, **how) as subscriber:  # type: ignore[arg-type]
            subscriber.wait_for(timeout=timeout)
            with subscriber.snapshot() as snapshot:
                return [(name, array.dtype.name, array.shape) for name, array in snapshot.items()], ""
    except InvalidArgument:
        raise
    except Error as error:
        return [], f"{model}: no published version to look at: {error}"


def _linear(tensors: _Tensors) -> "Tuple[List[Port], List[Port], str] | None":
    """y = x w + b, if that is all there is."""
    types = {dtype.name: name for name, dtype in TYPES.items()}
    matrices = [one for one in tensors if len(one[2]) == 2]
    vectors = [one for one in tensors if len(one[2]) == 1]
    if len(matrices) != 1 or len(tensors) != 1 + len(vectors) or len(vectors) > 1:
        return None
    name, dtype, (width, height) = matrices[0]
    if dtype not in types or any(one[1:] != (dtype, (height,)) for one in vectors):
        return None
    answer = f'inputs["x"] @ weights[{json.dumps(name)}]' + "".join(f" + weights[{json.dumps(one[0])}]" for one in vectors)
    return [Port("x", types[dtype], (-1, width))], [Port("y", types[dtype], (-1, height))], answer


def _told(tensors: _Tensors) -> str:
    shown = [f"{name} {dtype} {list(shape)}" for name, dtype, shape in tensors[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(tensors) - _SHOWN} more" if len(tensors) > _SHOWN else "")


def _config(wanted: Wanted, inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    def ports(kind: str, all_of: Sequence[Port]) -> str:
        lines = [f"  {{ name: {_quoted(one.name)} data_type: {one.type} dims: {list(one.dims)} }}" for one in all_of]
        return f"{kind} [\n" + ",\n".join(lines) + "\n]\n"

    parameters = "".join(f"parameters {{ key: {_quoted('freshet.' + name)} value {{ string_value: {_quoted(value)} }} }}\n"
                         for name, value in wanted.settings.items() if name != "model")
    version = [] if any(one.name == VERSION_OUTPUT for one in outputs) else [Port(VERSION_OUTPUT, "TYPE_INT64", (1,))]
    return (f'backend: "python"\nmax_batch_size: {wanted.max_batch}\n' + ports("input", inputs)
            + ports("output", [*outputs, *version])
            + f"instance_group [{{ kind: KIND_CPU count: {wanted.instances} }}]\n" + parameters
            + (_BATCHES if wanted.max_batch else _PUT_BACK))


def _model(model: str, inputs: Sequence[Port], outputs: Sequence[Port], published: _Tensors, answer: "str | None") -> str:
    lines = ["import freshet.triton", "", "", "class TritonPythonModel(freshet.triton.Model):", f"    model = {json.dumps(model)}", "",
             "    def infer(self, weights, inputs):"]
    if published:
        lines += ["        # weights: one whole version, by name"]
        lines += [f"        #   {json.dumps(name)}: {dtype} {list(shape)}" for name, dtype, shape in published[:_SHOWN]]
        lines += [f"        #   and {len(published) - _SHOWN} more"] if len(published) > _SHOWN else []
    if answer is None:
        names = ", ".join(json.dumps(one.name) for one in inputs), ", ".join(json.dumps(one.name) for one in outputs)
        lines += [f"        # inputs: {names[0]}. Return a dict of {names[1]}.",
                  f'        raise NotImplementedError("write infer() in " + __file__)']
    else:
        lines += [f'        return {{"y": {answer}}}']
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
