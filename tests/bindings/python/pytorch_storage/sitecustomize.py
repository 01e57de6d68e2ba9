# SPDX-License-Identifier: Apache-2.0
"""Loaded by every interpreter that test_pytorchs_own starts, and by those that PyTorch's tests start in turn: PyTorch's classes that store
checkpoints in files of a folder are ours, which store them in a repository. Each folder that a test names has a repository of its own."""
import hashlib
import os

import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.filesystem as filesystem

import freshet.torch as ft

_MODEL = "checkpoint"


def _place_of(path):
    place = os.path.join(os.environ["FRESHET_PLACES"], hashlib.sha256(os.fspath(path).encode()).hexdigest()[:16])
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "used"), "w"):
        pass
    return os.path.join(place, "runs")


class FileSystemWriter(ft.StorageWriter):
    def __init__(self, path, *_, **__):
        super().__init__(_place_of(path), _MODEL)

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self.__init__(checkpoint_id)
        super().reset(None)


class FileSystemReader(ft.StorageReader):
    def __init__(self, path, *_, **__):
        super().__init__(_place_of(path), _MODEL)

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self.__init__(checkpoint_id)
        super().reset(None)


for module in (dcp, filesystem):
    module.FileSystemWriter = FileSystemWriter
    module.FileSystemReader = FileSystemReader
