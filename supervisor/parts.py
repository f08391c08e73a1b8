"""The parts of a supervisor, put together: who knows whom, and what each tells the supervisor."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

from cogworkerd.app import App
from cogworkerd.outcome import Outcome
from cogworkerd.registry import Registry
from cogworkerd.store.keys import Keys, origin_of
from cogworkerd.worker import loop as child_loop
from cogworkerd.worker.page import Page

from .basic import BasicReconciler
from .bell import Bells
from .crew import Crew, Hooks, slots_for
from .cron_push import CronPush
from .death_hooks import DeathHooks
from .deferred import DeferredReleases
from .dossier import Dossier
from .errand import Errands, Means
from .handover import Handover
from .heartbeat import Heartbeat
from .host import SignOfLife, machine, new_identity
from .interruptions import Interruptions
from .key_guard import KeyGuard
from .ledger import Ledger, SlotRecord
from .link import Link
from .lock_keeper import LockKeeper
from .parked import ParkedRecords
from .phase import Phase
from .plan import Plan
from .poller import Poller
from .reconciler import Reconciler
from .recorder import Recorder
from .recovery import Recovery
from .remote import Remote
from .requests import Requests
from .resolver import ResolvingLoop
from .roll import Roll
from .slot import Slot
from .systemd import Notifier
from .tasks import Tasks
from .ticker import Ticker
from .ward import Ward


class Director(Protocol):
    """What the parts ask of their supervisor, and what they tell it.

    Attributes:
        phase: the supervisor's.
        queues: names and weights.
        registry: what the app holds, once it is known.
        load: gives the app, in a process that may hold it.
    """

    phase: Phase
    queues: tuple[tuple[str, int], ...]
    registry: Registry | None

    @property
    def load(self) -> Callable[[], App]: ...

    def setup_of_child(self, slot: Slot, report_fd: int, life: int) -> child_loop.Setup:
        """What a fresh child is given; called in the child."""
        ...

    def enter_errand(self) -> None:
        """First in every errand, in its process."""
        ...

    def reports_came(self) -> None: ...

    def registry_came(self, body: bytes) -> None: ...

    def import_failed(self) -> None: ...

    def fetch_trouble(self, sentence: str) -> None:
        """A child could not fetch; the server's words."""
        ...

    def child_died(self, slot: Slot, record: SlotRecord, dossier: Dossier, verdict: Outcome | None) -> None: ...

    def obey(self, order: str) -> None:
        """An order has come by the channel."""
        ...

    def ask(self, request: dict[str, Any]) -> None:
        """A request has come by the channel."""
        ...


