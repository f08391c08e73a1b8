"""cogworkerd run: the daemon."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from setproctitle import setproctitle

from cogworkerd import events, log
from cogworkerd.cli import early, options
from cogworkerd.embedded import EmbeddedServer
from cogworkerd.errors import AppImportError, CogworkerdError
from cogworkerd.loading import loader
from cogworkerd.settings import APP_LAYER, Effective, Layer, Settings
from cogworkerd.store.keys import suspects_of
from cogworkerd.supervisor.origin import CHECK, HANDOVER, PRELOAD_OFF, WARD, Origin
from cogworkerd.usable_cpus import default_concurrency

if TYPE_CHECKING:
    from cogworkerd.app import App
    from cogworkerd.supervisor.handover import Handover
    from cogworkerd.supervisor.plan import Plan
    from cogworkerd.supervisor.ward import WardOrder

HELP = "Run the daemon: a supervisor and one process per slot."
EXAMPLES = """examples:
  cogworkerd run shop.jobs:app
  cogworkerd run shop.jobs:app -c 10 -q mail,3 -q default
  cogworkerd run shop.jobs:app --embedded ./data
  COGWORKERD_REDIS_URL_FILE=/run/secrets/redis cogworkerd run shop.jobs:app --log-format json"""

EXIT_FAILED, EXIT_CONFIG = 1, 78


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_app(parser)
    options.add_server(parser)
    options.add_embedded(parser, starts=True)
    options.add_daemon(parser)


def perform(arguments: argparse.Namespace) -> int:
    """Run until told to stop. Returns the exit status."""
    refusal = _unfit_platform()
    if refusal:
        print(f"cogworkerd: {refusal}", file=sys.stderr)
        return EXIT_CONFIG
    log.open_missing_descriptors()
    log.sturdy_streams()
    # Before anything touches os.environ: the room for the title is the environment's.
    setproctitle("cogworkerd:supervisor starting")
    return start(arguments)


@dataclass(frozen=True)
class Lineage:
    """What this program follows.

    Attributes:
        origin: how it was started.
        handover: what the program before it in this process has left.
        ward: what the daemon whose ward this is has told it.
    """

    origin: Origin
    handover: Handover | None = None
    ward: WardOrder | None = None

    @property
    def private(self) -> EmbeddedServer | None:
        """The embedded server that it is to go on with."""
        before = self.handover or self.ward
        return before.private if before is not None else None


@dataclass(frozen=True)
class Loaded:
    """The application, as far as this process holds it.

    Attributes:
        load: imports it.
        app: with preload.
        layer: what it says of its settings.
        broken: why it cannot be imported, although it could be a moment ago; then its settings are the old ones.
    """

    load: Callable[[], App]
    app: App | None
    layer: Layer
    broken: str = ""


def start(arguments: argparse.Namespace) -> int:
    """Import, configure, run; or, in a process that was started for it, tell whether this program could follow the one
    that runs.

    Raises:
        SettingsError, AppImportError, EmbeddedError: nothing was fetched.
    """
    origin = Origin.capture()
    if CHECK in os.environ:
        return _check(arguments)
    if WARD in os.environ:
        return _start_ward(arguments, origin)
    if HANDOVER not in os.environ:
        return _start(arguments, Lineage(origin))
    try:
        return _start(arguments, Lineage(origin, handover=_taken_over()))
    except CogworkerdError as error:
        # The children end in order, as after any end of a supervisor; a service manager starts the daemon anew.
        print(f"cogworkerd: {error}", file=sys.stderr)
        return EXIT_FAILED


def _start_ward(arguments: argparse.Namespace, origin: Origin) -> int:
    """Run suspects for another daemon of this program, and live no longer than it does."""
    from cogworkerd.supervisor.ward import WardOrder

    order = WardOrder.decode(os.environ[WARD])
    if not _dies_with(order.parent):
        return EXIT_FAILED
    return _start(arguments, Lineage(origin, ward=order))


def _dies_with(parent: int) -> bool:
    """From here on this process ends with its parent, where the system offers it. False: it is gone already."""
    from cogworkerd.supervisor.death import parent_death_signal

    death_signal = parent_death_signal()
    if death_signal is not None:
        death_signal()
    return os.getppid() == parent


def _start(arguments: argparse.Namespace, lineage: Lineage) -> int:
    load = loader(arguments.app, arguments.app_dir)
    first = options.effective(arguments)  # mistakes outside the app need no import to be found
    try:
        loaded = _loaded(load, first, lineage)
    except AppImportError as error:
        if lineage.handover is None:
            raise
        loaded = Loaded(load, None, Layer(APP_LAYER, lineage.handover.settings_of_app()), str(error))
    private = lineage.private
    if private is None and arguments.embedded is not None:
        options.effective(arguments, loaded.layer)  # no server is started for settings that cannot be used
        private = EmbeddedServer.start(arguments.embedded or None)
    found = options.effective(arguments, loaded.layer, _private_layer(private))
    try:
        return _supervise(arguments, found, loaded, private, lineage)
    finally:
        if private is not None:
            private.stop()


def _loaded(load: Callable[[], App], first: Effective, lineage: Lineage) -> Loaded:
    """Raises AppImportError."""
    if not _preload(first):
        return Loaded(load, None, _layer_by_another_process(load))
    app = load()
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        _start_anew_without_preload(lineage, threads)
    return Loaded(load, app, app.layer)


def _private_layer(private: EmbeddedServer | None) -> Layer | None:
    return Layer("--embedded", {"redis_url": private.url}) if private is not None else None


def _supervise(
    arguments: argparse.Namespace,
    found: Effective,
    loaded: Loaded,
    private: EmbeddedServer | None,
    lineage: Lineage,
) -> int:
    if lineage.handover is not None:
        lineage.handover.check(found.settings)
    daemon_log = log.configure(found.settings.log_format, found.settings.log_level)
    _warn(found, daemon_log)
    if loaded.broken:
        daemon_log.emit(events.RENEWAL_WITHOUT_APP, reason=" | ".join(loaded.broken.splitlines()))
    plan = _plan(arguments.app, found, loaded, private, lineage, daemon_log)
    try:
        return _run(plan, lineage.origin, daemon_log)
    except Exception as error:
        daemon_log.emit(events.DAEMON_CRASHED, exc_info=error, task="supervisor")
        return EXIT_FAILED


def _plan(
    target: str,
    found: Effective,
    loaded: Loaded,
    private: EmbeddedServer | None,
    lineage: Lineage,
    daemon_log: log.Log,
) -> Plan:
    from cogworkerd.supervisor.plan import Plan

    settings = found.settings
    slots, slots_by = default_concurrency()
    if settings.concurrency is not None:
        slots, slots_by = settings.concurrency, found.origins["concurrency"]
    tag = settings.tag or target.partition(":")[0].partition(".")[0]
    if lineage.ward is not None:
        queues = tuple((suspects_of(name), weight) for name, weight in lineage.ward.queues)
        settings = replace(settings, queues=queues)
        slots, slots_by, tag = 1, "the ward", f"{tag} ward"
    if loaded.app is not None:
        _make_usable(loaded.app, settings)
    return Plan(
        target=target,
        app=loaded.app,
        load=_usable(loaded.load, settings),
        settings=settings,
        concurrency=slots,
        slots_by=slots_by,
        tag=tag,
        log=daemon_log,
        private=private,
        early=early.received,
        origin=lineage.origin,
        app_settings=dict(loaded.layer.values),
        handover=lineage.handover,
        broken=bool(loaded.broken),
        ward=lineage.ward is not None,
    )


def _usable(load: Callable[[], App], settings: Settings) -> Callable[[], App]:
    """For children that import the app themselves."""

    def load_usable() -> App:
        app = load()
        _make_usable(app, settings)
        return app

    return load_usable


def _run(plan: Plan, origin: Origin, daemon_log: log.Log) -> int:
    """Supervise; where new code is to follow, become it."""
    from cogworkerd.supervisor.handover import Handover
    from cogworkerd.supervisor.supervisor import Supervisor
    from cogworkerd.supervisor.systemd import VARIABLES

    while True:
        ended = Supervisor(plan).run()
        if isinstance(ended, int):
            return ended
        file = ended.write()
        try:
            _become(origin, ended, file)
        except OSError as error:
            daemon_log.emit(events.RENEWAL_FAILED, error=origin.reason(error))
        # The old program goes on: it takes over from itself.
        os.environ.update({name: value for name, value in origin.environment.items() if name in VARIABLES})
        plan = replace(plan, handover=Handover.read(file), early=())
        os.close(file)


def _become(origin: Origin, handover: Handover, file: int, **more: str) -> None:
    """Start the program anew in this process, with the handover in a memory file.

    Raises:
        OSError: it could not be started.
    """
    handover.keep_open(across_exec=True)
    os.set_inheritable(file, True)
    try:
        origin.start_again(**{HANDOVER: str(file), **more})
    finally:
        handover.keep_open(across_exec=False)
        os.set_inheritable(file, False)


def _taken_over() -> Handover:
    """What the program before this one has left.

    Raises:
        HandoverError: it cannot be read.
    """
    from cogworkerd.supervisor.handover import Handover

    file = int(os.environ.pop(HANDOVER))
    handover = Handover.read(file)
    os.close(file)
    # No program that the application starts is to have them.
    handover.keep_open(across_exec=False)
    return handover


def _check(arguments: argparse.Namespace) -> int:
    """Say whether this program could follow the one that runs: the app, the settings, what is handed over.

    Raises:
        SettingsError, AppImportError, HandoverError: it could not.
    """
    from cogworkerd.supervisor.handover import Handover
    from cogworkerd.supervisor.renewal import FIT

    setproctitle("cogworkerd:check")
    parent, word = map(int, os.environ.pop(CHECK).split())
    if not _dies_with(parent):
        return EXIT_FAILED
    handover = Handover.read(int(os.environ.pop(HANDOVER)))
    app = loader(arguments.app, arguments.app_dir)()
    found = options.effective(arguments, app.layer, _private_layer(handover.private))
    handover.check(found.settings)
    _make_usable(app, found.settings)
    os.write(word, FIT)
    os._exit(0)  # what the application does at an exit is of no use here, and may take its time


def _make_usable(app: App, settings: Settings) -> None:
    """Raises SettingsError for a periodic entry that cannot be used: it is as bad as a broken import."""
    from cogworkerd.periodic import resolve_all

    app.use(settings)
    resolve_all(app)


def _warn(found: Effective, daemon_log: log.Log) -> None:
    for warning in found.warnings:
        daemon_log.emit(events.SETTINGS_WARNING, text=warning)
    reason = os.environ.pop(PRELOAD_OFF, "")
    if reason:
        daemon_log.emit(events.PRELOAD_THREADS, threads=reason)
    if platform.python_implementation() != "CPython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        daemon_log.emit(events.SETTINGS_WARNING, text="this build of Python is untested: use CPython with its GIL")


def _preload(found: Effective) -> bool:
    if PRELOAD_OFF in os.environ:
        return False
    wanted = found.settings.preload
    # On macOS system libraries do not survive a fork once they were used.
    return sys.platform != "darwin" if wanted is None else wanted


def _start_anew_without_preload(lineage: Lineage, threads: list[str]) -> None:
    """A process with threads must not fork. The one way to be rid of them is a new program in the same process."""
    from cogworkerd.supervisor.phase import BLOCKED

    off = {PRELOAD_OFF: ", ".join(threads)}
    if lineage.handover is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        while early.received:
            # To this thread, where it waits for the next program: one of the app's would take it, and it would be gone.
            signal.pthread_kill(threading.get_ident(), early.received.pop(0))
        _become(lineage.origin, lineage.handover, lineage.handover.write(), **off)
    if lineage.ward is not None:
        off[WARD] = lineage.ward.encode()
        if lineage.ward.private is not None:
            os.set_inheritable(lineage.ward.private.life, True)
    lineage.origin.start_again(**off)


def _layer_by_another_process(load: Callable[[], App]) -> Layer:
    """The app's settings, without importing it here: a short-lived child imports it and tells.

    Raises:
        AppImportError: the import failed there.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _tell_layer(load, read, write)
    early.companions.add(pid)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    early.companions.discard(pid)
    if not told:
        raise AppImportError("importing the app ended the process that tried it")
    answer = json.loads(told)
    if "error" in answer:
        raise AppImportError(answer["error"])
    return Layer(APP_LAYER, answer["values"])


def _tell_layer(load: Callable[[], App], read: int, write: int) -> None:
    os.close(read)
    try:
        answer: dict[str, Any] = {"values": dict(load().layer.values)}
    except AppImportError as error:
        answer = {"error": str(error)}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    try:
        os.write(write, json.dumps(answer).encode())
        os.close(write)
    finally:
        os._exit(0)


def _unfit_platform() -> str:
    if not hasattr(os, "fork"):
        return "the daemon needs a system that can fork (Linux, or macOS for development); clients work here"
    return ""
