"""Periodic entries: declared on the app or in TOML, resolved against the app's jobs, published for every program."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from cogworkerd import payload as payloads
from cogworkerd.cron import DEFAULT_ZONE, Schedule, schedule_of, split_zone, zone_of
from cogworkerd.errors import SettingsError
from cogworkerd.expiry import EXPIRES_AT
from cogworkerd.job import Options, check_unique, payload_fields
from cogworkerd.settings import CATCH_UP, BadEntry, check_queue_name, did_you_mean
from cogworkerd.unique import UNTIL_EXECUTED, periodic_id

if TYPE_CHECKING:
    from cogworkerd.app import App

_LONGEST_JITTER = 366 * 86_400
_TABLE_NAMES = ("cron", "job", "args", "kwargs", "queue", "retry", "unique", "tz", "catch_up", "jitter")


@dataclass(frozen=True)
class Declaration:
    """An entry as it was declared and checked; what is None is decided by the job and the settings.

    Attributes:
        cron: the expression, with a time zone behind it if one was given.
        unique: "until_executed": no slot fires while a run of the entry waits or is at work.
        jitter: seconds over which the instants are spread.
        where: the place of the declaration, for errors.
        options: those of the job that was given, which may be a twin by `using`; None for a name.
    """

    cron: str
    job: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    retry: bool | int | None = None
    unique: str | None = None
    catch_up: str | None = None
    jitter: float = 0.0
    where: str = ""
    options: Options | None = None


def declare(
    cron: Any,
    job: Any,
    *,
    args: Any = (),
    kwargs: Any = None,
    queue: Any = None,
    retry: Any = None,
    unique: Any = None,
    tz: Any = None,
    catch_up: Any = None,
    jitter: Any = 0.0,
    where: str,
    options: Options | None = None,
) -> Declaration:
    """Check an entry.

    Raises:
        BadEntry: something in it is not allowed; the text names entry, expression and reason.
    """
    name = f"{where}: periodic entry {job!r:.80} ({cron!r:.80})"
    if not isinstance(job, str) or not job:
        raise BadEntry(f"{where}: job = {job!r:.80}: allowed is the name of a job")
    try:
        return Declaration(
            cron=_checked_cron(cron, tz),
            job=job,
            args=_checked_args(args),
            kwargs=_checked_kwargs(kwargs),
            queue=None if queue is None else check_queue_name(queue),
            retry=_checked_retry(retry),
            unique=check_unique(unique, "it"),
            catch_up=None if catch_up is None else _checked_catch_up(catch_up),
            jitter=_checked_jitter(jitter),
            where=where,
            options=options,
        )
    except (ValueError, TypeError) as error:
        raise BadEntry(f"{name}: {error}")


def _checked_cron(cron: Any, tz: Any) -> str:
    if not isinstance(cron, str):
        raise TypeError("the expression is no text")
    expression, inside = split_zone(cron)
    beside = tz.key if isinstance(tz, ZoneInfo) else tz
    if isinstance(tz, ZoneInfo) and beside is None:
        raise TypeError(f"tz = {tz!r:.80}: this ZoneInfo has no name; allowed is the name of a time zone")
    if beside is not None and not isinstance(beside, str):
        raise TypeError(f"tz = {tz!r:.80}: allowed is the name of a time zone, or a ZoneInfo")
    if inside and beside and inside != beside:
        raise ValueError(f"two time zones, {inside} and tz = {beside}")
    zone = inside or beside
    Schedule(expression, zone_of(zone or DEFAULT_ZONE))
    return f"{' '.join(expression.split())} {zone}" if zone else " ".join(expression.split())


def _checked_args(args: Any) -> tuple[Any, ...]:
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise TypeError(f"args = {args!r:.80}: allowed is a list of arguments")
    return tuple(payloads.check_json(list(args), "args"))


def _checked_kwargs(kwargs: Any) -> dict[str, Any]:
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs = {kwargs!r:.80}: allowed is a table of keyword arguments")
    checked: dict[str, Any] = payloads.check_json(dict(kwargs or {}), "kwargs")
    return checked


def _checked_retry(retry: Any) -> bool | int | None:
    if retry is not None and (not isinstance(retry, int) or retry < 0):
        raise ValueError(f"retry = {retry!r:.80}: allowed is true, false or a whole number from 0 up")
    return retry


def _checked_catch_up(value: Any) -> str:
    if value is False:
        return "none"
    if value not in CATCH_UP:
        raise ValueError(f"catch_up = {value!r:.80}: allowed is {' or '.join(map(repr, CATCH_UP))}")
    return str(value)


def _checked_jitter(jitter: Any) -> float:
    seconds = jitter.total_seconds() if isinstance(jitter, timedelta) else jitter
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _LONGEST_JITTER:
        raise ValueError(f"jitter = {jitter!r:.80}: allowed are seconds from 0 up")
    return float(seconds)


def declarations_in(tables: Any) -> tuple[Declaration, ...]:
    """The entries of `[[tool.cogworkerd.periodic]]`.

    Raises:
        BadEntry: one is not allowed.
    """
    if not isinstance(tables, list | tuple) or not all(isinstance(table, Mapping) for table in tables):
        raise BadEntry("periodic: allowed is a list of tables: [[tool.cogworkerd.periodic]]")
    found = []
    for number, table in enumerate(tables, 1):
        where = f"periodic, number {number}"
        for name in table:
            if name not in _TABLE_NAMES:
                raise BadEntry(f"{where}: unknown field {name!r}{did_you_mean(name, _TABLE_NAMES)}")
        for name in ("cron", "job"):
            if name not in table:
                raise BadEntry(f"{where}: {name!r} is missing")
        rest = {name: value for name, value in table.items() if name not in ("cron", "job")}
        found.append(declare(table["cron"], table["job"], **rest, where=where))
    return tuple(found)


@dataclass(frozen=True)
class Entry:
    """An entry, ready to be fired.

    Attributes:
        cron: the expression as it is published.
        until_executed: no slot fires while a run of the entry waits or is at work.
        catch_up: "latest", "none" or "first".
        jitter: seconds over which the instants are spread.
        more: further fields of the payload, from the job's options.
        expires_in: seconds after its instant at which a slot's job is too late; None: never.
        expires_at: the same for all slots, epoch seconds.
    """

    cron: str
    job: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    queue: str
    retry: bool | int
    until_executed: bool
    catch_up: str
    jitter: float
    more: Mapping[str, Any] = field(default_factory=dict)
    expires_in: float | None = None
    expires_at: float | None = None

    @cached_property
    def pjid(self) -> str:
        """By which every program of the wire format knows the entry."""
        return periodic_id(self.cron, self.job, self.args, self.kwargs)

    @cached_property
    def schedule(self) -> Schedule:
        return schedule_of(self.cron)

    def published(self) -> bytes:
        """The entry's value in the hash of the schedule."""
        wire = {
            "cron": self.cron,
            "class": self.job,
            "retry": self.retry,
            "unique": UNTIL_EXECUTED if self.until_executed else None,
            "args": list(self.args),
            "queue": self.queue,
        }
        return payloads.dump({**wire, "kwargs": dict(self.kwargs)} if self.kwargs else wire)

    def payload(self, slot: int, jid: str, now: float) -> dict[str, Any]:
        """The job that a slot fires."""
        job: dict[str, Any] = {
            "class": self.job,
            "args": list(self.args),
            "queue": self.queue,
            "jid": jid,
            "retry": self.retry,
            "created_at": now,
            "enqueued_at": now,
            "periodic_pjid": self.pjid,
            "periodic_slot": slot,
        }
        if self.kwargs:
            job["kwargs"] = dict(self.kwargs)
        if self.until_executed:
            job["periodic_until_executed"] = True
        if self.expires_at is not None:
            job[EXPIRES_AT] = self.expires_at
        elif self.expires_in is not None:
            job[EXPIRES_AT] = self.instant(slot) + self.expires_in
        return {**job, **self.more}

    def instant(self, slot: int) -> float:
        """When a slot fires: spread by the jitter, but at one instant in the whole fleet."""
        if not self.jitter:
            return float(slot)
        digest = hashlib.sha1(f"{self.pjid}:{slot}".encode(), usedforsecurity=False).digest()
        return slot + self.jitter * int.from_bytes(digest[:4], "big") / 2**32

    def memory_ttl(self, slot: int) -> int:
        """Seconds for which the server remembers a slot: two intervals, and a season more."""
        later = self.schedule.next_after(slot)
        return 2 * (later - slot) + 90 * 86_400


