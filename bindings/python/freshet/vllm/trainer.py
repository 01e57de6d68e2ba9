# SPDX-License-Identifier: Apache-2.0
"""The trainer's side: send_weights() publishes a version, waits until all workers have it, and drives vLLM's four calls."""
from __future__ import annotations

import logging
import re
import time
from dataclasses import asdict
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Tuple

import torch
from vllm.distributed.weight_transfer.base import TrainerWeightTransferEngine

from .._errors import FailedPrecondition, InvalidArgument, OutOfSpace, TimedOut, Unavailable
from .._torch_arrays import _to_numpy
from ..publisher import Publisher
from .settings import TrainerInfo, UpdateInfo

_log = logging.getLogger("freshet")
_LOOK = 0.002  # Seconds.


class TrainerEngine(TrainerWeightTransferEngine[TrainerInfo]):
    """The trainer's engine; trainer_init() makes it, on every rank of the trainer. Rank 0 publishes.

    A version reaches all workers before vLLM is told anything: so a worker that cannot have it costs an exception here, and
    no server. One thread at a time.
    """

    init_info_cls = TrainerInfo

    def __init__(self, *, client: Any, source: Any = None, is_sender: bool = True, rank: int = 0) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        self.rank = rank  # vLLM before 0.33 does not take it.
        self._info: TrainerInfo | None = None
        self._publisher: Publisher | None = None
        self._members = 0
        self.version = 0

    @classmethod
    def trainer_init(cls, init_info: TrainerInfo, *, client: Any, source: Any = None) -> "TrainerEngine":
        """Opens the publisher, and has the workers join its group. `source` is vLLM's WeightSource; without one each
        send_weights() is given the tensors."""
        engine = cls(client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank)
        engine._info = init_info
        if not engine.is_sender:
            return engine
        publisher = Publisher(init_info.model, listen=init_info.listen, keys=init_info.keys, allow=init_info.allow,
                              channels=init_info.channels, directory=init_info.directory, keep_versions=init_info.keep_versions,
                              group_commit=True)
        engine._publisher = publisher
        try:
            client.init_weight_transfer_engine(init_info.worker_info())
            engine._members = len(_members_of(publisher))
            if engine._members == 0:
                raise Unavailable(f"no worker of vLLM follows {init_info.model}: init_weight_transfer_engine() succeeded, but nobody joined")
        except BaseException:
            engine.shutdown()
            raise
        return engine

    @property
    def publisher(self) -> Publisher:
        """For stat(), rollback() and the rest; FailedPrecondition after shutdown() and on ranks other than 0."""
        if self._publisher is None:
            raise FailedPrecondition("this engine has no publisher: it was shut down, or is not of rank 0")
        return self._publisher

    def send_weights(self, tensors: Mapping[str, torch.Tensor] | Iterable[Tuple[str, torch.Tensor]] | None = None, *, step: int = 0,
                     metrics: Mapping[str, float] | None = None) -> int:
        """Publishes the tensors of the source, or those given, and has every worker load what changed. The version's number; on
        other ranks 0. The workers' server answers with the version from then on, and vLLM tells its number as weight version.

        tensors   all tensors of the model, by checkpoint names, where trainer_init() was given no source.
        step, metrics
                  as Publisher.publish() takes them.

        OutOfSpace: there was no room for the version. Unavailable: a worker is gone. TimedOut: a worker did not get it in
        time. After these vLLM was told nothing, and serves on. An exception of the client comes out as it is: a server could
        not load the version. The next call sends everything that is new since then."""
        pairs = self._pairs(tensors)
        if not self.is_sender:
            for _ in pairs:  # It helps to gather them.
                pass
            return 0
        publisher, info = self.publisher, self._info
        assert info is not None
        arrays: Dict[str, Any] = {}
        for name, tensor in pairs:
            if name in arrays:
                raise InvalidArgument(f"tensor {name}: the source has two of this name")
            arrays[name] = _to_numpy(name, tensor)
        self._check_members()
        receipt = publisher.publish(arrays, step=step, metrics=metrics)
        if receipt.version is None:
            raise OutOfSpace(f"{info.model}: the workers keep what they have: {receipt.skipped}")
        digest = publisher.wait_committed(receipt.version, info.timeout)["digest"]
        self._wait_until_all_have(receipt.version, info.timeout)
        self._drive(UpdateInfo(receipt.version, digest))
        self.version = receipt.version
        return receipt.version

    def shutdown(self) -> None:
        """Closes the publisher. The workers keep the version that they have."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def _pairs(self, tensors: Any) -> Iterator[Tuple[str, torch.Tensor]]:
        if (tensors is None) == (self.source is None):
            raise InvalidArgument("send_weights(tensors): tensors are given where trainer_init() was given no source, and only there")
        if tensors is not None:
            return iter(tensors.items() if isinstance(tensors, Mapping) else tensors)
        whole = getattr(self.source, "iter_full", None)  # vLLM before 0.33 iterates over the source itself.
        return whole() if whole is not None else iter(self.source)

    def _check_members(self) -> None:
        there = len(_members_of(self.publisher))
        if there < self._members:
            raise Unavailable(f"{there} of {self._members} workers of vLLM follow {self.publisher.model}: the others ended, or stand still; "
                              f"vLLM was told nothing. Start their server again, then shutdown() and trainer_init()")

    def _wait_until_all_have(self, version: int, timeout: float) -> None:
        """Returns when the version is current for the whole group."""
        publisher = self.publisher
        name = f"{publisher.model}@{version}"
        end = time.monotonic() + timeout
        began = False
        while True:
            stat = publisher.stat()
            if stat["current"]["version"] == version:
                return self._check_members()
            if stat["current"]["hold"]:
                raise FailedPrecondition(f"{publisher.model}@{stat['current']['version']} is held since a rollback, and {name} waits: "
                                         f"publisher.release() ends that")
            # What is told may be some milliseconds old: another version's failure counts for nothing.
            began = began or stat["candidate"] == version
            failed = stat["activation_failure"]
            if stat["candidate"] != version and failed and (began or re.search(rf"@{version}\b", failed)):
                raise Unavailable(f"{name} did not reach all workers of vLLM, which was told nothing: {failed}")
            if time.monotonic() > end:
                late = [f"{one['label']} (pid {one['pid']}): {one['failed'] or 'staging'}" for one in stat["subscribers"]
                        if one["member"] and one["staged"] < version]
                raise TimedOut(f"{name} did not reach all workers of vLLM within {timeout:g} s, and vLLM was told nothing: "
                               f"{'; '.join(late) or 'the directory does not answer'}")
            time.sleep(_LOOK)

    def _drive(self, update: UpdateInfo) -> None:
        try:
            try:
                self.client.start_weight_update()
            except Exception as error:  # A trainer that died amid an update left a session open.
                _log.info("vLLM began no update, and is asked once more: %s", error)
                self._cancel(update)
                self.client.start_weight_update()
            self.client.update_weights(asdict(update))
            self.client.finish_weight_update(str(update.version))
        except BaseException:
            self._cancel(update)
            raise

    def _cancel(self, update: UpdateInfo) -> None:
        """Ends sessions that are open on some servers or ranks, without a load. Those that are not open complain; that is as it
        should be."""
        for call in (lambda: self.client.update_weights(asdict(UpdateInfo(update.version, update.digest, cancel=True))),
                     self.client.finish_weight_update):
            try:
                call()
            except Exception as error:
                _log.info("vLLM, when an update was cancelled: %s", error)


def _members_of(publisher: Publisher) -> List[Mapping[str, Any]]:
    return [one for one in publisher.stat()["subscribers"] if one["member"] and not one["silent"]]
