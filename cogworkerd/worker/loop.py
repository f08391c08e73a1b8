"""The life of a child: hello, then fetch, report, perform, report, settle, report, until it is told to leave."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis.exceptions

from cogworkerd import events
from cogworkerd.log import tell_outage
from cogworkerd.outcome import Kind, Settlement
from cogworkerd.recording import Recording
from cogworkerd.store.keys import Keys
from cogworkerd.store.outages import Outage, Trouble, classify
from cogworkerd.worker import reports
from cogworkerd.worker.basic_fetch import BasicFetcher
from cogworkerd.worker.channel import Channel
from cogworkerd.worker.copies import ForkedCopies
from cogworkerd.worker.cursor import Cursor
from cogworkerd.worker.death_hooks import Death, call_death_hooks
from cogworkerd.worker.fetch import SERVER_TROUBLE, Fetcher, Found
from cogworkerd.worker.page import Page, clock
from cogworkerd.worker.perform import Copy, Performer
from cogworkerd.worker.recycling import Recycling
from cogworkerd.worker.reports import Deaf, Held, Report, Reporter, Result
from cogworkerd.worker.settle import Settler
from cogworkerd.worker.signals import ChildSignals
from cogworkerd.worker.slot_page import SlotPage
from cogworkerd.worker.title import SlotTitle

if TYPE_CHECKING:
    from cogworkerd.app import App
    from cogworkerd.log import Log
    from cogworkerd.settings import Settings
    from cogworkerd.store.connection import Server

EXIT_LEFT = 0
EXIT_FAULT = 70
EXIT_BOOT = 75
EXIT_IMPORT = 78

STOP_HOOKS_TIME = 2.0
_STALE_AFTER = 1.0
_AWAY_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
_REFUSING_PAUSES = (1.0, 2.0, 4.0, 8.0, 10.0)
_QUIET_LOOK = 1.0
_EXPENDABLE = 200
_UNREGISTERED_PAUSE = 0.5


@dataclass(frozen=True)
class Setup:
    """What the supervisor hands to a child across the fork.

    Attributes:
        load: gives the app: the one imported before the fork, or an import in this child.
        registry: what READY carries: empty, or a description of the app that this child imported.
        life: read end of a pipe that ends with the supervisor.
        stack_file: descriptor for stacks on demand, or None.
        slot_page: what this slot shares with the supervisor.
        reliable: a fetched job stays listed until it is settled.
        parent_signals_death: the kernel sends SIGTERM when the supervisor dies.
    """

    load: Callable[[], App]
    registry: Callable[[App], bytes]
    settings: Settings
    server: Server
    queues: tuple[tuple[str, int], ...] | None
    identity: str
    slot: int
    tag: str
    parent: int
    page: Page
    report_fd: int
    life: int
    stack_file: int | None
    slot_page: SlotPage
    reliable: bool
    parent_signals_death: bool
    log: Log


def run(setup: Setup) -> int:
    """Live as a child.

    Returns:
        The exit status: 0 left in order; others tell the supervisor why not.
    """
    title = SlotTitle(setup.slot, setup.tag)
    title.show("starting")
    _be_expendable()
    child_signals = ChildSignals(
        setup.parent, setup.life, setup.page, setup.settings.shutdown_timeout, setup.stack_file
    )
    child_signals.install()
    if not setup.parent_signals_death:
        child_signals.follow_parent_by_pipe()
    if child_signals.orphaned:
        return EXIT_LEFT
    try:
        app = setup.load()
    except BaseException as error:
        setup.log.emit(events.CHILD_BOOT_FAILED, exc_info=error, slot=setup.slot, reason="the import of the app failed")
        return EXIT_IMPORT
    if not run_start_hooks(app, setup.log):
        return EXIT_BOOT
    return Child(app, setup, child_signals, title).live()


def _be_expendable() -> None:
    """Of the daemon's processes the kernel is to choose a child when memory is short, never the supervisor."""
    with contextlib.suppress(OSError, ValueError):
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(int(score.read_text()) + _EXPENDABLE, 1000)))


def run_start_hooks(app: App, log: Log) -> bool:
    """Call what the app wants to be called first in each child.

    Returns:
        False: one has raised, and was logged.
    """
    for hook in app.start_hooks:
        try:
            hook()
        except BaseException as error:
            log.emit(events.CHILD_HOOK_FAILED, exc_info=error, hook=f"on_child_start {_name(hook)}")
            return False
    return True


def _name(hook: Any) -> str:
    return getattr(hook, "__qualname__", repr(hook))


