"""One connection of a client, and the one that goes with it to the server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from . import resp

BLOCKING = (b"BLMOVE", b"BRPOP")
_EXECABORT = b"-EXECABORT Transaction discarded because of previous errors.\r\n"


@dataclass
class Line:
    """Both connections, and where the client is in its talk.

    Attributes:
        pid: the client's process.
        inbox: what the client has sent and is not yet passed on; None at its end.
        ended: the client has left.
        role: "child", "supervisor" or "client", "" before the first command.
        in_transaction: between MULTI and EXEC.
        refused: a command of the open transaction was refused.
        waiting: the number of the wait that is under way, 0 if there is none or it was not counted.
    """

    pid: int
    near: asyncio.StreamWriter
    far_reader: asyncio.StreamReader
    far: asyncio.StreamWriter
    inbox: asyncio.Queue[resp.Command | None] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    role: str = ""
    in_transaction: bool = False
    refused: bool = False
    waiting: int = 0

    async def hear(self, reader: asyncio.StreamReader) -> None:
        """Take in what the client sends, also while a command of its is under way."""
        while (command := await resp.read_command(reader)) is not None:
            await self.inbox.put(command)
        self.ended.set()
        await self.inbox.put(None)

    def answer(self, reply: bytes) -> bool:
        """Send to the client; False: it has left."""
        return send(self.near, reply)

    async def ask(self, command: resp.Command) -> bytes | None:
        """The server's reply; None: the server, or a client that was waiting, has gone."""
        name = resp.name_of(command)
        if name in (b"MULTI", b"EXEC", b"DISCARD"):
            self.in_transaction = name == b"MULTI"
        if name == b"EXEC" and self.refused:
            self.refused = False
            return None if await self.ask([b"DISCARD"]) is None else _EXECABORT
        if not send(self.far, resp.pack(command)):
            return None
        return await (self._wait() if name in BLOCKING else resp.read_reply(self.far_reader))

    async def _wait(self) -> bytes | None:
        """The reply to a blocking command. A client that leaves ends the wait: the server must learn of it."""
        reply = asyncio.ensure_future(resp.read_reply(self.far_reader))
        gone = asyncio.ensure_future(self.ended.wait())
        try:
            await asyncio.wait({reply, gone}, return_when=asyncio.FIRST_COMPLETED)
            return reply.result() if reply.done() else None
        finally:
            reply.cancel()
            gone.cancel()

    async def close(self) -> None:
        """Close both connections."""
        for writer in (self.near, self.far):
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                pass  # the other end was faster


def send(writer: asyncio.StreamWriter, data: bytes) -> bool:
    """Send; False: nobody is there any more."""
    if writer.is_closing():
        return False
    writer.write(data)
    return True