def resolve_all(app: App) -> list[Entry]:
    """The entries of an app and of its settings, in the order of their declaration.

    Raises:
        SettingsError: arguments do not fit a job's function, or an entry is declared twice.
    """
    entries: dict[str, Entry] = {}
    problems = []
    for declaration in (*app.declarations, *(app.settings.periodic or ())):
        entry = _resolve(declaration, app)
        place = f"{declaration.where}: periodic entry {declaration.job!r} ({declaration.cron!r})"
        problem = _misfit(declaration, app)
        if problem:
            problems.append(f"{place}: {problem}")
        elif entry.pjid in entries:
            problems.append(f"{place} is declared twice: expression, job and arguments are those of another entry")
        entries.setdefault(entry.pjid, entry)
    if problems:
        raise SettingsError(*problems)
    return list(entries.values())


def _resolve(declaration: Declaration, app: App) -> Entry:
    job = app.jobs.get(declaration.job)
    options = declaration.options or (job.options if job is not None else None)
    more: dict[str, Any] = {}
    queue, retry = payloads.DEFAULT_QUEUE, 0  # what other programs of the wire format do for a name
    if options is not None:
        queue, retry = options.queue or payloads.DEFAULT_QUEUE, options.retry
        more = payload_fields(options, job)
    return Entry(
        cron=declaration.cron,
        job=declaration.job,
        args=list(declaration.args),
        kwargs=dict(declaration.kwargs),
        queue=declaration.queue or queue,
        retry=retry if declaration.retry is None else declaration.retry,
        until_executed=declaration.unique == UNTIL_EXECUTED,
        catch_up=declaration.catch_up or app.settings.periodic_catch_up,
        jitter=declaration.jitter,
        more=more,
        expires_in=options.expires_in if options is not None else None,
        expires_at=options.expires_at if options is not None else None,
    )


def _misfit(declaration: Declaration, app: App) -> str:
    job = app.jobs.get(declaration.job)
    if job is None:
        return ""
    try:
        job.call(*declaration.args, **declaration.kwargs)
    except TypeError as error:
        return str(error)
    return ""


def described(entries: Iterable[Entry]) -> list[str]:
    """The entries as JSON texts, for a registry that crosses a pipe."""
    return [
        json.dumps({name: getattr(entry, name) for name in Entry.__dataclass_fields__}, ensure_ascii=False)
        for entry in entries
    ]


def entries_in(texts: Iterable[str]) -> list[Entry]:
    """The entries that `described` described."""
    return [Entry(**json.loads(text)) for text in texts]
