"""The end: wait for what runs, kill what is left, settle, requeue, leave the registry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from cogworkerd import events
from cogworkerd.locks import Locks
from cogworkerd.log import Log
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys

from .burial import listed_job
from .crew import Crew
from .deferred import DeferredReleases
from .ledger import Ledger
from .link import SERVER_TROUBLE, Link
from .reconciler import Reconciler
from .tasks import cancel, pause

LEAVE_TIMEOUT = 5.0
_LOOK_EVERY = 0.02
_AFTER_TOLD = 1.0
_AFTER_KILL = 2.0


async def drain(
    crew: Crew,
    deadline: float,
    stop_now: asyncio.Event,
    killing: Callable[[], None],
    interrupt: Callable[[float], Awaitable[None]],
) -> None:
    """Tell all children to leave and wait for their jobs; interrupt, then kill those that are left. No child is alive
    afterwards.

    Args:
        deadline: monotonic second at which the wait is over.
        stop_now: ends the wait at once.
        killing: called when the wait is over and some child is left.
        interrupt: tells the jobs that are left, and waits for so many seconds at most.
    """
    crew.close()
    crew.tell_all()
    waker = asyncio.create_task(crew.wake_until(lambda: not crew.alive, lambda: crew.alive))
    while crew.alive and not stop_now.is_set() and time.monotonic() < deadline:
        await pause(stop_now, min(_LOOK_EVERY, max(0.0, deadline - time.monotonic())))
    if crew.alive:
        killing()
        await interrupt(_AFTER_TOLD)
        crew.kill_all("still running at the end of the drain")
    limit = time.monotonic() + _AFTER_KILL
    while crew.alive and time.monotonic() < limit:
        await asyncio.sleep(_LOOK_EVERY)
        crew.look_for_deaths()
    await cancel({waker})


async def say_farewell(
    link: Link,
    keys: Keys,
    locks: Locks,
    identity: str,
    ledger: Ledger,
    reconciler: Reconciler,
    deferred: DeferredReleases,
    in_order: bool,
    log: Log,
) -> None:
    """Settle what is left, requeue the rest, leave the registry. With the server away: for 5 s, no more; what stays
    listed is recovered by others.

    Args:
        in_order: every child left as asked, so that no fetch of theirs can take effect late.
    """
    requeued: int | str = 0
    kept: int | str = "unknown"
    try:
        async with asyncio.timeout(LEAVE_TIMEOUT):
            await reconciler.reconcile()
            await reconciler.park()
            await deferred.retry()
            forget = in_order and not reconciler.unclear
            requeued, kept = await _leave(link, keys, locks, identity, ledger, forget)
    except SERVER_TROUBLE as error:
        link.failed("farewell", error)
    log.emit(events.DAEMON_STOPPED, requeued=requeued, kept=kept)


async def _leave(link: Link, keys: Keys, locks: Locks, identity: str, ledger: Ledger, forget: bool) -> tuple[int, int]:
    """The last script.

    Returns:
        How many jobs were requeued, and how many are left on the list.
    """
    acks = [item.raw for item in ledger.unsettled if not item.outcome.files]
    unsettled = {item.raw for item in ledger.unsettled}
    listed = await link.redis.lrange(keys.inprogress(identity), 0, -1)
    jobs = [listed_job(raw, locks) for raw in listed if raw not in unsettled]
    requeued, left = await link.call(scripts.farewell(keys, identity, acks, jobs, forget))
    return int(requeued), int(left)
