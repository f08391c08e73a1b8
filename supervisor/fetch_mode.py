"""Reliable or basic fetch: what the server lets us do."""

from __future__ import annotations

import secrets

import redis.exceptions

from cogworkerd.store.keys import Keys
from cogworkerd.store.outages import is_missing_command

from .link import Link


async def what_is_missing(link: Link, keys: Keys) -> str:
    """Try the commands that reliable fetch needs, on keys that hold nothing.

    Returns:
        The server's sentence about the first one that cannot be had; "" if all can.

    Raises:
        RedisError, OSError: the server's trouble; nothing is known.
    """
    key = f"{keys.prefix}cogworker:x:check:{secrets.token_hex(6)}"
    for command in (
        ("LMOVE", key, key, "RIGHT", "LEFT"),
        ("BLMOVE", key, key, "RIGHT", "LEFT", "0.01"),
        ("LPOS", key, ""),
    ):
        try:
            await link.redis.execute_command(*command)
        except redis.exceptions.ResponseError as refusal:
            if not is_missing_command(str(refusal)):
                raise
            return str(refusal)
    return ""
