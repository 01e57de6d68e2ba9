# SPDX-License-Identifier: Apache-2.0
"""What config.pbtxt and a request's parameters say."""
from __future__ import annotations

import json
import math
import os
from typing import Any, Dict, List, Mapping, NamedTuple

import numpy as np

from .._errors import InvalidArgument

# Triton's names of types, and NumPy's. TYPE_BF16 has none, TYPE_STRING is "object".
TYPES: Dict[str, Any] = {"TYPE_BOOL": np.dtype(bool), "TYPE_FP16": np.dtype(np.float16), "TYPE_FP32": np.dtype(np.float32),
                         "TYPE_FP64": np.dtype(np.float64), "TYPE_STRING": np.dtype(object)}
TYPES.update({f"TYPE_{kind.upper()}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)})

VERSION_OUTPUT = "weight_version"
_PREFIX = "freshet."
_SETTINGS = ("model", "at", "keys", "server_key", "channel", "directory", "label", "journal", "min_version_timeout_ms")
FILES = ("keys", "server_key", "journal")
_VERSION_MAX = 2 ** 63 - 1
_TIMEOUT_MS_MAX = 600_000


class Output(NamedTuple):
    name: str
    type: str
    shape: List[int]  # Without the batch; -1: any.


class Config:
    """What a model needs to know of its config.pbtxt, as Triton hands it over. InvalidArgument names what cannot be served."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.has_batches = config.get("max_batch_size", 0) > 0
        self.parameters = {name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()}
        sequences = config.get("sequence_batching", {})
        self.can_put_back = bool(sequences.get("iterative_sequence", False))
        # So many requests of an instance may wait; the other places of Triton's are for those that need not.
        self.waiters_max = max(1, int(sequences.get("oldest", {}).get("max_candidate_sequences", 0)) // 2)
        self.texts = {one["name"] for one in config.get("input", []) if one["data_type"] == "TYPE_STRING"}
        self.outputs: Dict[str, Output] = {}
        for one in config.get("output", []):
            # Numbers of 64 bits may be texts in JSON.
            shape = [int(size) for size in one.get("reshape", {}).get("shape", one["dims"])]
            self.outputs[one["name"]] = Output(one["name"], one["data_type"], shape)
        self._check(config)

    def _check(self, config: Mapping[str, Any]) -> None:
        if config.get("model_transaction_policy", {}).get("decoupled", False):
            raise InvalidArgument("config.pbtxt: a decoupled model cannot be a freshet.triton.Model: take "
                                  "model_transaction_policy away")
        ports = [*((one["name"], one["data_type"]) for one in config.get("input", [])), *((one.name, one.type) for one in self.outputs.values())]
        for name, kind in ports:
            if kind not in TYPES:
                raise InvalidArgument(f"config.pbtxt: {name}: NumPy has no {kind}; the types are {', '.join(TYPES)}")
            if kind == "TYPE_STRING" and int(np.__version__.split(".", 1)[0]) >= 2:
                raise InvalidArgument(f"config.pbtxt: {name} is TYPE_STRING: Triton's Python backend reads texts of NumPy 2 wrongly; "
                                      f"install \"numpy<2\", or send bytes as TYPE_UINT8")
        version = self.outputs.get(VERSION_OUTPUT)
        if version is not None and (version.type != "TYPE_INT64" or version.shape != [1]):
            raise InvalidArgument(f"config.pbtxt: output {VERSION_OUTPUT} is {version.type} {version.shape}: it must be "
                                  f"TYPE_INT64 [1]")


def settings_of(model: Any, config: Config, folder: str) -> Dict[str, Any]:
    """The settings of a model: its class attributes, and over them what config.pbtxt says."""
    settings = {name: getattr(model, name) for name in _SETTINGS}
    for name, value in config.parameters.items():
        if not name.startswith(_PREFIX):
            continue
        if name[len(_PREFIX):] not in _SETTINGS:
            raise InvalidArgument(f"config.pbtxt: parameters has no {name}; there are "
                                  f"{', '.join(_PREFIX + known for known in _SETTINGS)}")
        settings[name[len(_PREFIX):]] = value
    for name in FILES:
        if settings[name]:
            settings[name] = os.path.join(folder, settings[name])
    settings["min_version_timeout_ms"] = _timeout_ms_of(settings["min_version_timeout_ms"], "min_version_timeout_ms")
    return settings


class Wish(NamedTuple):
    """What a request asks of the version that answers it."""
    min_version: int     # 0: any.
    timeout_ms: float


def wish_of(parameters: str, timeout_ms: float) -> Wish:
    """A request's parameters, JSON or "". InvalidArgument names the one that is no number."""
    if not parameters or "min_version" not in parameters:
        return Wish(0, timeout_ms)
    given = json.loads(parameters)
    if "min_version_timeout_ms" in given:
        timeout_ms = _timeout_ms_of(given["min_version_timeout_ms"], "the request's min_version_timeout_ms")
    return Wish(_version_of(given.get("min_version", 0)), timeout_ms)


def _version_of(value: Any) -> int:
    """Clients that have only texts send "7"."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _VERSION_MAX:
        raise InvalidArgument(f"the request's min_version is {_shown(value)}: it must be a version's number, from 0 on")
    return value


def _timeout_ms_of(value: Any, name: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= _TIMEOUT_MS_MAX:
        raise InvalidArgument(f"{name} is {_shown(value)}: it must be milliseconds, from 0 to {_TIMEOUT_MS_MAX}")
    return number


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "…"
