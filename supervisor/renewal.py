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
from collections.abc import Awaitable, Callable

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.text import printable

from .handover import Handover
from .origin import CHECK, HANDOVER, Origin
from .systemd import Notifier
from .tasks import Tasks

FIT = b"fit to follow"
"""What the process that tries the new code writes at its end. Its exit status alone says little: the code may exit."""

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
        calm: waits until no code of the application would be cut off by an end of this program.
        resume: called where nobody leaves after all.
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
        calm: Callable[[], Awaitable[None]],
        resume: Callable[[], None],
        leave: Callable[[str], None],
    ) -> None:
        self._origin = origin
        self._limit = limit
        self._spared = spared
        self._tasks = tasks
        self._log = log
        self._manager = manager
        self._preview = preview
        self._calm = calm
        self._resume = resume
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
            if not problem:
                await self._calm()
            again = self._again  # also what came while we waited is tried first
        if problem:
            self._log.emit(events.RENEWAL_REFUSED, reason=problem)
            self._manager.ready()
            self._resume()
        else:
            self._leave(why)

    async def _problem(self) -> str:
        """Why the new code cannot follow; "" if it can."""
        try:
            with contextlib.ExitStack() as files:
                return await self._try_in_a_process(files)
        except OSError as error:
            return self._origin.reason(error)

    async def _try_in_a_process(self, files: contextlib.ExitStack) -> str:
        def opened(fd: int) -> int:
            files.callback(os.close, fd)
            return fd

        handover = opened(self._preview().write())
        output = opened(os.memfd_create("cogworkerd-output", os.MFD_CLOEXEC))
        word = opened(os.memfd_create("cogworkerd-word", os.MFD_CLOEXEC))
        process = self._origin.start_beside(
            {CHECK: f"{os.getpid()} {word}", HANDOVER: str(handover)},
            stdout=output,
            stderr=output,
            pass_fds=(handover, word),
        )
        self._spared.add(process.pid)
        try:
            status = await self._status(process)
        finally:
            _end(process)
            self._spared.discard(process.pid)
        if os.pread(word, len(FIT) + 1, 0) == FIT:
            return ""
        end = os.fstat(output).st_size
        return _reason(status, os.pread(output, _MOST_OUTPUT, max(0, end - _MOST_OUTPUT)), self._limit)

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


def _reason(status: int | None, output: bytes, limit: float) -> str:
    """Why a process was not fit, in one line."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    if status is None:
        return f"the new code was not ready after {limit:g} s"
    said = [number for number, line in enumerate(lines) if line.startswith(_SAYS)]
    if said and status > 0:
        return printable(" | ".join(lines[said[-1] :]).removeprefix(_SAYS), _LONGEST_REASON)
    how = f"exit status {status}" if status >= 0 else f"signal {-status}"
    last = f": {lines[-1]}" if lines else ", and said nothing"
    return printable(f"the process that tried the new code ended with {how}{last}", _LONGEST_REASON)
