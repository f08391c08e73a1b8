"""Copies of a child: a job that forks and lets both processes return leaves one. It must not act as the slot."""

from __future__ import annotations

import contextlib
import os
import struct

_PID = struct.Struct("!i")


class ForkedCopies:
    """Lets the original reap its copies, and no other process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._forked = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.register_at_fork(after_in_parent=self._note_fork)

    def announce(self) -> None:
        """In a copy: tell the original whom to reap."""
        with contextlib.suppress(OSError):
            os.write(self._write, _PID.pack(os.getpid()))

    def reap(self) -> None:
        """In the original: reap copies that have announced themselves. Costs nothing until a job has forked."""
        if not self._forked:
            return
        with contextlib.suppress(BlockingIOError):
            while len(data := os.read(self._read, _PID.size)) == _PID.size:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(_PID.unpack(data)[0], 0)

    def _note_fork(self) -> None:
        if os.getpid() == self._pid:
            self._forked = True
