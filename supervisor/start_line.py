"""The lines that a daemon begins with: what was started, and what should not stay as it is."""

from __future__ import annotations

from typing import Any

import cogworkerd
from cogworkerd import events
from cogworkerd.store.connection import Server
from cogworkerd.store.keys import origin_of
from cogworkerd.store.server_check import ServerFacts

from .plan import Plan


def tell_start(
    plan: Plan, server: Server, queues: tuple[tuple[str, int], ...], cron_entries: int | None, facts: ServerFacts
) -> None:
    """Log what was started, on which server, and warn of what will not do for long.

    Args:
        queues: names and weights; empty while no child has said which queues the app's jobs name.
        cron_entries: how many; None while no child has said it.
    """
    app = plan.app
    private: dict[str, Any] = {"url": f"COGWORKERD_REDIS_URL={plan.private.url}"} if plan.private else {}
    plan.log.emit(
        events.DAEMON_START,
        version=cogworkerd.__version__,
        app=plan.target,
        server=server.masked,
        server_version=facts.version,
        queues=" ".join(f"{name},{weight}" if weight > 1 else name for name, weight in queues),
        slots=plan.concurrency,
        slots_by=plan.slots_by,
        jobs=len(app.jobs) if app is not None else "each child imports the app",
        cron_entries=cron_entries if cron_entries is not None else "each child imports the app",
        **private,
    )
    if facts.evicts:
        plan.log.emit(events.SERVER_EVICTS, policy=facts.evicts)
    read = {origin_of(name) for name, _ in queues}
    unread = [f"{job.name} ({job.queue})" for job in app.jobs.values() if job.queue not in read] if app else []
    if unread:
        plan.log.emit(events.QUEUE_NOT_READ, jobs=unread)
