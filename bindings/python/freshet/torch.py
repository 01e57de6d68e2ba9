# SPDX-License-Identifier: Apache-2.0
"""PyTorch: modules are published, and servers swap in what came.

    freshet.torch.publish(pub, module, step=step)       # in the training loop
    served = freshet.torch.attach(module, sub)          # in the server: module(x) answers with the newest version
"""
from __future__ import annotations

import json
import logging
from typing import Any, Callable, Dict, Iterable, List, Mapping

import numpy as np
import torch

from ._errors import FailedPrecondition, InvalidArgument, Unsupported, check_type
from ._graph import with_state
from ._place import place_of
from ._torch_attach import Attached, attach
from ._torch_arrays import _TIED, _from_numpy, _named, _to_numpy, check_fits, view, with_tied
from ._torch_graph import graph, unwrapped
from ._transfer import Model, Transfer
from ._version import Version
from .publisher import Publisher
from .repository import Repository, Resumed

__all__ = ["Attached", "Checkpoints", "StorageReader", "StorageWriter", "Transfer", "attach", "graph", "load", "publish", "resume",
           "retire_checkpoint", "tensors", "transfer", "view"]

_log = logging.getLogger("freshet")
_OPTIMIZERS = "freshet.optimizers"  # The tag that says of which classes the optimizers are.
_said_not_first = False


def tensors(module: torch.nn.Module) -> Dict[str, np.ndarray]:
    """A module's parameters and buffers as arrays in their own memory (copies of those on other devices), by the names of
    `state_dict()`. Tied weights come once, by their first name.

    InvalidArgument names the tensor that is meta, sparse, complex, quantized or sharded."""
    return {name: _to_numpy(name, tensor) for name, tensor in _named(module)[0].items()}


def publish(publisher: Publisher | None, module: torch.nn.Module, *, optimizer: Any = None,
            extra: Mapping[str, Any] | None = None, scheduler: Any = None, **how: Any) -> Any:
    """Publishes a module's parameters and buffers; `how` is as Publisher.publish() takes it, and so is the answer: where readers
    leave no room for the version, it is skipped, and the receipt's `.version` is None.

    optimizer   one of torch.optim, or several: their state and learning rates travel along, and the random state of PyTorch,
                NumPy and Python. No server takes them; a repository has them for resume(). Given once, given always.
    extra       with `optimizer`: further tensors or arrays of this host's memory that the loop goes on with, by name.
    scheduler   with `optimizer`: one of torch.optim.lr_scheduler, or several: where they are travels along.

    Under torch.distributed rank 0 publishes. On the others, whose `publisher` may be None, the call does nothing, says so
    once (logger `freshet`), and answers None. Parameters that FSDP has cut into pieces are gathered first, by all ranks.

    Unsupported: an optimizer whose state is not made of tensors, or is cut into pieces (dcp.save() stores those); a scheduler
    whose state is not made of numbers."""
    _check_with_optimizer(optimizer, extra, scheduler)
    check_type("publish(…, module)", module, torch.nn.Module, "; the publisher comes first")
    if publisher is not None:
        check_type("publish(publisher, …)", publisher, Publisher)
    named, tied = _gathered(module)
    if _rank() != 0:
        global _said_not_first
        if not _said_not_first:
            _said_not_first = True
            _log.info("this is rank %d: rank 0 publishes", _rank())
        return None
    if publisher is None:
        raise FailedPrecondition("rank 0 publishes: give it a publisher")
    # What lies on an NVIDIA GPU stays there: Publisher.publish() reads it in the current stream's order.
    arrays: Dict[str, Any] = {name: tensor if tensor.is_cuda else _to_numpy(name, tensor) for name, tensor in named.items()}
    parameters = {name for name, _ in unwrapped(module).named_parameters(remove_duplicate=False)}
    roles = {name: "buffer" for name in arrays if name not in parameters}
    if optimizer is not None:
        _add_state(publisher, module, optimizer, extra, arrays, roles, how)
    if scheduler is not None:
        from . import _torch_schedulers
        how["tags"] = {**how["tags"], _torch_schedulers.TAG: _torch_schedulers.text_of(scheduler)}
    if tied:
        how["tags"] = {**(how.get("tags") or {}), _TIED: json.dumps(tied)}
    return publisher.publish(arrays, roles=roles, **how)


