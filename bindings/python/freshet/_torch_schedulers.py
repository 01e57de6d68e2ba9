# SPDX-License-Identifier: Apache-2.0
"""Schedulers of learning rates, as a text that travels with a version, and back."""
from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, Callable, Dict, List, Mapping, Tuple

import torch

from ._errors import FailedPrecondition, InvalidArgument, Unsupported

TAG = "freshet.schedulers"
_OF_GROUPS = ("initial_lr", "momentum", "betas")  # What schedulers change or read beside the rates, which are tensors of their own.


def _several(scheduler: Any) -> List[Any]:
    several = list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler]
    for one in several:
        if not hasattr(one, "state_dict") or not hasattr(one, "load_state_dict"):
            raise InvalidArgument(f"scheduler={one!r:.80}: one of torch.optim.lr_scheduler, or several")
    return several


def _groups_of(scheduler: Any) -> List[Dict[str, Any]]:
    return getattr(getattr(scheduler, "optimizer", None), "param_groups", [])


def text_of(scheduler: Any) -> str:
    """The state of a scheduler, or of several. Unsupported names what is neither a number nor a text."""
    told = []
    for one in _several(scheduler):
        kind = type(one).__name__
        groups = [{key: group[key] for key in _OF_GROUPS if key in group} for group in _groups_of(one)]
        told.append({"kind": kind, "state": _plain(one.state_dict(), kind), "groups": _plain(groups, f"{kind}'s optimizer")})
    return json.dumps(told)


def to_load(scheduler: Any, text: str | None, version: str) -> Callable[[], None]:
    """What brings the schedulers to where they were when `text` was made; until it is called nothing has changed.

    FailedPrecondition: the version has no state of schedulers, or that of others."""
    several = _several(scheduler)
    kinds = ", ".join(type(one).__name__ for one in several)
    if text is None:
        raise FailedPrecondition(f"scheduler: {version} was published without one; move it to the step yourself, or strict=False")
    loads: List[Tuple[Any, Any, Any]] = []
    try:
        told = json.loads(text)
        trained = ", ".join(one["kind"] for one in told)
        if trained != kinds:
            raise FailedPrecondition(f"scheduler: {version} was trained with {trained}, this loop has {kinds}")
        for one, its in zip(several, told):
            now = one.state_dict()
            state = _like(its["state"], now)
            if state.keys() != now.keys():
                odd = ", ".join(sorted(map(str, state.keys() ^ now.keys())))
                raise FailedPrecondition(f"scheduler: {kinds} of {version} and of this loop differ in {odd}: another version of "
                                         f"PyTorch made it, or it was made otherwise")
            groups = _like(its["groups"], _groups_of(one))
            if len(groups) != len(_groups_of(one)):
                raise FailedPrecondition(f"scheduler: {version} has {len(groups)} groups of parameters, this loop "
                                         f"{len(_groups_of(one))}")
            loads.append((one, state, [{key: group[key] for key in _OF_GROUPS if key in group} for group in groups]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FailedPrecondition(f"scheduler: the tag {TAG} of {version} is malformed: {error!r}") from None

    def load() -> None:
        for one, state, groups in loads:
            one.load_state_dict(state)
            for mine, its in zip(_groups_of(one), groups):
                mine.update(its)

    return load


def _plain(value: Any, where: str) -> Any:
    """As JSON has it. A dictionary becomes its pairs, since JSON's keys are texts."""
    if isinstance(value, Mapping):
        return {"pairs": [[_plain(key, where), _plain(one, f"{where}.{key}")] for key, one in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_plain(one, where) for one in value]
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # A tensor, or a number of NumPy's.
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}  # JSON has none of these.
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Unsupported(f"scheduler: {where} is a {type(value).__name__}, which is no number; keep it out of the scheduler's state")


def _like(value: Any, now: Any) -> Any:
    """Back from JSON, of the type that the same value has now."""
    if isinstance(value, dict):
        if "number" in value:
            return _like(float(value["number"]), now)
        known = now if isinstance(now, Mapping) else {}
        made = {key: _like(one, known.get(key)) for key, one in value["pairs"]}
        return Counter(made) if isinstance(now, Counter) else made  # MultiStepLR's milestones.
    if isinstance(value, list):
        there = list(now) if isinstance(now, (list, tuple)) else []
        several = [_like(one, there[at] if at < len(there) else None) for at, one in enumerate(value)]
        return tuple(several) if isinstance(now, tuple) else several
    if isinstance(now, torch.Tensor):
        return torch.as_tensor(value, dtype=now.dtype, device=now.device)
    return value
