"""Expiry: a job that was not started by its `expires_at` (epoch seconds) is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXPIRES_AT = "expires_at"
END_OF_TIME = 1e12
"""Epoch seconds from which on a number is no time, but milliseconds say."""


def lateness(payload: Mapping[str, Any], now: float) -> float | None:
    """By how many seconds a job has missed its time; None if it has not.

    A field that is no time is another program's, and means nothing here.
    """
    limit = payload.get(EXPIRES_AT)
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < END_OF_TIME:
        return None
    return now - limit if now >= limit else None
