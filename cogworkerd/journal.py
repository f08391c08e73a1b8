"""Lines for the journal of systemd, by its native protocol: one entry an event, with its fields searchable.

`journalctl COGWORKERD_JID=...` finds what a job did; a traceback is part of its entry; the time is the journal's own.
The protocol is that of systemd's JOURNAL_NATIVE_PROTOCOL: a datagram of `NAME=value` lines, and for a value of several
lines `NAME`, its length in 8 bytes, the value.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import MutableMapping
from typing import Any

SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "cogworkerd"
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_LENGTH = struct.Struct("<Q")
_LARGEST = 100_000  # below what a datagram may have by default


def is_ours(fd: int) -> bool:
    """Whether this descriptor leads to the journal: systemd tells device and inode of the socket that it put there."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return device == str(found.st_dev) and inode == str(found.st_ino)


def render(_: Any, __: str, event: MutableMapping[str, Any]) -> bytes:
    """A structlog event as one datagram."""
    level = str(event.pop("level", "info"))
    event.pop("timestamp", None)  # the journal has its own
    name = str(event.pop("event", ""))
    trace = event.pop("exception", None)
    words = " ".join([name, *(f"{field}={value}" for field, value in event.items())])
    fields = {
        "MESSAGE": f"{words}\n{trace}" if trace else words,
        "PRIORITY": str(PRIORITIES.get(level, 6)),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "COGWORKERD_EVENT": name,
        **{f"COGWORKERD_{_name(field)}": str(value) for field, value in event.items()},
    }
    return b"".join(_field(name, value) for name, value in fields.items())[:_LARGEST]


def _name(field: str) -> str:
    """The journal takes capital letters, digits and underscores, 64 of them in all."""
    return "".join(char if char.isascii() and char.isalnum() else "_" for char in field).upper()[:52]


def _field(name: str, value: str) -> bytes:
    raw = value.encode("utf-8", "replace")
    if b"\n" not in raw:
        return name.encode() + b"=" + raw + b"\n"
    return name.encode() + b"\n" + _LENGTH.pack(len(raw)) + raw + b"\n"


class JournalLines:
    """What structlog calls a logger: takes rendered datagrams. What cannot be sent is dropped: the job goes on."""

    def __init__(self, address: str = SOCKET) -> None:
        self._address = address
        self._pid = 0
        self._socket: socket.socket | None = None

    def msg(self, datagram: bytes) -> None:
        # A child's descriptors of the parent are replaced after the fork, so it opens its own.
        if self._socket is None or self._pid != os.getpid():
            self._socket, self._pid = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), os.getpid()
        with contextlib.suppress(OSError):
            self._socket.sendto(datagram, self._address)

    debug = info = warning = error = critical = log = exception = msg

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