def _check_with_optimizer(optimizer: Any, extra: Any, scheduler: Any) -> None:
    for name, given in (("extra", extra), ("scheduler", scheduler)):
        if given is not None and optimizer is None:
            raise InvalidArgument(f"{name}: give optimizer=, too; resume() needs both")


def _add_state(publisher: Publisher, module: torch.nn.Module, optimizer: Any, extra: Mapping[str, Any] | None,
               arrays: Dict[str, Any], roles: Dict[str, str], how: Dict[str, Any]) -> None:
    from ._torch_state import TrainingState
    if any(type(tensor.detach()) is not torch.Tensor for tensor in _named(module)[0].values()):
        raise Unsupported("publish(optimizer=…): the module is cut into pieces, and so is its optimizer's state; "
                          "torch.distributed.checkpoint.save() stores it")
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    state = publisher._training
    if state is None or state.module is not module or list(map(id, state.optimizers)) != list(map(id, optimizers)):
        state = TrainingState(module, optimizer, extra)
        state.put_back()
        publisher._training = state
    how["tags"] = {**(how.get("tags") or {}), _OPTIMIZERS: _classes_of(optimizers)}
    state.extra = dict(extra or {})
    beside = state.beside_the_module()
    for name, array in beside.items():
        if name in arrays:
            raise InvalidArgument(f"two tensors are called {name}")
        if name not in state.described:
            raise FailedPrecondition(f"tensor {name}: it was not there when this loop first published its optimizer")
        arrays[name] = array
        roles[name] = state.described[name][2]
    known = publisher._graph
    if known is not None and how.get("graph") is None:
        there = set(known.tensor_names())
        missing = {name: state.described[name] for name in beside if name not in there}
        if missing:
            how["graph"] = with_state(known, missing)


def load(module: torch.nn.Module, repository: Any, version: str, *, strict: bool = True) -> Version:
    """Fills a module with the weights and buffers of a stored version, all or none, wherever its parameters lie; which version it was.

        freshet.torch.load(module, "runs/", "net@3")

    repository   a Repository, or its place.
    version      "net@3", "net@best" for an alias, "net" for the newest.
    strict       False: leaves out tensors of the version that the module lacks.

    NotFound: there is no such version. FailedPrecondition names the tensor that the version lacks, has in another shape or type, or
    has beyond the module."""
    check_type("load(module, …)", module, torch.nn.Module)
    stored = place_of(repository).open()._served(version)
    came = with_tied(stored, stored.tags)
    named, tied = _named(module)
    check_fits((named, tied), came, str(stored.version), strict)
    with torch.no_grad():
        for name, tensor in named.items():
            tensor.copy_(came[name])
    return stored.version


def resume(resumed: Resumed, module: torch.nn.Module, optimizer: Any = None, *, extra: Mapping[str, Any] | None = None,
           scheduler: Any = None, strict: bool = True) -> int:
    """Fills a module, and what else is given, with what publish() sent and a repository stored, and says at which step that was: the
    loop goes on there as if nothing had been, bit by bit.

        repo = freshet.Repository("runs/")
        pub = freshet.Publisher("net", resume=(repo, "net"))
        step = freshet.torch.resume(pub.resumed, module, optimizer)

    resumed     what Repository.resume() answers, and Publisher(…, resume=…) has.
    optimizer, extra, scheduler   as publish() was given them.
    strict      False: goes on without what the version has and this loop lacks: tensors of the module, of the optimizer, of
                `extra`, and a scheduler of another kind. Without an optimizer its state is left out in any case.

    FailedPrecondition names the tensor that the version lacks, has in another shape or type, or has beyond this loop, or says
    that the optimizer or the scheduler is of another class; then all is as it was."""
    _check_with_optimizer(optimizer, extra, scheduler)
    check_type("resume(resumed, …)", resumed, Resumed, ": Repository.resume() answers one, and Publisher(…, resume=…) has it")
    came = with_tied(resumed.weights, resumed._record.tags())
    named, tied = _named(module)
    check_fits((named, tied), came, str(resumed.version), strict)
    if optimizer is None:
        with torch.no_grad():
            for name, tensor in named.items():
                tensor.copy_(came[name])
        return resumed.step
    from ._torch_state import TrainingState
    move_scheduler = _to_move(scheduler, resumed, strict)
    state = TrainingState(module, optimizer, extra)
    try:
        beside = [name for name in state.described if name not in named and not name.startswith("rng/cuda/")]
        if strict:
            _check_nothing_is_left(resumed, state)
        state.check(resumed.state, beside, str(resumed.version))
    except BaseException:
        state.put_back()
        raise
    state.fill({**resumed.weights, **resumed.state})
    move_scheduler()
    return resumed.step


