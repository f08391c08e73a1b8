"""Reports: frames that go from a child to the supervisor through one pipe per child.

A frame is its length (4 bytes), its kind (1 byte) and a body. User code starts after STARTED is wholly written, and
nothing goes to Redis about an outcome before PERFORMED is wholly written; a frame that is cut off is no frame.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from cogworkerd.run_record import RunRecord
from cogworkerd.store.scripts import Unreleased

_HEAD = struct.Struct("!IB")
_QUEUE_SIZE = struct.Struct("!H")
_CLIENT_ID = struct.Struct("!Q")
MAX_FRAME = 2**30


class Report(IntEnum):
    """The kinds of frames. Bodies: see the functions below."""

    READY = 1
    CONNECTED = 2
    IDLE = 3
    STARTED = 4
    PERFORMED = 5
    RETURNED = 6
    FINISHED = 7
    TROUBLE = 8
    UNRELEASED = 9
    UNANSWERED = 10
    DEATH_HOOK = 11
    RUN = 12


# A look-up in a dict costs a fifth of Report(kind), and the supervisor makes three for each job.
_KINDS = {int(kind): kind for kind in Report}


class Result(IntEnum):
    """What became of a settlement: the body of FINISHED."""

    SETTLED = 0
    GONE = 1
    TAKEN = 2
    UNKNOWN = 3


def frame(kind: Report, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body), kind) + body


def connected(client_id: int) -> bytes:
    """CONNECTED carries the id of the child's connection, for CLIENT UNBLOCK."""
    return frame(Report.CONNECTED, _CLIENT_ID.pack(client_id))


def client_id(body: bytes) -> int:
    return int(_CLIENT_ID.unpack(body)[0])


def idle(queue: str) -> bytes:
    """IDLE names the queue that the child waits on now ("": none)."""
    return frame(Report.IDLE, queue.encode())


def with_job(kind: Report, queue: str, raw: bytes) -> bytes:
    """STARTED and RETURNED carry the queue a job came from and its bytes."""
    name = queue.encode()
    return _HEAD.pack(2 + len(name) + len(raw), kind) + _QUEUE_SIZE.pack(len(name)) + name + raw


def job_of(body: bytes) -> tuple[str, bytes]:
    """The queue and the bytes of a STARTED or RETURNED."""
    size = _QUEUE_SIZE.unpack_from(body)[0]
    if len(body) < 2 + size:
        raise ValueError("a job's report that is too short")
    return body[2 : 2 + size].decode(), body[2 + size :]


def finished(result: Result) -> bytes:
    return frame(Report.FINISHED, bytes((result,)))


def trouble(text: str) -> bytes:
    """TROUBLE carries the server's sentence about a fetch that it did not carry out."""
    return frame(Report.TROUBLE, text.encode("utf-8", "replace"))


def unreleased(locks: Sequence[Unreleased]) -> bytes:
    """UNRELEASED carries locks that a settlement could not release, as JSON."""
    return frame(Report.UNRELEASED, json.dumps([[lock.key, lock.owner, lock.error] for lock in locks]).encode())


def unreleased_of(body: bytes) -> list[Unreleased]:
    return [Unreleased(str(key), str(owner), str(error)) for key, owner, error in json.loads(body)]


def unanswered() -> bytes:
    """UNANSWERED: a wait for a job was sent and never answered; it may take effect late."""
    return frame(Report.UNANSWERED)


def death_hook() -> bytes:
    """DEATH_HOOK: the job is in dead, and its hooks are called now, by this child; nobody else is to call them."""
    return frame(Report.DEATH_HOOK)


def run(record: RunRecord) -> bytes:
    """RUN carries the record of the run that ended; PERFORMED follows in the same write."""
    return frame(Report.RUN, record.encode())


class Deaf(Exception):
    """Nobody reads the reports any more: the supervisor is gone, or the pipe is broken."""


class Reporter:
    """The child's end of the pipe. A process that a job forked has it, too, and must not write: pids are compared."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._pid = os.getpid()
        self.deaf = False

    def send(self, data: bytes) -> None:
        """Write whole frames.

        Raises:
            Deaf: the pipe is broken.
        """
        if self.deaf or os.getpid() != self._pid:
            raise Deaf
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError:
            self.deaf = True
            raise Deaf


class Buffer:
    """Bytes read from one pipe, taken apart into frames; half frames wait for the rest."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data

    @property
    def partial(self) -> bool:
        """A frame has begun and is not complete."""
        return bool(self._bytes)

    def frames(self) -> Iterator[tuple[Report, bytes]]:
        """The complete frames.

        Raises:
            ValueError: this is no frame.
        """
        data = self._bytes
        offset = 0
        try:
            while len(data) - offset >= _HEAD.size:
                size, kind = _HEAD.unpack_from(data, offset)
                if size > MAX_FRAME:
                    raise ValueError(f"a frame of {size} bytes")
                end = offset + _HEAD.size + size
                if len(data) < end:
                    break
                body = bytes(data[offset + _HEAD.size : end])
                offset = end
                if kind not in _KINDS:
                    raise ValueError(f"a frame of unknown kind {kind}")
                yield _KINDS[kind], body
        finally:
            del data[:offset]


@dataclass(frozen=True, slots=True)
class Held:
    """A job that a child has fetched: the queue it came from, its bytes, the registration it was fetched under."""

    queue: str
    raw: bytes
    registration: int
