"""Reading what anybody may have written, or what this user may not read: it reads as nothing."""

from __future__ import annotations

import re
from typing import Any

import redis

_COUNTER = re.compile(rb"[0-9]{1,30}")


def ask(client: redis.Redis, *command: Any, **reply: Any) -> Any:
    """One reading command. `reply`: how redis-py is to read the answer.

    Returns:
        The answer; None where the server refuses it: the key has another type, or this user may not.

    Raises:
        redis.exceptions.ConnectionError: the server is away.
    """
    try:
        return client.execute_command(*command, **reply)
    except redis.exceptions.ResponseError:
        return None


def counter(value: Any) -> int:
    """A counter as the server answered it; 0 for anything else that somebody put there."""
    return int(value) if isinstance(value, bytes) and _COUNTER.fullmatch(value) else 0


def counters(reply: Any, count: int) -> list[int]:
    """The answer of HMGET for so many counters; zeros where it was refused."""
    return [counter(value) for value in reply] if isinstance(reply, list) else [0] * count
