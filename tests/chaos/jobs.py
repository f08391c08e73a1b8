"""The jobs of the scenarios: their bytes, their locks, and how each must end."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import Any

from cogworkerd.locks import Locks
from cogworkerd.payload import id_of_bytes
from cogworkerd.store.keys import Keys
from tests.support import Client

from .record import Happening

KEYS = Keys()
QUEUE = "default"


@dataclass(frozen=True)
class Job:
    """One job.

    Attributes:
        jid: its id, as the record and the look have it.
        raw: its bytes.
        lock: the key of its lock; "" for bytes that are no job.
        dead: it must end in dead; else it must succeed, and then be nowhere.
        failed: how many failures are settled on the way.
    """

    jid: str
    raw: str
    lock: str
    dead: bool = False
    failed: int = 0

    def is_over(self, where: list[str], happenings: list[Happening]) -> bool:
        """Whether this is the end that it must have."""
        return where == ["dead"] if self.dead else not where and self.has_ended(happenings)

    def has_ended(self, happenings: list[Happening]) -> bool:
        """Whether a run of it has come to its last line."""
        return any(happening.what == "end" and happening.jid == self.jid for happening in happenings)


def job(name: str, *args: Any, retry: Any = 3, dead: bool = False, failed: int = 0, **fields: Any) -> Job:
    """A job that holds a lock until it is over."""
    jid = secrets.token_hex(12)
    payload = {"class": name, "args": list(args), "queue": QUEUE, "jid": jid, "retry": retry}
    payload.update(unique="until_executed", **fields)
    return Job(jid, json.dumps(payload), Locks(KEYS).held(payload, QUEUE)[0], dead, failed)


def failed_before(name: str, *args: Any) -> Job:
    """A job as it stands in retry after its first failure."""
    past: dict[str, Any] = {
        "retry_count": 1,
        "failed_at": time.time() - 60,
        "error_class": "ValueError",
        "error_message": "once",
    }
    return job(name, *args, **past)


def unparseable() -> Job:
    """Bytes that are no job."""
    raw = '{"class": "short", "args": ['
    return Job(id_of_bytes(raw.encode()), raw, "", dead=True, failed=1)


def push(client: Client, *jobs: Job) -> None:
    """To the queue, in one step with their locks."""
    with client.pipeline(transaction=True) as pipe:
        for pushed in jobs:
            _lock(pipe, pushed)
            pipe.sadd(KEYS.queues, QUEUE)
            pipe.lpush(KEYS.queue(QUEUE), pushed.raw)
        pipe.execute()


def schedule(client: Client, key: str, due: Job) -> None:
    """To a sorted set, as due already, in one step with its lock."""
    with client.pipeline(transaction=True) as pipe:
        _lock(pipe, due)
        pipe.zadd(key, {due.raw: time.time() - 1})
        pipe.execute()


def _lock(pipe: Any, locked: Job) -> None:
    if locked.lock:
        pipe.set(locked.lock, locked.jid)
