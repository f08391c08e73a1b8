"""The record of a soak: one line for everything that happens to a job, in the order in which it was written.

Every process appends to one file. An append is one write, so lines do not mix, and their order is an order of events:
what stands behind a line was written after it. Nothing of it depends on the server that the soak torments.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ID = re.compile(rb"[0-9a-f]{24}")
_PF_EXITING = 0x4
NOBODY = "-"


class Line(NamedTuple):
    """One line of the record.

    Attributes:
        at: its place in the file.
        time: epoch seconds at which its writer made it.
        what: `acked`, `unknown`, `refused` (by the producer); `start`, `end`, `fail` (by the job); `performed`,
            `settled` (by the hooks in the child); anything else is a fault.
        jid: the job, or `-`.
        attempt: 1 in a job's first run.
        daemon: label of the daemon, or `-`.
        pid: of the writer.
        detail: what else there is to say.
    """

    at: int
    time: float
    what: str
    jid: str
    attempt: int
    daemon: str
    pid: int
    detail: str

    def __str__(self) -> str:
        who = f"{self.daemon}:{self.pid}"
        return f"{clock_text(self.time)} {self.what} {self.jid} attempt {self.attempt} {who} {self.detail}"


def clock_text(epoch: float) -> str:
    """A time as the daemons' logs write it."""
    return f"{time.strftime('%H:%M:%S', time.gmtime(epoch))}.{int(epoch * 1000) % 1000:03d}Z"


class Record:
    """The writing end. Every process opens its own."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, what: str, jid: str = NOBODY, attempt: int = 0, daemon: str = NOBODY, detail: str = "") -> None:
        line = f"{time.time():.6f} {what} {jid} {attempt} {daemon} {os.getpid()} {detail}\n"
        os.write(self._fd, line.encode())

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path) -> Iterator[Line]:
    """All lines of a record, one at a time."""
    with path.open(encoding="utf-8") as file:
        for at, text in enumerate(file):
            when, what, jid, attempt, daemon, pid, detail = text.rstrip("\n").split(" ", 6)
            yield Line(at, float(when), what, jid, int(attempt), daemon, int(pid), detail)


def identify(raw: bytes) -> tuple[str, int]:
    """The id and the attempt of a job, however it lies on the server: as a job, as a parked record that holds one, or
    as bytes that are no job and hold an id that the producer hid in them."""
    try:
        payload = json.loads(raw)
    except ValueError:
        return _hidden_in(raw), 1
    if "raw_payload" in payload:  # buried under an id of its own
        return _hidden_in(payload["raw_payload"].encode()), 1
    if "payload" in payload:
        return identify(payload["payload"].encode())
    return payload["jid"], payload.get("retry_count", 0) + 1


def _hidden_in(raw: bytes) -> str:
    found = _ID.search(raw)
    return found[0].decode() if found else NOBODY


class Marks:
    """One mark for each job that runs: who runs it. It tells a second run that the first one is still alive.

    A mark is a symbolic link whose target is the owner: it is made in one step, with its content.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def claim(self, jid: str) -> str:
        """Mark a job as run by this process.

        Returns:
            Whoever else runs it and is alive, as `pid.start`; "" for nobody.
        """
        path, rival = self._folder / jid, ""
        while True:
            try:
                path.symlink_to(_myself())
                return rival
            except FileExistsError:
                with contextlib.suppress(FileNotFoundError):
                    owner = os.readlink(path)
                    rival = owner if owner != _myself() and _runs(owner) else rival
                    path.unlink()

    def release(self, jid: str) -> None:
        path = self._folder / jid
        with contextlib.suppress(OSError):
            if os.readlink(path) == _myself():
                path.unlink()


def _myself() -> str:
    return f"{os.getpid()}.{_stat(os.getpid())[19]}"


def _runs(owner: str) -> bool:
    """Whether this very process lives and can still run code: neither a zombie nor about to become one."""
    pid, started = owner.split(".")
    try:
        stat = _stat(int(pid))
    except OSError:
        return False
    return stat[19] == started and stat[0] not in ("Z", "X") and not int(stat[6]) & _PF_EXITING


def _stat(pid: int) -> list[str]:
    """The fields of a process' stat file behind its name: its state is the first, its start the twentieth."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
