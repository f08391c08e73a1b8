"""The one fault of a run, as far as it is one between a daemon and its server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from . import resp
from .faults import CHILD, CLIENT, SUPERVISOR, Strike, fits
from .line import Line, send

LATE_BY = {"late": 0.4, "later": 1.5}
"""Seconds after which a command in limbo is carried out: while what follows it is under way; when the supervisor has
polled, too."""

_LOOK_WITHIN = 2.0
_AFTER_LOOK = 0.05
_REFUSALS = {
    "readonly": b"READONLY You can't write against a read only replica.",
    "oom": b"OOM command not allowed when used memory > 'maxmemory'.",
}


class Hands(Protocol):
    """Who kills for the proxy. Each returns when the victim is dead; False: there was none."""

    def kill_child(self, pid: int | None) -> bool:
        """Kill this child; None: one that is busy, or else any."""

    def kill_other_child(self, pid: int) -> bool:
        """Kill a child that is not this one."""

    def kill_supervisor(self) -> bool: ...

    def kill_client(self, pid: int) -> bool:
        """Kill this process, which is neither."""

    def is_supervisor(self, pid: int) -> bool:
        """Whether this is the supervisor's process."""

    def has_child(self) -> bool:
        """Whether there is a child to kill."""


class Striker:
    """Does the fault, once.

    Args:
        strike: the fault; None: there will be none.
        server: the server's socket.

    Attributes:
        struck: the text of the command that the fault hit; "" as long as it did not come.
        late: how many commands are in limbo.
        looks: how many looks at its list the supervisor has had an answer to.
    """

    def __init__(self, strike: Strike | None, hands: Hands, server: Path) -> None:
        self.struck = ""
        self.late = 0
        self.looks = 0
        self._strike = strike
        self._hands = hands
        self._server = server
        self._limbo: set[asyncio.Task[None]] = set()

    def is_due(self, line: Line, command: resp.Command, number: int) -> bool:
        """Whether the fault comes at this step of this number."""
        strike = self._strike
        if strike is None or self.struck or line.role != strike.role or number < strike.at:
            return False
        return fits(strike.fault, resp.name_of(command), line.in_transaction)

    async def hit(self, line: Line, command: resp.Command) -> bool:
        """Do it.

        Returns:
            False: the client's connection is to be closed.
        """
        strike = self._strike
        assert strike is not None
        self.struck = resp.show(command)
        if strike.fault == "kill-child-other":
            return await self._kill_other(line, command)
        if strike.victim:
            return await self._kill(line, command, strike)
        if strike.fault in _REFUSALS:
            return self._refuse(line, command, _REFUSALS[strike.fault])
        if strike.fault in LATE_BY:
            await self._send_to_limbo(line, command, LATE_BY[strike.fault])
        elif strike.fault == "unanswered":
            await line.ask(command)
        return False

    # ---- limbo ------------------------------------------------------------------------------------------

    async def _send_to_limbo(self, line: Line, command: resp.Command, seconds: float) -> None:
        """MULTI takes the whole transaction along, as the packet would."""
        commands = [command]
        while resp.name_of(command) == b"MULTI" and resp.name_of(commands[-1]) != b"EXEC":
            more = await line.inbox.get()
            if more is None:
                return
            commands.append(more)
        self.late += 1
        task = asyncio.ensure_future(self._carry_out(commands, seconds))
        self._limbo.add(task)
        task.add_done_callback(self._limbo.discard)

    async def _carry_out(self, commands: list[resp.Command], seconds: float) -> None:
        await asyncio.sleep(seconds)
        reader, writer = await asyncio.open_unix_connection(self._server)
        for command in commands:
            send(writer, resp.pack(_without_wait(command)))
            await resp.read_reply(reader)
        writer.close()
        await writer.wait_closed()
        self.late -= 1

    # ---- refusals ---------------------------------------------------------------------------------------

    @staticmethod
    def _refuse(line: Line, command: resp.Command, sentence: bytes) -> bool:
        if resp.name_of(command) == b"EVALSHA":
            sentence += b" script: %s, on @user_script:1." % command[1]
        line.refused = line.in_transaction
        return line.answer(b"-%s\r\n" % sentence)

    # ---- deaths -----------------------------------------------------------------------------------------

    async def _kill(self, line: Line, command: resp.Command, strike: Strike) -> bool:
        """A client that dies before its command is passed on has not sent it; another one's death changes nothing."""
        if strike.before:
            if self._kill_victim(line, strike) == line.role:
                return False
            reply = await line.ask(command)
            return reply is not None and line.answer(reply)
        reply = await line.ask(command)
        dead = self._kill_victim(line, strike)
        return reply is not None and dead != line.role and line.answer(reply)

    def _kill_victim(self, line: Line, strike: Strike) -> str:
        """Returns: the role of who is dead; "" if there was nobody to kill, and the fault is still to come."""
        if strike.victim == SUPERVISOR:
            killed = self._hands.kill_supervisor()
        elif strike.victim == CLIENT:
            killed = self._hands.kill_client(line.pid)
        else:
            killed = self._hands.kill_child(line.pid if line.role == CHILD else None)
        if not killed:
            self.struck = ""
        return strike.victim if killed else ""

    async def _kill_other(self, line: Line, command: resp.Command) -> bool:
        """The death of another child makes the supervisor look at its list: behind this reply, which is on its way."""
        reply = await line.ask(command)
        looks = self.looks
        if not self._hands.kill_other_child(line.pid):
            self.struck = ""
        limit = asyncio.get_running_loop().time() + _LOOK_WITHIN
        while self.struck and self.looks == looks and asyncio.get_running_loop().time() < limit:
            await asyncio.sleep(_AFTER_LOOK)
        return reply is not None and line.answer(reply)


def _without_wait(command: resp.Command) -> resp.Command:
    """A wait that takes effect late: its client is gone, so that it happens at once or never."""
    return [b"LMOVE", *command[1:5]] if resp.name_of(command) == b"BLMOVE" else command
