"""One slot: fork its child, read its pipe, notice its death, wait before the next fork."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cogworkerd.worker.loop import EXIT_FAULT
from cogworkerd.worker.reports import Buffer, Report
from cogworkerd.worker.slot_page import SlotPage, run_number

from .ledger import SlotRecord
from .phase import BLOCKED

HEALTHY_LIFE = 30.0
BACKOFF_MOST = 60.0
PIPE_SIZE = 2**20
_READ = 2**18


@dataclass(frozen=True)
class ChildExit:
    """How a child ended.

    Attributes:
        code: exit status, or None if a signal ended it.
        signal: the signal's number, or None.
        rss_kb: the largest resident set that the kernel saw, in KiB.
        core: it left a core file.
    """

    pid: int
    code: int | None
    signal: int | None
    rss_kb: int
    core: bool = False

    @property
    def how(self) -> str:
        """In words."""
        if self.signal is None:
            return f"exit status {self.code}"
        try:
            return f"signal {self.signal} ({signal.Signals(self.signal).name})"
        except ValueError:
            return f"signal {self.signal}"


@dataclass(frozen=True)
class Sentence:
    """What a run is to end with.

    Attributes:
        run: its number (`slot_page.run_number`): a child that is to be killed may go on to the next job meanwhile.
        kill_at: monotonic second at which its child is killed if it has not ended; None: it is not.
    """

    run: int
    error: BaseException
    kill_at: float | None = None


class Slot:
    """One slot of the supervisor; its child changes, its number and tid stay.

    Attributes:
        page: memory that this slot's children share with the supervisor.
        pid: of the living child, or None.
        told: the child was told to leave.
        killed: why the supervisor killed the child; "" if it did not.
        sentence: what a run is to end with, since it was told to: also if its process dies of it, or is killed for
            something else.
        stack: of the child, before it was killed.
        stack_read: how much of its stack file was read, or is older than the child.
        ready: the child has said hello.
        not_before: monotonic second before which no new child is forked.
        retired: there are fewer slots now; its child is the last one.
    """

    def __init__(self, number: int, tid: str, stack_file: int | None, page: SlotPage) -> None:
        self.number = number
        self.tid = tid
        self.stack_file = stack_file
        self.page = page
        self.pid: int | None = None
        self.report_fd = -1
        self._life_fd = -1
        self.told = False
        self.killed = ""
        self.sentence: Sentence | None = None
        self.stack: Sequence[str] = ()
        self.stack_read = 0
        self.ready = False
        self.born = 0.0
        self.not_before = 0.0
        self.retired = False
        self._failures = 0
        self._buffer = Buffer()

    def state(self) -> dict[str, Any]:
        """All of it, for the program that follows in this process; of the shared memory the descriptor."""
        return {**vars(self), "page": self.page.fd}

    @classmethod
    def adopted(cls, state: Mapping[str, Any]) -> Slot:
        """A slot that an earlier program of this process has left: `state`, as that one gave it. What it did not know
        of has its first value."""
        slot = cls(state["number"], state["tid"], state["stack_file"], SlotPage(state["page"]))
        vars(slot).update({name: value for name, value in state.items() if name != "page"})
        return slot

    def close(self) -> None:
        """There will be no further child: let go of the shared memory and of the file for stacks."""
        for fd in (self.stack_file, self.page.fd):
            if fd is not None:
                os.close(fd)

    @staticmethod
    def descriptors_in(state: Mapping[str, Any]) -> set[int]:
        """The descriptors that a state names."""
        found = {state[name] for name in ("stack_file", "page", "report_fd", "_life_fd")}
        return {fd for fd in found if fd is not None and fd >= 0}

    def fork(self, live: Callable[[int, int], int], forget: Callable[[set[int]], None]) -> None:
        """Fork a child.

        Args:
            live: in the child, given the descriptor for reports and the one that ends with the supervisor; returns the
                exit status.
            forget: in the child, given the descriptors it keeps besides the shared ones; drops what is the parent's.

        Raises:
            OSError: the system refused (EAGAIN).
        """
        read, write = os.pipe()
        # A pipe of its own for each child: who is signalled at its end belongs to the pipe, not to the process.
        life_read, life_write = os.pipe()
        # Until the child has handlers of its own, a signal must wait, or it would run the parent's.
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_child(live, forget, write, life_read)
        except OSError:
            for fd in (read, write, life_read, life_write):
                os.close(fd)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        os.close(write)
        os.close(life_read)
        os.set_blocking(read, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):
                fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        self.pid, self.report_fd, self._life_fd = pid, read, life_write
        self.told, self.killed, self.ready, self.born = False, "", False, time.monotonic()
        self.sentence, self.stack = None, ()
        self.page.order(0, 0)  # one for an earlier child of the same pid means nothing
        self._buffer = Buffer()

    @staticmethod
    def _become_child(
        live: Callable[[int, int], int], forget: Callable[[set[int]], None], write: int, life: int
    ) -> None:
        status = EXIT_FAULT
        try:
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            forget({write, life})
            asyncio._set_running_loop(None)
            status = live(write, life)
        finally:
            os._exit(status)  # never back into the parent's stack

    def read(self) -> Iterator[tuple[Report, bytes]]:
        """The whole frames that the pipe holds now.

        Raises:
            ValueError: what the pipe holds is no frame.
        """
        while True:
            try:
                data = os.read(self.report_fd, _READ)
            except BlockingIOError:
                return
            if not data:
                return
            self._buffer.feed(data)
            yield from self._buffer.frames()

    @property
    def half_read(self) -> bool:
        """The rest of a frame is still to come."""
        return self._buffer.partial

    def tell(self) -> None:
        """Ask the child to finish the job at hand and leave."""
        self.told = True
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self, why: str, stack: Sequence[str] = ()) -> None:
        """End the child and the processes that its job started. Of several reasons the first one counts."""
        if not self.killed:
            self.killed, self.stack = why, stack
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self.signal(signal.SIGKILL)

    def run_of(self, record: SlotRecord) -> int:
        """The number of the run at hand. `record`: what the ledger knows of the slot."""
        return run_number(self.pid or 0, record.runs)

    def is_sentenced(self, record: SlotRecord) -> bool:
        """Whether the run at hand is the one that the sentence is for."""
        return self.sentence is not None and self.sentence.run == self.run_of(record)

    def dead(self) -> bool:
        """Whether the child has ended; it stays a zombie, so that its number is nobody else's."""
        if self.pid is None:
            return False
        if not hasattr(os, "waitid"):
            return True  # reap asks
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def reap(self) -> ChildExit | None:
        """Kill what is left of a dead child's process group, then take its exit status; None if it lives."""
        pid = self.pid
        if pid is None:
            return None
        if hasattr(os, "waitid"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        try:
            reaped, status, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:
            return ChildExit(pid, None, None, 0)
        if reaped == 0:
            return None
        code = os.waitstatus_to_exitcode(status)
        exited, signalled = (code, None) if code >= 0 else (None, -code)
        return ChildExit(pid, exited, signalled, int(usage.ru_maxrss), os.WCOREDUMP(status))

    def buried(self, now: float, planned: bool, held_a_job: bool) -> float:
        """The child is gone: close its pipe and say how long to wait before the next fork: nothing after a healthy
        life, else 1, 2, 4 ... 60 s.

        Args:
            planned: it left in order; the next one comes at once.
            held_a_job: it died in the middle of a job, which is blamed and has a limit of its own.
        """
        os.close(self.report_fd)
        os.close(self._life_fd)
        self.pid, self.report_fd, self._life_fd = None, -1, -1
        if planned or held_a_job or now - self.born >= HEALTHY_LIFE:
            self._failures = 0
            pause = 0.0
        else:
            pause = min(2.0**self._failures, BACKOFF_MOST)
            self._failures += 1
        self.not_before = now + pause
        return pause


def reap_strangers(ours: set[int]) -> None:
    """As process 1, or as a subreaper: take the exit status of processes that are not our children. Whoever they were,
    they say nothing about a slot."""
    if not hasattr(os, "waitid"):
        return
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in ours:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ended.si_pid, os.WNOHANG)
