"""What became of a run, in the form that child, report and supervisor share."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from cogworkerd.store.keys import Keys


class Kind(IntEnum):
    """The ends of a run. The number is what a report carries."""

    SUCCESS = 0
    RETRY = 1
    DEAD = 2
    DISCARD = 3
    REQUEUE = 4
    EXPIRED = 5


_HEAD = struct.Struct("!BdII")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run: enough to settle it without the process that ran it.

    Attributes:
        kind: which end.
        score: RETRY: when it is due; DEAD: when it died; epoch seconds.
        payload: RETRY, DEAD: the entry to file; REQUEUE: the job as it goes back to its queue.
        attempt: a failure's record for the job's attempts log, as JSON; empty for a success.
    """

    kind: Kind
    score: float = 0.0
    payload: bytes = b""
    attempt: bytes = b""

    @property
    def files(self) -> bool:
        """Whether something is written that must not be lost."""
        return self.kind in (Kind.RETRY, Kind.DEAD, Kind.REQUEUE)

    @property
    def statistic(self) -> str:
        """The counter that this end adds to; "" for none."""
        if self.kind in (Kind.REQUEUE, Kind.EXPIRED):
            return ""
        return "processed" if self.kind is Kind.SUCCESS else "failed"

    def target(self, keys: Keys) -> str:
        """The sorted set that this end is filed in; for one that files nothing, a key that is then left alone.

        A requeue that cannot be made in one step with the end of the run is a job that is due at once.
        """
        if self.kind is Kind.REQUEUE:
            return keys.schedule
        return keys.dead if self.kind is Kind.DEAD else keys.retry

    def encode(self) -> bytes:
        head = _HEAD.pack(self.kind, self.score, len(self.payload), len(self.attempt))
        return head + self.payload + self.attempt

    @classmethod
    def decode(cls, body: bytes) -> Outcome:
        if body == _SUCCESS_BODY:
            return SUCCESS
        kind, score, payload_size, attempt_size = _HEAD.unpack_from(body)
        rest = body[_HEAD.size :]
        if len(rest) != payload_size + attempt_size:
            raise ValueError("an outcome of the wrong length")
        return cls(Kind(kind), score, rest[:payload_size], rest[payload_size:])


SUCCESS = Outcome(Kind.SUCCESS)
EXPIRED = Outcome(Kind.EXPIRED)
_SUCCESS_BODY = SUCCESS.encode()


@dataclass(frozen=True, slots=True)
class Settlement:
    """One job and its outcome, ready to be settled.

    Attributes:
        raw: the job, byte for byte as fetched.
        jid: its id (`payload.id_of_bytes` for bytes that are not a job).
        locks: keys of its locks.
        lock_ttl: whole seconds for which they are kept, since another run is to come; 0: they are released.
        retake: the last one is taken again if it has lapsed: the job goes back to its queue.
        queue: of a requeue: where it goes.
    """

    raw: bytes
    jid: str
    locks: tuple[str, ...]
    outcome: Outcome
    lock_ttl: int = 0
    retake: bool = False
    queue: str = ""
