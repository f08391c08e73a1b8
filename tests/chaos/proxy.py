"""A proxy between a daemon and a real server: it counts the commands of each role and has one fault at one of them.

Each connection of a client has one of its own to the server, and its commands are passed on one by one, the next when
the reply to the last one has come: packets with several commands (a wait and the question behind it, a transaction) are
taken apart, so that a fault can hit each of them. A wait holds up its own connection only.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from cogworkerd.store.scripts import LOOK, Script

from . import resp
from .faults import CHILD, SUPERVISOR, Strike, fits

LATE_BY = {"late": 0.4, "later": 1.5}
"""Seconds after which a command in limbo is carried out: while what follows it is under way; when the supervisor has
polled, too."""

_BLOCKING = (b"BLMOVE", b"BRPOP")
_CHILDS_NAME = b"cogworkerd-slot-"
_START_WITHIN = 5.0
_LOOK_WITHIN = 2.0
_AFTER_LOOK = 0.05
_EXECABORT = b"-EXECABORT Transaction discarded because of previous errors.\r\n"
_REFUSALS = {
    "readonly": b"READONLY You can't write against a read only replica.",
    "oom": b"OOM command not allowed when used memory > 'maxmemory'.",
}


class Hands(Protocol):
    """Who kills for the proxy. Both return when the victim is dead; False: there was none."""

    def kill_child(self, port: int | None) -> bool:
        """Kill the child whose connection comes from this port; None: one that is busy, or else any."""

    def kill_other_child(self, port: int) -> bool:
        """Kill a child whose connection does not come from this port."""

    def kill_supervisor(self) -> bool: ...

    def has_child(self) -> bool:
        """Whether there is a child to kill."""


@dataclass(frozen=True)
class Step:
    """One command that was counted.

    Attributes:
        name: of the command.
        text: the command, cut.
        transaction: it is inside of one.
        child: there was a child that a fault could have killed.
    """

    name: bytes
    text: str
    transaction: bool = False
    child: bool = True


@dataclass
class Line:
    """One connection of a client and the one that goes with it to the server.

    Attributes:
        port: the client's.
        transaction: the commands since MULTI, or None outside of one.
        refused: a command of the open transaction was refused.
        waiting: the number of the wait that is under way, 0 if there is none or it was not counted.
    """

    port: int
    near: asyncio.StreamWriter
    far_reader: asyncio.StreamReader
    far: asyncio.StreamWriter
    inbox: asyncio.Queue[resp.Command | None] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    role: str = ""
    transaction: list[resp.Command] | None = None
    refused: bool = False
    waiting: int = 0


class Proxy:
    """Listens on a free port of the loopback, in a thread of its own, until `close`.

    Args:
        port: the server's.
        hands: who kills.
        strike: the fault, None to count only.

    Attributes:
        port: where clients connect.
        steps: what was counted, by role.
        struck: the text of the command that the fault hit; "" as long as it did not come.
        late: commands in limbo that are still to be carried out.
        broken: a fault of the proxy's own; "" as it should be.
    """

    def __init__(self, port: int, hands: Hands, strike: Strike | None) -> None:
        self.steps: dict[str, list[Step]] = {CHILD: [], SUPERVISOR: []}
        self.struck = ""
        self.late = 0
        self.broken = ""
        self.port = 0
        self._target = port
        self._hands = hands
        self._strike = strike
        self._armed = False
        self._trigger: Callable[[resp.Command], bool] | None = None
        self._lines: list[Line] = []
        self._looks = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_WITHIN):
            raise RuntimeError("the proxy does not start")

    # ---- for the run, from its own thread ---------------------------------------------------------------

    def arm(self) -> None:
        """Count from now on."""
        self._armed = True

    def arm_at(self, script: Script) -> None:
        """Count from the first run of this script on."""
        self._trigger = lambda command: command[:2] == [b"EVALSHA", script.sha.encode()]

    def disarm(self) -> None:
        """Count no more; a fault that did not come will not come."""
        self._armed = False
        self._trigger = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def counted_waits(self) -> int:
        """How many children are in a wait that was counted."""
        return sum(line.waiting > 0 for line in list(self._lines) if line.role == CHILD)

    def close(self) -> None:
        """End all connections and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # ---- the loop ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports that were closed call back once more

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        port = near.get_extra_info("peername")[1]
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            near.close()
            return
        line = Line(port, near, far_reader, far)
        self._lines.append(line)
        hearing = self._spawn(self._hear(line, reader))
        try:
            await self._pass_all(line)
        except Exception as error:
            self.broken = f"the proxy: {error!r}"
        finally:
            hearing.cancel()
            self._lines.remove(line)
            for writer in (near, far):
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _hear(self, line: Line, reader: asyncio.StreamReader) -> None:
        """Take in what the client sends, also while a command of its is under way."""
        while (command := await resp.read_command(reader)) is not None:
            await line.inbox.put(command)
        line.ended.set()
        await line.inbox.put(None)

    async def _pass_all(self, line: Line) -> None:
        while (command := await line.inbox.get()) is not None:
            if not line.role:
                line.role = CHILD if _introduces_a_child(command) else SUPERVISOR
            number = self._count(line, command)
            strike = self._due(line, command, number)
            go_on = await (self._exchange(line, command, number) if strike is None else self._hit(line, command))
            if not go_on:
                return

    # ---- counting ---------------------------------------------------------------------------------------

    def _count(self, line: Line, command: resp.Command) -> int:
        """The number of this step; 0 if it is not counted."""
        if self._trigger is not None and self._trigger(command):
            self._trigger, self._armed = None, True
        if not self._armed:
            return 0
        child = line.role == CHILD or (self._strike is None and self._hands.has_child())
        step = Step(resp.name_of(command), resp.show(command), line.transaction is not None, child)
        self.steps[line.role].append(step)
        return len(self.steps[line.role])

    def _due(self, line: Line, command: resp.Command, number: int) -> Strike | None:
        strike = self._strike
        if strike is None or self.struck or line.role != strike.role or number < strike.at:
            return None
        return strike if fits(strike.fault, resp.name_of(command), line.transaction is not None) else None

    # ---- without a fault --------------------------------------------------------------------------------

    async def _exchange(self, line: Line, command: resp.Command, number: int) -> bool:
        """Pass a command on and its reply back.

        Returns:
            False: the connection is over.
        """
        if resp.name_of(command) in _BLOCKING:
            line.waiting = number
        reply = await self._ask(line, command)
        line.waiting = 0
        self._looks += command[:2] == [b"EVALSHA", LOOK.sha.encode()]
        return reply is not None and _send(line.near, reply)

    async def _ask(self, line: Line, command: resp.Command) -> bytes | None:
        """The server's reply; None: the server, or a client that was waiting, has gone."""
        name = resp.name_of(command)
        self._follow_transaction(line, name, command)
        if name == b"EXEC" and line.refused:
            line.refused = False
            command = [b"DISCARD"]
            _send(line.far, resp.pack(command))
            return None if await resp.read_reply(line.far_reader) is None else _EXECABORT
        if not _send(line.far, resp.pack(command)):
            return None
        if name in _BLOCKING:
            return await self._wait(line)
        return await resp.read_reply(line.far_reader)

    async def _wait(self, line: Line) -> bytes | None:
        """The reply to a blocking command. A client that leaves ends the wait: the server must learn of it."""
        reply = self._spawn(resp.read_reply(line.far_reader))
        gone = self._spawn(line.ended.wait())
        try:
            await asyncio.wait({reply, gone}, return_when=asyncio.FIRST_COMPLETED)
            return reply.result() if reply.done() else None
        finally:
            reply.cancel()
            gone.cancel()

    @staticmethod
    def _follow_transaction(line: Line, name: bytes, command: resp.Command) -> None:
        if name == b"MULTI":
            line.transaction = []
        elif name in (b"EXEC", b"DISCARD"):
            line.transaction = None
        if line.transaction is not None:
            line.transaction.append(command)

    # ---- with the fault ---------------------------------------------------------------------------------

    async def _hit(self, line: Line, command: resp.Command) -> bool:
        assert self._strike is not None
        self.struck = resp.show(command)
        if self._strike.victim:
            return await self._kill(line, command)
        return await self._fault(self._strike.fault)(line, command)

    def _fault(self, name: str) -> Callable[[Line, resp.Command], Awaitable[bool]]:
        return {
            "lost": self._lose,
            "unanswered": self._swallow_reply,
            "late": self._send_to_limbo,
            "later": self._send_to_limbo,
            "readonly": self._refuse,
            "oom": self._refuse,
        }[name]

    async def _lose(self, line: Line, command: resp.Command) -> bool:
        return False

    async def _swallow_reply(self, line: Line, command: resp.Command) -> bool:
        await self._ask(line, command)
        return False

    async def _send_to_limbo(self, line: Line, command: resp.Command) -> bool:
        """MULTI takes the whole transaction along, as the packet would."""
        commands = [command]
        while resp.name_of(command) == b"MULTI" and resp.name_of(commands[-1]) != b"EXEC":
            more = await line.inbox.get()
            if more is None:
                return False
            commands.append(more)
        self.late += 1
        self._spawn(self._carry_out_late(commands))
        return False

    async def _carry_out_late(self, commands: list[resp.Command]) -> None:
        assert self._strike is not None
        await asyncio.sleep(LATE_BY[self._strike.fault])
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        for command in commands:
            _send(writer, resp.pack(_without_wait(command)))
            await resp.read_reply(reader)
        writer.close()
        await writer.wait_closed()
        self.late -= 1

    async def _refuse(self, line: Line, command: resp.Command) -> bool:
        assert self._strike is not None
        sentence = _REFUSALS[self._strike.fault]
        if resp.name_of(command) == b"EVALSHA":
            sentence += b" script: %s, on @user_script:1." % command[1]
        line.refused = line.transaction is not None
        return _send(line.near, b"-%s\r\n" % sentence)

    async def _kill(self, line: Line, command: resp.Command) -> bool:
        strike = self._strike
        assert strike is not None
        if strike.fault == "kill-child-other":
            return await self._kill_other(line, command)
        if strike.before:
            dead = self._kill_victim(line, strike)
            return False if dead == line.role else await self._exchange(line, command, 0)
        reply = await self._ask(line, command)
        dead = self._kill_victim(line, strike)
        return reply is not None and dead != line.role and _send(line.near, reply)

    async def _kill_other(self, line: Line, command: resp.Command) -> bool:
        """The death of another child makes the supervisor look at its list: behind this reply, which is on its way."""
        reply = await self._ask(line, command)
        looks = self._looks
        if not self._hands.kill_other_child(line.port):
            self.struck = ""
        limit = self._loop.time() + _LOOK_WITHIN
        while self.struck and self._looks == looks and self._loop.time() < limit:
            await asyncio.sleep(_AFTER_LOOK)
        return reply is not None and _send(line.near, reply)

    def _kill_victim(self, line: Line, strike: Strike) -> str:
        """Returns: the role of who is dead; "" if there was nobody to kill, and the fault is still to come."""
        if strike.victim == SUPERVISOR:
            killed = self._hands.kill_supervisor()
        else:
            killed = self._hands.kill_child(line.port if line.role == CHILD else None)
        if not killed:
            self.struck = ""
        return strike.victim if killed else ""


def _introduces_a_child(command: resp.Command) -> bool:
    words = [argument.upper() for argument in command[:2]]
    return words == [b"CLIENT", b"SETNAME"] and command[2].startswith(_CHILDS_NAME)


def _without_wait(command: resp.Command) -> resp.Command:
    """A wait that takes effect late: its client is gone, so that it happens at once or never."""
    return [b"LMOVE", *command[1:5]] if resp.name_of(command) == b"BLMOVE" else command


def _send(writer: asyncio.StreamWriter, data: bytes) -> bool:
    """Send; False: nobody is there any more."""
    if writer.is_closing():
        return False
    writer.write(data)
    return True
