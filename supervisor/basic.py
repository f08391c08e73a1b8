"""Reconciling where no list holds what was fetched (`fetch = "basic"`): the ledger alone knows the jobs at hand."""

from __future__ import annotations

import time

from cogworkerd.outcome import Settlement
from cogworkerd.store import scripts

from .ledger import Orphan, Unsettled
from .reconciler import Reconciler


class BasicReconciler(Reconciler):
    """Settles and requeues from the ledger. There is no list, so there are no looks, no strays and nobody who could
    take the jobs over; a command whose answer was lost is repeated, since nothing tells whether it had worked."""

    async def register(self) -> bool:
        """Nothing to register.

        Returns:
            True: nobody takes over what only we know.
        """
        return True

    def _settle_call(self, done: Settlement) -> scripts.Call:
        return scripts.basic_settle(self._keys, done, time.time())

    def _unlisted(self, item: Unsettled) -> bool:
        return True

    def _unanswered(self, orphan: Orphan) -> None:
        pass

    def _requeue_call(self, orphan: Orphan, queue: str, burial: scripts.Burial, now: float) -> scripts.Call:
        return scripts.basic_requeue(self._keys, orphan.raw, queue, orphan.blame, self._max_orphanings, burial, now)

    async def _look(self) -> None:
        pass
