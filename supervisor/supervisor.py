"""The supervisor's life: boot, run, quiet, drain, leave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

from cogworkerd import events
from cogworkerd.app import App
from cogworkerd.errors import ProcessDied
from cogworkerd.outcome import Outcome
from cogworkerd.registry import Registry
from cogworkerd.store.outages import is_authentication, is_missing_command, is_wrong_type
from cogworkerd.store.server_check import UnfitServer, facts_of
from cogworkerd.worker import loop as child_loop

from . import descriptors
from .crew import freeze
from .dead_limit import TRIM_EVERY, DeadLimit
from .death import parent_death_signal
from .dossier import Dossier
from .farewell import drain, say_farewell
from .fetch_mode import what_is_missing
from .handover import Handover
from .heartbeat import BEAT_EVERY
from .interruptions import LOOK_EVERY
from .ledger import SlotPhase, SlotRecord
from .link import SERVER_TROUBLE
from .parts import Parts
from .phase import BLOCKED, HANDLED, STOPPING, Order, Phase, order
from .plan import Plan
from .reconciler import RECONCILE_EVERY
from .resolver import ResolvingLoop
from .slot import Slot
from .start_line import tell_start
from .succession import REST_WITHIN, Succession
from .systemd import Notifier
from .tasks import Tasks, cancel, pause
from .titles import SupervisorTitle
from .ward import nobody_is_suspected

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
_TURNS_OF_A_SIGNAL = 3  # its byte is read, its handler is scheduled, its handler runs


class Supervisor:
    """One daemon. `run` returns its exit status."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._settings = plan.settings
        self._log = plan.log
        self._title = SupervisorTitle(plan.tag)
        self._manager = Notifier.from_environment()
        self.queues: tuple[tuple[str, int], ...] = plan.settings.queues or ()
        self.registry = Registry.of(plan.app) if plan.app is not None else None
        self._old_registry = False
        if self.registry is None and plan.handover is not None and plan.handover.registry is not None:
            self.registry, self._old_registry = Registry.decode(plan.handover.registry), True
        if not self.queues and self.registry is not None:
            self.queues = tuple((name, 1) for name in self.registry.queues)
        self.phase = Phase.BOOTING
        self._status = EXIT_OK
        self._pid = os.getpid()
        self._tasks = Tasks(self._crashed)
        self._deadline = 0.0
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
        self._leave_asked = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._parts = Parts(self._plan, self, self._loop, self._tasks, self._manager, inherited)
        self._succession = Succession(self._plan, self._parts, self, self._tasks, self._manager, self._leave_asked.set)
        if self._plan.handover is not None:
            self.phase = Phase.QUIET if self._parts.page.quiet else Phase.RUNNING
            self._succession.take_over(self._plan.handover)
        self._install_signals()
        if self._plan.handover is None and not await self._first_beat():
            await self._close_connections()
            return self._status
        self._manager.extend(self._settings.boot_timeout + _EXTENSION)
        self._start_working()
        await self._leave_asked.wait()
        self._parts.roll.cancel()
        self._succession.cancel()
        if self.phase not in STOPPING:
            await self._come_to_rest()
            if await self._is_there_no_stop():
                self._parts.crew.let_go()
                handover = self._succession.handover()
                self._parts.life.leave_open()
                # The import is to come. The try has made it within boot_timeout.
                self._manager.hold_watchdog(self._settings.boot_timeout + _EXTENSION)
                await self._close_connections()
                return handover
            self._start_coroutines()  # a drain has timeouts and beats
            self._parts.interruptions.go_on({})
        return await self._stop_in_order()

    async def _stop_in_order(self) -> int:
        self._parts.hooks.release()  # a try of new code may have held them
        await drain(
            self._parts.crew, self._deadline, self._stop_now, self._begin_killing, self._parts.interruptions.stop_all
        )
        if self._parts.ward is not None:
            await self._parts.ward.end(self._deadline + _WARD_LEAVES_WITHIN)
        await self._parts.hooks.calm()
        await self._tasks.end()
        await self._last_records()
        await say_farewell(
            self._parts.link,
            self._parts.keys,
            self._parts.locks,
            self._parts.identity,
            self._parts.ledger,
            self._parts.reconciler,
            self._parts.deferred,
            self._parts.crew.left_in_order and not self._parts.ledger.unanswered,
            self._log,
        )
        if self._plan.ward:
            await self._no_ward_any_more()
        await self._parts.hooks.finish()
        await self._close_connections()
        return self._status

    # ---- what the parts ask -----------------------------------------------------------------------------

    def enter_errand(self) -> None:
        """First in every errand, as it is in a child."""
        self._loop.restore_environment()
        if self._death_signal is not None:
            self._death_signal()

    @property
    def load(self) -> Callable[[], App]:
        preloaded = self._plan.app
        return self._plan.load if preloaded is None else lambda: preloaded

    def setup_of_child(self, slot: Slot, report_fd: int, life: int) -> child_loop.Setup:
        """What a fresh child is given; called in the child."""
        self._loop.restore_environment()
        death_signal = self._death_signal
        return child_loop.Setup(
            load=self.load,
            registry=_no_registry if self._plan.app is not None else _registry_of,
            settings=self._settings,
            server=self._parts.server,
            queues=self.queues or None,
            identity=self._parts.identity,
            slot=slot.number,
            tag=self._plan.tag,
            parent=self._pid,
            page=self._parts.page,
            report_fd=report_fd,
            life=life,
            stack_file=slot.stack_file,
            slot_page=slot.page,
            reliable=self._parts.reliable,
            parent_signals_death=death_signal is not None and death_signal(),
            log=self._log,
        )

    # ---- the end ----------------------------------------------------------------------------------------

    async def _no_ward_any_more(self) -> None:
        """It has left in order: nobody will recover it."""
        async with _briefly():
            await self._parts.link.redis.srem(self._parts.keys.wards, self._parts.identity)

    async def _last_records(self) -> None:
        """What ran last is written down before we leave, if the server takes it within a second."""
        async with _briefly():
            await self._parts.recorder.record(now_or_never=True)

    async def _come_to_rest(self) -> None:
        """End all coroutines, none in the middle of a command whose answer counts, if the server answers in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REST_WITHIN), self._parts.reconciler.at_rest(), self._parts.beating:
                await self._tasks.end()
        await self._tasks.end()
        await self._last_records()

    async def _is_there_no_stop(self) -> bool:
        """Block the signals, take in those that have come before. From here on one waits for the new program."""
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        for _ in range(_TURNS_OF_A_SIGNAL):
            await asyncio.sleep(0)
        if self.phase in STOPPING:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
            return False
        if self._resuming is not None:
            self._resume()
        return True

    # ---- the first beat ---------------------------------------------------------------------------------

    async def _first_beat(self) -> bool:
        """Beat until one succeeds, once a second. Nothing is fetched before.

        Returns:
            False: told to stop, or there is no sense in going on.
        """
        told = False
        while not self._stop_asked.is_set():
            try:
                facts = facts_of(await self._parts.link.ask_info())
                await self._choose_fetch()
                await self._parts.guard.round()
                if self._plan.ward:
                    await self._parts.link.redis.sadd(self._parts.keys.wards, self._parts.identity)
                await self._parts.reconciler.register()
                await self._parts.heartbeat.beat()
            except UnfitServer as unfit:
                return self._give_up(str(unfit))
            except SERVER_TROUBLE as error:
                if is_authentication(error):
                    return self._give_up(f"{self._parts.server.masked} refuses the name or the password: {error}")
                if not told:
                    what = f"{error} (over TLS)" if self._parts.server.tls else str(error)
                    self._log.emit(events.DAEMON_WAITING, server=self._parts.server.masked, error=what)
                    told = True
                self._parts.link.failed("first beat", error)
                self._show_title()
                self._manager.extend(_EXTENSION)
                await pause(self._stop_asked, FIRST_BEAT_EVERY)
                continue
            self._parts.link.worked("first beat")
            entries = None if self.registry is None else len(self.registry.entries)
            tell_start(self._plan, self._parts.server, self.queues, entries, facts)
            return True
        return False

    async def _choose_fetch(self) -> None:
        if self._parts.reliable:
            missing = await what_is_missing(self._parts.link, self._parts.keys)
            if missing:
                self._fall_back(missing)

    def _fall_back(self, reason: str) -> None:
        """Basic fetch from here on. Nothing was fetched yet, so that nothing is listed."""
        self._parts.fall_back()
        self._log.emit(events.FETCH_BASIC, reason=reason)

    def _give_up(self, reason: str) -> bool:
        self._log.emit(events.REDIS_ERROR, site="first beat", error=reason)
        self._status = EXIT_CONFIG
        return False

    def _start_working(self) -> None:
        if self.phase is Phase.BOOTING:
            self.phase = Phase.QUIET if self._parts.page.quiet else Phase.RUNNING
        self._loop.add_signal_handler(signal.SIGCHLD, self._parts.crew.look_for_deaths)
        self._parts.crew.open()
        self._start_coroutines()
        if not self._parts.crew.all_ready:
            self._tasks.spawn(self._tell_when_ready(), "ready")
        if self._plan.handover is not None:
            if self._parts.page.quiet:
                self._quieten()
            self._succession.replace_children(self._plan.handover)
        self._show_title()

    def _start_coroutines(self) -> None:
        self._keep_up("heartbeat", self._beat, BEAT_EVERY)
        self._keep_up("publish", self._parts.heartbeat.publish, 1.0)
        self._keep_up("timeouts", self._parts.interruptions.look, LOOK_EVERY)
        self._tasks.spawn(self._parts.recorder.keep(), "recorder")
        self._tasks.spawn(self._reconcile_for_ever(), "reconciler")
        self._keep_up("sweep", self._sweep, _SWEEP_EVERY)
        self._tasks.spawn(
            self._parts.poller.keep(lambda: self.phase is Phase.RUNNING and not self._plan.ward), "poller"
        )
        if self._manager.watchdog:
            self._keep_up("watchdog", self._feed_watchdog, self._manager.watchdog / 3)
        self._tasks.spawn(self._parts.guard.keep(self._parts.guard_soon, self._keys_moved), "key guard")
        self._tasks.spawn(self._parts.hooks.keep(), "death hooks")
        self._tasks.spawn(self._parts.remote.listen(), "remote control")
        self._hang_bells()
        if self._plan.ward:
            self._keep_up("suspects", self._leave_if_nobody_is_suspected, _SWEEP_EVERY)
        else:
            self._look_after_the_fleet()

    def _look_after_the_fleet(self) -> None:
        """What any daemon may do, and one has to."""
        self._keep_up("recovery", self._recover, _RECOVERY_EVERY, self._parts.recover_soon)
        if self._settings.dead_max is not None:
            limit = DeadLimit(self._parts.link, self._parts.keys, self._settings.dead_max, self._log)
            self._keep_up("dead limit", limit.trim, TRIM_EVERY)
        self._keep_up("parked records", self._file_parked, _PARKED_EVERY)
        if self.registry is not None:
            self._parts.ticker.begin(self.registry.periodic())

    def _hang_bells(self, but: Collection[str] = ()) -> None:
        """A bell for each queue, but for those that have one."""
        if self._parts.reliable:
            for name, _ in self.queues:
                if name not in but:
                    self._tasks.spawn(self._parts.bells.watch(name), f"bell {name}")

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
                self._parts.link.failed(site, error)
            else:
                self._parts.link.worked(site)
            self._show_title()
            await pause(soon, max(0.0, began + every - self._loop.time()))

    async def _beat(self) -> None:
        async with self._parts.beating:
            if self._parts.heartbeat.late:
                await self._register_anew()
            try:
                await self._parts.heartbeat.beat()
            except SERVER_TROUBLE:
                self._parts.lock_keeper.interrupted()
                raise
        await self._after_beat("locks", self._parts.lock_keeper.refresh)
        await self._after_beat("deferred releases", self._parts.deferred.retry)

    async def _after_beat(self, site: str, work: Callable[[], Awaitable[None]]) -> None:
        """What goes with a beat; the beat was a good one, whatever becomes of it."""
        try:
            await work()
        except SERVER_TROUBLE as error:
            self._parts.link.failed(site, error)
        else:
            self._parts.link.worked(site)

    async def _register_anew(self) -> None:
        """Cut off for longer than the presence lives: others may have taken jobs over. The number goes up first."""
        self._parts.page.raise_registration()
        was = await self._parts.reconciler.register()
        self._parts.recovery.interrupted()
        self._log.emit(events.DAEMON_REGISTERED_ANEW, was_registered=was)

    async def _reconcile_for_ever(self) -> None:
        while True:
            await self._parts.reconciler.reconcile()
            if self._parts.ledger.unsettled or self._parts.ledger.orphans:
                await asyncio.sleep(0.2)  # something could not be placed: soon again, but no storm
            await pause(self._parts.place, RECONCILE_EVERY)
            self._parts.place.clear()

    async def _recover(self) -> None:
        if self._at_work and await self._parts.recovery.turn(time.monotonic()):
            self._parts.ticker.open()
        if self._parts.ward is not None and self.phase is Phase.RUNNING and self._parts.reliable:
            await self._parts.ward.open_if_needed()

    async def _leave_if_nobody_is_suspected(self) -> None:
        if self.phase is Phase.RUNNING and not self._parts.ledger.busy and not self._parts.ledger.orphans:
            names = [name for name, _ in self.queues]
            if await nobody_is_suspected(self._parts.link, self._parts.keys, self._parts.identity, names):
                self._stop("nobody is suspected any more")

    async def _file_parked(self) -> None:
        if self._at_work:
            await self._parts.parked.file_all(time.time())

    async def _keys_moved(self) -> None:
        """What the key guard moved may have held up due jobs, or a beat: both are tried again at once."""
        self._parts.poller.retry_stuck()
        await self._beat()

    @property
    def _at_work(self) -> bool:
        return self.phase in (Phase.RUNNING, Phase.QUIET)

    async def _feed_watchdog(self) -> None:
        """The loop has turned; dead children are taken in. Nothing else, and nobody else, keeps the watchdog quiet."""
        self._parts.crew.look_for_deaths()
        self._manager.alive()

    async def _sweep(self) -> None:
        self._parts.crew.sweep()
        if self._parts.ward is not None:
            self._parts.ward.look()

    def _tell_ward(self, number: signal.Signals) -> None:
        if self._parts.ward is not None:
            self._parts.ward.signal(number)

    async def _tell_when_ready(self) -> None:
        while not self._parts.crew.all_ready:
            await asyncio.sleep(_TITLE_EVERY)
        self._manager.ready()
        self._log.emit(
            events.DAEMON_READY,
            identity=self._parts.identity,
            slots=self._plan.concurrency,
            queues=" ".join(name for name, _ in self.queues),
        )

    # ---- what the crew tells ----------------------------------------------------------------------------

    def reports_came(self) -> None:
        self._parts.bells.reports_came()
        self._show_title()

    def registry_came(self, body: bytes) -> None:
        """Without preload the first READY says what the app holds."""
        if self.registry is None or self._old_registry:
            self.registry, self._old_registry = Registry.decode(body), False
            self._parts.hooks.counted()
            if not self._plan.ward:
                self._parts.ticker.begin(self.registry.periodic())
        if self._settings.queues is None:
            known = {name for name, _ in self.queues}
            self.queues = tuple((name, 1) for name in self.registry.queues)
            self._hang_bells(known)

    def fetch_trouble(self, sentence: str) -> None:
        """A child could not fetch, and the server's sentence says why."""
        if is_wrong_type(sentence):
            self._parts.guard_soon.set()
        elif is_missing_command(sentence) and self._parts.reliable and not self._parts.ledger.ever_held:
            self._fall_back(sentence)
            self._parts.crew.tell_all()  # those that follow fetch the other way

    def child_died(self, slot: Slot, record: SlotRecord, dossier: Dossier, verdict: Outcome | None) -> None:
        """The run of a job whose process is gone is written down here: nobody else is left who could."""
        if record.phase is not SlotPhase.STARTED:
            return
        if verdict is not None and slot.sentence is not None:
            self._parts.recorder.lost(record, slot.sentence.error, verdict.kind, dossier)
        elif slot.killed or slot.is_sentenced(record):
            self._parts.recorder.requeued(record, dossier)
        else:
            self._parts.recorder.lost(record, ProcessDied(dossier.headline), None, dossier)

    def import_failed(self) -> None:
        if not any(slot.ready for slot in self._parts.crew.slots):
            self._status = EXIT_CONFIG
            self._parts.crew.close()
            self._parts.crew.kill_all("the app cannot be imported")
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
        asked = order(self.phase, number, terminal_gone)
        if asked is Order.STOP:
            self._stop(number.name)
        elif asked is Order.STOP_NOW:
            self.phase = Phase.KILLING
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
            self._parts.roll.begin(number.name)
        elif asked is Order.STACKS:
            self._tasks.spawn(self._parts.crew.log_stacks(), "stacks")

    def obey(self, order: str) -> None:
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
        if self._succession.begin(why):
            return
        if self._plan.app is not None and not self._plan.ward:
            self._log.emit(events.RENEWAL_IMPOSSIBLE)
        self._parts.roll.begin(why)

    def ask(self, request: dict[str, Any]) -> None:
        self._tasks.spawn(self._parts.requests.answer(request), "request")

    def _stop(self, why: str) -> None:
        if self.phase in STOPPING:
            return
        self.phase = Phase.STOPPING
        self._deadline = time.monotonic() + self._settings.shutdown_timeout
        self._parts.page.quiet = True
        self._parts.bells.silence()
        self._log.emit(
            events.DAEMON_STOPPING,
            signal=why,
            busy=self._parts.ledger.busy,
            timeout=self._settings.shutdown_timeout,
        )
        self._tell_ward(signal.SIGTERM)
        self._stop_asked.set()
        self._leave_asked.set()
        self._manager.stopping()
        self._manager.extend(self._settings.shutdown_timeout + _EXTENSION)
        self._show_title()

    def _become_quiet(self) -> None:
        self._parts.page.quiet = True
        if self.phase is Phase.RUNNING:
            self.phase = Phase.QUIET
        self._tell_ward(signal.SIGTSTP)
        self._log.emit(events.DAEMON_QUIET)
        self._show_title()
        self._quieten()

    def _quieten(self) -> None:
        """No bell rings, and no child waits on."""
        self._parts.bells.silence()
        self._tasks.spawn(self._parts.crew.wake_until(self._nobody_waits, lambda: self._parts.crew.alive), "quiet")

    def _nobody_waits(self) -> bool:
        return not self._parts.page.quiet or not (self._parts.ledger.waited_on() - {""})

    def _begin_killing(self) -> None:
        self.phase = Phase.KILLING

    def _resume(self) -> None:
        self._resuming = None
        if self.phase not in (Phase.QUIET, Phase.BOOTING) or not self._parts.page.quiet:
            return
        self._parts.page.quiet = False
        if self.phase is Phase.QUIET:
            self.phase = Phase.RUNNING
        self._tell_ward(signal.SIGCONT)
        self._parts.bells.resume()
        self._parts.crew.nudge_all()
        self._log.emit(events.DAEMON_RESUMED)
        self._show_title()

    # ---- small things -----------------------------------------------------------------------------------

    async def _close_connections(self) -> None:
        self._parts.life.close()
        self._manager.close()
        async with _briefly():
            await self._parts.bells.close()
            await self._parts.remote.close()
            await self._parts.link.close()

    def _show_title(self) -> None:
        notes = []
        if self.phase in STOPPING:
            notes.append("stopping")
        elif self._parts.page.quiet:
            notes.append("quiet")
        if self._parts.link.note:
            notes.append(self._parts.link.note)
        self._title.show(self._parts.ledger.busy, self._plan.concurrency, notes)
        self._manager.status(
            f"{self._parts.ledger.busy}/{self._plan.concurrency} busy{''.join(', ' + n for n in notes)}"
        )


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
