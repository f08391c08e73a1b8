"""How much of the server's memory the records of runs can come to take, at the present rate: an estimate."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from cogworkerd.costs import COST_DAYS, MOST_NAMES, SUMS
from cogworkerd.history import KINDS, History
from cogworkerd.jobsets import Store
from cogworkerd.settings import Settings
from cogworkerd.store.reading import ask

_MEMBER = 110  # of a sorted set, beside its text: skip list, hash table, the text's header
_FIELD = 70  # of a hash: a name, a number, the table
_STATUS = 500
_ATTEMPT = 350
_TYPICAL_ENTRY = 600
_SAMPLE = 50
_DAY = 86_400
_MONTH = 30


@dataclass(frozen=True)
class Estimate:
    """One kind of records.

    Attributes:
        now: how many there are; None: not counted.
        bytes_each: what one takes.
        reach: bytes that all of them can come to.
        why: what bounds them.
    """

    what: str
    now: int | None
    bytes_each: int
    reach: int
    why: str


def estimates(store: Store, settings: Settings) -> list[Estimate]:
    """What the settings let grow, at the rate of the last 24 hours.

    Raises:
        redis.exceptions.RedisError: the server is away.
    """
    daily = History(store).daily(2)
    per_day = {kind: max(day[kind] for day in daily.values()) for kind in ("success", "failed")}
    found = list(_history(store, settings, per_day)) if settings.history else []
    found.append(_dead(store, settings))
    failed = per_day["failed"]
    statuses = math.ceil(failed * settings.status_ttl / _DAY)
    found.append(
        Estimate("statuses of failures", None, _STATUS, statuses * _STATUS, f"{failed:,} failures a day, status_ttl")
    )
    found.append(
        Estimate("attempts logs", None, _ATTEMPT, failed * _MONTH * _ATTEMPT, f"{failed:,} failures a day, 30 days")
    )
    found.append(_costs(store))
    return found


def _history(store: Store, settings: Settings, per_day: dict[str, int]) -> Iterator[Estimate]:
    days = settings.history_max_age / _DAY
    for kind in KINDS:
        key = store.keys.history(kind)
        rate = sum(per_day.values()) if kind == "all" else per_day[kind]
        by_age = math.ceil(rate * days)
        most = min(settings.history_max, max(by_age, _count(store.client, key)))
        each = _mean_size(store.client, key)
        why = "history_max" if most == settings.history_max else f"{rate:,} runs a day, history_max_age"
        yield Estimate(f"history:{kind}", _count(store.client, key), each, most * each, why)


def _dead(store: Store, settings: Settings) -> Estimate:
    key = store.keys.dead
    count, each = _count(store.client, key), _mean_size(store.client, key)
    if settings.dead_max is not None:
        return Estimate("dead jobs", count, each, settings.dead_max * each, "dead_max")
    now = time.time()
    fresh = int(ask(store.client, "ZCOUNT", key, now - _DAY, "+inf") or 0)
    return Estimate(
        "dead jobs", count, each, (count + fresh * _MONTH) * each, f"no dead_max; {fresh:,} a day, for 30 days"
    )


def _costs(store: Store) -> Estimate:
    fields = int(ask(store.client, "HLEN", store.keys.cost_of_day(time.time())) or 0)
    names = fields // (len(SUMS) + 1)
    reach = min(max(names, 1), MOST_NAMES) * (len(SUMS) + 1) * _FIELD * COST_DAYS
    return Estimate("costs", names, (len(SUMS) + 1) * _FIELD, reach, f"kinds of jobs, {COST_DAYS} days")


def _mean_size(client: redis.Redis, key: str) -> int:
    """Bytes that an entry of a sorted set takes, by its newest ones."""
    sample: Any = ask(client, "ZRANGE", key, -_SAMPLE, -1) or []
    return sum(map(len, sample)) // len(sample) + _MEMBER if sample else _TYPICAL_ENTRY


def _count(client: redis.Redis, key: str) -> int:
    return int(ask(client, "ZCARD", key) or 0)
