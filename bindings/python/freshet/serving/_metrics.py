# SPDX-License-Identifier: Apache-2.0
"""What a subscriber knows of itself, for Prometheus."""
from __future__ import annotations

import time
from typing import Any, Dict, Iterable, List, Tuple

from .._errors import Error, InvalidArgument, check_type
from ..subscriber import Subscriber
from ._freshness import freshness

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Name, kind, help, and the member of freshness() that has the value.
_OF_SUBSCRIBER: Tuple[Tuple[str, str, str, str], ...] = (
    ("freshet_served_version", "gauge", "The number of the served version; 0: none has come.", "version"),
    ("freshet_newest_version", "gauge", "The number of the newest version that this process knows of.", "newest_known"),
    ("freshet_versions_behind", "gauge", "By how much the newest known version is ahead of the served one.", "versions_behind"),
    ("freshet_staleness_seconds", "gauge", "For how long a newer version than the served one has been known; 0: there is none.", "stale_s"),
    ("freshet_served_version_age_seconds", "gauge", "The time since the served version was published.", "age_s"),
    ("freshet_connected", "gauge", "1: a publisher answers.", "connected"),
    ("freshet_updates_total", "counter", "Versions that were swapped in.", "updates"),
    ("freshet_fetched_bytes_total", "counter", "Bytes of changed tensors that came.", "bytes_fetched"),
    ("freshet_gaps_total", "counter", "Versions that were dropped before they came.", "gaps"),
    ("freshet_update_failures_total", "counter", "Versions that were refused or could not be fetched, each as often as it was tried.",
     "failures"),
)

Sample = Tuple[Dict[str, str], Any]
Family = Tuple[str, str, str, List[Sample]]


def metrics(*subscribers: Subscriber) -> str:
    """The subscribers' state in Prometheus' text format, for a route of your own; freshet.serving.middleware() has a route for it.
    Each model once."""
    return text_of(families_of(subscribers))


def families_of(subscribers: Iterable[Subscriber]) -> List[Family]:
    states: Dict[str, Dict[str, Any]] = {}
    for subscriber in subscribers:
        check_type("subscriber", subscriber, Subscriber)
        if subscriber.model in states:
            raise InvalidArgument(f"two subscribers of {subscriber.model}: Prometheus wants each series once; give one of them")
        states[subscriber.model] = _state_of(subscriber)
    return [(name, kind, told, [({"model": model}, state[key]) for model, state in states.items() if key in state])
            for name, kind, told, key in _OF_SUBSCRIBER]


def _state_of(subscriber: Subscriber) -> Dict[str, Any]:
    state = freshness(subscriber)
    try:
        with subscriber.snapshot() as snapshot:
            state["age_s"] = max(0.0, time.time() - snapshot._here().created_unix_ns() / 1e9)
    except Error:  # No version has come.
        pass
    return state


def text_of(families: Iterable[Family]) -> str:
    """Metrics of the same name stand together, as the format demands."""
    lines: List[str] = []
    for name, kind, told, samples in families:
        if samples:
            lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else str(int(value))
