"""Reading the state of a fleet: processes, queues, sets, counters, what runs now."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from typing import Any

import redis

from cogworkerd.cron import schedule_of
from cogworkerd.payload import DEFAULT_QUEUE
from cogworkerd.store.keys import LIVE_WITHIN, PERIODIC_LIVE_WITHIN, Keys
from cogworkerd.store.reading import ask, counter


@dataclass(frozen=True)
class Process:
    """One daemon that has beaten within the last minute. Sizes in KiB, times in epoch seconds.

    Attributes:
        rss_kb: of all its processes; what they share is counted once for each.
        pss_kb: of those that were asked so far; what they share is counted once.
        ward: it runs suspects for another daemon, which it obeys.
    """

    identity: str
    host: str
    pid: int
    tag: str
    busy: int
    concurrency: int
    quiet: bool
    queues: list[str]
    rss_kb: int | None
    pss_kb: int | None
    started_at: float
    slots: list[dict[str, Any]]
    ward: bool = False


@dataclass(frozen=True)
class QueueState:
    """One queue.

    Attributes:
        latency: seconds since its oldest job was enqueued; 0.0 when it is empty or does not say.
        read: a live daemon reads it.
    """

    name: str
    size: int
    latency: float
    paused: bool
    read: bool


@dataclass(frozen=True)
class RunningJob:
    """One job that runs now, as of its daemon's last word on it."""

    identity: str
    tid: str
    jid: str
    class_name: str
    queue: str
    run_at: float


@dataclass(frozen=True)
class PeriodicEntry:
    """One published periodic entry.

    Attributes:
        last_slot: the slot that was fired last, epoch seconds; None: none that the server remembers.
        next_slot: the next one; None where the expression is another program's and cannot be read here.
        disabled: its slots are let go.
        active: a live daemon of this kind declares it.
    """

    pjid: str
    cron: str
    class_name: str
    queue: str
    last_slot: int | None
    next_slot: int | None
    disabled: bool
    active: bool


@dataclass(frozen=True)
class Snapshot:
    """The state of a fleet at one moment."""

    processes: list[Process]
    queues: list[QueueState]
    sets: dict[str, int]
    stats: dict[str, int]
    running: list[RunningJob] = field(default_factory=list)
    periodic: list[PeriodicEntry] = field(default_factory=list)


def snapshot(client: redis.Redis, keys: Keys, now: float | None = None) -> Snapshot:
    """Read everything that `cogworkerd status` shows. A key of the wrong type reads as empty.

    Raises:
        redis.exceptions.RedisError: the server is away.
    """
    now = time.time() if now is None else now
    return Snapshot(
        processes=processes(client, keys),
        queues=_queues(client, keys, now),
        sets={
            "scheduled": _size(client, keys.schedule),
            "retry": _size(client, keys.retry),
            "dead": _size(client, keys.dead),
        },
        stats={"processed": _counter(client, keys.processed), "failed": _counter(client, keys.failed)},
        running=running(client, keys),
        periodic=_periodic(client, keys, now),
    )


def processes(client: redis.Redis, keys: Keys) -> list[Process]:
    """The daemons that have beaten within the last minute."""
    return [found for name in _identities(client, keys) if (found := _process(client, keys, name)) is not None]


def running(client: redis.Redis, keys: Keys) -> list[RunningJob]:
    """What they run, as of their last word on it."""
    return [job for identity in _identities(client, keys) for job in _running(client, keys, identity)]


def _identities(client: redis.Redis, keys: Keys) -> list[str]:
    return sorted(name.decode("utf-8", "replace") for name in _members(client, keys.processes))


def last_beats(client: redis.Redis, keys: Keys, now: float) -> dict[str, float]:
    """How old the last beat of each registered daemon is, in seconds by the server's clock."""
    server_now = float((ask(client, "TIME") or (now,))[0])
    found = {}
    for name, stamp in (ask(client, "HGETALL", keys.last_beat) or {}).items():
        try:
            found[name.decode("utf-8", "replace")] = max(0.0, server_now - float(stamp))
        except ValueError:
            continue
    return found


