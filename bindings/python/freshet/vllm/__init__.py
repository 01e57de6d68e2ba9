# SPDX-License-Identifier: Apache-2.0
"""vLLM: a weight transfer engine named `freshet`, for workers and for the trainer.

    vllm serve MODEL --weight-transfer-config '{"backend": "freshet"}'     # each worker finds the engine by itself

    freshet.vllm.register()                                                # the trainer
    engine = WeightTransferTrainerFactory.trainer_init(freshet.vllm.TrainerInfo(model="policy", rank=0), client=client, source=source)
    engine.send_weights()                                                  # a publish; the workers load what changed

docs/python/vllm.md has the whole of it. Without vLLM this package can be imported; register() needs vLLM.
"""
from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .settings import InitInfo as InitInfo, TrainerInfo as TrainerInfo, UpdateInfo as UpdateInfo
    from .trainer import TrainerEngine as TrainerEngine
    from .worker import WorkerEngine as WorkerEngine

BACKEND = "freshet"
_WORKER, _TRAINER = (f"{__name__}.worker", "WorkerEngine"), (f"{__name__}.trainer", "TrainerEngine")
_LATER = {"InitInfo": "settings", "TrainerInfo": "settings", "UpdateInfo": "settings", "WorkerEngine": "worker", "TrainerEngine": "trainer"}

__all__ = ["BACKEND", "InitInfo", "TrainerEngine", "TrainerInfo", "UpdateInfo", "WorkerEngine", "register"]


def register() -> None:
    """Tells vLLM of the engine `freshet`. The entry point calls this in each process of a server; a trainer
    calls it once. Further calls do nothing. ImportError: there is no vLLM, or one from before 0.28."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
    for factory, (module, name) in ((WeightTransferEngineFactory, _WORKER), (WeightTransferTrainerFactory, _TRAINER)):
        if BACKEND not in factory._registry:  # A second time would be an error, and there is no call that asks.
            factory.register_engine(BACKEND, module, name)


def _plugin() -> None:
    """The entry point. vLLM ends the process where a plugin raises, also for those who do not use this engine."""
    try:
        register()
    except Exception as error:
        logging.getLogger("freshet").warning("vLLM has no engine freshet: %s: %s", type(error).__name__, error)


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
