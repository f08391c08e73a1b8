"""What the supervisor needs to know of the server before the first fetch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import redis.exceptions

_OLDEST = (6, 2)


class UnfitServer(Exception):
    """This server can never do; the text says why."""


@dataclass(frozen=True)
class ServerFacts:
    """What the server tells. What it will not tell is "unknown" and no reason for a warning."""

    version: str
    evicting_policies: tuple[str, ...]


async def look_at_server(client: Any) -> ServerFacts:
    """Ask the server who it is.

    Raises:
        UnfitServer: it is too old, or a cluster.
        RedisError, OSError: it is away.
    """
    try:
        info = await client.info()
    except redis.exceptions.AuthenticationError:
        raise
    except redis.exceptions.ResponseError as refusal:
        if "NOAUTH" in str(refusal):
            raise
        await client.ping()
        info = {}
    valkey = info.get("valkey_version")
    version = str(valkey or info.get("redis_version", "unknown"))
    _check(info, version)
    policy = str(info.get("maxmemory_policy", "noeviction"))
    evicts = policy != "noeviction" and bool(int(info.get("maxmemory", 0)))
    return ServerFacts(f"Valkey {version}" if valkey else f"Redis {version}", (policy,) if evicts else ())


def _check(info: dict[str, Any], version: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST:
        raise UnfitServer(f"the server is {version}; needed is Redis 6.2 or newer, or Valkey (for LMOVE)")
    if info.get("cluster_enabled") == 1:
        raise UnfitServer("the server is part of a cluster, which is not supported: use a single server or Sentinel")
