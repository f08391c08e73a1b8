"""A proxy between a daemon and a real server: it counts the commands of each role and has one fault at one of them.

Each connection of a client has one of its own to the server, and its commands are passed on one by one, the next when
the reply to the last one has come: packets with several commands (a wait and the question behind it, a transaction) are
taken apart, so that a fault can hit each of them. A wait holds up its own connection only.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cogworkerd.store.scripts import LOOK, Script

from . import resp
from .faults import CHILD, CLIENT, SUPERVISOR, Strike
from .line import BLOCKING, Line
from .striker import Hands, Striker

_CHILDS_NAME = b"cogworkerd-slot-"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_START_WITHIN = 5.0


@dataclass(frozen=True)
class Step:
    """One step that was counted.

    Attributes:
        name: of the command; empty for a report or a read.
        text: the command, cut; or the kinds of the reports.
        transaction: it is inside of one.
        child: there was a child that a fault could have killed.
    """

    name: bytes
    text: str
    transaction: bool = False
    child: bool = True


class Proxy:
    """Listens on a unix socket, in a thread of its own, until `close`.

    Args:
        server: the server's socket.
        path: where clients connect.
        hands: who kills.
        strike: the fault, None to count only.

    Attributes:
        steps: what was counted, by role.
        broken: a fault of the proxy's own; "" as it should be.
    """

    def __init__(self, server: Path, path: Path, hands: Hands, strike: Strike | None) -> None:
        self.steps: dict[str, list[Step]] = {CHILD: [], SUPERVISOR: [], CLIENT: []}
        self.broken = ""
        self._server = server
        self._path = path
        self._hands = hands
        self._striker = Striker(strike, hands, server)
        self._counts_only = strike is None
        self._armed = False
        self._trigger: Callable[[resp.Command], bool] | None = None
        self._lines: list[Line] = []
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
        self._trigger = lambda command: _runs(command, script)

    def disarm(self) -> None:
        """Count no more; a fault that did not come will not come."""
        self._armed = False
        self._trigger = None

    @property
    def url(self) -> str:
        return f"unix://{self._path}?db=0"

    @property
    def struck(self) -> str:
        """The command that the fault hit; "" as long as it did not come."""
        return self._striker.struck

    @property
    def late(self) -> int:
        """How many commands are in limbo, still to be carried out."""
        return self._striker.late

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
        server = self._loop.run_until_complete(asyncio.start_unix_server(self._accept, self._path))
        self._started.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(_end_all_tasks())
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        try:
            far_reader, far = await asyncio.open_unix_connection(self._server)
        except OSError as error:
            self.broken = f"the proxy: {error!r}"
            near.close()
            return
        line = Line(_client_of(near), near, far_reader, far)
        self._lines.append(line)
        hearing = asyncio.ensure_future(line.hear(reader))
        try:
            await self._pass_all(line)
        except asyncio.CancelledError:
            pass  # the run is over; asyncio would log a handler of a connection that is cancelled
        except Exception as error:
            self.broken = f"the proxy: {error!r}"
        finally:
            hearing.cancel()
            self._lines.remove(line)
            await line.close()

    async def _pass_all(self, line: Line) -> None:
        while (command := await line.inbox.get()) is not None:
            if not line.role:
                line.role = CHILD if _introduces_a_child(command) else self._role_of(line.pid)
            number = self._count(line, command)
            strikes = self._striker.is_due(line, command, number)
            if not await (self._striker.hit(line, command) if strikes else self._exchange(line, command, number)):
                return

    def _role_of(self, pid: int) -> str:
        return SUPERVISOR if self._hands.is_supervisor(pid) else CLIENT

    def _count(self, line: Line, command: resp.Command) -> int:
        """The number of this step; 0 if it is not counted."""
        if self._trigger is not None and self._trigger(command):
            self._trigger, self._armed = None, True
        if not self._armed:
            return 0
        child = line.role == CHILD or (self._counts_only and self._hands.has_child())
        self.steps[line.role].append(Step(resp.name_of(command), resp.show(command), line.in_transaction, child))
        return len(self.steps[line.role])

    async def _exchange(self, line: Line, command: resp.Command, number: int) -> bool:
        """Pass a command on and its reply back; False: the connection is over."""
        if resp.name_of(command) in BLOCKING:
            line.waiting = number
        reply = await line.ask(command)
        line.waiting = 0
        self._striker.looks += _runs(command, LOOK)
        return reply is not None and line.answer(reply)


async def _end_all_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # transports that were closed call back once more


def _client_of(near: asyncio.StreamWriter) -> int:
    """The process that has connected."""
    credentials = near.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def _runs(command: resp.Command, script: Script) -> bool:
    return command[:2] == [b"EVALSHA", script.sha.encode()]


def _introduces_a_child(command: resp.Command) -> bool:
    words = [argument.upper() for argument in command[:2]]
    return words == [b"CLIENT", b"SETNAME"] and command[2].startswith(_CHILDS_NAME)
