# SPDX-License-Identifier: Apache-2.0
"""vLLM's side: a worker is a subscriber in a group, stages the version that it is told of, and loads it when all have it."""
from __future__ import annotations

import logging
import time
from typing import Any, Dict, List

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine

from .._errors import FailedPrecondition, TimedOut
from .._torch_arrays import view
from ..subscriber import Snapshot, Subscriber
from .loading import changed_names, copies_of, is_converted, load, put_back
from .settings import InitInfo, UpdateInfo

_log = logging.getLogger("freshet")
_LOOK = 0.005  # Seconds.


class WorkerEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """A worker's engine, which vLLM makes. One thread at a time, as vLLM calls it.

    receive_weights() only takes hold of a version: vLLM's call fails, and nothing was loaded, where a rank cannot have that
    very version. finish_weight_update() loads it, from memory of this host. Where the model's load_weights() raises, the
    tensors of the version before are loaded again, and the call fails.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False  # What changed is told for one model.

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self._info: InitInfo | None = None
        self._subscriber: Subscriber | None = None
        self._loaded: Snapshot | None = None   # What the model has.
        self._staged: Snapshot | None = None   # What it is to have next.
        self._is_torn = False                  # Parts of two versions are in the model.

    @property
    def version(self) -> int:
        """The number of the version that the model has; 0: the weights that vLLM loaded itself."""
        return 0 if self._loaded is None else self._loaded.version

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Joins the trainer's group. A second call is another trainer's: the next version is loaded whole. TimedOut: no
        publisher of that model answered."""
        self.shutdown()
        rank = getattr(self.parallel_config, "rank", 0)
        subscriber = Subscriber(init_info.model, at=init_info.at, keys=init_info.keys, server_key=init_info.server_key,
                                channel=init_info.channel, directory=init_info.directory, staged=True, label=f"vllm rank {rank}")
        try:
            _wait_until_connected(subscriber, init_info)
        except BaseException:
            subscriber.close()
            raise
        self._info, self._subscriber = init_info, subscriber

    def start_weight_update(self) -> None:
        """Nothing yet: while a version is staged, the model answers as before."""
        self._drop()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Takes hold of the version that the trainer named. FailedPrecondition: this worker has another one, or was given
        none; TimedOut: it did not come. Nothing is staged then, and the model keeps what it has."""
        self._drop()
        if update_info.cancel:
            return
        if self._subscriber is None or self._info is None:
            raise FailedPrecondition("the engine freshet was not initialized: the trainer calls init_weight_transfer_engine() first")
        name = f"{self._info.model}@{update_info.version}"
        try:
            snapshot = self._subscriber.snapshot(update_info.version, timeout=self._info.timeout)
        except TimedOut as error:
            why = self._subscriber.status()["last_error"]
            raise TimedOut(f"{name} did not come within {self._info.timeout:g} s; this worker keeps "
                           f"{self._info.model}@{self.version}: {why or error}") from None
        if snapshot.version != update_info.version or snapshot.digest != update_info.digest:
            raise FailedPrecondition(f"{name} with digest {update_info.digest} was asked for, and this worker has {snapshot.model}@"
                                     f"{snapshot.version} with digest {snapshot.digest}: somebody else publishes or activates versions "
                                     f"of this model; nothing was loaded")
        self._staged = snapshot

    def finish_weight_update(self) -> None:
        """Loads what changed between the version that the model has and the staged one. Without a staged one nothing happens.
        An exception of the model's load_weights() comes out, after the tensors of before were loaded again."""
        staged = self._staged
        if staged is None:
            return
        layerwise = self._is_layerwise()
        base = None if self._is_torn else self._loaded
        names = list(staged) if base is None else changed_names(staged, base, layerwise)
        before = copies_of(self.model) if self._loaded is None else None
        try:
            self._load(staged, names, layerwise)
        except BaseException as error:
            _log.error("vLLM's model could not take %s@%d: %s: %s", staged.model, staged.version, type(error).__name__, error)
            self._drop()
            self._go_back(names, layerwise, before)
            raise
        self._staged, self._loaded, old = None, staged, self._loaded
        self._is_torn = False
        if old is not None:
            old.close()

    def shutdown(self) -> None:
        """Leaves the group. The model keeps its weights."""
        self._drop()
        if self._loaded is not None:
            self._loaded.close()
        if self._subscriber is not None:
            self._subscriber.close()
        self._loaded = self._subscriber = self._info = None
        self._is_torn = False

    def _is_layerwise(self) -> bool:
        wanted = "auto" if self._info is None else self._info.reload
        return is_converted(self.model, self.vllm_config) if wanted == "auto" else wanted == "layerwise"

    def _load(self, snapshot: Snapshot, names: List[str], layerwise: bool) -> None:
        tensors = view(snapshot)
        load(self.model, self.model_config, [(name, tensors[name]) for name in names], layerwise)

    def _drop(self) -> None:
        if self._staged is not None:
            self._staged.close()
            self._staged = None

    def _go_back(self, names: List[str], layerwise: bool, before: Dict[str, torch.Tensor] | None) -> None:
        """After a load that failed: the model has again what it had. Else it is torn, and the next version is loaded whole."""
        try:
            if before is not None:
                put_back(self.model, before)
            elif self._loaded is not None:
                there = set(self._loaded)
                self._load(self._loaded, list(self._loaded) if self._is_torn else [name for name in names if name in there], layerwise)
            self._is_torn = False
        except BaseException:
            self._is_torn = True
            _log.exception("vLLM's model has parts of two versions: stop its requests until a version was loaded, or start it again")


def _wait_until_connected(subscriber: Subscriber, info: InitInfo) -> None:
    """A member from now on: the group waits for it."""
    end = time.monotonic() + info.timeout
    while not subscriber.status()["connected"]:
        if time.monotonic() > end:
            raise TimedOut(f"no publisher of {info.model} answered within {info.timeout:g} s at {info.at or 'the address in the directory'}: "
                           f"{subscriber.status()['last_error'] or 'is the trainer on this host, or does init_info name its address (at)?'}")
        time.sleep(_LOOK)
