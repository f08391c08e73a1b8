"""RESP2, as far as a proxy needs it: commands taken apart, replies found whole and passed on as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

Command = list[bytes]
_SHOWN_ARGUMENTS = 7
_SHOWN_LENGTH = 60


async def read_command(reader: asyncio.StreamReader) -> Command | None:
    """The next command; None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n")
        if not head.startswith(b"*"):
            raise ValueError(f"no command: {head!r}")
        return [await _read_bulk(reader) for _ in range(int(head[1:]))]
    except (asyncio.IncompleteReadError, OSError):
        return None


async def _read_bulk(reader: asyncio.StreamReader) -> bytes:
    size = int((await reader.readuntil(b"\r\n"))[1:])
    return (await reader.readexactly(size + 2))[:-2]


async def read_reply(reader: asyncio.StreamReader) -> bytes | None:
    """The bytes of the next reply, whatever it is; None at the end of the connection."""
    try:
        return await _read_whole(reader)
    except (asyncio.IncompleteReadError, OSError):
        return None


async def _read_whole(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n")
    kind, rest = head[:1], head[1:]
    if kind in (b"+", b"-", b":"):
        return head
    size = int(rest)
    if kind == b"$":
        return head if size < 0 else head + await reader.readexactly(size + 2)
    if kind == b"*":
        return b"".join([head, *[await _read_whole(reader) for _ in range(size)]])
    raise ValueError(f"no reply: {head!r}")


def pack(command: Sequence[bytes]) -> bytes:
    """A command as it travels."""
    parts = [b"*%d\r\n" % len(command)]
    parts += [b"$%d\r\n%s\r\n" % (len(argument), argument) for argument in command]
    return b"".join(parts)


def name_of(command: Command) -> bytes:
    """The command's name, in capitals."""
    return command[0].upper()


def show(command: Command) -> str:
    """A command as one line of text, cut to what a reader needs."""
    shown = [argument.decode("utf-8", "backslashreplace")[:_SHOWN_LENGTH] for argument in command[:_SHOWN_ARGUMENTS]]
    more = [f"... ({len(command) - len(shown)} more)"] if len(command) > len(shown) else []
    return " ".join(shown + more).replace("\n", " ")