def _process(client: redis.Redis, keys: Keys, identity: str) -> Process | None:
    found = ask(client, "HGETALL", keys.process(identity)) or {}
    fields = {name.decode(): value for name, value in found.items()}
    try:
        info = json.loads(fields["info"])
        return Process(
            identity=identity,
            host=str(info["hostname"]),
            pid=int(info["pid"]),
            tag=str(info.get("tag", "")),
            busy=int(fields.get("busy", b"0")),
            concurrency=int(info["concurrency"]),
            quiet=fields.get("quiet") == b"true",
            queues=[str(name) for name in info["queues"]],
            rss_kb=info.get("rss_kb"),
            pss_kb=info.get("pss_kb"),
            started_at=float(info["started_at"]),
            slots=list(info.get("slots", [])),
            ward=info.get("ward") is True,
        )
    except (KeyError, ValueError, TypeError):
        return None  # its presence has run out, or somebody else's format


def _queues(client: redis.Redis, keys: Keys, now: float) -> list[QueueState]:
    paused = _members(client, keys.paused_queues)
    live = dict(ask(client, "ZRANGE", keys.live_queues, 0, -1, "WITHSCORES", withscores=True) or [])
    server_now = ask(client, "TIME") or (now,)
    names = _members(client, keys.queues) | set(live)
    found = []
    for raw in sorted(names):
        name = raw.decode("utf-8", "replace")
        size = ask(client, "LLEN", keys.queue(name)) or 0
        oldest = ask(client, "LINDEX", keys.queue(name), -1) if size else None
        read = raw in live and float(server_now[0]) - float(live[raw]) <= LIVE_WITHIN
        found.append(QueueState(name, int(size), waiting_time(oldest, now), raw in paused, read))
    return found


def waiting_time(raw: bytes | None, now: float) -> float:
    """How long a job waits, by what it says itself, in seconds; 0.0 where it does not say."""
    try:
        waited = max(0.0, now - float(json.loads(raw or b"")["enqueued_at"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0.0
    return waited if math.isfinite(waited) else 0.0


def _running(client: redis.Redis, keys: Keys, identity: str) -> list[RunningJob]:
    found = []
    for tid, raw in (ask(client, "HGETALL", keys.workers(identity)) or {}).items():
        try:
            entry = json.loads(raw)
            payload = entry["payload"]
            found.append(
                RunningJob(
                    identity,
                    tid.decode(),
                    str(payload.get("jid", "")),
                    str(payload["class"]),
                    str(entry["queue"]),
                    float(entry["run_at"]),
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _periodic(client: redis.Redis, keys: Keys, now: float) -> list[PeriodicEntry]:
    disabled = _members(client, keys.periodic_disabled)
    live = dict(ask(client, "ZRANGE", keys.periodic_live, 0, -1, "WITHSCORES", withscores=True) or [])
    server_now = float((ask(client, "TIME") or (now,))[0])
    found = []
    for raw, value in sorted((ask(client, "HGETALL", keys.periodic_schedule) or {}).items()):
        pjid = raw.decode("utf-8", "replace")
        try:
            entry = json.loads(value)
            cron, name = str(entry["cron"]), str(entry["class"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        found.append(
            PeriodicEntry(
                pjid=pjid,
                cron=cron,
                class_name=name,
                queue=str(entry.get("queue") or DEFAULT_QUEUE),
                last_slot=_counter(client, keys.periodic_last_slot(pjid)) or None,
                next_slot=_next_slot(cron, now),
                disabled=raw in disabled,
                active=raw in live and server_now - float(live[raw]) <= PERIODIC_LIVE_WITHIN,
            )
        )
    return sorted(found, key=lambda entry: (entry.class_name, entry.cron))


def _next_slot(cron: str, now: float) -> int | None:
    try:
        return schedule_of(cron).next_after(now)
    except (ValueError, OverflowError):
        return None


def _members(client: redis.Redis, key: str) -> set[bytes]:
    return set(ask(client, "SMEMBERS", key) or ())


def _size(client: redis.Redis, key: str) -> int:
    return int(ask(client, "ZCARD", key) or 0)


def _counter(client: redis.Redis, key: str) -> int:
    return counter(ask(client, "GET", key))
