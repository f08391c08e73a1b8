"""The server that the soak torments: what is done to it, how it is mended, and what it holds."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cogworkerd.store.keys import Keys
from tests.chaos.soak_record import identify
from tests.support import Server

QUEUES = ("default", "mail", "low")
KEYS = Keys()
_ASIDE = "soak:aside:"
_LAST_WORDS = ("Guru Meditation", "==>", "crashed by signal")
_PATIENCE = 0.5
_BATCH = 500

# Put a value of another type in the place of a key; its content waits under another name.
# KEYS 1 the key, 2 where its content waits. ARGV 1 the type that it should have.
_DAMAGE = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
local there = redis.call('EXISTS', KEYS[1]) == 1
if there then redis.call('RENAME', KEYS[1], KEYS[2]) end
local reply
if ARGV[1] == 'string' then reply = redis.pcall('RPUSH', KEYS[1], 'damaged')
else reply = redis.pcall('SET', KEYS[1], 'damaged') end
if type(reply) == 'table' and reply.err then
  if there then redis.call('RENAME', KEYS[2], KEYS[1]) end
  return 0
end
return 1
"""

# The opposite. Where a key of the right type has come up meanwhile, a list gets its old entries back behind the new
# ones; anything else was statistics, and the new one stays. Doing it twice changes nothing.
_MEND = """
local found = redis.call('TYPE', KEYS[1]).ok
if found ~= 'none' and found ~= ARGV[1] then
  redis.call('DEL', KEYS[1])
  found = 'none'
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  if found == 'none' then redis.call('RENAME', KEYS[2], KEYS[1])
  elseif found == 'list' then while redis.call('LMOVE', KEYS[2], KEYS[1], 'LEFT', 'RIGHT') do end
  else redis.call('DEL', KEYS[2]) end
end
return 1
"""


