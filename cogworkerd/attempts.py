"""The attempts log of a job: its failures, oldest first, the newest 25 of the last 30 days."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cogworkerd.jobsets import Store


@dataclass(frozen=True)
class Attempt:
    """One failure.

    Attributes:
        attempt: which run it was, from 1.
        failed_at: epoch seconds.
        outcome: retrying, dead (no retry was left), killed (it was decided so) or discarded.
    """

    attempt: int
    failed_at: float
    outcome: str
    error_class: str
    error_message: str


def read_attempts(store: Store, jid: str) -> list[Attempt]:
    """The failures of a job, oldest first.

    Raises:
        redis.exceptions.RedisError: the server is away, or the key holds another type.
    """
    found: Any = store.client.lrange(store.keys.attempts(jid), 0, -1)
    return [attempt for raw in found if (attempt := _read(raw)) is not None]


def _read(raw: bytes) -> Attempt | None:
    """A record that anybody may have written."""
    try:
        record = json.loads(raw)
        return Attempt(
            int(record["attempt"]),
            float(record["failed_at"]),
            str(record["outcome"]),
            str(record.get("error_class", "")),
            str(record.get("error_message", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
