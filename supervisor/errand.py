"""Errands: short-lived children for code of the application that must not run in the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from setproctitle import setproctitle

from cogworkerd import events
from cogworkerd.app import App
from cogworkerd.log import Log
from cogworkerd.worker.loop import EXIT_FAULT, run_start_hooks, run_stop_hooks

from . import descriptors
from .phase import BLOCKED
from .resolver import ResolvingLoop

_LOOK_EVERY = 0.005
_LOOK_AT_MOST_EVERY = 0.05
_MOST_TOLD = 2**16
_ALARM_AFTER = 1.0


class ErrandFailed(Exception):
    """An errand did not come to its end: it died, took too long, or could not be forked. The text says which."""


@dataclass(frozen=True)
class Means:
    """What an errand needs of its supervisor.

    Attributes:
        load: gives the app: the one that was imported before the fork, or an import in the errand.
        prepare: called first in the errand.
        inherited: descriptors that it keeps.
        tag: of the daemon, for the process listing.
    """

    load: Callable[[], App]
    prepare: Callable[[], None]
    inherited: frozenset[int]
    tag: str


@dataclass
class Errands:
    """Runs errands.

    Attributes:
        pids: of those that are under way.
    """

    loop: ResolvingLoop
    means: Means
    log: Log
    pids: set[int] = field(default_factory=set)

    async def run(self, what: str, work: Callable[[App], bytes], limit: float) -> bytes:
        """Run `work` in a child of its own.

        Args:
            what: for the process title and for errors.
            limit: seconds, after which it is killed.

        Returns:
            What `work` returned, at most 64 KiB.

        Raises:
            ErrandFailed: it did not come to its end; it may have done anything or nothing of its work.
        """
        deadline = time.monotonic() + limit
        while not self.loop.fork_is_safe:
            if time.monotonic() > deadline:
                raise ErrandFailed(f"{what}: no process could be forked within {limit:g} s")
            await asyncio.sleep(_LOOK_EVERY)
        pid, pipe = self._fork(what, work, limit)
        try:
            return await self._result(what, pid, pipe, deadline, limit)
        finally:
            os.close(pipe)
            self._end(pid)

    def _fork(self, what: str, work: Callable[[App], bytes], limit: float) -> tuple[int, int]:
        read, write = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_errand(what, work, limit, write)
        except OSError as error:
            os.close(read)
            raise ErrandFailed(f"{what}: the system refused a new process: {error}")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
            with contextlib.suppress(OSError):
                os.close(write)
        self.pids.add(pid)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        os.set_blocking(read, False)
        return pid, read

    def _become_errand(self, what: str, work: Callable[[App], bytes], limit: float, write: int) -> NoReturn:
        status, pid = EXIT_FAULT, os.getpid()
        try:
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            descriptors.forget(self.loop.selector.fileno(), set(self.means.inherited) | {write})
            asyncio._set_running_loop(None)
            signal.set_wakeup_fd(-1)
            for number in BLOCKED:
                signal.signal(number, signal.SIG_DFL)
            # Also where nobody is left to kill it.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, limit + _ALARM_AFTER)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            self.means.prepare()
            setproctitle(f"cogworkerd:errand {self.means.tag} [{what}]")
            app = self.means.load()
            if run_start_hooks(app, self.log):
                told = work(app)
                if os.getpid() != pid:
                    os._exit(0)  # a copy that the code of the app has forked
                os.write(write, told[:_MOST_TOLD])
                os.close(write)
                run_stop_hooks(app, self.log)
                status = 0
        except BaseException as error:
            with contextlib.suppress(BaseException):
                self.log.emit(events.ERRAND_FAILED, exc_info=error, errand=what, reason="it raised")
        finally:
            os._exit(status)

    async def _result(self, what: str, pid: int, pipe: int, deadline: float, limit: float) -> bytes:
        told, pause = b"", _LOOK_EVERY
        while True:
            status = _ended(pid)
            with contextlib.suppress(BlockingIOError):
                while data := os.read(pipe, _MOST_TOLD):
                    told += data
            if status is not None:
                self.pids.discard(pid)
                if status == 0:
                    return told
                raise ErrandFailed(f"{what}: {_how(status)}")
            if time.monotonic() > deadline:
                raise ErrandFailed(f"{what}: not done after {limit:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LOOK_AT_MOST_EVERY)

    def _end(self, pid: int) -> None:
        """Kill what is left of an errand and what it started."""
        if pid in self.pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self.pids.discard(pid)


def _ended(pid: int) -> int | None:
    """The exit code of a child, negative for a signal; None while it lives."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return EXIT_FAULT
    return os.waitstatus_to_exitcode(status) if reaped else None


def _how(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
