# SPDX-License-Identifier: Apache-2.0
"""Numbers that callers give."""
from __future__ import annotations

import math
import numbers
import operator
from typing import Any

from ._errors import InvalidArgument

_MOST = 2**63 - 1


def whole(value: Any, what: str) -> int:
    """A whole number from 0, of any type that is one (NumPy's, too). InvalidArgument says `what` is none."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what}={value!r}: a whole number is wanted, not {type(value).__name__}") from None
    if isinstance(value, bool) or not 0 <= number <= _MOST:
        raise InvalidArgument(f"{what}={value!r}: a whole number from 0 is wanted")
    return number


def real(value: Any, what: str) -> float:
    """A number of any type that is one (NumPy's, too), also a NaN; what is too large for a float is infinite. InvalidArgument says
    `what` is none."""
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_real:
        raise InvalidArgument(f"{what}={value!r:.80}: a number is wanted, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
