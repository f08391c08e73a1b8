"""Kills for the proxy and for scenarios: who the victim is, and that it is dead when the call returns."""

from __future__ import annotations

from collections.abc import Callable

from .daemon import Daemon, kill_and_wait
from .record import Happening


class DaemonHands:
    """Kills processes of the daemon under test.

    Args:
        happenings: gives the record so far.

    Attributes:
        daemon: the one under test, once it is started.
    """

    def __init__(self, happenings: Callable[[], list[Happening]]) -> None:
        self.daemon: Daemon | None = None
        self._happenings = happenings

    def kill_supervisor(self) -> bool:
        """Kill the supervisor; False: it has ended already."""
        if self.daemon is None or self.daemon.exited:
            return False
        self.daemon.kill()
        return True

    def kill_client(self, pid: int) -> bool:
        """Kill an errand, or an application that pushes."""
        kill_and_wait(pid)
        return True

    def is_supervisor(self, pid: int) -> bool:
        """Whether this is the supervisor of the daemon under test."""
        return self.daemon is not None and self.daemon.pid == pid

    def kill_child(self, pid: int | None) -> bool:
        """Kill this child; None: one that is busy, or else any."""
        busy = self._busy() if pid is None else {pid}
        children = sorted(self._children(), key=lambda child: child not in busy)
        return _kill_first([child for child in children if pid in (None, child)])

    def kill_other_child(self, pid: int) -> bool:
        """Kill a child that is not this one."""
        return _kill_first([child for child in self._children() if child != pid])

    def has_child(self) -> bool:
        """Whether there is a child to kill."""
        return bool(self._children())

    def _children(self) -> list[int]:
        return [] if self.daemon is None else [child.pid for child in self.daemon.children()]

    def _busy(self) -> set[int]:
        """Processes whose run has no end yet."""
        found: set[int] = set()
        for told in self._happenings():
            if told.what == "start":
                found.add(told.pid)
            elif told.what in ("end", "fail"):
                found.discard(told.pid)
        return found


def _kill_first(pids: list[int]) -> bool:
    if pids:
        kill_and_wait(pids[0])
    return bool(pids)