class JobServer:
    """One server whose acknowledged writes survive its death.

    Args:
        log: file for its own log.

    Attributes:
        up: it should be running, and is not suspended.
    """

    def __init__(self, kind: str, log: Path) -> None:
        self._log = log
        self._server = Server(kind, "--appendonly", "yes", "--appendfsync", "always", "--logfile", str(log))
        self.url = self._server.url
        self.port = self._server.port
        self.up = True
        self._client = self.client(_PATIENCE, decode_responses=True)
        self._raw = self.client(_PATIENCE)

    def client(self, timeout: float, **options: Any) -> Any:
        """A client that repeats nothing."""
        return redis.Redis(
            port=self.port,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            **options,
        )

    # ---- trouble ----------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.up = False
        self._server.stop()

    @property
    def died(self) -> bool:
        """It has ended though nobody here has killed it."""
        return self.up and not self._runs

    def last_words(self) -> str:
        """What its log says about its last crash; "" if it has nothing to say."""
        with self._log.open(encoding="utf-8", errors="replace") as file:
            found = [line.strip() for line in file if any(words in line for words in _LAST_WORDS)]
        return found[-1] if found else ""

    def restart(self) -> bool:
        """Start it again with the data it had, if it does not run. Waits until it answers."""
        if not self._runs:
            self._server.start()
        self.up = True
        return True

    def suspend(self) -> None:
        self.up = False
        self._signal(signal.SIGSTOP)

    def resume(self) -> bool:
        """Let it go on."""
        self._signal(signal.SIGCONT)
        self.up = True
        return True

    @property
    def _runs(self) -> bool:
        return self._server.process is not None and self._server.process.poll() is None

    def _signal(self, number: int) -> None:
        if self._server.process is not None:
            self._server.process.send_signal(number)  # which looks whether it has ended

    def command(self, *words: str | int) -> bool:
        """Send one command.

        Returns:
            Whether it was answered, and not by an error.
        """
        try:
            self._client.execute_command(*words)
        except (redis.RedisError, OSError):
            return False
        return True

    def damage(self, key: str, right_type: str) -> bool:
        return self.command("EVAL", _DAMAGE, 2, key, aside_of(key, right_type), right_type)

    def mend(self, key: str, right_type: str) -> bool:
        return self.command("EVAL", _MEND, 2, key, aside_of(key, right_type), right_type)

    def mend_all(self) -> bool:
        """Mend whatever is still damaged. A damage whose answer never came may have been done late."""
        try:
            aside = list(self._client.scan_iter(f"{_ASIDE}*"))
        except (redis.RedisError, OSError):
            return False
        pairs = [name.removeprefix(_ASIDE).partition(":") for name in aside]
        mended = [self.mend(key, right_type) for right_type, _, key in pairs]
        return all(mended)

    # ---- what it holds ----------------------------------------------------------------------------------

    def one(self, ask: Callable[[Any], Any]) -> Any:
        """What a decoding client answers, or None while the server cannot."""
        try:
            return ask(self._client)
        except (redis.RedisError, OSError):
            return None

    def entries(self, newest_dead_since: float) -> dict[str, list[str]] | None:
        """All jobs in one instant: for each id the places where an entry of it lies.

        Args:
            newest_dead_since: dead entries older than this epoch second are left out.

        Returns:
            None if the server did not answer.
        """
        try:
            identities = [raw.decode() for raw in self._raw.smembers(KEYS.inprogress_identities)]
            places = _places(identities, newest_dead_since)
            pipe = self._raw.pipeline(transaction=True)
            for command in places.values():
                pipe.execute_command(*command)
            replies = pipe.execute(raise_on_error=False)
        except (redis.RedisError, OSError):
            return None
        found: dict[str, list[str]] = {}
        for place, raws in zip(places, replies, strict=True):
            # A damaged key holds nothing; what it held waits aside.
            for raw in [] if isinstance(raws, Exception) else raws:
                found.setdefault(identify(raw)[0], []).append(place)
        return found

    def backlog(self) -> int | None:
        """How many jobs wait in queues."""

        def ask(client: Any) -> int:
            with client.pipeline(transaction=False) as pipe:
                for queue in QUEUES:
                    pipe.llen(KEYS.queue(queue))
                return sum(size for size in pipe.execute(raise_on_error=False) if isinstance(size, int))

        found = self.one(ask)
        return None if found is None else int(found)

    def dead(self) -> Iterator[tuple[str, str]]:
        """Id and error class of every dead entry, once nothing moves any more."""
        for start in range(0, self._raw.zcard(KEYS.dead), _BATCH):
            for raw in self._raw.zrange(KEYS.dead, start, start + _BATCH - 1):
                yield identify(raw)[0], str(json.loads(raw).get("error_class"))

    def leftovers(self) -> list[str]:
        """Keys that must not exist once every job is over: places of jobs, locks, counters of orphanings."""
        patterns = (
            "queue:*",
            "inprogress:*",
            "unique:*",
            "orphanings:*",
            "retry",
            "schedule",
            "unsettled",
            "x:raw_burials",
        )
        return [
            key
            for pattern in (*patterns, "repeat_orphans")
            for key in self._client.scan_iter(f"cogworker:{pattern}", count=1000)
        ]

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._client.close()
            self._raw.close()
        self._server.close()


def aside_of(key: str, right_type: str) -> str:
    """Where the content of a damaged key waits; the name tells what it was."""
    return f"{_ASIDE}{right_type}:{key}"


def _places(identities: list[str], since: float) -> dict[str, tuple[str | float | int, ...]]:
    """Each place of jobs with the command that reads it."""
    lists = {f"queue:{queue}": KEYS.queue(queue) for queue in QUEUES}
    lists |= {f"inprogress:{identity}": KEYS.inprogress(identity) for identity in identities}
    lists |= {"repeat_orphans": KEYS.repeat_orphans, "unsettled": "cogworker:unsettled"}
    found: dict[str, tuple[str | float | int, ...]] = {name: ("LRANGE", key, 0, -1) for name, key in lists.items()}
    found |= {"retry": ("ZRANGE", KEYS.retry, 0, -1), "schedule": ("ZRANGE", KEYS.schedule, 0, -1)}
    return found | {"dead": ("ZRANGEBYSCORE", KEYS.dead, since, "+inf")}
