"""The supervisor's coroutines on a real server, without a daemon around them: all are made here."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

from cogworkerd.locks import Locks
from cogworkerd.outcome import Outcome
from cogworkerd.store import connection
from cogworkerd.store.keys import Keys
from cogworkerd.supervisor import farewell
from cogworkerd.supervisor.deferred import DeferredReleases
from cogworkerd.supervisor.heartbeat import Heartbeat
from cogworkerd.supervisor.ledger import Ledger
from cogworkerd.supervisor.link import Link
from cogworkerd.supervisor.poller import Poller
from cogworkerd.supervisor.reconciler import Reconciler
from cogworkerd.supervisor.recovery import Recovery
from cogworkerd.supervisor.slot import Slot
from cogworkerd.worker import reports
from cogworkerd.worker.page import Page
from cogworkerd.worker.reports import Report, Result
from cogworkerd.worker.slot_page import SlotPage
from tests.support import Client, Recorder, Server

KEYS = Keys()
LOCKS = Locks(KEYS)
ME = "here:1:aaaaaaaaaaaa"
MINE = KEYS.inprogress(ME)


class Said(Recorder):
    """A log that can be asked for its lines."""

    def of(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """The lines of one event whose fields have these values."""
        return [said for said in self.fields(name) if fields.items() <= said.items()]


class Parts:
    """One supervisor's record, page and link, and the coroutines that work on them."""

    def __init__(self, url: str, queues: list[str]) -> None:
        self.said = Said()
        self.log = cast(Any, self.said)
        self.link = Link(connection.Server.parse(url), self.log)
        self.deferred = DeferredReleases(self.link, self.log)
        self.page = Page()
        self.ledger = Ledger()
        self.slots: list[Slot] = []
        self.queues = queues
        self.deaths: list[bytes] = []

    # ---- what is made ------------------------------------------------------------------------------------

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self.link,
            KEYS,
            ME,
            self.page,
            self.ledger,
            self.slots,
            {"pid": 1},
            queues=lambda: self.queues,
            phase=lambda: "running",
            reliable=lambda: True,
        )

    def reconciler(self) -> Reconciler:
        return Reconciler(
            self.link, KEYS, LOCKS, ME, self.ledger, 3, self.log, self.deferred, lambda: None, self.deaths.append
        )

    def recovery(self, threshold: float = 300.0) -> Recovery:
        return Recovery(self.link, KEYS, LOCKS, ME, threshold, 3, self.log, self.deferred, self.deaths.append)

    def poller(self) -> Poller:
        return Poller(self.link, KEYS, self.log, self.deaths.append)

    async def say_farewell(self, reconciler: Reconciler) -> None:
        """The end of a stop; every child left as it was asked to."""
        await farewell.say_farewell(self.link, KEYS, LOCKS, ME, self.ledger, reconciler, self.deferred, True, self.log)

    # ---- children ----------------------------------------------------------------------------------------

    def child(self) -> int:
        """A slot whose child has said hello and waits for a job."""
        number = len(self.slots) + 1
        self.slots.append(Slot(number, secrets.token_hex(6), None, SlotPage()))
        self.ledger.forked(number)
        self._report(number, Report.READY)
        self.idle(number)
        return number

    def idle(self, slot: int) -> None:
        self._report(slot, Report.IDLE)

    def started(self, slot: int, raw: bytes, at: float = 1.0) -> None:
        self._report(slot, Report.STARTED, _job_body(raw), at)

    def performed(self, slot: int, outcome: Outcome) -> None:
        self._report(slot, Report.PERFORMED, outcome.encode())

    def finished(self, slot: int, result: Result) -> None:
        self._report(slot, Report.FINISHED, bytes((result,)))

    def returned(self, slot: int, raw: bytes) -> None:
        self._report(slot, Report.RETURNED, _job_body(raw))

    def _report(self, slot: int, kind: Report, body: bytes = b"", at: float = 1.0) -> None:
        self.ledger.report(slot, kind, body, at)


def _job_body(raw: bytes, queue: str = "default") -> bytes:
    return reports.with_job(Report.STARTED, queue, raw)[len(reports.frame(Report.STARTED)) :]


@asynccontextmanager
async def parts(url: str, *queues: str) -> AsyncIterator[Parts]:
    """Parts that are closed at the end."""
    made = Parts(url, list(queues) or ["default"])
    try:
        yield made
    finally:
        await made.link.close()


Work = Callable[[Parts], Coroutine[Any, Any, None]]


@contextlib.contextmanager
def limited_user(server: Server, client: Client, *rules: str) -> Iterator[str]:
    """A user who may do everything but what these rules take away; gives the URL to log in with."""
    name = f"limited{secrets.token_hex(4)}"
    client.execute_command("ACL", "SETUSER", name, "on", ">word", "~*", "&*", "+@all", *rules)
    try:
        yield f"redis://{name}:word@127.0.0.1:{server.port}/0"
    finally:
        client.execute_command("ACL", "DELUSER", name)
