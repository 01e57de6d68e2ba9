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
from ._errors import (AlreadyExists, Cancelled, Corrupt, Error, FailedPrecondition, InvalidArgument, IoError, NotFound,
                      OutOfSpace, TimedOut, Unavailable, Unsupported)
from ._version import Version
from .checkpointer import Checkpointer, CheckpointTensor
from .publisher import Publisher
from .repository import Repository
from .scheduler import Scheduler
from .state_dicts import from_state_dict, to_state_dict
from .subscriber import Snapshot, Subscriber
from .weights import load_weights, save_weights

__all__ = ["AlreadyExists", "Cancelled", "CheckpointTensor", "Checkpointer", "Corrupt", "Error", "FailedPrecondition", "InvalidArgument", "IoError",
           "NotFound", "OutOfSpace", "Publisher", "Repository", "Scheduler", "Snapshot", "Subscriber", "TimedOut",
           "Unavailable", "Unsupported", "Version", "from_state_dict", "load_weights", "save_weights", "to_state_dict"]
