"""Settling the job that ended: with the next fetch if that may be, else alone; three tries, then the supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable

from cogworkerd.outcome import Settlement
from cogworkerd.worker.fetch import SERVER_TROUBLE, Fetcher, Found
from cogworkerd.worker.reports import Result

PAUSES = (0.1, 0.2)
"""Seconds before the second and the third try."""


class Settler:
    """Settles for one child.

    Args:
        failed: called with the error of each try that failed; worked: called after one that did not.
        sleep: how to wait between tries.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        failed: Callable[[BaseException], None],
        worked: Callable[[], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._fetcher = fetcher
        self._failed = failed
        self._worked = worked
        self._sleep = sleep

    def settle(self, done: Settlement, fetch: bool) -> tuple[Result, Found | None]:
        """Settle one job; `fetch` asks for the next one in the same step.

        A repeated try is settle alone; it fetches nothing. Once a try had an unknown outcome, "gone" means settled.

        Returns:
            What became of it (UNKNOWN: the supervisor has to do it), and what the fetch brought, or None where there
            was no fetch whose answer came.
        """
        found: Found | None = None
        for attempt in range(len(PAUSES) + 1):
            if attempt:
                self._sleep(PAUSES[attempt - 1])
            try:
                if fetch and attempt == 0:
                    result, found = self._fetcher.settle_and_look(done, time.time())
                else:
                    result = self._fetcher.settle(done, time.time())
            except SERVER_TROUBLE as error:
                self._failed(error)
                continue
            self._worked()
            repeated = attempt > 0 and result is Result.GONE
            return (Result.SETTLED if repeated else result), found
        return Result.UNKNOWN, None
