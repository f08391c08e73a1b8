"""cogworkerd status: processes, queues, sets, what runs now, periodic entries."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from cogworkerd.cli import options
from cogworkerd.cli.tables import duration, size, table
from cogworkerd.cli.watch import watch
from cogworkerd.snapshot import PeriodicEntry, Process, RunningJob, Snapshot, snapshot

HELP = "Show processes, queues, sets, what runs now, periodic entries."
EXAMPLES = """examples:
  cogworkerd status
  cogworkerd status --watch
  cogworkerd status --watch --every 5
  cogworkerd status --memory
  cogworkerd status --json
  cogworkerd status --embedded ./data"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="one object, for scripts")
    how.add_argument("--watch", action="store_true", help="one screen that refreshes in place, until Ctrl-C")
    how.add_argument("--memory", action="store_true", help="what each slot shares and what it has for itself")
    parser.add_argument("--every", metavar="SECONDS", type=_every, default=2.0, help="with --watch: how often (2)")
    options.add_server(parser)
    options.add_embedded(parser, starts=False)


def perform(arguments: argparse.Namespace) -> int:
    """Print the state of the fleet. Returns 0."""
    found = options.effective(arguments, extra=options.embedded_layer(arguments))
    store = options.store(found)
    if arguments.watch:
        return watch(store, found.settings.server().masked, arguments.every)
    state = snapshot(store.client, store.keys)
    if arguments.memory:
        print(memory_text(state))
        return 0
    print(json.dumps(as_object(state), indent=2) if arguments.json else as_text(state, time.time()))
    return 0


def _every(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: allowed are 0.1 to 3600 seconds")
    return seconds


def as_object(state: Snapshot) -> dict[str, Any]:
    """The state as `--json` prints it."""
    return {
        "processes": [vars(process) for process in state.processes],
        "queues": [
            {"name": queue.name, "size": queue.size, "latency": round(queue.latency, 3), "paused": queue.paused}
            for queue in state.queues
        ],
        "sets": state.sets,
        "stats": state.stats,
        "running": [_with_class(job) for job in state.running],
        "periodic": [_with_class(entry) for entry in state.periodic],
    }


def _with_class(found: RunningJob | PeriodicEntry) -> dict[str, Any]:
    named = dict(vars(found))
    named["class"] = named.pop("class_name")
    return named


def as_text(state: Snapshot, now: float) -> str:
    """The state as tables."""
    periodic = table(
        "Periodic entries",
        ("cron", "job", "queue", "last", "next", "state"),
        [_periodic_row(entry) for entry in state.periodic],
    )
    return "\n\n".join(
        [
            table(
                "Processes",
                ("identity", "tag", "busy", "state", "queues", "PSS", "RSS", "up"),
                [_process_row(process, now) for process in state.processes],
                "none is running",
            ),
            table(
                "Queues",
                ("name", "size", "latency", "state"),
                [(q.name, q.size, duration(q.latency), _queue_state(q.paused, q.read)) for q in state.queues],
            ),
            table("Sets", ("scheduled", "retry", "dead"), [tuple(state.sets.values())]),
            table("Counters", ("processed", "failed"), [tuple(state.stats.values())]),
            table(
                "Running now",
                ("job", "jid", "queue", "for", "on"),
                [(j.class_name, j.jid, j.queue, duration(max(0.0, now - j.run_at)), j.identity) for j in state.running],
                "nothing",
            ),
            *([periodic] if state.periodic else []),
        ]
    )


def memory_text(state: Snapshot) -> str:
    """What the slots take, as a table for each daemon. Shared is what is resident and not private."""
    tables = [
        table(
            f"{process.identity}: PSS {size(process.pss_kb)} in all, the supervisor's included",
            ("slot", "pid", "RSS", "PSS", "private", "shared", "job"),
            [_memory_row(number, slot) for number, slot in enumerate(process.slots, 1)],
        )
        for process in state.processes
    ]
    return "\n\n".join(tables) or "Processes: none is running"


def _memory_row(number: int, slot: dict[str, Any]) -> tuple[object, ...]:
    rss, private = slot.get("rss_kb"), slot.get("private_kb")
    shared = rss - private if isinstance(rss, int) and isinstance(private, int) else None
    sizes = (size(each) for each in (rss, slot.get("pss_kb"), private, shared))
    return number, slot.get("pid") or "", *sizes, slot.get("jid") or ""


def _periodic_row(entry: PeriodicEntry) -> tuple[object, ...]:
    state = "disabled" if entry.disabled else "active" if entry.active else "not declared"
    return entry.cron, entry.class_name, entry.queue, _instant(entry.last_slot), _instant(entry.next_slot), state


def _instant(slot: int | None) -> str:
    return "" if slot is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(slot))


def _process_row(process: Process, now: float) -> tuple[object, ...]:
    return (
        process.identity,
        process.tag,
        f"{process.busy}/{process.concurrency}",
        "quiet" if process.quiet else "running",
        " ".join(sorted(set(process.queues))),
        size(process.pss_kb),
        size(process.rss_kb),
        duration(max(0.0, now - process.started_at)),
    )


def _queue_state(paused: bool, read: bool) -> str:
    words = ["paused"] if paused else []
    return ", ".join(words + ([] if read else ["nobody reads it"])) or "read"