class Child:
    """One slot's process."""

    def __init__(self, app: App, setup: Setup, child_signals: ChildSignals, title: SlotTitle) -> None:
        self._app = app
        self._setup = setup
        self._signals = child_signals
        self._title = title
        self._page = setup.page
        self._log = setup.log
        self._reporter = Reporter(setup.report_fd)
        self._outbox = b""
        self._copies = ForkedCopies()
        keys = Keys(setup.settings.namespace)
        self._locks = setup.settings.locks(keys)
        self._channel = Channel(setup.server, f"cogworkerd-slot-{setup.slot}", self._connected)
        settings = setup.settings
        fetcher = Fetcher if setup.reliable else BasicFetcher
        self._fetcher = fetcher(
            self._channel,
            keys,
            setup.identity,
            setup.page,
            setup.queues or tuple((queue, 1) for queue in app.queues),
            settings.strict_order,
            setup.slot,
            settings.fetch_idle_max_interval,
        )
        self._fetching = Outage(tell_outage(setup.log, f"slot-{setup.slot} fetch"))
        self._settling = Outage(tell_outage(setup.log, f"slot-{setup.slot} settle"))
        self._settler = Settler(self._fetcher, self._settling_failed, self._settling.worked, self._signals.wait)
        self._performer = Performer(
            app,
            settings,
            self._locks,
            setup.log,
            setup.slot_page,
            lambda jid: Cursor(self._channel, keys, jid),
            child_signals.stopping,
            title.show,
        )
        child_signals.obey = self._performer.obey
        self._recording = Recording(keys, settings)
        self._recycling = Recycling(settings)
        self._shown_idle = False
        self._wait_failed = False

    def live(self) -> int:
        """Say hello, work until told to leave, run the stop hooks."""
        try:
            self._send(reports.frame(Report.READY, self._setup.registry(self._app)))
            self._work()
        except Deaf:
            pass
        except Copy:
            self._leave_as_a_copy()
        self._leave()
        return EXIT_LEFT

    @property
    def _leaving(self) -> bool:
        return (
            self._signals.stopping[0] or self._reporter.deaf or self._signals.orphaned or bool(self._recycling.reason)
        )

    def _may_fetch(self) -> bool:
        return not self._leaving and self._page.may_fetch(clock())

    def _work(self) -> None:
        found: Found | None = None
        while True:
            held = self._start(found)
            if held is not None:
                found = self._settle(self._perform(held), held)
            elif self._leaving:
                return
            else:
                found = self._fetch()

    def _start(self, found: Found | None) -> Held | None:
        """Report STARTED for a fetched job, or give it back: it came after an order to stop or be quiet, or from a
        queue that is paused."""
        if found is None or found.held is None:
            return None
        held = found.held
        if self._leaving or self._page.quiet or found.paused:
            self._return(held)
            return None
        self._send(reports.with_job(Report.STARTED, held.queue, held.raw))
        self._shown_idle = False
        return held

    def _return(self, held: Held) -> None:
        if self._signals.orphaned:
            with contextlib.suppress(*SERVER_TROUBLE):
                self._fetcher.give_back(held, self._locks.of_bytes(held.raw, held.queue))
        else:
            self._send(reports.with_job(Report.RETURNED, held.queue, held.raw))

    def _perform(self, held: Held) -> Settlement:
        began = time.monotonic()
        done = self._performer.perform(held)
        self._signals.restore()
        self._copies.reap()
        with contextlib.suppress(Deaf):  # nobody to tell: settle all the same
            if self._performer.record is not None:
                self._queue(reports.run(self._performer.record))
            self._send(reports.frame(Report.PERFORMED, done.outcome.encode()))
        if time.monotonic() - began > _STALE_AFTER:
            self._channel.drop_if_stale()
        self._recycling.performed()
        if self._recycling.reason:
            self._log.emit(events.CHILD_RECYCLED, slot=self._setup.slot, reason=self._recycling.reason)
        return done

    def _settle(self, done: Settlement, held: Held) -> Found | None:
        death = self._performer.death
        # Nothing is fetched that would have to wait for hooks.
        fetch = self._may_fetch() and death is None
        result, found = self._settler.settle(done, fetch)
        if result is Result.GONE and self._page.registration != held.registration:
            result = Result.TAKEN
        if death is not None and result is Result.SETTLED:
            self._call_death_hooks(death)
        self._queue(reports.finished(result))
        if self._fetcher.unreleased:
            self._queue(reports.unreleased(self._fetcher.unreleased))
            self._fetcher.unreleased = []
        if self._reporter.deaf:
            self._write_record()
        cursor = self._performer.cursor
        if cursor is not None and cursor.used and result is Result.SETTLED and done.outcome.kind is Kind.SUCCESS:
            cursor.forget()
        if found is None or found.held is None:
            self._note_nothing_found(found)
        return found

    def _write_record(self) -> None:
        """Nobody is left who would write it down."""
        record = self._performer.record
        if record is not None:
            self._recording.add(record)
            with contextlib.suppress(*SERVER_TROUBLE):
                while (batch := self._recording.take(time.time())) is not None:
                    self._channel.call(batch.call)

    def _call_death_hooks(self, death: Death) -> None:
        with contextlib.suppress(Deaf):
            self._send(reports.death_hook())
        call_death_hooks(self._app, death, self._log, self._performer.leave_if_copied)
        self._signals.restore()

    def _note_nothing_found(self, found: Found | None) -> None:
        """IDLE follows every fetch that brought no job, also one whose answer never came."""
        with contextlib.suppress(Deaf):
            self._report_idle("")
        if found is not None:
            self._consider(found)

    def _fetch(self) -> Found | None:
        """One turn of the search for a job: a look at all queues, then a wait on one of them."""
        self._copies.reap()
        if not self._may_fetch():
            self._wait_for_permission()
            return None
        try:
            found = self._fetcher.look()
            if found.held is None and self._consider(found):
                if not self._wait_failed:
                    self._fetch_worked()  # said before the wait, which may be long
                found = self._wait()
        except SERVER_TROUBLE as error:
            if self._wait_failed and not isinstance(error, redis.exceptions.ResponseError):
                self._queue(reports.unanswered())
            self._report_idle("")
            self._fetching_failed(error)
            return None
        if found.held is None:
            self._report_idle("")
        else:
            self._fetch_worked()
        return found

    def _wait(self) -> Found:
        queue = self._fetcher.next_wait()
        self._report_idle(queue)
        if not self._may_fetch():
            return Found()
        self._wait_failed = True
        found = self._fetcher.wait(queue)
        self._wait_failed = False
        self._fetch_worked()
        return found

    def _fetch_worked(self) -> None:
        """The server takes our writes: that ends an outage of the settlements, too, which the supervisor makes now."""
        self._fetching.worked()
        self._settling.worked()

    def _consider(self, found: Found) -> bool:
        """Whether it makes sense to wait for a job now."""
        if found.unregistered:
            self._signals.wait(_UNREGISTERED_PAUSE)
            return False
        if found.problem:
            self._fetching_failed(redis.exceptions.ResponseError(found.problem))
            return False
        return True

    def _wait_for_permission(self) -> None:
        self._report_idle("")
        if not self._leaving:
            self._signals.wait(_QUIET_LOOK)

    def _report_idle(self, queue: str) -> None:
        self._send(reports.idle(queue))
        if not self._shown_idle:
            self._title.show("idle")
            self._shown_idle = True

    def _queue(self, data: bytes) -> None:
        """A report that travels with the next one, in one write."""
        self._outbox += data

    def _send(self, data: bytes) -> None:
        outbox, self._outbox = self._outbox, b""
        self._reporter.send(outbox + data)

    def _connected(self, client_id: int) -> None:
        with contextlib.suppress(Deaf):
            self._send(reports.connected(client_id))

    def _fetching_failed(self, error: BaseException) -> None:
        trouble = classify(error)
        if trouble is Trouble.OTHER:
            self._fetch_refused(str(error))
            return
        if trouble is Trouble.REFUSING:
            self._send(reports.trouble(str(error)))
        else:
            self._channel.leave()  # a primary that turned read-only under us would refuse for ever
        pauses = _REFUSING_PAUSES if trouble is Trouble.REFUSING else _AWAY_PAUSES
        pause = pauses[min(self._fetching.count, len(pauses) - 1)]
        self._fetching.failed(error)
        self._signals.wait(pause * random.uniform(0.8, 1.2))

    def _fetch_refused(self, sentence: str) -> None:
        """The supervisor may know a way out: a key of the wrong type is moved, a missing command is not used."""
        self._log.emit(events.REDIS_ERROR, site="fetch", error=sentence)
        self._send(reports.trouble(sentence))
        self._signals.wait(1.0)

    def _settling_failed(self, error: BaseException) -> None:
        trouble = classify(error)
        if trouble is Trouble.OTHER:
            self._log.emit(events.REDIS_ERROR, site="settle", error=str(error))
            return
        self._settling.failed(error)
        if trouble is Trouble.AWAY:
            self._channel.leave()

    def _leave(self) -> None:
        with contextlib.suppress(Deaf):
            if self._outbox:
                self._send(b"")
        self._title.show("leaving")
        self._performer.close()
        run_stop_hooks(self._app, self._log)
        self._channel.close()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()

    def _leave_as_a_copy(self) -> None:
        self._log.emit(events.JOB_FORKED, copy=os.getpid())
        self._copies.announce()
        os._exit(0)


class _HookTime(BaseException):
    """A stop hook has used its time up."""


def run_stop_hooks(app: App, log: Log) -> None:
    """Call what the app wants to be called last in each child, for 2 s each."""

    def time_is_up(number: int, frame: Any) -> None:
        raise _HookTime(f"more than {STOP_HOOKS_TIME:g} s")

    if not app.stop_hooks:
        return
    signal.signal(signal.SIGALRM, time_is_up)
    for hook in app.stop_hooks:
        try:
            # It repeats: an exception that lands in a destructor is swallowed.
            signal.setitimer(signal.ITIMER_REAL, STOP_HOOKS_TIME, 0.2)
            hook()
        except BaseException as error:
            log.emit(events.CHILD_HOOK_FAILED, exc_info=error, hook=f"on_child_stop {_name(hook)}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
