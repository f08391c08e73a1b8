"""What a server is like: version, memory, persistence, rights, clock. What it will not tell is "unknown"."""

from __future__ import annotations

import functools
import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import redis

from cogworkerd.store.keys import Keys
from cogworkerd.store.reading import ask

OLDEST = (5, 0)
UNKNOWN = "unknown"
_CLOCK_TOLERANCE = 2.0
_SCRIPT = "return redis.call('GET', KEYS[1])"
_FOR_RELIABLE_FETCH = {"LMOVE", "BLMOVE", "LPOS"}


class UnfitServer(Exception):
    """This server can never do; the text says why."""


@dataclass(frozen=True)
class ServerFacts:
    """What the server tells about itself.

    Attributes:
        evicts: the eviction policy, where it can throw jobs away; else "".
    """

    version: str
    evicts: str


def facts_of(info: dict[str, Any]) -> ServerFacts:
    """Read the reply of INFO (empty: the server refused it).

    Raises:
        UnfitServer: it is too old, or a cluster.
    """
    valkey = info.get("valkey_version")
    version = str(valkey or info.get("redis_version", UNKNOWN))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise UnfitServer(f"the server is {version}; needed is Redis 6.2 or newer, or Valkey; 5.0 for basic fetch")
    if info.get("cluster_enabled") == 1:
        raise UnfitServer("the server is part of a cluster, which is not supported: use a single server or Sentinel")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    return ServerFacts(f"{'Valkey' if valkey else 'Redis'} {version}", "" if policy == "noeviction" else policy)


