# SPDX-License-Identifier: Apache-2.0
"""Freshet keeps served models fresh: a training loop publishes, servers follow, a repository remembers.

    with freshet.Publisher("digits") as pub:                    # the training loop
        pub.publish({"w": w}, step=1, metrics={"loss": 2.3})
    with freshet.Subscriber("digits") as sub:                   # the server
        sub.wait_for(timeout=10)
        with sub.snapshot() as s:
            print(s.version, s["w"].shape, s.metrics["loss"])
    repo = freshet.Repository("runs/")                          # where versions rest

docs/python/README.md has the whole of it.
"""
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, List

from ._arrays import PackedArray
from ._errors import (AlreadyExists, Cancelled, Corrupt, Error, FailedPrecondition, InvalidArgument, IoError, NotFound,
                      OutOfSpace, TimedOut, Unavailable, Unsupported)
from ._version import Version
from .checkpointer import Checkpointer, CheckpointTensor
from .device import DeviceTensors
from .publisher import Publisher
from .repository import Repository
from .scheduler import Scheduler
from .state_dicts import from_state_dict, to_state_dict
from .subscriber import Snapshot, Subscriber
from .weights import load_weights, save_weights

__all__ = ["AlreadyExists", "Cancelled", "CheckpointTensor", "Checkpointer", "Corrupt", "DeviceTensors", "Error", "FailedPrecondition", "InvalidArgument", "IoError",
           "NotFound", "OutOfSpace", "PackedArray", "Publisher", "Repository", "Scheduler", "Snapshot", "Subscriber", "TimedOut",
           "Unavailable", "Unsupported", "Version", "from_state_dict", "load_weights", "save_weights", "to_state_dict"]

if TYPE_CHECKING:
    __version__: str
    from . import (deephyper as deephyper, keras as keras, onnx as onnx, serving as serving, tier as tier, torch as torch,
                   triton as triton, vllm as vllm)

# Modules that the first use imports, and the framework that each imports in turn.
_LATER = {"deephyper": None, "keras": "keras", "onnx": "onnxruntime", "serving": None, "tier": None, "torch": "torch",
          "triton": None, "vllm": "vllm"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f".{name}", __name__)
    if name == "__version__":  # Of the installed package. Reading what is installed takes longer than the rest of the import.
        from importlib.metadata import PackageNotFoundError, version
        try:
            globals()[name] = found = version("freshet")
        except PackageNotFoundError:  # It runs from a folder of sources.
            globals()[name] = found = "0+unknown"
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    """Without the modules whose framework is not installed: whoever asks for all names asks for their values next."""
    there = [name for name, framework in _LATER.items() if framework is None or importlib.util.find_spec(framework)]
    return sorted({*globals(), *there, "__version__"})
