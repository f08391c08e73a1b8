"""Requests that want an answer: find a running job, cancel it, show its stack.

They come by the daemon's channel as JSON objects `{"order", "jid", "reply", ...}`; the answer goes to the list that
`reply` names, for whoever waits there.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from typing import Any

from cogworkerd import events
from cogworkerd.errors import CANCEL_ENDS
from cogworkerd.interrupts import Interrupt
from cogworkerd.log import Log
from cogworkerd.orders import CANCEL_GRACE, MOST_GRACE
from cogworkerd.store.keys import REPLY_TTL, Keys

from .crew import Crew
from .interruptions import Interruptions
from .ledger import Ledger
from .link import SERVER_TROUBLE, Link
from .stacks import stack_of

MOST_BYTES = 4096
_REPLY = re.compile(r"[0-9a-f]{16,64}")


class BadRequest(ValueError):
    """A request that makes no sense; the text says why."""


class Requests:
    """Answers requests for one daemon."""

    def __init__(
        self, link: Link, keys: Keys, identity: str, crew: Crew, ledger: Ledger, interruptions: Interruptions, log: Log
    ) -> None:
        self._link = link
        self._keys = keys
        self._identity = identity
        self._crew = crew
        self._ledger = ledger
        self._interruptions = interruptions
        self._log = log

    async def answer(self, request: Mapping[str, Any]) -> None:
        """Do what a request asks and answer it. Best effort: who asks does not wait for long."""
        try:
            found = await self._found(request)
        except BadRequest as problem:
            self._log.emit(events.REMOTE_UNKNOWN, order=str(problem))
            found = {"error": str(problem)}
        reply = request.get("reply")
        if not isinstance(reply, str) or not _REPLY.fullmatch(reply):
            return
        key = self._keys.reply(reply)
        try:
            async with self._link.redis.pipeline(transaction=True) as pipe:
                pipe.rpush(key, json.dumps({"identity": self._identity, **found}, ensure_ascii=False))
                pipe.expire(key, REPLY_TTL)
                await pipe.execute()
        except (*SERVER_TROUBLE, asyncio.CancelledError) as error:
            self._log.emit(events.REDIS_ERROR, site="reply", error=str(error))
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _found(self, request: Mapping[str, Any]) -> dict[str, Any]:
        order, jid = request.get("order"), request.get("jid")
        if not isinstance(jid, str):
            raise BadRequest('"jid" is not a text')
        if order == "cancel":
            return self._cancel(jid, request)
        if order == "stack":
            return await self._stack(jid)
        if order == "find":
            return self._find(jid)
        raise BadRequest('"order" is not cancel, find or stack')

    def _find(self, jid: str) -> dict[str, Any]:
        slot = self._interruptions.slot_of(jid)
        if slot is None:
            return {"found": False}
        return {"found": True, "run": slot.run_of(self._ledger.slots[slot.number])}

    def _cancel(self, jid: str, request: Mapping[str, Any]) -> dict[str, Any]:
        then, grace = request.get("then", "bury"), request.get("grace", CANCEL_GRACE)
        if then not in CANCEL_ENDS:
            raise BadRequest(f'"then" is not one of {", ".join(CANCEL_ENDS)}')
        if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace <= MOST_GRACE:
            raise BadRequest(f'"grace" is not a number of seconds from 0 to {MOST_GRACE:g}')
        self._crew.read_all()  # it may have ended this very moment
        slot = self._interruptions.slot_of(jid)
        run = request.get("run")
        if slot is None or (run is not None and run != slot.run_of(self._ledger.slots[slot.number])):
            return {"found": False}
        return {"found": True, "told": self._interruptions.interrupt(slot, Interrupt.cancel(then), float(grace))}

    async def _stack(self, jid: str) -> dict[str, Any]:
        slot = self._interruptions.slot_of(jid)
        if slot is None:
            return {"found": False}
        record = self._ledger.slots[slot.number]
        seconds = time.time() - record.started_at
        lines = await stack_of(slot, still=lambda: self._interruptions.slot_of(jid) is slot)
        return {"found": True, "slot": slot.number, "pid": slot.pid, "seconds": round(seconds, 3), "lines": lines}