@dataclass
class Report:
    """What `cogworkerd check` prints about a server."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def check_server(client: redis.Redis, keys: Keys, connections: int) -> Report:
    """Look at a server.

    Args:
        connections: how many the daemon may need.

    Raises:
        redis.exceptions.ConnectionError: it is away.
    """
    report = Report()
    info = ask(client, "INFO") or {}
    _check_version(report, info)
    _check_eviction(report, info)
    _check_persistence(report, info)
    _check_rights(report, client, keys)
    _check_clock(report, client)
    _check_connections(report, client, connections)
    return report


def _check_version(report: Report, info: dict[str, Any]) -> None:
    try:
        report.rows.append(("version", facts_of(info).version))
    except UnfitServer as unfit:
        report.rows.append(("version", "not usable"))
        report.warnings.append(str(unfit))


def _check_eviction(report: Report, info: dict[str, Any]) -> None:
    policy = info.get("maxmemory_policy")
    report.rows.append(("eviction policy", str(policy or UNKNOWN)))
    if policy and policy != "noeviction":
        report.warnings.append(f"maxmemory-policy is {policy}: the server may evict jobs; use noeviction")


def _check_persistence(report: Report, info: dict[str, Any]) -> None:
    if not info:
        report.rows.append(("persistence", UNKNOWN))
        return
    aof = info.get("aof_enabled") == 1
    report.rows.append(("persistence", "append-only file" if aof else "snapshots, if any"))
    if not aof:
        report.warnings.append("the append-only file is off: a crash of the server loses the jobs since its last save")


def _check_rights(report: Report, client: redis.Redis, keys: Keys) -> None:
    """Try each command that is needed, on scratch keys of ours that vanish by themselves."""
    missing = [name for name, attempt in _needed(client, keys) if not _allowed(attempt)]
    report.rows.append(("writable, all commands allowed", "no" if missing else "yes"))
    if set(missing) & _FOR_RELIABLE_FETCH:
        report.warnings.append("reliable fetch is not to be had here: jobs at hand are lost if the daemon dies")
    if missing:
        report.warnings.append(f"the server does not let this user do: {', '.join(missing)}")


def _needed(client: redis.Redis, keys: Keys) -> list[tuple[str, Callable[[], Any]]]:
    base = f"{keys.prefix}cogworker:x:check:{secrets.token_hex(6)}:"
    run = client.execute_command
    commands: list[tuple[Any, ...]] = [
        ("SET", base + "string", "0", "EX", 10),
        ("GET", base + "string"),
        ("MGET", base + "string"),
        ("TTL", base + "string"),
        ("INCR", base + "string"),
        ("EXPIRE", base + "string", 10),
        ("EXISTS", base + "string"),
        ("LPUSH", base + "list", "x"),
        ("RPUSH", base + "list", "y"),
        ("LMOVE", base + "list", base + "list", "RIGHT", "LEFT"),
        ("BLMOVE", base + "list", base + "list", "RIGHT", "LEFT", 1),
        ("LPOS", base + "list", "x"),
        ("LREM", base + "list", 1, "x"),
        ("LRANGE", base + "list", 0, -1),
        ("LTRIM", base + "list", 0, 0),
        ("BRPOP", base + "list", 1),
        ("RPOP", base + "list"),
        ("LLEN", base + "list"),
        ("SADD", base + "set", "x"),
        ("SISMEMBER", base + "set", "x"),
        ("SMEMBERS", base + "set"),
        ("SRANDMEMBER", base + "set", 1),
        ("SREM", base + "set", "x"),
        ("ZADD", base + "zset", 1, "x"),
        ("ZSCORE", base + "zset", "x"),
        ("ZRANGEBYSCORE", base + "zset", "-inf", 1),
        ("ZREMRANGEBYSCORE", base + "zset", "-inf", "(0"),
        ("ZREMRANGEBYRANK", base + "zset", 1, 1),
        ("ZREM", base + "zset", "x"),
        ("HSET", base + "hash", "x", 1),
        ("HINCRBY", base + "hash", "x", 1),
        ("HGET", base + "hash", "x"),
        ("HGETALL", base + "hash"),
        ("HKEYS", base + "hash"),
        ("HLEN", base + "hash"),
        ("HEXISTS", base + "hash", "x"),
        ("HDEL", base + "hash", "x"),
        ("TYPE", base + "string"),
        ("RENAME", base + "string", base + "renamed"),
        ("SCAN", 0, "MATCH", base + "*", "COUNT", 1),
        ("SCRIPT LOAD", _SCRIPT),
        ("EVALSHA", hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest(), 1, base + "string"),
        ("EVAL", _SCRIPT, 1, base + "string"),
        ("PUBLISH", keys.signal("check"), "check"),
        ("TIME",),
        ("CLIENT ID",),
        ("CLIENT UNBLOCK", 0),
        ("CLIENT SETNAME", "cogworkerd-check"),
        ("DEL", base + "string", base + "renamed", base + "list", base + "set", base + "zset", base + "hash"),
    ]
    return [(str(command[0]), functools.partial(run, *command)) for command in commands]


def _allowed(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except redis.exceptions.ResponseError as refusal:
        words = str(refusal).lower()
        return not any(word in words for word in ("noperm", "no permissions", "unknown command", "unknown subcommand"))
    return True


def _check_clock(report: Report, client: redis.Redis) -> None:
    told = ask(client, "TIME")
    if told is None:
        report.rows.append(("clock", UNKNOWN))
        return
    difference = float(told[0]) + float(told[1]) / 1e6 - time.time()
    report.rows.append(("clock", f"{difference:+.1f} s from this machine's"))
    if abs(difference) > _CLOCK_TOLERANCE:
        report.warnings.append(f"the server's clock is {difference:+.1f} s from this machine's: due times will be off")


def _check_connections(report: Report, client: redis.Redis, connections: int) -> None:
    told = ask(client, "CONFIG GET", "maxclients")
    limit = next(iter(told.values()), None) if isinstance(told, dict) else None
    report.rows.append(("connections", f"{connections} needed, {limit or UNKNOWN} allowed"))
    if limit is not None and int(limit) < connections:
        report.warnings.append(f"maxclients is {limit}, but this daemon may need {connections} connections")
