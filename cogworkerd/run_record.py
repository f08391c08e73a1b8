"""The record of one run, as a child hands it to its supervisor, which writes many of them at once."""

from __future__ import annotations

import struct
from typing import NamedTuple

from cogworkerd import receipt
from cogworkerd.outcome import Kind
from cogworkerd.receipt import Receipt

BACKTRACE_MEMBER = b',"backtrace":'
"""What stands between an entry and its traceback."""

_HEAD = struct.Struct("!BdHIII")
_KINDS = tuple(Kind)


class RunRecord(NamedTuple):
    """One run that has ended.

    Attributes:
        kind: how it ended. A requeued run is neither a success nor a failure; it only has its costs. An expired job did
            not run; it stands among the failures and is not counted.
        finished_at: epoch seconds.
        name: of the job; "" for one that is not registered here, so that strangers' names fill no table.
        entry: its history entry as JSON, without the traceback; empty where none is kept.
        backtrace: of a failure: its lines as a JSON array; empty where there are none.
        status: what its status hash is to say, as a JSON object with `jid`; empty where none is kept.
    """

    kind: Kind
    finished_at: float
    name: str
    receipt: Receipt
    entry: bytes = b""
    backtrace: bytes = b""
    status: bytes = b""

    @property
    def succeeded(self) -> bool:
        return self.kind is Kind.SUCCESS

    @property
    def failed(self) -> bool:
        return self.kind not in (Kind.SUCCESS, Kind.REQUEUE)

    @property
    def ran(self) -> bool:
        return self.kind is not Kind.EXPIRED

    @property
    def full_entry(self) -> bytes:
        """The entry with its traceback."""
        return self.entry[:-1] + BACKTRACE_MEMBER + self.backtrace + b"}" if self.backtrace else self.entry

    def encode(self) -> bytes:
        name = self.name.encode()
        head = _HEAD.pack(
            self.kind, self.finished_at, len(name), len(self.entry), len(self.backtrace), len(self.status)
        )
        return b"".join((head, self.receipt.encode(), name, self.entry, self.backtrace, self.status))

    @classmethod
    def decode(cls, body: bytes) -> RunRecord:
        """Read what `encode` wrote.

        Raises:
            ValueError, IndexError, struct.error: it is something else.
        """
        kind, finished_at, *sizes = _HEAD.unpack_from(body)
        start = _HEAD.size + receipt.SIZE
        if len(body) != start + sum(sizes):
            raise ValueError("a run's record of the wrong length")
        parts = []
        for size in sizes:
            parts.append(body[start : start + size])
            start += size
        name, entry, backtrace, status = parts
        measured = Receipt.decode(body[_HEAD.size : _HEAD.size + receipt.SIZE])
        return cls(_KINDS[kind], finished_at, name.decode(), measured, entry, backtrace, status)
