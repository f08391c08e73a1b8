"""The ticker: each periodic entry is watched by a coroutine that wakes at its instants and fires its slots.

No daemon leads: every one tries each slot, and the script that claims it lets one through.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import redis.exceptions

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.periodic import Entry
from cogworkerd.store import scripts
from cogworkerd.store.keys import PERIODIC_LIVE_WITHIN, Keys
from cogworkerd.store.outages import Trouble

from .cron_push import Answer, CronPush, Fired
from .errand import ErrandFailed
from .link import SERVER_TROUBLE, Link
from .tasks import Tasks

GRACE = 15.0
"""Seconds for which a slot is tried that a run of its entry, a unique lock or a middleware keeps from being fired."""

TRY_EVERY = 0.5
PUBLISH_EVERY = 60.0
_FIRST_BACKOFF, _LONGEST_BACKOFF, _DOUBLINGS = 5.0, 300.0, 10
_LONGEST_SLEEP = 10.0  # a clock that was set is noticed within this
_FORGET_LIVE_AFTER = 604_800
_AT_ONCE = 4
_MOST_COUNTED = 1000  # each costs a tenth of a millisecond of the supervisor's loop
_HELD_UP = (Answer.BLOCKED, Answer.DUPLICATE, Answer.SWALLOWED, Answer.ELSEWHERE)


@dataclass
class _Watch:
    """One entry.

    Attributes:
        done: the newest slot that is done with, as far as we know; None: the server was not asked yet.
        slot: the one at hand.
        began: when we first tried the slot at hand.
        unanswered: the slot that was asked for last, and when, while its answer is not there.
        failures: in a row.
    """

    entry: Entry
    done: int | None = None
    slot: int = 0
    began: float = 0.0
    unanswered: tuple[int, float] | None = None
    failures: int = 0


class Ticker:
    """Ticks for one supervisor.

    Args:
        running: tells whether the daemon runs; quiet, it does not tick.
        prune: forget published entries that no live daemon declares.
    """

    def __init__(
        self, link: Link, keys: Keys, push: CronPush, log: Log, tasks: Tasks, running: Callable[[], bool], prune: bool
    ) -> None:
        self._link = link
        self._keys = keys
        self._push = push
        self._log = log
        self._tasks = tasks
        self._running = running
        self._prune = prune
        self._entries: list[Entry] = []
        self._watching: list[asyncio.Task[None]] = []
        self._watches: list[_Watch] = []
        self._done: dict[str, int] = {}
        self._open = asyncio.Event()
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    @property
    def done(self) -> dict[str, int]:
        """The newest slot that is done with, for each entry that is looked after."""
        return {watch.entry.pjid: watch.done for watch in self._watches if watch.done is not None}

    def restore(self, done: Mapping[str, int]) -> None:
        """Go on where another program of this process was: no time has passed that a policy could let go."""
        self._done.update(done)
        if done:
            self.open()

    def open(self) -> None:
        """The first recovery pass that really looked is over: jobs of dead daemons have their locks again."""
        self._open.set()

    def begin(self, entries: list[Entry]) -> None:
        """Publish entries and watch each of them, and no others any more."""
        self._entries = entries
        for task in self._watching:
            task.cancel()
        self._done.update(self.done)
        self._watches = []
        self._watching = [self._tasks.spawn(self._keep(entry), f"periodic {entry.job}") for entry in entries]
        if entries:
            self._watching.append(self._tasks.spawn(self._publish_for_ever(), "periodic schedule"))

    # ---- what is published ------------------------------------------------------------------------------

    async def _publish_for_ever(self) -> NoReturn:
        while True:
            try:
                await self.publish()
            except SERVER_TROUBLE as error:
                self._link.failed("periodic schedule", error)
                await asyncio.sleep(1.0)
                continue
            self._link.worked("periodic schedule")
            await asyncio.sleep(PUBLISH_EVERY)

    async def publish(self) -> None:
        """Write the entries for every program to see, and stamp them as declared by a live daemon."""
        keys = self._keys
        now = int((await self._link.redis.time())[0])
        async with self._link.redis.pipeline(transaction=False) as pipe:
            pipe.hset(keys.periodic_schedule, mapping={entry.pjid: entry.published() for entry in self._entries})
            pipe.zadd(keys.periodic_live, {entry.pjid: now for entry in self._entries})
            pipe.zremrangebyscore(keys.periodic_live, "-inf", now - _FORGET_LIVE_AFTER)
            await pipe.execute()
        if self._prune:
            await self._forget_ghosts(now)

    async def _forget_ghosts(self, now: int) -> None:
        """Entries that were published once and that no live daemon declares any more."""
        keys = self._keys
        published = set(await self._link.redis.hkeys(keys.periodic_schedule))
        live = await self._link.redis.zrangebyscore(keys.periodic_live, now - PERIODIC_LIVE_WITHIN, "+inf")
        for raw in published - set(live):
            pjid = raw.decode("utf-8", "replace")
            async with self._link.redis.pipeline(transaction=True) as pipe:
                pipe.hdel(keys.periodic_schedule, raw)
                pipe.srem(keys.periodic_disabled, raw)
                pipe.zrem(keys.periodic_live, raw)
                pipe.delete(keys.periodic_last_slot(pjid), keys.periodic_seen(pjid), keys.periodic_fired(pjid))
                await pipe.execute()
            self._log.emit(events.CRON_FORGOTTEN, pjid=pjid)

    # ---- one entry --------------------------------------------------------------------------------------

    async def _keep(self, entry: Entry) -> NoReturn:
        await self._open.wait()
        watch = _Watch(entry, done=self._done.get(entry.pjid))
        self._watches.append(watch)
        while True:
            try:
                pause = await self._turn(watch)
            except Exception as error:  # no entry may stop the others, whatever it is
                pause = self._back_off(watch, f"{type(error).__name__}: {error}")
            await asyncio.sleep(pause)

    async def _turn(self, watch: _Watch) -> float:
        now = time.time()
        if watch.done is None:
            try:
                watch.done = await self.first_done(watch.entry, now)
            except SERVER_TROUBLE as error:
                self._link.failed("periodic slots", error)
                return TRY_EVERY
        slot = self._due(watch, now)
        if slot is None:
            return self._until_next(watch, now)
        return await self.attend(watch, slot) if self._running() else TRY_EVERY

    async def first_done(self, entry: Entry, now: float) -> int:
        """The newest slot that is done with at the start: what the server remembers, or what the policy lets go.

        Raises:
            RedisError, OSError: the server's trouble.
        """
        keys = self._keys
        stored = await self._link.redis.mget(keys.periodic_last_slot(entry.pjid), keys.periodic_seen(entry.pjid))
        remembered = [int(value) for value in stored if value is not None and value.isdigit()]
        self._link.worked("periodic slots")
        latest = _latest_due(entry, now)
        if latest is None:
            return int(now)
        if remembered and entry.catch_up != "none":
            return max(remembered)
        if not remembered and entry.catch_up == "first":
            return latest - 1
        done = max(latest, *remembered) if remembered else latest
        await self._pass(entry, done)
        return done

    def _due(self, watch: _Watch, now: float) -> int | None:
        """The newest slot whose instant has come and that is not done with. Older ones are let go."""
        slot = _latest_due(watch.entry, now)
        return slot if slot is not None and slot > (watch.done or 0) else None

    def _until_next(self, watch: _Watch, now: float) -> float:
        entry = watch.entry
        slot = entry.schedule.next_after(watch.done or now)
        while entry.instant(slot) <= now:
            slot = entry.schedule.next_after(max(slot, now))
        return min(entry.instant(slot) - now, _LONGEST_SLEEP)

    async def attend(self, watch: _Watch, slot: int) -> float:
        """Try one slot.

        Returns:
            Seconds until the entry wants to be looked at again.
        """
        now = time.time()
        if slot != watch.slot:
            watch.slot, watch.began = slot, now
        entry = watch.entry
        try:
            if watch.unanswered is not None:
                await self._clear_up(watch, *watch.unanswered)
                if watch.done is not None and watch.done >= slot:
                    return 0.0
            if entry.catch_up == "none" and now - entry.instant(slot) > GRACE:
                return await self._let_go(watch, slot, "it is past, and catch_up is none")
            async with self._at_once:
                watch.unanswered = (slot, time.time())
                fired = await self._push.fire(entry, slot)
        except SERVER_TROUBLE as error:
            if self._link.failed(f"periodic {entry.job}", error) is not Trouble.OTHER:
                return TRY_EVERY
            return self._back_off(watch, str(error))
        except ErrandFailed as error:
            return self._back_off(watch, str(error))
        return await self._take(watch, slot, fired, time.time())

    async def _clear_up(self, watch: _Watch, slot: int, asked_at: float) -> None:
        """A slot whose answer was lost may have been fired; then it is told after all."""
        last = await self._push.fired_last(watch.entry)
        if last is not None and last[0] == slot:
            await self._take(watch, slot, last[1], asked_at)
        watch.unanswered = None

    async def _take(self, watch: _Watch, slot: int, fired: Fired, at: float) -> float:
        """Do what an answer asks for. `at`: when the slot was fired, as far as we know.

        Returns:
            As `attend`.
        """
        answer = fired.answer
        if answer is Answer.UNSENT:
            kind = redis.exceptions.AuthorizationError if fired.refused else redis.exceptions.ConnectionError
            self._link.failed(f"periodic {watch.entry.job}", kind(fired.reason))
            return TRY_EVERY
        self._link.worked(f"periodic {watch.entry.job}")
        watch.unanswered = None
        if answer is Answer.FAILED:
            return self._back_off(watch, fired.reason)
        watch.failures = 0
        if answer in _HELD_UP:
            if time.time() - watch.began < GRACE:
                return TRY_EVERY
            return await self._let_go(watch, slot, answer.value)
        if answer is Answer.DISABLED:
            return await self._let_go(watch, slot, "")
        if answer is Answer.FIRED:
            self._tell_missed(watch, slot, fired.previous)
            late = round(max(0.0, at - watch.entry.instant(slot)), 3)
            self._log.emit(
                events.CRON_FIRED,
                pjid=watch.entry.pjid,
                job=watch.entry.job,
                cron=watch.entry.cron,
                slot=slot,
                jid=fired.jid,
                late=late,
            )
        watch.done = slot
        return 0.0

    async def _let_go(self, watch: _Watch, slot: int, reason: str) -> float:
        """A slot is not fired, and nobody is to catch it up."""
        try:
            await self._pass(watch.entry, slot)
        except SERVER_TROUBLE as error:
            self._link.failed("periodic slots", error)
            return TRY_EVERY
        watch.done = slot
        if reason:
            self._log.emit(
                events.CRON_SKIPPED,
                pjid=watch.entry.pjid,
                job=watch.entry.job,
                cron=watch.entry.cron,
                slot=slot,
                reason=reason,
            )
        return 0.0

    async def _pass(self, entry: Entry, slot: int) -> None:
        await self._link.call(scripts.pass_slot(self._keys, self._push.slot(entry, slot)))

    def _back_off(self, watch: _Watch, reason: str) -> float:
        pause = min(_FIRST_BACKOFF * 2.0 ** min(watch.failures, _DOUBLINGS), _LONGEST_BACKOFF)
        watch.failures += 1
        entry = watch.entry
        self._log.emit(
            events.CRON_FAILED,
            pjid=entry.pjid,
            job=entry.job,
            cron=entry.cron,
            slot=watch.slot,
            reason=reason,
            retry_in=pause,
        )
        return pause

    def _tell_missed(self, watch: _Watch, slot: int, previous: int) -> None:
        """Slots between the one that was fired before and this one, but for those that were told as skipped."""
        missed = watch.entry.schedule.count(max(watch.done or 0, previous), slot, _MOST_COUNTED) - 1
        if missed > 0:
            self._log.emit(
                events.CRON_MISSED,
                pjid=watch.entry.pjid,
                job=watch.entry.job,
                cron=watch.entry.cron,
                slot=slot,
                count=missed,
            )


def _latest_due(entry: Entry, now: float) -> int | None:
    """The newest slot whose instant has come."""
    slot = entry.schedule.latest(now)
    while slot is not None and entry.instant(slot) > now:
        slot = entry.schedule.latest(slot - 1)
    return slot
