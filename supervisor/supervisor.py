"""The supervisor's life: boot, run, quiet, drain, leave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import cogworkerd
from cogworkerd import events
from cogworkerd.app import App
from cogworkerd.errors import ProcessDied
from cogworkerd.outcome import Outcome
from cogworkerd.registry import Registry
from cogworkerd.store.connection import Server
from cogworkerd.store.keys import Keys, origin_of
from cogworkerd.store.outages import is_authentication, is_missing_command, is_wrong_type
from cogworkerd.store.server_check import UnfitServer, facts_of
from cogworkerd.worker import loop as child_loop
from cogworkerd.worker.page import Page

from . import descriptors
from .basic import BasicReconciler
from .bell import Bells
from .crew import Crew, Hooks, freeze, slots_for
from .cron_push import CronPush
from .dead_limit import TRIM_EVERY, DeadLimit
from .death import parent_death_signal
from .death_hooks import DeathHooks
from .deferred import DeferredReleases
from .dossier import Dossier
from .errand import Errands, Means
from .farewell import drain, say_farewell
from .fetch_mode import what_is_missing
from .handover import Handover, bound_to, pickled
from .heartbeat import BEAT_EVERY, Heartbeat
from .host import SignOfLife, machine, new_identity
from .interruptions import LOOK_EVERY, Interruptions
from .key_guard import KeyGuard
from .ledger import Ledger, SlotPhase, SlotRecord
from .link import SERVER_TROUBLE, Link
from .lock_keeper import LockKeeper
from .origin import Origin
from .parked import ParkedRecords
from .phase import BLOCKED, HANDLED, STOPPING, Order, Phase, order
from .plan import Plan
from .poller import Poller
from .reconciler import RECONCILE_EVERY, Reconciler
from .recorder import Recorder
from .recovery import Recovery
from .remote import Remote
from .renewal import Renewal
from .requests import Requests
from .resolver import ResolvingLoop
from .roll import Roll
from .slot import Slot
from .start_line import tell_start
from .systemd import Notifier
from .tasks import Tasks, cancel, pause
from .ticker import Ticker
from .titles import SupervisorTitle
from .ward import Ward, nobody_is_suspected

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 78

RESUME_DELAY = 0.1
FIRST_BEAT_EVERY = 1.0
_TITLE_EVERY = 0.05
_SWEEP_EVERY = 1.0
_RECOVERY_EVERY = 5.0
_PARKED_EVERY = 5.0
_EXTENSION = 15.0
_WARD_LEAVES_WITHIN = 3.0
_REST_WITHIN = 5.0
_REST_LOOK = 0.02
_TURNS_OF_A_SIGNAL = 3  # its byte is read, its handler is scheduled, its handler runs


class Supervisor:
    """One daemon. `run` returns its exit status."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._settings = plan.settings
        self._log = plan.log
        self._keys = Keys(plan.settings.namespace)
        self._locks = plan.settings.locks(self._keys)
        self._server: Server = plan.settings.server()
        self._title = SupervisorTitle(plan.tag)
        self._manager = Notifier.from_environment()
        self._queues: tuple[tuple[str, int], ...] = plan.settings.queues or ()
        self._registry = Registry.of(plan.app) if plan.app is not None else None
        self._old_registry = False
        if self._registry is None and plan.handover is not None and plan.handover.registry is not None:
            self._registry, self._old_registry = Registry.decode(plan.handover.registry), True
        if not self._queues and self._registry is not None:
            self._queues = tuple((name, 1) for name in self._registry.queues)
        self._phase = Phase.BOOTING
        self._status = EXIT_OK
        self._pid = os.getpid()
        self._tasks = Tasks(self._crashed)
        self._reliable = plan.settings.fetch == "reliable"
        self._deadline = 0.0
        self._renewal_asked_by = ""
        self._adopted: set[int] = set()
        self._resuming: asyncio.TimerHandle | None = None

    def run(self) -> int | Handover:
        """Run until told to stop, or until new code is to follow.

        Returns:
            0 stopped as asked, 1 failed, 78 the configuration is to blame and nothing was fetched; or what the new
            program is to have: signals are blocked then, the children go on.
        """
        self._title.show(0, self._plan.concurrency, ["starting"])
        self._terminal = _controlling_terminal()
        inherited = descriptors.open_descriptors()
        if self._plan.handover is not None:
            inherited -= self._plan.handover.descriptors
        if self._plan.app is not None:
            freeze()
        self._death_signal = parent_death_signal()
        self._loop = ResolvingLoop()
        asyncio.set_event_loop(self._loop)
        try:
            return self._loop.run_until_complete(self._live(inherited))
        finally:
            self._close_loop()

    def _close_loop(self) -> None:
        self._loop.run_until_complete(cancel(asyncio.all_tasks(self._loop)))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        # The loop takes its handlers along. A signal that comes now must not change the exit status any more.
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        self._loop.close()
        asyncio.set_event_loop(None)

    # ---- life -------------------------------------------------------------------------------------------

    async def _live(self, inherited: set[int]) -> int | Handover:
        self._build(inherited)
        if self._plan.handover is not None:
            self._take_over(self._plan.handover)
        self._install_signals()
        if self._plan.handover is None and not await self._first_beat():
            await self._close_connections()
            return self._status
        self._manager.extend(self._settings.boot_timeout + _EXTENSION)
        self._start_working()
        await self._leave_asked.wait()
        self._roll.cancel()
        if self._renewal is not None:
            self._renewal.cancel()
        if self._phase not in STOPPING:
            await self._come_to_rest()
            if await self._is_there_no_stop():
                self._crew.let_go()
                handover = self._handover()
                self._life.leave_open()
                # The import is to come. The try has made it within boot_timeout.
                self._manager.hold_watchdog(self._settings.boot_timeout + _EXTENSION)
                await self._close_connections()
                return handover
            self._start_coroutines()  # a drain has timeouts and beats
            self._interruptions.go_on({})
        return await self._stop_in_order()

    async def _stop_in_order(self) -> int:
        self._hooks.release()  # a try of new code may have held them
        await drain(self._crew, self._deadline, self._stop_now, self._begin_killing, self._interruptions.stop_all)
        if self._ward is not None:
            await self._ward.end(self._deadline + _WARD_LEAVES_WITHIN)
        await self._hooks.calm()
        await self._tasks.end()
        await self._last_records()
        await say_farewell(
            self._link,
            self._keys,
            self._locks,
            self._identity,
            self._ledger,
            self._reconciler,
            self._deferred,
            self._crew.left_in_order and not self._ledger.unanswered,
            self._log,
        )
        if self._plan.ward:
            await self._no_ward_any_more()
        await self._hooks.finish()
        await self._close_connections()
        return self._status

    def _build(self, inherited: set[int]) -> None:
        before = self._plan.handover
        self._leave_asked = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._place = asyncio.Event()
        self._recover_soon = asyncio.Event()
        self._guard_soon = asyncio.Event()
        self._beating = asyncio.Lock()
        self._identity = before.identity if before else new_identity()
        self._life = SignOfLife(self._identity, before.life if before else None)
        self._page = Page(before.page if before else None)
        self._ledger = before.ledger if before else Ledger()
        self._reliable = before.reliable if before else self._reliable
        self._started_at = before.started_at if before else time.time()
        self._link = Link(self._server, self._log)
        self._link.wrong_type = self._guard_soon.set
        private_life = self._plan.private.life if self._plan.private is not None else None
        kept = {fd for fd in (self._page.fd, self._life.fd, private_life) if fd is not None}
        self._deferred = DeferredReleases(self._link, self._log)
        self._crew = Crew(
            slots_for(self._plan.concurrency, before.slots if before else ()),
            self._loop,
            self._page,
            self._ledger,
            self._link,
            self._log,
            self._setup,
            Hooks(
                self._reports_came,
                self._place.set,
                self._registry_came,
                self._import_failed,
                self._fetch_trouble,
                self._deferred.add,
                lambda body: self._recorder.ran(body),
                self._child_died,
            ),
            inherited,
            kept,
            self._settings.boot_timeout,
        )
        self._recorder = Recorder(
            self._link, self._keys, self._settings, self._ledger, self._crew.slots, self._log, self._is_registered
        )
        self._interruptions = Interruptions(self._crew, self._ledger, self._tasks, self._log, self._settings)
        self._requests = Requests(
            self._link, self._keys, self._identity, self._crew, self._ledger, self._interruptions, self._log
        )
        self._remote = Remote(self._server, self._link, self._keys, self._identity, self._obey, self._ask, self._log)
        self._roll = Roll(self._crew, self._tasks, self._log, self._manager)
        self._heartbeat = Heartbeat(
            self._link,
            self._keys,
            self._identity,
            self._page,
            self._ledger,
            self._crew.slots,
            self._description(),
            self._queue_names,
            lambda: self._phase.value,
            lambda: self._reliable,
        )
        self._lock_keeper = LockKeeper(self._link, self._locks, self._ledger, self._log)
        self._errands = Errands(self._loop, self._means(inherited, kept), self._log)
        self._tries: set[int] = set()
        self._crew.spared = self._further_pids
        self._hooks = DeathHooks(self._errands, self._hooks_for, self._log)
        self._renewal = self._make_renewal(self._plan.origin) if self._plan.origin is not None else None
        push = CronPush(
            self._link,
            self._server,
            self._keys,
            self._locks,
            self._identity,
            self._errands,
            lambda: self._registry is not None and self._registry.client_middleware > 0,
        )
        self._ticker = Ticker(
            self._link,
            self._keys,
            push,
            self._log,
            self._tasks,
            lambda: self._phase is Phase.RUNNING,
            self._settings.periodic_prune,
        )
        self._poller = Poller(self._link, self._keys, self._log, self._job_died)
        self._guard = KeyGuard(self._link, self._keys, self._log)
        self._parked = ParkedRecords(self._link, self._keys, self._locks, self._log, self._deferred, self._job_died)
        self._reconciler = self._make_reconciler()
        self._recovery = Recovery(
            self._link,
            self._keys,
            self._locks,
            self._identity,
            self._settings.orphan_threshold,
            self._settings.max_orphanings,
            self._log,
            self._deferred,
            self._job_died,
        )
        self._ward = self._make_ward(self._plan.origin) if self._plan.origin is not None else None
        self._bells = Bells(
            self._server, self._link, self._keys, self._ledger, self._crew.wake, lambda: self._poller.paused
        )

    def _make_renewal(self, origin: Origin) -> Renewal | None:
        if self._page.fd is None or self._plan.ward:
            return None
        return Renewal(
            origin,
            self._settings.boot_timeout,
            self._tries,
            self._tasks,
            self._log,
            self._manager,
            self._handover,
            self._until_errands_are_done,
            self._hooks.release,
            self._leave_for_new_code,
        )

    def _make_ward(self, origin: Origin) -> Ward | None:
        if self._plan.ward:
            return None
        before = self._plan.handover
        return Ward(
            origin,
            self._plan.private,
            self._link,
            self._keys,
            lambda: self._queues,
            lambda: self._poller.paused,
            self._recover_soon.set,
            self._log,
            before.ward if before else None,
        )

    def _make_reconciler(self) -> Reconciler:
        kind = Reconciler if self._reliable else BasicReconciler
        return kind(
            self._link,
            self._keys,
            self._locks,
            self._identity,
            self._ledger,
            self._settings.max_orphanings,
            self._log,
            self._deferred,
            self._crew.read_all,
            self._job_died,
        )

    def _means(self, inherited: set[int], kept: set[int]) -> Means:
        return Means(self._load, self._in_errand, frozenset(inherited | kept), self._plan.tag)

    def _in_errand(self) -> None:
        """First in every errand, as it is in a child."""
        self._loop.restore_environment()
        if self._death_signal is not None:
            self._death_signal()

    @property
    def _load(self) -> Callable[[], App]:
        preloaded = self._plan.app
        return self._plan.load if preloaded is None else lambda: preloaded

    def _hooks_for(self, name: str) -> int | None:
        return self._registry.death_hooks(name) if self._registry is not None else None

    def _description(self) -> dict[str, Any]:
        return {
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "concurrency": self._plan.concurrency,
            "started_at": self._started_at,
            "tag": self._plan.tag,
            "machine": machine(),
            "ward": self._plan.ward,
        }

    def _queue_names(self) -> list[str]:
        return [origin_of(name) for name, weight in self._queues for _ in range(weight)]

    def _setup(self, slot: Slot, report_fd: int, life: int) -> child_loop.Setup:
        """What a fresh child is given; called in the child."""
        self._loop.restore_environment()
        death_signal = self._death_signal
        return child_loop.Setup(
            load=self._load,
            registry=_no_registry if self._plan.app is not None else _registry_of,
            settings=self._settings,
            server=self._server,
            queues=self._queues or None,
            identity=self._identity,
            slot=slot.number,
            tag=self._plan.tag,
            parent=self._pid,
            page=self._page,
            report_fd=report_fd,
            life=life,
            stack_file=slot.stack_file,
            slot_page=slot.page,
            reliable=self._reliable,
            parent_signals_death=death_signal is not None and death_signal(),
            log=self._log,
        )

    async def _no_ward_any_more(self) -> None:
        """It has left in order: nobody will recover it."""
        async with _briefly():
            await self._link.redis.srem(self._keys.wards, self._identity)

    async def _last_records(self) -> None:
        """What ran last is written down before we leave, if the server takes it within a second."""
        async with _briefly():
            await self._recorder.record(now_or_never=True)

    # ---- a program follows another ----------------------------------------------------------------------

    def _take_over(self, before: Handover) -> None:
        """Go on where the program before us has left off."""
        self._phase = Phase.QUIET if self._page.quiet else Phase.RUNNING
        self._reconciler.look, self._reconciler.unclear = before.look, before.unclear
        self._lock_keeper.retake = before.retake
        self._deferred.restore(before.deferred)
        self._recorder.recording.restore(before.waiting)
        self._hooks.restore(before.hooks, before.uncounted)
        self._ticker.restore(before.slots_done)
        self._interruptions.go_on(before.clocks)
        self._crew.adopt()
        self._crew.left_in_order = before.in_order and self._crew.left_in_order
        self._adopted = {slot.number for slot in self._crew.alive}
        self._manager.release_watchdog()
        self._manager.ready()
        self._log.emit(
            events.RENEWAL_DONE,
            version=cogworkerd.__version__,
            python=platform.python_version(),
            slots=self._plan.concurrency,
            adopted=len(self._adopted),
        )

    def _leave_for_new_code(self, why: str) -> None:
        self._renewal_asked_by = why
        self._leave_asked.set()

    async def _until_errands_are_done(self) -> None:
        """Code of the application that would be cut off. No death hook is begun any more; pushes of client middleware
        take as long as they take, within reason."""
        await self._hooks.hold()
        limit = time.monotonic() + _REST_WITHIN
        while self._errands.pids and time.monotonic() < limit:
            await asyncio.sleep(_REST_LOOK)

    async def _come_to_rest(self) -> None:
        """End all coroutines, none in the middle of a command whose answer counts, if the server answers in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REST_WITHIN), self._reconciler.at_rest(), self._beating:
                await self._tasks.end()
        await self._tasks.end()
        await self._last_records()

    async def _is_there_no_stop(self) -> bool:
        """Block the signals, take in those that have come before. From here on one waits for the new program."""
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        for _ in range(_TURNS_OF_A_SIGNAL):
            await asyncio.sleep(0)
        if self._phase in STOPPING:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
            return False
        if self._resuming is not None:
            self._resume()
        return True

    def _handover(self) -> Handover:
        """What a program that follows now is to know. It leaves everything as it is."""
        self._crew.read_all()
        assert self._page.fd is not None
        return Handover(
            identity=self._identity,
            started_at=self._started_at,
            bound=bound_to(self._settings),
            app_settings=pickled(self._plan.app_settings),
            page=self._page.fd,
            life=self._life.fd,
            slots=[slot.state() for slot in self._crew.slots],
            ledger=self._ledger,
            reliable=self._reliable,
            look=self._reconciler.look,
            unclear=self._reconciler.unclear,
            in_order=self._crew.left_in_order,
            retake=self._lock_keeper.retake,
            deferred=self._deferred.waiting,
            hooks=self._hooks.waiting,
            uncounted=self._hooks.uncounted,
            slots_done=self._ticker.done,
            clocks=self._interruptions.clocks,
            waiting=self._recorder.recording.waiting,
            private=self._plan.private,
            ward=self._ward.pid if self._ward is not None else None,
            registry=self._registry.encode() if self._registry is not None else None,
            why=self._renewal_asked_by,
        )

    # ---- the first beat ---------------------------------------------------------------------------------

    async def _first_beat(self) -> bool:
        """Beat until one succeeds, once a second. Nothing is fetched before.

        Returns:
            False: told to stop, or there is no sense in going on.
        """
        told = False
        while not self._stop_asked.is_set():
            try:
                facts = facts_of(await self._link.ask_info())
                await self._choose_fetch()
                await self._guard.round()
                if self._plan.ward:
                    await self._link.redis.sadd(self._keys.wards, self._identity)
                await self._reconciler.register()
                await self._heartbeat.beat()
            except UnfitServer as unfit:
                return self._give_up(str(unfit))
            except SERVER_TROUBLE as error:
                if is_authentication(error):
                    return self._give_up(f"{self._server.masked} refuses the name or the password: {error}")
                if not told:
                    what = f"{error} (over TLS)" if self._server.tls else str(error)
                    self._log.emit(events.DAEMON_WAITING, server=self._server.masked, error=what)
                    told = True
                self._link.failed("first beat", error)
                self._show_title()
                self._manager.extend(_EXTENSION)
                await pause(self._stop_asked, FIRST_BEAT_EVERY)
                continue
            self._link.worked("first beat")
            entries = None if self._registry is None else len(self._registry.entries)
            tell_start(self._plan, self._server, self._queues, entries, facts)
            return True
        return False

    async def _choose_fetch(self) -> None:
        if self._reliable:
            missing = await what_is_missing(self._link, self._keys)
            if missing:
                self._fall_back(missing)

    def _fall_back(self, reason: str) -> None:
        """Basic fetch from here on. Nothing was fetched yet, so that nothing is listed."""
        self._reliable = False
        self._reconciler = self._make_reconciler()
        self._bells.dismiss()
        self._log.emit(events.FETCH_BASIC, reason=reason)

    def _give_up(self, reason: str) -> bool:
        self._log.emit(events.REDIS_ERROR, site="first beat", error=reason)
        self._status = EXIT_CONFIG
        return False

    def _start_working(self) -> None:
        if self._phase is Phase.BOOTING:
            self._phase = Phase.QUIET if self._page.quiet else Phase.RUNNING
        self._loop.add_signal_handler(signal.SIGCHLD, self._crew.look_for_deaths)
        self._crew.open()
        self._start_coroutines()
        if not self._crew.all_ready:
            self._tasks.spawn(self._tell_when_ready(), "ready")
        if self._plan.handover is not None:
            self._go_on_with(self._plan.handover)
        self._show_title()

    def _start_coroutines(self) -> None:
        self._keep_up("heartbeat", self._beat, BEAT_EVERY)
        self._keep_up("publish", self._heartbeat.publish, 1.0)
        self._keep_up("timeouts", self._interruptions.look, LOOK_EVERY)
        self._tasks.spawn(self._recorder.keep(), "recorder")
        self._tasks.spawn(self._reconcile_for_ever(), "reconciler")
        self._keep_up("sweep", self._sweep, _SWEEP_EVERY)
        self._tasks.spawn(self._poller.keep(lambda: self._phase is Phase.RUNNING and not self._plan.ward), "poller")
        if self._manager.watchdog:
            self._keep_up("watchdog", self._feed_watchdog, self._manager.watchdog / 3)
        self._tasks.spawn(self._guard.keep(self._guard_soon, self._keys_moved), "key guard")
        self._tasks.spawn(self._hooks.keep(), "death hooks")
        self._tasks.spawn(self._remote.listen(), "remote control")
        self._hang_bells()
        if self._plan.ward:
            self._keep_up("suspects", self._leave_if_nobody_is_suspected, _SWEEP_EVERY)
        else:
            self._look_after_the_fleet()

    def _look_after_the_fleet(self) -> None:
        """What any daemon may do, and one has to."""
        self._keep_up("recovery", self._recover, _RECOVERY_EVERY, self._recover_soon)
        if self._settings.dead_max is not None:
            limit = DeadLimit(self._link, self._keys, self._settings.dead_max, self._log)
            self._keep_up("dead limit", limit.trim, TRIM_EVERY)
        self._keep_up("parked records", self._file_parked, _PARKED_EVERY)
        if self._registry is not None:
            self._ticker.begin(self._registry.periodic())

    def _go_on_with(self, before: Handover) -> None:
        """The children of the program before us run its code: replace them."""
        if self._page.quiet:
            self._quieten()
        self._crew.retire()
        if not self._plan.broken:
            self._roll.begin(before.why, as_reload=False, only=self._adopted)

    def _hang_bells(self, but: Collection[str] = ()) -> None:
        """A bell for each queue, but for those that have one."""
        if self._reliable:
            for name, _ in self._queues:
                if name not in but:
                    self._tasks.spawn(self._bells.watch(name), f"bell {name}")

    # ---- coroutines -------------------------------------------------------------------------------------

    def _crashed(self, error: BaseException, task: str) -> None:
        """A fault of our own has ended a coroutine: nothing can be relied on any more."""
        self._log.emit(events.DAEMON_CRASHED, exc_info=error, task=task)
        self._status = EXIT_FAILED
        self._stop(signal.SIGTERM.name)

    def _keep_up(
        self, site: str, turn: Callable[[], Awaitable[None]], every: float, soon: asyncio.Event | None = None
    ) -> None:
        self._tasks.spawn(self._keep(site, turn, every, soon or asyncio.Event()), site)

    async def _keep(self, site: str, turn: Callable[[], Awaitable[None]], every: float, soon: asyncio.Event) -> None:
        """Take turns for ever, the next one at once if it is wanted soon. The server's trouble never ends it."""
        while True:
            began = self._loop.time()
            soon.clear()
            try:
                await turn()
            except SERVER_TROUBLE as error:
                self._link.failed(site, error)
            else:
                self._link.worked(site)
            self._show_title()
            await pause(soon, max(0.0, began + every - self._loop.time()))

    async def _beat(self) -> None:
        async with self._beating:
            if self._heartbeat.late:
                await self._register_anew()
            try:
                await self._heartbeat.beat()
            except SERVER_TROUBLE:
                self._lock_keeper.interrupted()
                raise
        await self._after_beat("locks", self._lock_keeper.refresh)
        await self._after_beat("deferred releases", self._deferred.retry)

    async def _after_beat(self, site: str, work: Callable[[], Awaitable[None]]) -> None:
        """What goes with a beat; the beat was a good one, whatever becomes of it."""
        try:
            await work()
        except SERVER_TROUBLE as error:
            self._link.failed(site, error)
        else:
            self._link.worked(site)

    async def _register_anew(self) -> None:
        """Cut off for longer than the presence lives: others may have taken jobs over. The number goes up first."""
        self._page.raise_registration()
        was = await self._reconciler.register()
        self._recovery.interrupted()
        self._log.emit(events.DAEMON_REGISTERED_ANEW, was_registered=was)

    async def _reconcile_for_ever(self) -> None:
        while True:
            await self._reconciler.reconcile()
            if self._ledger.unsettled or self._ledger.orphans:
                await asyncio.sleep(0.2)  # something could not be placed: soon again, but no storm
            await pause(self._place, RECONCILE_EVERY)
            self._place.clear()

    async def _recover(self) -> None:
        if self._at_work and await self._recovery.turn(time.monotonic()):
            self._ticker.open()
        if self._ward is not None and self._phase is Phase.RUNNING and self._reliable:
            await self._ward.open_if_needed()

    async def _leave_if_nobody_is_suspected(self) -> None:
        if self._phase is Phase.RUNNING and not self._ledger.busy and not self._ledger.orphans:
            names = [name for name, _ in self._queues]
            if await nobody_is_suspected(self._link, self._keys, self._identity, names):
                self._stop("nobody is suspected any more")

    async def _file_parked(self) -> None:
        if self._at_work:
            await self._parked.file_all(time.time())

    async def _keys_moved(self) -> None:
        """What the key guard moved may have held up due jobs, or a beat: both are tried again at once."""
        self._poller.retry_stuck()
        await self._beat()

    @property
    def _at_work(self) -> bool:
        return self._phase in (Phase.RUNNING, Phase.QUIET)

    async def _feed_watchdog(self) -> None:
        """The loop has turned; dead children are taken in. Nothing else, and nobody else, keeps the watchdog quiet."""
        self._crew.look_for_deaths()
        self._manager.alive()

    async def _sweep(self) -> None:
        self._crew.sweep()
        if self._ward is not None:
            self._ward.look()

    def _further_pids(self) -> set[int]:
        """Of processes of ours that are no slots'."""
        ward = self._ward.pid if self._ward is not None else None
        return {*self._errands.pids, *self._tries, *(() if ward is None else (ward,))}

    def _tell_ward(self, number: signal.Signals) -> None:
        if self._ward is not None:
            self._ward.signal(number)

    async def _tell_when_ready(self) -> None:
        while not self._crew.all_ready:
            await asyncio.sleep(_TITLE_EVERY)
        self._manager.ready()
        self._log.emit(
            events.DAEMON_READY,
            identity=self._identity,
            slots=self._plan.concurrency,
            queues=" ".join(name for name, _ in self._queues),
        )

    # ---- what the crew tells ----------------------------------------------------------------------------

    def _reports_came(self) -> None:
        self._bells.reports_came()
        self._show_title()

    def _registry_came(self, body: bytes) -> None:
        """Without preload the first READY says what the app holds."""
        if self._registry is None or self._old_registry:
            self._registry, self._old_registry = Registry.decode(body), False
            self._hooks.counted()
            if not self._plan.ward:
                self._ticker.begin(self._registry.periodic())
        if self._settings.queues is None:
            known = {name for name, _ in self._queues}
            self._queues = tuple((name, 1) for name in self._registry.queues)
            self._hang_bells(known)

    def _fetch_trouble(self, sentence: str) -> None:
        """A child could not fetch, and the server's sentence says why."""
        if is_wrong_type(sentence):
            self._guard_soon.set()
        elif is_missing_command(sentence) and self._reliable and not self._ledger.ever_held:
            self._fall_back(sentence)
            self._crew.tell_all()  # those that follow fetch the other way

    def _is_registered(self, name: str) -> bool:
        return self._registry is not None and name in self._registry.jobs

    def _job_died(self, entry: bytes) -> None:
        """We have put a job in dead."""
        self._hooks.died(entry)
        self._recorder.buried(entry)

    def _child_died(self, slot: Slot, record: SlotRecord, dossier: Dossier, verdict: Outcome | None) -> None:
        """The run of a job whose process is gone is written down here: nobody else is left who could."""
        if record.phase is not SlotPhase.STARTED:
            return
        if verdict is not None and slot.sentence is not None:
            self._recorder.lost(record, slot.sentence.error, verdict.kind, dossier)
        elif slot.killed or slot.is_sentenced(record):
            self._recorder.requeued(record, dossier)
        else:
            self._recorder.lost(record, ProcessDied(dossier.headline), None, dossier)

    def _import_failed(self) -> None:
        if not any(slot.ready for slot in self._crew.slots):
            self._status = EXIT_CONFIG
            self._crew.close()
            self._crew.kill_all("the app cannot be imported")
            self._stop(signal.SIGTERM.name)

    # ---- signals ----------------------------------------------------------------------------------------

    def _install_signals(self) -> None:
        for number in HANDLED:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started by nohup
            self._loop.add_signal_handler(number, self._on_signal, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
        for number in self._plan.early:
            self._on_signal(number)

    def _on_signal(self, number: signal.Signals) -> None:
        terminal_gone = number is signal.SIGHUP and self._terminal and not _controlling_terminal()
        asked = order(self._phase, number, terminal_gone)
        if asked is Order.STOP:
            self._stop(number.name)
        elif asked is Order.STOP_NOW:
            self._phase = Phase.KILLING
            self._stop_now.set()
            self._tell_ward(signal.SIGTERM)
        elif asked is Order.QUIET:
            self._become_quiet()
        elif asked is Order.RESUME:
            # systemd sends TERM and CONT together, and CONT is handled first.
            self._resuming = self._loop.call_later(RESUME_DELAY, self._resume)
        elif asked is Order.RENEW:
            self._renew(number.name)
        elif asked is Order.ROLL:
            self._roll.begin(number.name)
        elif asked is Order.STACKS:
            self._tasks.spawn(self._crew.log_stacks(), "stacks")

    def _obey(self, order: str) -> None:
        """An order that came by the channel does what its signal does."""
        if order == "stop":
            self._stop(f"order: {order}")
        elif order == "quiet" and self._at_work:
            self._become_quiet()
        elif order == "resume":
            self._resume()
        elif order == "restart" and self._at_work:
            self._renew(f"order: {order}")

    def _renew(self, why: str) -> None:
        """New code, if this system can hand a supervisor over; else new children."""
        if self._renewal is not None:
            self._renewal.begin(why)
            return
        if self._plan.app is not None and not self._plan.ward:
            self._log.emit(events.RENEWAL_IMPOSSIBLE)
        self._roll.begin(why)

    def _ask(self, request: dict[str, Any]) -> None:
        self._tasks.spawn(self._requests.answer(request), "request")

    def _stop(self, why: str) -> None:
        if self._phase in STOPPING:
            return
        self._phase = Phase.STOPPING
        self._deadline = time.monotonic() + self._settings.shutdown_timeout
        self._page.quiet = True
        self._bells.silence()
        self._log.emit(
            events.DAEMON_STOPPING,
            signal=why,
            busy=self._ledger.busy,
            timeout=self._settings.shutdown_timeout,
        )
        self._tell_ward(signal.SIGTERM)
        self._stop_asked.set()
        self._leave_asked.set()
        self._manager.stopping()
        self._manager.extend(self._settings.shutdown_timeout + _EXTENSION)
        self._show_title()

    def _become_quiet(self) -> None:
        self._page.quiet = True
        if self._phase is Phase.RUNNING:
            self._phase = Phase.QUIET
        self._tell_ward(signal.SIGTSTP)
        self._log.emit(events.DAEMON_QUIET)
        self._show_title()
        self._quieten()

    def _quieten(self) -> None:
        """No bell rings, and no child waits on."""
        self._bells.silence()
        self._tasks.spawn(self._crew.wake_until(self._nobody_waits, lambda: self._crew.alive), "quiet")

    def _nobody_waits(self) -> bool:
        return not self._page.quiet or not (self._ledger.waited_on() - {""})

    def _begin_killing(self) -> None:
        self._phase = Phase.KILLING

    def _resume(self) -> None:
        self._resuming = None
        if self._phase not in (Phase.QUIET, Phase.BOOTING) or not self._page.quiet:
            return
        self._page.quiet = False
        if self._phase is Phase.QUIET:
            self._phase = Phase.RUNNING
        self._tell_ward(signal.SIGCONT)
        self._bells.resume()
        self._crew.nudge_all()
        self._log.emit(events.DAEMON_RESUMED)
        self._show_title()

    # ---- small things -----------------------------------------------------------------------------------

    async def _close_connections(self) -> None:
        self._life.close()
        self._manager.close()
        async with _briefly():
            await self._bells.close()
            await self._remote.close()
            await self._link.close()

    def _show_title(self) -> None:
        notes = []
        if self._phase in STOPPING:
            notes.append("stopping")
        elif self._page.quiet:
            notes.append("quiet")
        if self._link.note:
            notes.append(self._link.note)
        self._title.show(self._ledger.busy, self._plan.concurrency, notes)
        self._manager.status(f"{self._ledger.busy}/{self._plan.concurrency} busy{''.join(', ' + n for n in notes)}")


@contextlib.asynccontextmanager
async def _briefly() -> AsyncIterator[None]:
    """What is done inside has a second, and is left undone where the server does not take it."""
    with contextlib.suppress(*SERVER_TROUBLE):
        async with asyncio.timeout(1.0):
            yield


def _no_registry(_: App) -> bytes:
    return b""


def _registry_of(app: App) -> bytes:
    return Registry.of(app).encode()


def _controlling_terminal() -> bool:
    """Whether this process has a terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
