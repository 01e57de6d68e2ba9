# SPDX-License-Identifier: Apache-2.0
"""How fresh a subscriber is."""
from __future__ import annotations

import time
import weakref
from typing import Any, Dict

from ..subscriber import Subscriber

# Since when each member of a group has been seen not to know what was decided, by time.monotonic().
_lapsed_since: "weakref.WeakKeyDictionary[Subscriber, float]" = weakref.WeakKeyDictionary()


def freshness(subscriber: Subscriber) -> Dict[str, Any]:
    """Where a subscriber stands: the members of a readiness answer. `state` is "none" without a version; "stale" while a newer
    version than the served one is known, or while this member of a group does not know what was decided; else "fresh".
    `stale_s` counts from when the newer version was announced; for such a member from the first call that found it so."""
    status = subscriber.status()
    serving, newest = status["serving"], status["newest_known"]
    behind = max(0, newest - serving)
    state = "none" if serving == 0 else "stale" if behind or status["stale"] else "fresh"
    stale_s = status["staleness"] if state == "stale" else 0.0
    if state == "stale" and status["stale"]:
        stale_s = max(stale_s, time.monotonic() - _lapsed_since.setdefault(subscriber, time.monotonic()))
    else:
        _lapsed_since.pop(subscriber, None)
    return {"model": subscriber.model, "state": state, "version": serving, "newest_known": newest, "versions_behind": behind,
            "stale_s": stale_s, "connected": status["connected"], "last_error": status["last_error"], "updates": status["updates"],
            "bytes_fetched": status["bytes_fetched"], "gaps": status["gaps"], "failures": status["failures"]}
