"""Basic fetch: a job is popped and nothing on the server holds it until it is settled. The ledger alone knows it."""

from __future__ import annotations

import time

from cogworkerd.locks import JobLocks
from cogworkerd.outcome import SUCCESS, Settlement
from cogworkerd.store import scripts
from cogworkerd.worker.fetch import Fetcher, Found
from cogworkerd.worker.reports import Held, Result


class BasicFetcher(Fetcher):
    """Fetches for one slot where the server has no LMOVE, or where the settings ask for it."""

    def look(self) -> Found:
        """One look at all queues."""
        registration = self._page.registration
        names, queue_keys = self._order.draw()
        reply = self._channel.call(scripts.basic_fetch(self._keys, names, queue_keys))
        return self._found(reply, names, registration)

    def settle_and_look(self, done: Settlement, now: float) -> tuple[Result, Found]:
        """Settle the job that ended and look at all queues, in one round trip."""
        registration = self._page.registration
        names, queue_keys = self._order.draw()
        call = scripts.basic_settle_and_fetch(self._keys, done, now, names, queue_keys)
        reply = self._channel.call(call)
        return self._settled(reply[0], done.jid), self._found(reply[1:], names, registration)

    def wait(self, queue: str) -> Found:
        """Wait on all queues that were not paused when we last asked."""
        registration = self._page.registration
        names, queue_keys = self._order.draw()
        waited = {key: name for name, key in zip(names, queue_keys, strict=True) if name not in self._paused}
        keys = list(waited) or [self._keys.nothing]
        popped, paused = self._channel.wait_for_any(keys, self._keys.paused_queues, self._block())
        self._paused = frozenset(name.decode("utf-8", "replace") for name in paused or ())
        if popped is None:
            return Found()
        name = waited[popped[0].decode()]
        return Found(Held(name, popped[1], registration), paused=name in self._paused)

    def settle(self, done: Settlement, now: float) -> Result:
        """Settle alone, without a fetch."""
        return self._settled(self._channel.call(scripts.basic_settle(self._keys, done, now)), done.jid)

    def give_back(self, held: Held, locks: JobLocks) -> None:
        """Put a job back that was not started; only a child whose parent is dead does this."""
        burial = scripts.Burial(locks, SUCCESS)  # never made: a job that was not started is not blamed
        call = scripts.basic_requeue(self._keys, held.raw, held.queue, False, 1, burial, time.time())
        self._channel.call(call)