class Parts:
    """All parts of one supervisor.

    Args:
        plan: what to run. Where it has a handover, record and children are those of the program before.
        inherited: descriptors of the application's that are open.

    Attributes:
        beating: held during a beat.
        place: set when a job wants to be put back; recover_soon, guard_soon: when recovery or the key guard is wanted
            at once.
        reliable: how jobs are fetched.
        tries: pids of processes that try new code.
    """

    def __init__(
        self,
        plan: Plan,
        director: Director,
        loop: ResolvingLoop,
        tasks: Tasks,
        manager: Notifier,
        inherited: set[int],
    ) -> None:
        self._plan = plan
        self._director = director
        self._tasks = tasks
        self._log = plan.log
        self.keys = Keys(plan.settings.namespace)
        self.locks = plan.settings.locks(self.keys)
        self.server = plan.settings.server()
        self.beating = asyncio.Lock()
        self.place = asyncio.Event()
        self.recover_soon = asyncio.Event()
        self.guard_soon = asyncio.Event()
        self.link = Link(self.server, self._log)
        self.link.wrong_type = self.guard_soon.set
        self._make_record(plan.handover)
        self._make_children(loop, manager, inherited)
        self._make_errands(loop, inherited)
        self._make_keepers()
        self.reconciler = self._make_reconciler()
        self._make_voices()

    # ---- making them ------------------------------------------------------------------------------------

    def _make_record(self, before: Handover | None) -> None:
        """Who we are and what is held; of a program before us, if there is one."""
        self.identity = before.identity if before else new_identity()
        self.started_at = before.started_at if before else time.time()
        self.life = SignOfLife(self.identity, before.life if before else None)
        self.page = Page(before.page if before else None)
        self.ledger = before.ledger if before else Ledger()
        self.reliable = before.reliable if before else self._plan.settings.fetch == "reliable"
        self.deferred = DeferredReleases(self.link, self._log)

    @property
    def _kept(self) -> set[int]:
        """Descriptors that every process of ours keeps."""
        private_life = self._plan.private.life if self._plan.private is not None else None
        return {fd for fd in (self.page.fd, self.life.fd, private_life) if fd is not None}

    def _make_children(self, loop: ResolvingLoop, manager: Notifier, inherited: set[int]) -> None:
        plan, director = self._plan, self._director
        self.crew = Crew(
            slots_for(plan.concurrency, plan.handover.slots if plan.handover else ()),
            loop,
            self.page,
            self.ledger,
            self.link,
            self._log,
            director.setup_of_child,
            Hooks(
                director.reports_came,
                self.place.set,
                director.registry_came,
                director.import_failed,
                director.fetch_trouble,
                self.deferred.add,
                lambda body: self.recorder.ran(body),
                director.child_died,
            ),
            inherited,
            self._kept,
            plan.settings.boot_timeout,
        )
        self.crew.spared = self._further_pids
        self.recorder = Recorder(
            self.link, self.keys, plan.settings, self.ledger, self.crew.slots, self._log, self._is_registered
        )
        self.interruptions = Interruptions(self.crew, self.ledger, self._tasks, self._log, plan.settings)
        self.roll = Roll(self.crew, self._tasks, self._log, manager)

    def _make_errands(self, loop: ResolvingLoop, inherited: set[int]) -> None:
        """Code of the application that runs beside the children."""
        director = self._director
        means = Means(director.load, director.enter_errand, frozenset(inherited | self._kept), self._plan.tag)
        self.errands = Errands(loop, means, self._log)
        self.tries: set[int] = set()
        self.hooks = DeathHooks(self.errands, self._hooks_for, self._log)
        push = CronPush(
            self.link, self.server, self.keys, self.locks, self.identity, self.errands, self._has_client_middleware
        )
        self.ticker = Ticker(
            self.link,
            self.keys,
            push,
            self._log,
            self._tasks,
            lambda: director.phase is Phase.RUNNING,
            self._plan.settings.periodic_prune,
        )

    def _make_keepers(self) -> None:
        """What looks after the server."""
        settings = self._plan.settings
        self.heartbeat = Heartbeat(
            self.link,
            self.keys,
            self.identity,
            self.page,
            self.ledger,
            self.crew.slots,
            self._description(),
            lambda: [origin_of(name) for name, weight in self._director.queues for _ in range(weight)],
            lambda: self._director.phase.value,
            lambda: self.reliable,
        )
        self.lock_keeper = LockKeeper(self.link, self.locks, self.ledger, self._log)
        self.poller = Poller(self.link, self.keys, self._log, self._job_died)
        self.guard = KeyGuard(self.link, self.keys, self._log)
        self.parked = ParkedRecords(self.link, self.keys, self.locks, self._log, self.deferred, self._job_died)
        self.recovery = Recovery(
            self.link,
            self.keys,
            self.locks,
            self.identity,
            settings.orphan_threshold,
            settings.max_orphanings,
            self._log,
            self.deferred,
            self._job_died,
        )
        self.ward = self._make_ward()

    def _make_voices(self) -> None:
        """What listens, and what rings."""
        self.requests = Requests(
            self.link, self.keys, self.identity, self.crew, self.ledger, self.interruptions, self._log
        )
        director = self._director
        self.remote = Remote(self.server, self.link, self.keys, self.identity, director.obey, director.ask, self._log)
        self.bells = Bells(self.server, self.link, self.keys, self.ledger, self.crew.wake, lambda: self.poller.paused)

    def _make_reconciler(self) -> Reconciler:
        kind = Reconciler if self.reliable else BasicReconciler
        return kind(
            self.link,
            self.keys,
            self.locks,
            self.identity,
            self.ledger,
            self._plan.settings.max_orphanings,
            self._log,
            self.deferred,
            self.crew.read_all,
            self._job_died,
        )

    def _make_ward(self) -> Ward | None:
        plan = self._plan
        if plan.origin is None or plan.ward:
            return None
        return Ward(
            plan.origin,
            plan.private,
            self.link,
            self.keys,
            lambda: self._director.queues,
            lambda: self.poller.paused,
            self.recover_soon.set,
            self._log,
            plan.handover.ward if plan.handover else None,
        )

    def _description(self) -> dict[str, Any]:
        return {
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "concurrency": self._plan.concurrency,
            "started_at": self.started_at,
            "tag": self._plan.tag,
            "machine": machine(),
            "ward": self._plan.ward,
        }

    # ---- what they ask each other -----------------------------------------------------------------------

    def fall_back(self) -> None:
        """Fetch the basic way from here on. Nothing was fetched yet, so that nothing is listed."""
        self.reliable = False
        self.reconciler = self._make_reconciler()
        self.bells.dismiss()

    def _job_died(self, entry: bytes) -> None:
        """We have put a job in dead."""
        self.hooks.died(entry)
        self.recorder.buried(entry)

    def _is_registered(self, name: str) -> bool:
        registry = self._director.registry
        return registry is not None and name in registry.jobs

    def _hooks_for(self, name: str) -> int | None:
        registry = self._director.registry
        return registry.death_hooks(name) if registry is not None else None

    def _has_client_middleware(self) -> bool:
        registry = self._director.registry
        return registry is not None and registry.client_middleware > 0

    def _further_pids(self) -> set[int]:
        """Of processes of ours that are no slots'."""
        ward = self.ward.pid if self.ward is not None else None
        return {*self.errands.pids, *self.tries, *(() if ward is None else (ward,))}