def _to_move(scheduler: Any, resumed: Resumed, strict: bool) -> Callable[[], None]:
    """What brings the schedulers to where the version has them."""
    from . import _torch_schedulers
    told = resumed._record.tags().get(_torch_schedulers.TAG)
    if scheduler is None:
        if strict and told is not None:
            raise FailedPrecondition(f"{resumed.version} was trained with a scheduler of learning rates, this loop gives none: give "
                                     f"it as scheduler=; strict=False goes on without it")
        return lambda: None
    try:
        return _torch_schedulers.to_load(scheduler, told, str(resumed.version))
    except FailedPrecondition:
        if strict:
            raise
        return lambda: None


def _check_nothing_is_left(resumed: Resumed, state: Any) -> None:
    """FailedPrecondition where the version has more than the loop: it is another loop's."""
    trained = resumed._record.tags().get(_OPTIMIZERS)
    mine = _classes_of(state.optimizers)
    if trained is not None and trained != mine:
        raise FailedPrecondition(f"{resumed.version} was trained by {trained}, this loop has {mine}, which would go on with its "
                                 f"learning rates; strict=False takes what fits")
    for name in resumed.state:
        if name not in state.described and not name.startswith("rng/"):
            raise FailedPrecondition(f"tensor {name}: {resumed.version} has it, this loop does not have it: it is of another "
                                     f"optimizer, or was given as extra=; strict=False leaves it out")


def _classes_of(optimizers: Iterable[Any]) -> str:
    return ", ".join(type(one).__name__ for one in optimizers)


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _gathered(module: torch.nn.Module) -> tuple[Dict[str, torch.Tensor], Dict[str, str]]:
    named, tied = _named(module)
    if all(type(tensor.detach()) is torch.Tensor for tensor in named.values()):
        return named, tied
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    whole: Mapping[str, Any] = get_model_state_dict(unwrapped(module), options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if _rank() != 0:
        return {}, {}
    return {name: whole[name] for name in named}, tied


def transfer(module: torch.nn.Module, repository: Repository, example: Any = None, *, freeze: str = "all", **query: Any) -> Transfer:
    """Finds the stored model that shares the longest prefix of layers with this one, and copies its tensors in. A batch norm that
    came still counts along in train(), as PyTorch has it.

    example   as graph() takes it.
    freeze    "all": parameters that came no longer require gradients. "prefix": the last parametric ones train all the same: the
              module's last one, and the later two thirds of those that came. "none": all train.
    query     as Repository.match() takes it."""
    told = graph(module, example)
    named, _ = _named(module)
    layers = {}  # Parameters by the name of their layer, in the graph's order.
    for layer in told["layers"]:
        keys = [tensor["key"] for tensor in layer.get("tensors", {}).values() if isinstance(named.get(tensor["key"]), torch.nn.Parameter)]
        if keys:
            layers[layer["name"]] = keys

    def load(came: Mapping[str, np.ndarray]) -> List[str]:
        with torch.no_grad():
            for name, array in came.items():
                named[name].copy_(_from_numpy(array))
        return [layer for layer, keys in layers.items() if all(key in came for key in keys)]

    def frozen(names: List[str]) -> List[str]:
        for layer in names:
            for key in layers[layer]:
                named[key].requires_grad_(False)
        return names

    return Transfer(place_of(repository).open(), Model(told, list(layers), load, frozen, lambda: tensors(module)), freeze, **query)


def __getattr__(name: str) -> Any:
    """What is wanted seldom; PyTorch's checkpoints, of which some builds have nothing."""
    if name == "Checkpoints":
        from ._torch_checkpoints import Checkpoints
        return Checkpoints
    if name in ("StorageReader", "StorageWriter", "retire_checkpoint"):
        from . import _torch_storage
        return getattr(_torch_storage, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
