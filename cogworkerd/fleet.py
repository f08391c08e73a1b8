"""Steering a fleet: orders to daemons, and requests about the jobs that they run now."""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cogworkerd.app import App
from cogworkerd.errors import CANCEL_ENDS, CogworkerdError
from cogworkerd.jobsets import Store
from cogworkerd.orders import CANCEL_GRACE, ORDERS
from cogworkerd.snapshot import Process, RunningJob, processes, running

ANSWER_WITHIN = 3.0
"""Seconds that daemons have to answer a request."""

HEARD_WITHIN = 3.0
"""Seconds for which an order is repeated while nobody listens."""

_AGAIN = 0.1


class NotAnswered(CogworkerdError):
    """A daemon did not answer a request in time, so it is not known whether it runs the job."""


class Fleet:
    """The daemons that have beaten within the last minute.

    Args:
        at: an app, or a `Store`.
    """

    def __init__(self, at: App | Store) -> None:
        self._store = at if isinstance(at, Store) else Store.of(at)

    def __iter__(self) -> Iterator[Process]:
        return iter(processes(self._store.client, self._store.keys))

    def named(self, target: str) -> list[Process]:
        """Those that a word can mean: all of a tag, else the one with this identity, `host:pid`, pid on this host, or
        those whose identity begins so."""
        found = list(self)
        here = socket.gethostname()
        ways: tuple[Callable[[Process], bool], ...] = (
            lambda process: process.tag == target,
            lambda process: target in (process.identity, f"{process.host}:{process.pid}"),
            lambda process: process.host == here and target == str(process.pid),
            lambda process: process.identity.startswith(target),
        )
        for way in ways:
            meant = [process for process in found if way(process)]
            if meant:
                return meant
        return []

    def quiet(self, meant: Iterable[Process | str] | None = None) -> dict[str, bool]:
        """Finish what runs, fetch nothing. See `send`."""
        return self.send("quiet", meant)

    def resume(self, meant: Iterable[Process | str] | None = None) -> dict[str, bool]:
        """Fetch again. See `send`."""
        return self.send("resume", meant)

    def restart(self, meant: Iterable[Process | str] | None = None) -> dict[str, bool]:
        """Bring new code in, slot by slot. See `send`."""
        return self.send("restart", meant)

    def stop(self, meant: Iterable[Process | str] | None = None) -> dict[str, bool]:
        """Stop as TERM does. See `send`."""
        return self.send("stop", meant)

    def send(self, order: str, meant: Iterable[Process | str] | None = None) -> dict[str, bool]:
        """Send an order.

        Args:
            order: quiet, resume, restart or stop.
            meant: daemons or identities; default: all.

        Returns:
            For each identity whether somebody listened there. The order takes effect a moment later. A daemon that is
            just becoming new code does not listen: it is tried for a few seconds.

        Raises:
            ValueError: there is no such order.
        """
        if order not in ORDERS:
            raise ValueError(f"order {order!r:.40}: allowed is {', '.join(ORDERS)}")
        identities = [each if isinstance(each, str) else each.identity for each in (self if meant is None else meant)]
        heard = {name: self._publish(name, order) for name in identities}
        limit = time.monotonic() + HEARD_WITHIN
        while (deaf := [name for name, was in heard.items() if not was]) and time.monotonic() < limit:
            time.sleep(_AGAIN)
            heard.update({name: self._publish(name, order) for name in deaf})
        return heard

    def _publish(self, identity: str, order: str) -> bool:
        return bool(self._store.client.publish(self._store.keys.signal(identity), order))


@dataclass(frozen=True)
class Stack:
    """Where a running job is.

    Attributes:
        seconds: for how long it has run.
        lines: its process's stack as faulthandler writes it, the innermost frame first; none if it did not answer.
    """

    identity: str
    slot: int
    pid: int
    seconds: float
    lines: list[str]


class Running:
    """The jobs that run now.

    Args:
        at: an app, or a `Store`.
    """

    def __init__(self, at: App | Store) -> None:
        self._store = at if isinstance(at, Store) else Store.of(at)

    def __iter__(self) -> Iterator[RunningJob]:
        """Those that have run for half a second and more, the oldest first, as of their daemons' last word."""
        found = running(self._store.client, self._store.keys)
        return iter(sorted(found, key=lambda job: job.run_at))

    def cancel(self, jid: str, then: str = "bury", grace: float = CANCEL_GRACE) -> bool:
        """End a running job: `JobCancelled` is raised in it, and it is killed if it has not ended after the grace.

        Args:
            then: what becomes of it: "bury" (to dead), "fail" (as any failure), "discard" or "requeue".
            grace: seconds from 0 up.

        Returns:
            Whether it was told to end; False: no daemon runs it, or somebody has told it before.

        Raises:
            ValueError: `then` is something else.
            NotAnswered: it is not known.
        """
        if then not in CANCEL_ENDS:
            raise ValueError(f"then = {then!r:.40}: allowed is {', '.join(CANCEL_ENDS)}")
        found = self._ask({"order": "find", "jid": jid})
        if found is None:
            return False
        # For this run of this daemon only: the job may run elsewhere by the time somebody slow hears of it.
        order = {"order": "cancel", "jid": jid, "run": found["run"], "then": then, "grace": grace}
        answer = self._ask(order, [str(found["identity"])])
        return bool(answer and answer.get("told"))

    def stack(self, jid: str) -> Stack | None:
        """Where a running job is at this moment, also inside a C call; the job goes on. None: no daemon runs it.

        Raises:
            NotAnswered: it is not known.
        """
        answer = self._ask({"order": "stack", "jid": jid})
        if answer is None:
            return None
        return Stack(
            str(answer["identity"]),
            int(answer["slot"]),
            int(answer["pid"]),
            float(answer["seconds"]),
            [str(line) for line in answer["lines"]],
        )

    def _ask(self, request: dict[str, Any], identities: Sequence[str] | None = None) -> dict[str, Any] | None:
        """Ask daemons, by default all of them; the answer of the one that has found the job."""
        client, keys = self._store.client, self._store.keys
        token = secrets.token_hex(12)
        message = json.dumps({**request, "reply": token})
        asked = [process.identity for process in processes(client, keys)] if identities is None else identities
        waiting = sum(int(client.publish(keys.signal(name), message)) for name in asked)
        limit = time.monotonic() + ANSWER_WITHIN
        while waiting > 0:
            left = limit - time.monotonic()
            reply: Any = client.blpop([keys.reply(token)], timeout=left) if left > 0 else None
            if reply is None:
                raise NotAnswered(f"{waiting} of the daemons did not answer within {ANSWER_WITHIN:g} s")
            waiting -= 1
            answer = json.loads(reply[1])
            if answer.get("error"):
                raise ValueError(str(answer["error"]))
            if answer.get("found"):
                return dict(answer)
        return None
