"""What the daemon's processes share and have for themselves, asked of one process at a time: it is not cheap."""

from __future__ import annotations

from cogworkerd.process_memory import Share, share_of


class Shares:
    """The share of each process, as of its last turn."""

    def __init__(self) -> None:
        self._known: dict[int | None, Share] = {}
        self._turn = 0

    def sample(self, pids: list[int | None]) -> None:
        """Ask one of these processes (None: our own); the next one at the next call. The others are forgotten."""
        self._known = {pid: share for pid, share in self._known.items() if pid in pids}
        self._turn += 1
        pid = pids[self._turn % len(pids)]
        share = share_of(pid)
        if share is not None:
            self._known[pid] = share

    def of(self, pid: int | None) -> Share | None:
        return self._known.get(pid)

    @property
    def total_pss_kb(self) -> int | None:
        """Of all processes that were asked."""
        return sum(share.pss_kb for share in self._known.values()) if self._known else None
