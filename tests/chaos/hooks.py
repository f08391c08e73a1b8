"""Faults inside the daemon: at a child's N-th report, at the supervisor's N-th read. No file of the product is touched.

The application is imported in the supervisor before it forks, so that what is installed here is in all its processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from cogworkerd.outcome import Kind, Outcome
from cogworkerd.payload import Unparseable, id_of_bytes, parse
from cogworkerd.supervisor.slot import Slot
from cogworkerd.worker.reports import Buffer, Report, Reporter, job_of

from .faults import CHILD, READ, REPORT, Strike
from .record import Counter, Happening, Record

PLAN = "CHAOS_PLAN"
"""The environment variable that carries the plan."""

_DEATH_WITHIN = 5.0

_send: Callable[[Reporter, bytes], None] = Reporter.send
_feed: Callable[[Buffer, bytes], None] = Buffer.feed
_frames: Callable[[Buffer], Iterator[tuple[Report, bytes]]] = Buffer.frames
_read: Callable[[Slot], Iterator[tuple[Report, bytes]]] = Slot.read


@dataclass(frozen=True)
class Plan:
    """What a daemon is told about its run.

    Attributes:
        folder: where the record is.
        strike: the fault, if it is one of this module.
    """

    folder: str
    strike: Strike | None = None

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Plan:
        fields = json.loads(text)
        strike = fields["strike"]
        return cls(fields["folder"], Strike(**strike) if strike else None)


class Hooks:
    """The wrapped methods, in the supervisor and in each child."""

    def __init__(self, plan: Plan) -> None:
        self.record = Record(Path(plan.folder))
        self._strike = plan.strike
        self._supervisor = os.getpid()
        self._jid = ""
        self._slot: Slot | None = None
        self._kill_after_read = False
        self._doomed = False

    def doom(self) -> None:
        """Let this process die when it has reported the job at hand as performed."""
        self._doomed = True

    def install(self) -> None:
        """Put the wrapped methods in the place of the originals."""

        def send(reporter: Reporter, data: bytes) -> None:
            self._sending(reporter, data)

        def feed(buffer: Buffer, data: bytes) -> None:
            self._feeding(buffer, data)

        def frames(buffer: Buffer) -> Iterator[tuple[Report, bytes]]:
            yield from _frames(buffer)
            if self._kill_after_read:
                _die()

        def read(slot: Slot) -> Iterator[tuple[Report, bytes]]:
            self._slot = slot
            return _read(slot)

        for owner, method in ((Reporter, send), (Buffer, feed), (Buffer, frames), (Slot, read)):
            setattr(owner, method.__name__, method)

    # ---- counting ---------------------------------------------------------------------------------------

    def _count(self, role: str, counter: Counter, detail: str) -> Strike | None:
        """Count a step; returns the fault if it is to come now."""
        if not self.record[Counter.ARMED]:
            return None
        self.record[counter] += 1
        number = self.record[counter]
        self.record.add(Happening(role, pid=os.getpid(), detail=f"{number} {detail}"))
        strike = self._strike
        if strike is None or strike.role != role or number < strike.at or self.record[Counter.STRUCK]:
            return None
        self.record[Counter.STRUCK] = 1
        self.record.add(Happening("struck", pid=os.getpid(), detail=detail))
        return strike

    # ---- a child's reports ------------------------------------------------------------------------------

    def _sending(self, reporter: Reporter, data: bytes) -> None:
        """The lock is held until what was written is on record: nobody reads, and kills, in between."""
        if reporter.deaf:
            return _send(reporter, data)
        frames = _frames_of(data)
        with self.record.locked():
            strike = self._count(REPORT, Counter.REPORTS, "+".join(kind.name for kind, _ in frames))
            if strike is not None:
                self._before_report(reporter, data, strike)
            _send(reporter, data)
            self.record[Counter.BYTES_WRITTEN] += len(data)
            self._note(frames)
            if strike is not None and strike.fault.endswith("-after"):
                self._kill(strike)
        if self._doomed and any(kind is Report.PERFORMED for kind, _ in frames):
            _die()

    def _before_report(self, reporter: Reporter, data: bytes, strike: Strike) -> None:
        if strike.fault == "deaf":
            os.close(reporter.fd)
        elif strike.fault == "kill-child-half":
            os.write(reporter.fd, data[: len(data) // 2])
            _die()
        elif strike.before:
            self._kill(strike)

    def _note(self, frames: list[tuple[Report, bytes]]) -> None:
        for kind, body in frames:
            if kind is Report.STARTED:
                self._jid = _jid_of(job_of(body)[1])
                self.record.add(Happening("started", self._jid, pid=os.getpid()))
            elif kind is Report.PERFORMED:
                requeued = Outcome.decode(body).kind is Kind.REQUEUE
                self.record.add(Happening("requeued" if requeued else "performed", self._jid, pid=os.getpid()))

    def _kill(self, strike: Strike) -> None:
        """From a child: itself, or the supervisor."""
        if strike.victim == CHILD:
            _die()
        if os.getppid() == self._supervisor:
            os.kill(self._supervisor, signal.SIGKILL)
            _until(lambda: os.getppid() != self._supervisor)

    # ---- the supervisor's reads -------------------------------------------------------------------------

    def _feeding(self, buffer: Buffer, data: bytes) -> None:
        if os.getpid() != self._supervisor:
            return _feed(buffer, data)
        with self.record.locked():
            self.record[Counter.BYTES_READ] += len(data)
            strike = self._count(READ, Counter.READS, "+".join(kind.name for kind, _ in _frames_of(data)))
        if strike is not None:
            self._before_read(strike)
        _feed(buffer, data)
        self._kill_after_read = strike is not None and not strike.before

    def _before_read(self, strike: Strike) -> None:
        if not strike.before:
            return
        if strike.victim == CHILD and self._slot is not None and self._slot.pid is not None:
            os.kill(self._slot.pid, signal.SIGKILL)
            os.waitid(os.P_PID, self._slot.pid, os.WEXITED | os.WNOWAIT)
        elif strike.victim != CHILD:
            _die()


def install() -> Hooks:
    """Install what the environment asks for."""
    hooks = Hooks(Plan.decode(os.environ[PLAN]))
    hooks.install()
    return hooks


def _frames_of(data: bytes) -> list[tuple[Report, bytes]]:
    """The whole frames in this piece, by the methods that are not counted."""
    buffer = Buffer()
    _feed(buffer, data)
    found: list[tuple[Report, bytes]] = []
    with contextlib.suppress(ValueError):
        found.extend(_frames(buffer))
    return found


def _jid_of(raw: bytes) -> str:
    try:
        return str(parse(raw)["jid"])
    except Unparseable:
        return id_of_bytes(raw)


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


def _until(look: Callable[[], bool]) -> None:
    limit = time.monotonic() + _DEATH_WITHIN
    while not look() and time.monotonic() < limit:
        time.sleep(0.001)
