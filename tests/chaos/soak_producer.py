"""The producer: pushes jobs of every kind all the time, and notes what it was told about each push."""

from __future__ import annotations

import json
import logging
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis

from cogworkerd.errors import PushFailed, PushUnknown
from cogworkerd.settings import Layer, combine
from cogworkerd.unique import unique_digest
from tests.chaos.soak_app import app, async_work, doomed, work
from tests.chaos.soak_record import Record
from tests.chaos.soak_server import KEYS, QUEUES, JobServer

MOST_WAITING = 400
"""With a longer backlog the producer waits: the soak is about faults, not about overload."""

DONE, DEAD, DIED, UNPARSEABLE = "done", "dead", "died", "unparseable"
"""How a job is to end: with a success, in dead by its own failures, by its process' deaths, or as bytes that are no
job."""

# Another program's push of a job with its lock, in one step: the lock must not be there without the job.
# KEYS 1 the queue, 2 the lock. ARGV 1 the job, 2 its id.
_PUSH_WITH_LOCK = """
redis.call('LPUSH', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2], 'EX', 86400)
return 1
"""


class Producer(threading.Thread):
    """Pushes until it is stopped.

    Args:
        rate: jobs a second, on the average, while the server is well.

    Attributes:
        backlog: set by others: how many jobs wait.
        verdicts: how many pushes were acknowledged, unknown, refused; kinds: of which kind they were.
    """

    def __init__(self, server: JobServer, record: Record, rate: float, chance: random.Random) -> None:
        super().__init__(name="producer", daemon=True)
        self.backlog = 0
        self.verdicts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.fault: BaseException | None = None
        self._raw = server.client(5.0)
        self._record = record
        self._rate = rate
        self._chance = chance
        self._stop_asked = threading.Event()
        logging.getLogger("cogworkerd.client").setLevel(logging.ERROR)  # a damaged listing is no news here
        app.use(combine(Layer("the soak", {"redis_url": server.url})).settings)

    def run(self) -> None:
        kinds = list(_KINDS)
        weights = [weight for weight, _ in _KINDS.values()]
        try:
            while not self._stop_asked.wait(self._chance.expovariate(self._rate)):
                if self.backlog > MOST_WAITING:
                    self._stop_asked.wait(0.5)
                    continue
                kind = self._chance.choices(kinds, weights)[0]
                _KINDS[kind][1](self, kind)
        except BaseException as error:
            self.fault = error  # the soak ends with it; a thread's own traceback would be lost among other lines

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()
        self._raw.close()

    # ---- kinds ------------------------------------------------------------------------------------------

    def _quick(self, kind: str) -> None:
        seconds = self._chance.choice((0.0, 0.0, 0.0, 0.01, 0.05))
        self._push(kind, DONE, lambda: work.using(queue=self._queue()).enqueue(seconds))

    def _many(self, kind: str) -> None:
        calls = [work.call(0.0) for _ in range(self._chance.randint(2, 20))]
        self._push(kind, DONE, lambda: app.enqueue_many(calls))

    def _long(self, kind: str) -> None:
        seconds = self._chance.uniform(0.0, 3.0)
        self._push(kind, DONE, lambda: work.using(queue=self._queue()).enqueue(seconds))

    def _slow(self, kind: str) -> None:
        """Longer than the shortest drain and the kill behind it."""
        seconds = self._chance.uniform(4.0, 7.0)
        self._push(kind, DONE, lambda: work.using(queue=self._queue()).enqueue(seconds))

    def _flaky(self, kind: str) -> None:
        failures = self._chance.choice((1, 1, 2))
        self._push(kind, DONE, lambda: work.enqueue(0.01, failures))

    def _fatal(self, kind: str) -> None:
        retries = self._chance.choice((0, 1))
        self._push(kind, DEAD, lambda: work.using(retry=retries, queue=self._queue()).enqueue(0.0, 99))

    def _async(self, kind: str) -> None:
        seconds, failures = self._chance.uniform(0.0, 0.1), self._chance.choice((0, 0, 0, 1))
        self._push(kind, DONE, lambda: async_work.enqueue(seconds, failures))

    def _scheduled(self, kind: str) -> None:
        delay = self._chance.uniform(0.2, 5.0)
        self._push(kind, DONE, lambda: work.enqueue_in(delay, 0.01))

    def _doomed(self, kind: str) -> None:
        self._push(kind, DIED, doomed.enqueue)

    def _unparseable(self, kind: str) -> None:
        jid, key = secrets.token_hex(12), KEYS.queue(self._queue())
        raw = f"soak unparseable {jid}"
        self._push_raw(kind, UNPARSEABLE, jid, lambda: self._raw.lpush(key, raw))

    def _unique(self, kind: str) -> None:
        """As another program pushes it: with a lock in its name. It ends in any of the three ways."""
        failures, retry, expected = self._chance.choice(((0, 3, DONE), (0, 3, DONE), (1, 3, DONE), (99, 1, DEAD)))
        jid, queue, now = secrets.token_hex(12), self._queue(), time.time()
        payload = {
            "class": work.name,
            "args": [self._chance.random() * 0.2, failures],
            "queue": queue,
            "jid": jid,
            "retry": retry,
            "created_at": now,
            "enqueued_at": now,
            "unique": "until_executed",
        }
        lock = KEYS.unique(unique_digest(payload, queue))
        raw = json.dumps(payload)
        self._push_raw(
            kind, expected, jid, lambda: self._raw.eval(_PUSH_WITH_LOCK, 2, KEYS.queue(queue), lock, raw, jid)
        )

    def _queue(self) -> str:
        return self._chance.choice(QUEUES)

    # ---- pushing ----------------------------------------------------------------------------------------

    def _push(self, kind: str, expected: str, push: Callable[[], Any]) -> None:
        """Push by the library, and note what it says about each job."""
        app.sent = []
        acknowledged: set[str] = set()
        unknown: set[str] = set()
        try:
            push()
            acknowledged = set(app.sent)
        except PushUnknown as error:
            acknowledged, unknown = set(error.pushed), set(error.jids)
        except PushFailed as error:
            acknowledged = set(error.pushed)
        except redis.RedisError:
            pass  # by the library's word nothing was pushed
        for jid in app.sent:
            verdict = "acked" if jid in acknowledged else "unknown" if jid in unknown else "refused"
            self._note(verdict, jid, kind, expected)
        if not acknowledged:
            self._stop_asked.wait(0.2)

    def _push_raw(self, kind: str, expected: str, jid: str, push: Callable[[], Any]) -> None:
        """Push by hand. An answer of the server's is clear; anything else may have happened or not."""
        try:
            push()
            verdict = "acked"
        except redis.ResponseError:
            verdict = "refused"
        except (redis.RedisError, OSError):
            verdict = "unknown"
        self._note(verdict, jid, kind, expected)

    def _note(self, verdict: str, jid: str, kind: str, expected: str) -> None:
        self._record.note(verdict, jid, detail=f"{expected} {kind}")
        self.verdicts[verdict] += 1
        self.kinds[kind] += 1


_KINDS: dict[str, tuple[float, Callable[[Producer, str], None]]] = {
    "quick": (52, Producer._quick),
    "many": (1, Producer._many),
    "long": (5, Producer._long),
    "slow": (0.3, Producer._slow),
    "flaky": (10, Producer._flaky),
    "fatal": (3, Producer._fatal),
    "async": (10, Producer._async),
    "scheduled": (8, Producer._scheduled),
    "doomed": (0.2, Producer._doomed),
    "unparseable": (2, Producer._unparseable),
    "unique": (9, Producer._unique),
}
"""Each kind of job with its weight and what pushes one."""
