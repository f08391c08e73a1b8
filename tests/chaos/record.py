"""What a run leaves behind that no fault touches: happenings in a file, and counters that all its processes share."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path


@dataclass(frozen=True)
class Happening:
    """One line of the record, in the order of the file.

    Attributes:
        what: start, end, fail, overlap, slot (written by jobs); started, performed, requeued (that report was wholly
            written); report, read (counted, with its number and what it held); struck (the fault came).
    """

    what: str
    jid: str = ""
    attempt: int = 0
    pid: int = 0
    detail: str = ""


class Counter(IntEnum):
    """The fields of the shared counters."""

    ARMED = 0
    STRUCK = 1
    REPORTS = 2
    READS = 3
    BYTES_WRITTEN = 4
    BYTES_READ = 5


class Record:
    """One folder's record. Open it before a fork: children share what is open."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "happenings"
        self._happenings = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = os.open(folder / "counters", os.O_RDWR | os.O_CREAT)
        os.ftruncate(self._lock, mmap.PAGESIZE)
        self._map = mmap.mmap(self._lock, mmap.PAGESIZE)
        self._fields = memoryview(self._map).cast("Q")
        self._parsed: list[Happening] = []
        self._parsed_bytes = 0

    def close(self) -> None:
        self._fields.release()
        self._map.close()
        os.close(self._lock)
        os.close(self._happenings)

    # ---- happenings -------------------------------------------------------------------------------------

    def add(self, happening: Happening) -> None:
        """Append one line, in one write."""
        os.write(self._happenings, json.dumps(asdict(happening)).encode() + b"\n")

    def all(self) -> list[Happening]:
        """Everything so far. Each line is parsed once."""
        with self._file.open("rb") as file:
            file.seek(self._parsed_bytes)
            lines = file.read()
        self._parsed += [Happening(**json.loads(line)) for line in lines.splitlines()]
        self._parsed_bytes += len(lines)
        return list(self._parsed)

    # ---- counters ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time. The lock is the process's own: its death ends it, a fork does not inherit it."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def __getitem__(self, counter: Counter) -> int:
        return self._fields[counter]

    def __setitem__(self, counter: Counter, value: int) -> None:
        self._fields[counter] = value

    @property
    def all_read(self) -> bool:
        """The supervisor has read whatever was written to it."""
        return self[Counter.BYTES_READ] == self[Counter.BYTES_WRITTEN]
