"""The cursor of a job: where a long loop is, kept on the server, so that the next run goes on there whoever died."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from cogworkerd.payload import check_json
from cogworkerd.store.keys import CURSOR_TTL, Keys
from cogworkerd.worker.channel import Channel
from cogworkerd.worker.fetch import SERVER_TROUBLE

MOST_BYTES = 64 * 1024


class Cursor:
    """The cursor of one run. Nothing is asked before the job asks.

    Attributes:
        used: the job has asked for it or set it.
    """

    def __init__(self, channel: Channel, keys: Keys, jid: str) -> None:
        self._channel = channel
        self._key = keys.cursor(jid)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._known = False
        self._value: Any = None
        self.used = False

    def get(self) -> Any:
        """What was set last, in this run or in one before; None: nothing. The first call is a round trip.

        Raises:
            redis.exceptions.RedisError: the server is away, so it is not known.
        """
        self.used = True
        if not self._known:
            raw = self._ask("GET", self._key)
            self._value = _read(raw)
            self._known = True
        return self._value

    def set(self, value: Any) -> None:
        """Keep a value of JSON, for a week. A round trip: when it returns, the next run knows.

        Raises:
            TypeError: it is not JSON. ValueError: it is longer than 64 KiB.
            redis.exceptions.RedisError: the server is away; the next run may begin at the value before.
        """
        raw = json.dumps(check_json(value, "cursor"), ensure_ascii=False, separators=(",", ":")).encode()
        if len(raw) > MOST_BYTES:
            raise ValueError(f"cursor: {len(raw)} bytes, more than {MOST_BYTES}: it is to say where to go on")
        self.used = True
        self._ask("SET", self._key, raw, "EX", CURSOR_TTL)
        self._value, self._known = value, True

    def forget(self) -> None:
        """The job is over. Best effort: the key runs out anyway."""
        try:
            self._ask("DEL", self._key)
        except SERVER_TROUBLE:
            pass

    def _ask(self, *command: Any) -> Any:
        if os.getpid() != self._pid:
            raise RuntimeError("the cursor belongs to the job's own process, not to one that it has forked")
        with self._lock:
            return self._channel.command(*command)


def _read(raw: Any) -> Any:
    try:
        return json.loads(raw) if isinstance(raw, bytes) else None
    except (ValueError, RecursionError):
        return None  # somebody else's
