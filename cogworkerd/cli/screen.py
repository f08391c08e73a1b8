"""The screen of `status --watch`: an overview as lines that fit a terminal."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Sequence

from cogworkerd.cli.tables import duration, size
from cogworkerd.overview import Overview
from cogworkerd.snapshot import Process, QueueState
from cogworkerd.status import progress_bar
from cogworkerd.text import printable

_HEAD_LINES = 3
_SECTIONS = 3


def screen(view: Overview, server: str, width: int, height: int) -> list[str]:
    """The lines, none longer than `width`, never more than `height`."""
    state = view.state
    stamp = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(view.at))
    counters = "   ".join(f"{name} {count:,}{_rate(view.rates.get(name))}" for name, count in state.stats.items())
    sets = "   ".join(f"{name} {count:,}" for name, count in state.sets.items())
    lines = [_edges(f"cogworkerd  {server}", stamp, width), _edges(counters, sets, width)]
    sections = [
        _section(
            f"PROCESSES ({len(state.processes)})",
            ("identity", "tag", "busy", "state", "PSS", "up"),
            [_process_row(process, view.at) for process in state.processes],
            (0, 12, 7, 8, 8, 10),
            width,
        ),
        _section(
            f"RUNNING ({len(view.running)})",
            ("job", "jid", "for", "progress"),
            [
                (job.class_name, job.jid[:12], duration(max(0.0, view.at - job.run_at)), _progress(view, job.jid))
                for job in view.running
            ],
            (0, 12, 10, 30),
            width,
        ),
        _section(
            f"QUEUES ({len(state.queues)})",
            ("name", "size", "change/s", "latency", "state"),
            [_queue_row(queue, view) for queue in state.queues],
            (0, 9, 9, 12, 16),
            width,
        ),
    ]
    for section in _shared(sections, height - _HEAD_LINES + 1):
        lines += ["", *section]
    return [fitted(line, width).rstrip() for line in lines[:height]]


def columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(_columns_of(char) for char in text)


def _columns_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fitted(text: str, width: int) -> str:
    """A text cut and filled to so many columns."""
    shown, taken = "", 0
    for char in text:
        size = _columns_of(char)
        if taken + size > width:
            break
        shown += char
        taken += size
    return shown + " " * (width - taken)


def _rate(rate: float | None) -> str:
    return "" if rate is None else f" ({rate:+,.1f}/s)"


def _edges(left: str, right: str, width: int) -> str:
    """One text at each edge; the right one yields."""
    room = width - columns(left) - 2
    shown = printable(right, max(room, 8))
    return left if room < 8 else f"{left}  {' ' * (room - columns(shown))}{fitted(shown, room)}"


def _section(
    title: str, head: Sequence[str], rows: list[tuple[str, ...]], widths: Sequence[int], width: int
) -> list[str]:
    """A title line with the names of its columns, and its rows. The first column takes what the others leave."""
    first = max(8, width - sum(widths) - 2 * (len(widths) - 1))
    widths_now = (first, *widths[1:])

    def line(cells: Sequence[str]) -> str:
        shown = (fitted(printable(cell, column), column) for cell, column in zip(cells, widths_now, strict=True))
        return "  ".join(shown).rstrip()

    return [line((title, *head[1:])), *(line(row) for row in rows)]


def _shared(sections: list[list[str]], room: int) -> list[list[str]]:
    """The sections cut so that all of them together, each with a blank line before it, fit; short ones stay whole."""
    left = room - _SECTIONS
    wanted = sorted(range(len(sections)), key=lambda index: len(sections[index]))
    shares: dict[int, int] = {}
    for position, index in enumerate(wanted):
        shares[index] = min(len(sections[index]), max(2, left // (len(wanted) - position)))
        left -= shares[index]
    return [_cut(section, shares[index]) for index, section in enumerate(sections)]


def _cut(section: list[str], size: int) -> list[str]:
    if len(section) <= size:
        return section
    return [*section[: size - 1], f"... and {len(section) - size + 1} more"]


def _process_row(process: Process, now: float) -> tuple[str, ...]:
    return (
        process.identity,
        process.tag,
        f"{process.busy}/{process.concurrency}",
        "quiet" if process.quiet else "running",
        size(process.pss_kb),
        duration(max(0.0, now - process.started_at)),
    )


def _progress(view: Overview, jid: str) -> str:
    status = view.statuses.get(jid)
    return progress_bar(status.pct, status.message, 10) if status is not None else ""


def _queue_row(queue: QueueState, view: Overview) -> tuple[str, ...]:
    change = view.changes.get(queue.name)
    words = ["paused"] if queue.paused else []
    words += [] if queue.read else ["not read"]
    return (
        queue.name,
        f"{queue.size:,}",
        "" if change is None else f"{change:+,.1f}",
        duration(queue.latency),
        ", ".join(words) or "read",
    )
