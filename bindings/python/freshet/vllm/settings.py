# SPDX-License-Identifier: Apache-2.0
"""What a trainer tells vLLM's workers, and what a program tells the trainer's engine. All of it arrives as JSON from outside: each
class checks its own."""
from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Dict

from vllm.distributed.weight_transfer.base import TrainerInitInfo, WeightTransferInitInfo, WeightTransferUpdateInfo

from .._errors import InvalidArgument

_RELOADS = ("auto", "in_place", "layerwise")


def _check_texts(what: str, **texts: Any) -> None:
    for name, value in texts.items():
        if not (value is None or isinstance(value, str)):
            raise InvalidArgument(f"{what}: {name}={value!r} is no text")


def _check_timeout(what: str, seconds: Any) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 86400:
        raise InvalidArgument(f"{what}: timeout={seconds!r}: a number of seconds, greater than 0 and at most 86400")


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Where a worker finds the trainer's publisher. Names of files are names on the worker's host.

    model       the name under which the trainer publishes.
    at, directory, keys, server_key, channel
                as freshet.Subscriber() takes them; nothing: the publisher is on this host.
    timeout     seconds that a worker waits for the publisher, and for a version.
    reload      how a version gets into the model; docs/python/vllm.md explains it. "auto": "layerwise" if vLLM converts weights
                after loading, else "in_place".
    """

    model: str
    at: str | None = None
    directory: str | None = None
    keys: str | None = None
    server_key: str | None = None
    channel: str = "auto"
    timeout: float = 60.0
    reload: str = "auto"

    def __post_init__(self) -> None:
        what = "init_info of a worker"
        _check_texts(what, at=self.at, directory=self.directory, keys=self.keys, server_key=self.server_key)
        if not isinstance(self.model, str) or not self.model:
            raise InvalidArgument(f"{what}: model={self.model!r}: the name under which the trainer publishes")
        if not isinstance(self.channel, str):
            raise InvalidArgument(f"{what}: channel={self.channel!r} is no text")
        if self.reload not in _RELOADS:
            raise InvalidArgument(f"{what}: reload={self.reload!r}: one of {', '.join(_RELOADS)}")
        _check_timeout(what, self.timeout)


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Which version a worker is to load: this very one, or none.

    version     its number.
    digest      its digest, 32 hexadecimal digits: Publisher.wait_committed() and Snapshot.digest have it.
    cancel      the update is given up: a worker drops what it staged, and loads nothing.
    """

    version: int
    digest: str
    cancel: bool = False

    def __post_init__(self) -> None:
        what = "update_info of a worker"
        if isinstance(self.version, bool) or not isinstance(self.version, int) or self.version < 1:
            raise InvalidArgument(f"{what}: version={self.version!r}: a number from 1 on")
        if not isinstance(self.digest, str) or len(self.digest) != 32 or set(self.digest) - set("0123456789abcdef"):
            raise InvalidArgument(f"{what}: digest={self.digest!r}: 32 hexadecimal digits")
        if not isinstance(self.cancel, bool):
            raise InvalidArgument(f"{what}: cancel={self.cancel!r}: true or false")


@dataclass
class TrainerInfo(TrainerInitInfo):
    """The trainer's side: its publisher, and what it tells the workers.

    rank        this trainer's rank (by keyword): 0 publishes, the others only help to gather tensors.
    model       the name under which it publishes.
    listen, keys, allow, channels, directory, keep_versions
                as freshet.Publisher() takes them; nothing: the workers are on this host.
    worker      fields of InitInfo that the workers need, such as `{"at": "tcp://trainer:7070", "keys": …, "server_key": …}`.
    timeout     seconds that send_weights() waits until a version exists, and until all workers have it.
    """

    backend: ClassVar[str] = "freshet"

    model: str
    listen: str | None = None
    keys: str | None = None
    allow: str | None = None
    channels: str = "auto"
    directory: str | None = None
    keep_versions: int = 0
    timeout: float = 60.0
    worker: Dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_timeout("init_info of the trainer", self.timeout)
        self.worker_info()

    def worker_info(self) -> Dict[str, Any]:
        """What the workers are told, checked here before a server hears of it."""
        if not isinstance(self.worker, dict):
            raise InvalidArgument(f"init_info of the trainer: worker={self.worker!r} is no dictionary")
        told = {"model": self.model, "timeout": self.timeout, **({"directory": self.directory} if self.directory else {}), **self.worker}
        try:
            return asdict(InitInfo(**told))
        except TypeError as error:
            raise InvalidArgument(f"init_info of the trainer: worker: {error}") from None
