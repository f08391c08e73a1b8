"""cogworkerd run: the daemon."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from setproctitle import setproctitle

from cogworkerd import events, log
from cogworkerd.cli import early, options
from cogworkerd.embedded import EmbeddedServer
from cogworkerd.errors import AppImportError
from cogworkerd.loading import loader
from cogworkerd.settings import Effective, Layer
from cogworkerd.usable_cpus import default_concurrency

if TYPE_CHECKING:
    from cogworkerd.app import App

HELP = "Run the daemon: a supervisor and one process per slot."
EXAMPLES = """examples:
  cogworkerd run shop.jobs:app
  cogworkerd run shop.jobs:app -c 10 -q mail,3 -q default
  cogworkerd run shop.jobs:app --embedded ./data
  COGWORKERD_REDIS_URL_FILE=/run/secrets/redis cogworkerd run shop.jobs:app --log-format json"""

EXIT_CONFIG = 78
# Set across the one exec that turns preload off; the second underscore keeps it apart from settings.
PRELOAD_OFF = "COGWORKERD__PRELOAD_OFF"


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


def start(arguments: argparse.Namespace) -> int:
    """Import, configure, run.

    Raises:
        SettingsError, AppImportError, EmbeddedError: nothing was fetched.
    """
    load = loader(arguments.app, arguments.app_dir)
    first = options.effective(arguments)  # mistakes outside the app need no import to be found
    app: App | None = None
    if _preload(first):
        app = load()
        app_layer = app.layer
        threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        if threads:
            _start_anew_without_preload(first, threads)
    else:
        app_layer = _layer_by_another_process(load)
    found = options.effective(arguments, app_layer)
    private = EmbeddedServer.start(arguments.embedded or None) if arguments.embedded is not None else None
    if private is not None:
        found = options.effective(arguments, app_layer, Layer("--embedded", {"redis_url": private.url}))
    try:
        return _supervise(arguments, found, app, load, private)
    finally:
        if private is not None:
            private.stop()


def _supervise(
    arguments: argparse.Namespace,
    found: Effective,
    app: App | None,
    load: Callable[[], App],
    private: EmbeddedServer | None,
) -> int:
    from cogworkerd.periodic import resolve_all
    from cogworkerd.supervisor.plan import Plan
    from cogworkerd.supervisor.supervisor import Supervisor

    settings = found.settings
    daemon_log = log.configure(settings.log_format, settings.log_level)
    _warn(found, daemon_log)
    slots, slots_by = default_concurrency()
    if settings.concurrency is not None:
        slots, slots_by = settings.concurrency, found.origins["concurrency"]
    if app is not None:
        app.use(settings)
        resolve_all(app)

    def load_for_child() -> App:
        loaded = load()
        loaded.use(settings)
        resolve_all(loaded)  # a periodic entry that cannot be used is as bad as a broken import
        return loaded

    plan = Plan(
        target=arguments.app,
        app=app,
        load=load_for_child,
        settings=settings,
        concurrency=slots,
        slots_by=slots_by,
        tag=settings.tag or arguments.app.partition(":")[0].partition(".")[0],
        log=daemon_log,
        url_hint=f"COGWORKERD_REDIS_URL={private.url}" if private is not None else "",
        keep=frozenset() if private is None else frozenset({private.life}),
        early=early.received,
    )
    try:
        return Supervisor(plan).run()
    except Exception as error:
        daemon_log.emit(events.DAEMON_CRASHED, exc_info=error, task="supervisor")
        return 1


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


def _start_anew_without_preload(found: Effective, threads: list[str]) -> None:
    """A process with threads must not fork. The one way to be rid of them is a new program in the same process."""
    os.environ[PRELOAD_OFF] = ", ".join(threads)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


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
    return Layer("App(...)", answer["values"])


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
