"""cogworkerd check: the effective settings, the app's jobs, and what the server has to say, before a deploy."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import redis

from cogworkerd.cli import options
from cogworkerd.cli.tables import table
from cogworkerd.loading import loader
from cogworkerd.memory_estimate import Estimate, estimates
from cogworkerd.periodic import resolve_all
from cogworkerd.settings import NAMES, Effective, combine, environment_layers
from cogworkerd.snapshot import QueueState, snapshot
from cogworkerd.store.server_check import check_server
from cogworkerd.usable_cpus import default_concurrency

if TYPE_CHECKING:
    from cogworkerd.app import App

HELP = "Check an app, its settings and the server; changes nothing."
EXAMPLES = """examples:
  cogworkerd check shop.jobs:app
  cogworkerd check shop.jobs:app -c 10 --redis-url-file /run/secrets/redis"""

EXIT_AWAY = 69
SPARE_CONNECTIONS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_app(parser)
    options.add_server(parser)
    options.add_embedded(parser, starts=False)
    options.add_daemon(parser)


@dataclass(frozen=True)
class _Reading:
    """The queues that the daemon would read, and whether somebody listed them by hand."""

    queues: list[str]
    by_hand: bool


def perform(arguments: argparse.Namespace) -> int:
    """Print what was found. Returns 0, or 69 when the server is away; errors of the app and the settings are 78."""
    app = loader(arguments.app, arguments.app_dir)()
    found = options.effective(arguments, app.layer, options.embedded_layer(arguments))
    settings = found.settings
    reading = _Reading(
        [name for name, _ in settings.queues] if settings.queues else app.queues, settings.queues is not None
    )
    print(table("Settings", ("setting", "value", "from"), [_setting_row(name, found) for name in NAMES]))
    print()
    jobs = sorted(app.jobs.values(), key=lambda job: job.name)
    print(table("Jobs", ("name", "queue", "retry"), [(job.name, job.queue, str(job.options.retry)) for job in jobs]))
    entries = _entries(app, found)
    if entries:
        print()
        print(table("Periodic entries", ("cron", "job", "queue", "next"), entries))
    warnings = [*found.warnings, *_app_warnings(app, reading), *_client_warnings(found, app)]
    try:
        store = options.store(found)
    except (redis.exceptions.RedisError, OSError) as error:
        _print_warnings(warnings)
        print(f"\nServer {settings.server().masked}: away: {error}")
        return EXIT_AWAY
    needed = (settings.concurrency or default_concurrency()[0]) * 2 + SPARE_CONNECTIONS
    report = check_server(store.client, store.keys, needed)
    print()
    print(table(f"Server {settings.server().masked}", ("what", "found"), report.rows))
    print()
    rows = [_memory_row(estimate) for estimate in estimates(store, settings)]
    print(table("Memory that records can reach", ("records", "now", "bytes each", "reach", "bounded by"), rows))
    warnings += report.warnings + _queue_warnings(snapshot(store.client, store.keys).queues, reading.queues)
    _print_warnings(warnings)
    return 0


def _entries(app: App, found: Effective) -> list[tuple[str, ...]]:
    """The periodic entries with their next instants.

    Raises:
        SettingsError: one cannot be used.
    """
    app.use(found.settings)
    now = time.time()
    rows: list[tuple[str, ...]] = []
    for entry in resolve_all(app):
        next_time = datetime.fromtimestamp(entry.schedule.next_after(now), UTC)
        rows.append((entry.cron, entry.job, entry.queue, next_time.strftime("%Y-%m-%d %H:%M:%S UTC")))
    return rows


def _memory_row(estimate: Estimate) -> tuple[object, ...]:
    now = "" if estimate.now is None else f"{estimate.now:,}"
    reach = f"{estimate.reach / 2**20:,.1f} MiB"
    return estimate.what, now, estimate.bytes_each, reach, estimate.why


def _print_warnings(warnings: list[str]) -> None:
    print()
    for warning in warnings:
        print(f"warning: {warning}")
    if not warnings:
        print("No warnings.")


def _setting_row(name: str, found: Effective) -> tuple[str, str, str]:
    value = getattr(found.settings, name)
    origin = found.origins[name]
    if name == "redis_url":
        return name, found.settings.server().masked, origin
    if name == "redis":
        return name, ", ".join(sorted(value or {})) or "nothing more", origin
    if name == "concurrency" and value is None:
        slots, why = default_concurrency()
        return name, f"{slots} ({why})", origin
    if name == "queues":
        text = " ".join(f"{queue},{weight}" if weight > 1 else queue for queue, weight in value or ())
        return name, text or "default and those of the jobs", origin
    if name == "periodic":
        return name, f"{len(value)} entries" if value else "none", origin
    if name == "preload" and value is None:
        return name, "where forking is safe after an import (not on macOS)", origin
    return name, "off" if value is None else str(value), origin


def _app_warnings(app: App, reading: _Reading) -> list[str]:
    if not reading.by_hand:
        return []
    return [
        f"job {job.name} goes to queue {job.queue!r}, which is not read here"
        for job in app.jobs.values()
        if job.queue not in reading.queues
    ]


def _client_warnings(found: Effective, app: App) -> list[str]:
    """A client looks at App(...) and the environment only."""
    layers = [layer for layer in environment_layers(os.environ) if "redis_url" in layer.values]
    client = combine(app.layer, *layers).settings.server().masked
    daemon = found.settings.server().masked
    if client == daemon:
        return []
    return [f"the daemon would use {daemon}, but clients of this app {client}: set COGWORKERD_REDIS_URL for both"]


def _queue_warnings(queues: list[QueueState], reading: list[str]) -> list[str]:
    return [
        f"queue {queue.name!r} holds {queue.size} jobs and nobody reads it"
        for queue in queues
        if queue.size and not queue.read and queue.name not in reading
    ]
