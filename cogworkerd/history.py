"""History: what ran, one entry a run. `all`, `success` and `failed` are sorted sets by the time of the end.

An entry is at most 8 KB. The traceback of a failure stands in `failed` only, so that it is stored once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cogworkerd.payload import dump
from cogworkerd.redact import masked, masker
from cogworkerd.run_record import BACKTRACE_MEMBER
from cogworkerd.store.reading import counters
from cogworkerd.text import NAME_LIMIT, error_class, error_message, storable, traceback_text

if TYPE_CHECKING:
    from cogworkerd.jobsets import Store

MAX_ENTRY = 8 * 1024
"""Bytes of an entry, its traceback included."""

MOST_LINES = 200
ENDS = ("success", "failed")
KINDS = ("all", *ENDS)
_HALF = MAX_ENTRY // 2


def entry_of(
    payload: Mapping[str, Any],
    queue: str,
    receipt: Mapping[str, Any],
    started_at: float,
    finished_at: float,
    with_args: bool,
    error: BaseException | None = None,
) -> bytes:
    """The entry of a run, without its traceback, as JSON of at most half of `MAX_ENTRY`.

    Args:
        queue: the queue it was fetched from.
        receipt: its fields.
        with_args: whether its arguments are kept, masked as the job wants; those that are too long are left out, and
            `args_bytes` says how many they were.
        error: what it raised.
    """
    shown = masked(payload)
    args, kwargs = shown["args"], shown.get("kwargs")
    entry: dict[str, Any] = {
        "jid": payload["jid"],
        "class": storable(payload["class"], NAME_LIMIT),
        "queue": storable(queue, NAME_LIMIT),
        "args": args if with_args else [],
        "status": "success" if error is None else "failed",
        "started_at": started_at,
        "finished_at": finished_at,
        **receipt,
    }
    if kwargs and with_args:
        entry["kwargs"] = kwargs
    if error is not None:
        entry.update(error_class=error_class(error), error_message=error_message(error, masker(payload)))
    return _fitting(entry)


def _fitting(entry: dict[str, Any]) -> bytes:
    raw = _dumped(entry)
    if len(raw) <= _HALF:
        return raw
    size = len(_dumped({"args": entry["args"], "kwargs": entry.get("kwargs")}))
    if size > _HALF // 4:
        entry.update(args=[], args_bytes=size)
        entry.pop("kwargs", None)
        raw = _dumped(entry)
    if len(raw) > _HALF and "error_message" in entry:
        entry["error_message"] = _cut_to(entry["error_message"], _HALF // 2)
        raw = _dumped(entry)
    return raw


def _dumped(entry: Mapping[str, Any]) -> bytes:
    try:
        return dump(entry)
    except ValueError:  # arguments that were read and cannot be written again
        return dump({**entry, "args": [], "kwargs": {}})


def _cut_to(text: str, size: int) -> str:
    """A text whose JSON has at most so many bytes."""
    limit = min(len(text), size)
    while len(json.dumps(storable(text, limit), ensure_ascii=False).encode()) > size:
        limit = limit * 3 // 4
    return storable(text, limit)


def backtrace_of(lines: Sequence[str], room: int, shortened: Callable[[Sequence[str], int], Sequence[str]]) -> bytes:
    """The lines of a traceback or of a stack as a JSON array of at most `room` bytes. `shortened`: the given number of
    lines that count most."""
    most = min(len(lines), MOST_LINES)
    while most:
        kept = [storable(line, 1000) for line in shortened(lines, most)]
        raw = json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()
        if len(raw) <= room:
            return raw
        most -= max(1, most // 8)
    return b"[]"


def last_lines(lines: Sequence[str], most: int) -> Sequence[str]:
    """Those of a traceback that count most: where it happened, and what."""
    return lines[-most:]


def backtrace_of_error(error: BaseException, payload: Mapping[str, Any], entry: bytes) -> bytes:
    """The traceback that goes with this entry of a job."""
    return backtrace_of(traceback_text(error, masker(payload)).splitlines(), room_for_backtrace(entry), last_lines)


def room_for_backtrace(entry: bytes) -> int:
    """Bytes that the traceback of this entry may have."""
    return MAX_ENTRY - len(entry) - len(BACKTRACE_MEMBER)


@dataclass(frozen=True)
class Run:
    """One run, as the history has it.

    Attributes:
        ok: it was a success.
        started_at, finished_at: epoch seconds.
        backtrace: the lines of its traceback; only entries of `failed` have them.
        fields: the whole entry.
    """

    jid: str
    name: str
    queue: str
    ok: bool
    started_at: float
    finished_at: float
    error_class: str
    error_message: str
    backtrace: list[str]
    fields: dict[str, Any]


class History:
    """What ran, newest first.

    Args:
        store: where.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def size(self, kind: str = "all") -> int:
        """How many entries there are. `kind`: all, success or failed."""
        return int(self._store.client.zcard(self._store.keys.history(_checked(kind))))

    def page(self, kind: str = "all", start: int = 0, size: int = 20) -> list[Run]:
        """Some entries, newest first. `start`: how many to leave out; `size`: how many at most."""
        key = self._store.keys.history(_checked(kind))
        found: Any = self._store.client.zrange(key, start, start + size - 1, desc=True) if size > 0 else []
        return [run for raw in found if (run := _read(raw)) is not None]

    def of_job(self, jid: str, kind: str = "all") -> list[Run]:
        """The runs of one job that are kept, newest first."""
        key = self._store.keys.history(_checked(kind))
        runs = []
        pattern = _as_pattern(json.dumps(jid, ensure_ascii=False)[1:-1])
        for raw, _ in self._store.client.zscan_iter(key, match=f"*{pattern}*", count=1000):
            run = _read(raw)
            if run is not None and run.jid == jid:
                runs.append(run)
        return sorted(runs, key=lambda run: run.finished_at, reverse=True)

    def daily(self, days: int = 30, now: float | None = None) -> dict[str, dict[str, int]]:
        """Counts of the last days, today first: `{"2026-01-31": {"success": 5, "failed": 0}}`, in UTC."""
        moment = time.time() if now is None else now
        keys = self._store.keys
        with self._store.client.pipeline(transaction=False) as pipe:
            moments = [moment - 86_400 * back for back in range(days)]
            for each in moments:
                pipe.hmget(keys.history_of_day(each), *ENDS)
            replies = pipe.execute(raise_on_error=False)
        return {
            time.strftime("%Y-%m-%d", time.gmtime(each)): dict(
                zip(("success", "failed"), counters(reply, 2), strict=True)
            )
            for each, reply in zip(moments, replies, strict=True)
        }


def _checked(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"history {kind!r:.40}: allowed is {', '.join(KINDS)}")
    return kind


def _as_pattern(text: str) -> str:
    return "".join(f"\\{char}" if char in "*?[]\\^" else char for char in text)


def _read(raw: bytes) -> Run | None:
    """An entry that anybody may have written."""
    try:
        entry = json.loads(raw)
        return Run(
            str(entry["jid"]),
            str(entry["class"]),
            str(entry.get("queue", "")),
            entry["status"] == "success",
            float(entry["started_at"]),
            float(entry["finished_at"]),
            str(entry.get("error_class", "")),
            str(entry.get("error_message", "")),
            [str(line) for line in entry.get("backtrace") or ()],
            dict(entry),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
