"""A child's signals: what each does, the wait that they end, and putting back what a job changed."""

from __future__ import annotations

# The C module below `signal`: its getsignal and pthread_sigmask make no enums, which cost 60 us a job.
import _signal  # type: ignore[import-not-found]
import contextlib
import faulthandler
import fcntl
import os
import select
import signal
from collections.abc import Callable
from types import FrameType

from cogworkerd.worker.page import ORPHAN_LIMIT, Page, clock

# Signals that mean something to the supervisor only. A handler that does nothing, rather than SIG_IGN: a program that
# a job starts gets the default action back.
_NOT_FOR_CHILDREN = ("SIGINT", "SIGHUP", "SIGTSTP", "SIGTTIN", "SIGCONT")


class ChildSignals:
    """Installed once, right after the fork.

    Args:
        parent: pid of the supervisor.
        life: read end of a pipe that nobody writes to; it ends when the supervisor is gone.
        page: the shared page.
        shutdown_timeout: seconds that an orphaned child has for the job at hand.
        stack_file: descriptor for the Python stack that SIGUSR1 asks for, or None.

    Attributes:
        stopping: its one element is true once the child was told to leave, or its parent is gone.
        obey: called, in the main thread, when there is an order for the run at hand; it may raise into the job.
    """

    def __init__(self, parent: int, life: int, page: Page, shutdown_timeout: float, stack_file: int | None) -> None:
        self.stopping = [False]
        self._parent = parent
        self._life = life
        self._page = page
        self._shutdown_timeout = shutdown_timeout
        self._stack_file = stack_file
        self._pid = os.getpid()
        self._life_ended = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._poll.register(self._life, select.POLLIN)
        self._handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            getattr(signal, name): self._nothing for name in _NOT_FOR_CHILDREN
        }
        self._handlers[signal.SIGTERM] = self._on_term
        self._handlers[signal.SIGUSR2] = self._on_order
        self.obey: Callable[[], None] = lambda: None
        self._stack_marker = self._nothing

    def install(self) -> None:
        """Set the handlers, then let signals in."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._register_stack()
        if self._stack_file is not None:
            faulthandler.enable(file=self._stack_file, all_threads=True)
        os.register_at_fork(after_in_child=self._in_a_jobs_fork)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def follow_parent_by_pipe(self) -> None:
        """Where the kernel does not signal the parent's death: be signalled when the pipe of its life ends."""
        self._handlers[signal.SIGIO] = self._on_end_of_life
        signal.signal(signal.SIGIO, self._handlers[signal.SIGIO])
        fcntl.fcntl(self._life, fcntl.F_SETOWN, self._pid)
        flags = fcntl.fcntl(self._life, fcntl.F_GETFL)
        fcntl.fcntl(self._life, fcntl.F_SETFL, flags | os.O_ASYNC)

    @property
    def orphaned(self) -> bool:
        """The supervisor is gone."""
        return self._life_ended or os.getppid() != self._parent

    def wait(self, seconds: float) -> None:
        """Sleep until a signal comes, the parent dies, or the time is over."""
        if self.orphaned:
            self.stopping[0] = True
            return
        for fd, _ in self._poll.poll(seconds * 1000):
            if fd == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._wake_read, 512):
                        pass

    def restore(self) -> None:
        """Put back what a job may have changed: handlers, mask, timer, wake-up descriptor, the stack's signal."""
        for number, handler in self._handlers.items():
            if _signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        if _signal.getsignal(signal.SIGCHLD) != signal.SIG_DFL:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if _signal.getsignal(signal.SIGALRM) != signal.SIG_DFL and not self.orphaned:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if _signal.getsignal(signal.SIGUSR1) is not self._stack_marker:
            self._register_stack()
        if signal.getitimer(signal.ITIMER_REAL)[0] and not self.orphaned:
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        if _signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _register_stack(self) -> None:
        # faulthandler sets its handler below Python's knowledge; the marker, which Python knows, shows later whether a
        # job has put something in its place.
        faulthandler.unregister(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, self._stack_marker)
        if self._stack_file is not None:
            faulthandler.register(signal.SIGUSR1, file=self._stack_file, all_threads=True, chain=False)

    def _nothing(self, number: int, frame: FrameType | None) -> None:
        pass

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self.stopping[0] = True
        if self.orphaned:
            self._arm_hard_exit()

    def _on_order(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self.obey()

    def _on_end_of_life(self, number: int, frame: FrameType | None) -> None:
        # A process that dies closes its descriptors before its children get another parent, and this signal comes
        # once: the end of the pipe tells, not the parent's pid.
        ended = select.poll()
        ended.register(self._life, select.POLLIN)
        if ended.poll(0):
            self._life_ended = True
            self._on_term(number, frame)

    def _arm_hard_exit(self) -> None:
        """End this process, by the kernel's hand, before anybody may take its job over."""
        remaining = min(self._shutdown_timeout, self._page.last_beat + ORPHAN_LIMIT - clock())
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(remaining, 0.001))

    def _in_a_jobs_fork(self) -> None:
        """A process that a job forks must die of the signals that others die of: multiprocessing ends its by TERM."""
        if os.getppid() == self._pid:
            if self._stack_file is not None:  # it is the child's, and says how the child died
                faulthandler.disable()
                faulthandler.unregister(signal.SIGUSR1)
            signal.set_wakeup_fd(-1)
            for number in self._handlers:
                signal.signal(number, signal.SIG_DFL)
