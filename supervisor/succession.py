"""One program of a supervisor's process follows another: what is handed over, and what is taken over."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable

import cogworkerd
from cogworkerd import events

from .handover import Handover, bound_to, pickled
from .origin import Origin
from .parts import Director, Parts
from .plan import Plan
from .renewal import Renewal
from .systemd import Notifier
from .tasks import Tasks

REST_WITHIN = 5.0
"""Seconds within which what is under way comes to its end before one program follows another."""

_REST_LOOK = 0.02


class Succession:
    """Hands over, and takes over.

    Args:
        leave: called once new code was found fit to follow.
    """

    def __init__(
        self,
        plan: Plan,
        parts: Parts,
        director: Director,
        tasks: Tasks,
        manager: Notifier,
        leave: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._parts = parts
        self._director = director
        self._tasks = tasks
        self._manager = manager
        self._leave = leave
        self._asked_by = ""
        self._adopted: set[int] = set()  # slots whose children run the code of the program before us
        origin = plan.origin if parts.page.fd is not None and not plan.ward else None
        self._renewal = self._make_renewal(origin) if origin is not None else None

    def _make_renewal(self, origin: Origin) -> Renewal:
        return Renewal(
            origin,
            self._plan.settings.boot_timeout,
            self._parts.tries,
            self._tasks,
            self._plan.log,
            self._manager,
            self.handover,
            self._until_errands_are_done,
            self._parts.hooks.release,
            self._new_code_is_fit,
        )

    def begin(self, why: str) -> bool:
        """Try new code, and leave for it. `why`: the signal or order that asks for it. False: this system cannot hand
        a supervisor over."""
        if self._renewal is None:
            return False
        self._renewal.begin(why)
        return True

    def cancel(self) -> None:
        """Try no more."""
        if self._renewal is not None:
            self._renewal.cancel()

    def _new_code_is_fit(self, why: str) -> None:
        self._asked_by = why
        self._leave()

    def take_over(self, before: Handover) -> None:
        """Go on where the program before us has left off."""
        parts = self._parts
        parts.reconciler.look, parts.reconciler.unclear = before.look, before.unclear
        parts.lock_keeper.retake = before.retake
        parts.deferred.restore(before.deferred)
        parts.recorder.recording.restore(before.waiting)
        parts.hooks.restore(before.hooks, before.uncounted)
        parts.ticker.restore(before.slots_done)
        parts.interruptions.go_on(before.clocks)
        parts.crew.adopt()
        parts.crew.left_in_order = before.in_order and parts.crew.left_in_order
        self._adopted = {slot.number for slot in parts.crew.alive}
        self._manager.release_watchdog()
        self._manager.ready()
        self._plan.log.emit(
            events.RENEWAL_DONE,
            version=cogworkerd.__version__,
            python=platform.python_version(),
            slots=self._plan.concurrency,
            adopted=len(self._adopted),
        )

    def replace_children(self, before: Handover) -> None:
        """The children that were taken over run the old code."""
        self._parts.crew.retire()
        if not self._plan.broken:
            self._parts.roll.begin(before.why, as_reload=False, only=self._adopted)

    async def _until_errands_are_done(self) -> None:
        """Wait for code of the application that would be cut off. No death hook is begun any more; pushes of client
        middleware take as long as they take, within reason."""
        await self._parts.hooks.hold()
        limit = time.monotonic() + REST_WITHIN
        while self._parts.errands.pids and time.monotonic() < limit:
            await asyncio.sleep(_REST_LOOK)

    def handover(self) -> Handover:
        """What a program that follows now is to know. It leaves everything as it is."""
        parts, registry = self._parts, self._director.registry
        parts.crew.read_all()
        assert parts.page.fd is not None
        return Handover(
            identity=parts.identity,
            started_at=parts.started_at,
            bound=bound_to(self._plan.settings),
            app_settings=pickled(self._plan.app_settings),
            page=parts.page.fd,
            life=parts.life.fd,
            slots=[slot.state() for slot in parts.crew.slots],
            ledger=parts.ledger,
            reliable=parts.reliable,
            look=parts.reconciler.look,
            unclear=parts.reconciler.unclear,
            in_order=parts.crew.left_in_order,
            retake=parts.lock_keeper.retake,
            deferred=parts.deferred.waiting,
            hooks=parts.hooks.waiting,
            uncounted=parts.hooks.uncounted,
            slots_done=parts.ticker.done,
            clocks=parts.interruptions.clocks,
            waiting=parts.recorder.recording.waiting,
            private=self._plan.private,
            ward=parts.ward.pid if parts.ward is not None else None,
            registry=registry.encode() if registry is not None else None,
            why=self._asked_by,
        )
