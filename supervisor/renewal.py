"""New code without a stop: it is tried in a process of its own; the supervisor then becomes it, its children stay.

A program that cannot be imported, whose settings are wrong or that cannot take over leaves everything as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.text import printable

from .handover import Handover
from .origin import CHECK, HANDOVER, Origin
from .systemd import Notifier
from .tasks import Tasks

FIT = "cogworkerd: fit to follow"
"""What the process that tries the new code says at its end. Its exit status alone says little: the code may exit."""

_SAYS = "cogworkerd: "
_LOOK_EVERY = 0.02
_MOST_OUTPUT = 2**16
_LONGEST_REASON = 1000


class Renewal:
    """One try at a time; one that is asked for meanwhile follows it, since the code may be newer still.

    Args:
        limit: seconds that a try may take.
        spared: pids whose exit statuses nobody else takes.
        preview: what would be handed over now.
        leave: called once the new code was found fit, with the reason that was given for it.
    """

    def __init__(
        self,
        origin: Origin,
        limit: float,
        spared: set[int],
        tasks: Tasks,
        log: Log,
        manager: Notifier,
        preview: Callable[[], Handover],
        leave: Callable[[str], None],
    ) -> None:
        self._origin = origin
        self._limit = limit
        self._spared = spared
        self._tasks = tasks
        self._log = log
        self._manager = manager
        self._preview = preview
        self._leave = leave
        self._running: asyncio.Task[None] | None = None
        self._again = False

    def begin(self, why: str) -> None:
        """Try the new code, or remember to. `why`: the signal or order that asks for it."""
        self._log.emit(events.RENEWAL_STARTED, signal=why)
        if self._running is not None and not self._running.done():
            self._again = True
            return
        self._manager.reloading()
        self._running = self._tasks.spawn(self._try(why), "renewal")

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _try(self, why: str) -> None:
        again = True
        while again:
            self._again = False
            problem = await self._problem()
            again = self._again
        if problem:
            self._log.emit(events.RENEWAL_REFUSED, reason=problem)
            self._manager.ready()
        else:
            self._leave(why)

    async def _problem(self) -> str:
        """Why the new code cannot follow; "" if it can."""
        handover, output = self._preview().write(), os.memfd_create("cogworkerd-check", os.MFD_CLOEXEC)
        try:
            process = subprocess.Popen(
                self._origin.command,
                env={**self._origin.environment, CHECK: str(os.getpid()), HANDOVER: str(handover)},
                cwd=self._origin.folder,
                umask=self._origin.umask,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(handover,),
                process_group=0,
            )
            self._spared.add(process.pid)
            try:
                status = await self._status(process)
            finally:
                _end(process)
                self._spared.discard(process.pid)
            return _verdict(status, os.pread(output, _MOST_OUTPUT, 0), self._limit)
        except OSError as error:
            return f"{error.filename or self._origin.command[0]}: {error.strerror}"
        finally:
            os.close(handover)
            os.close(output)

    async def _status(self, process: subprocess.Popen[bytes]) -> int | None:
        """Its exit status; None: it takes too long."""
        deadline = time.monotonic() + self._limit
        while (status := process.poll()) is None and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_EVERY)
        return status


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _verdict(status: int | None, output: bytes, limit: float) -> str:
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    if status is None:
        return f"the new code was not ready after {limit:g} s"
    if status == 0 and lines and lines[-1] == FIT:
        return ""
    said = [number for number, line in enumerate(lines) if line.startswith(_SAYS)]
    told = lines[said[-1] :] if said else lines[-1:]
    how = f"exit status {status}" if status >= 0 else f"signal {-status}"
    reason = " | ".join(told).removeprefix(_SAYS) or f"the process that tried it ended with {how} and said nothing"
    return printable(reason, _LONGEST_REASON)
