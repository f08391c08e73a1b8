"""The Lua scripts, and for each the one function that lays out its keys and arguments.

Scripts move opaque bytes; they never read JSON. Every script writes to the destination before it removes from the
source, and does nothing if the source no longer has what it is to move.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from cogworkerd.costs import COST_TTL, MOST_NAMES
from cogworkerd.locks import JobLocks
from cogworkerd.outcome import Kind, Outcome, Settlement
from cogworkerd.run_record import RunRecord
from cogworkerd.store.keys import (
    DAILY_TTL,
    LIVE_QUEUES_TTL,
    ORPHANINGS_TTL,
    QUARANTINE_TTL,
    SLOT_LOCK_TTL,
    SLOT_RECEIPTS,
    SLOT_RECEIPTS_TTL,
    Keys,
    suspects_of,
)

Argument = bytes | str | int | float
_INCLUDE = re.compile(r"^--@include (\w+)\n", re.MULTILINE)
_LOOK_TTL = 604_800


def _read(name: str) -> str:
    text = resources.files("cogworkerd.store").joinpath("lua", f"{name}.lua").read_text("utf-8")
    return _INCLUDE.sub(lambda match: _read(match[1]), text)


class Script:
    """One Lua file with what it includes.

    Attributes:
        text: the source.
        sha: its SHA-1, by which EVALSHA names it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = _read(name)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


SETTLE = Script("settle")
SETTLE_AND_FETCH = Script("settle_and_fetch")
FETCH = Script("fetch")
LOOK = Script("look")
REGISTER = Script("register")
BEAT = Script("beat")
REQUEUE = Script("requeue")
GIVE_BACK = Script("give_back")
MOVE_DUE = Script("move_due")
BURY_DUE = Script("bury_due")
RECOVER = Script("recover")
BURY_REPEAT_ORPHAN = Script("bury_repeat_orphan")
COMPLETE_BURIAL = Script("complete_burial")
FAREWELL = Script("farewell")
PARK = Script("park")
FILE_PARKED = Script("file_parked")
SET_RECORD_ASIDE = Script("set_record_aside")
QUARANTINE = Script("quarantine")
RELEASE_LOCK = Script("release_lock")
REFRESH_LOCKS = Script("refresh_locks")
PUSH_UNIQUE = Script("push_unique")
FIRE_SLOT = Script("fire_slot")
RESERVE_SLOT = Script("reserve_slot")
PASS_SLOT = Script("pass_slot")
RECORD_RUNS = Script("record_runs")
WRITE_STATUS = Script("write_status")
RETRY_ENTRY = Script("retry_entry")
BURY_ENTRY = Script("bury_entry")
DELETE_ENTRY = Script("delete_entry")
DELETE_QUEUED = Script("delete_queued")
BASIC_SETTLE = Script("basic_settle")
BASIC_SETTLE_AND_FETCH = Script("basic_settle_and_fetch")
BASIC_FETCH = Script("basic_fetch")
BASIC_REQUEUE = Script("basic_requeue")


@dataclass(frozen=True, slots=True)
class Call:
    """A script with its keys and arguments."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]

    def command(self) -> tuple[Any, ...]:
        """As the arguments of one EVALSHA."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)


class Runner:
    """Runs calls on an asyncio client, with redis-py's own Script, which loads a script that the server has lost."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._registered: dict[str, Any] = {}

    async def __call__(self, call: Call) -> Any:
        script = self._registered.get(call.script.sha)
        if script is None:
            script = self._registered[call.script.sha] = self._client.register_script(call.script.text)
        return await script(keys=call.keys, args=call.args)


def settle(keys: Keys, identity: str, done: Settlement, now: float) -> Call:
    return Call(SETTLE, *_settle_arguments(keys, identity, done, now))


def settle_and_fetch(
    keys: Keys, identity: str, done: Settlement, now: float, queues: Sequence[str], queue_keys: Sequence[str]
) -> Call:
    head_keys, head_args = _settle_arguments(keys, identity, done, now)
    return Call(SETTLE_AND_FETCH, [*head_keys, keys.paused_queues, *queue_keys], [*head_args, *queues])


def _settle_arguments(
    keys: Keys, identity: str, done: Settlement, now: float
) -> tuple[Sequence[str], Sequence[Argument]]:
    outcome = done.outcome
    statistic = outcome.statistic
    requeues = outcome.kind is Kind.REQUEUE
    return (
        (
            keys.inprogress(identity),
            keys.inprogress_identities,
            keys.orphanings(done.jid),
            keys.processed if statistic == "processed" else keys.failed,
            keys.throughput(now),
            keys.queue(done.queue) if requeues else outcome.target(keys),
            keys.attempts(done.jid),
            *done.locks,
        ),
        (
            identity,
            done.raw,
            done.jid,
            statistic,
            "queue" if requeues else repr(outcome.score) if outcome.files else "",
            outcome.payload,
            outcome.attempt,
            len(done.locks),
            done.lock_ttl,
            int(done.retake),
        ),
    )


def fetch(keys: Keys, identity: str, queues: Sequence[str], queue_keys: Sequence[str]) -> Call:
    return Call(
        FETCH,
        [keys.inprogress(identity), keys.inprogress_identities, keys.paused_queues, *queue_keys],
        [identity, *queues],
    )


def look(keys: Keys, identity: str) -> Call:
    return Call(LOOK, [keys.inprogress(identity), keys.look(identity)], [_LOOK_TTL])


def register(keys: Keys, identity: str, now: float) -> Call:
    return Call(
        REGISTER,
        [keys.inprogress(identity), keys.look(identity), keys.inprogress_identities, keys.last_beat],
        [identity, _LOOK_TTL, int(now)],
    )


def beat(keys: Keys, identity: str, now: float, queues: Sequence[str], reliable: bool = True) -> Call:
    return Call(
        BEAT,
        [keys.inprogress_identities, keys.last_beat, keys.live_queues, keys.queues, keys.processes],
        [identity, int(now), LIVE_QUEUES_TTL, int(reliable), *queues],
    )


@dataclass(frozen=True, slots=True)
class Unreleased:
    """A lock that the server did not let a script release: its key, the jid that owns it, the server's sentence."""

    key: str
    owner: str
    error: str


def split_answer(reply: Any, owner: str) -> tuple[Any, list[Unreleased]]:
    """The answer of a script that releases locks, and those it could not release (release.lua)."""
    if not isinstance(reply, list):
        return reply, []
    texts = [part.decode("utf-8", "replace") for part in reply[1:]]
    return reply[0], [Unreleased(key, owner, error) for key, error in zip(texts[::2], texts[1::2], strict=True)]


@dataclass(frozen=True, slots=True)
class Burial:
    """What is needed to file one job in dead: its locks, the entry with its score, the attempt's record."""

    locks: JobLocks
    outcome: Outcome

    @property
    def jid(self) -> str:
        return self.locks.jid


def requeue(
    keys: Keys,
    identity: str,
    raw: bytes,
    queue: str,
    look_number: int,
    blame: bool,
    max_orphanings: int,
    burial: Burial,
    now: float,
) -> Call:
    job_keys, job_args = _requeue_arguments(keys, queue, blame, max_orphanings, burial, now)
    return Call(REQUEUE, [keys.inprogress(identity), keys.look(identity), *job_keys], [raw, look_number, *job_args])


def _requeue_arguments(
    keys: Keys, queue: str, blame: bool, max_orphanings: int, burial: Burial, now: float
) -> tuple[Sequence[str], Sequence[Argument]]:
    """What a requeue needs whether a list holds the job or not."""
    return (
        (
            keys.queue(queue),
            keys.queues,
            keys.orphanings(burial.jid),
            keys.dead,
            keys.failed,
            keys.throughput(now),
            keys.attempts(burial.jid),
            *burial.locks.keys,
        ),
        (
            queue,
            int(blame),
            max_orphanings,
            ORPHANINGS_TTL,
            burial.jid,
            repr(burial.outcome.score),
            burial.outcome.payload,
            burial.outcome.attempt,
            burial.locks.ttl,
            int(burial.locks.retake),
        ),
    )


def give_back(keys: Keys, identity: str, raw: bytes, queue: str, locks: JobLocks) -> Call:
    return Call(
        GIVE_BACK,
        [keys.inprogress(identity), keys.queue(queue), *locks.keys],
        [raw, locks.jid, locks.ttl, int(locks.retake)],
    )


@dataclass(frozen=True, slots=True)
class Listed:
    """A job as a list has it, the name of the queue it goes back to, and its locks."""

    raw: bytes
    queue: str
    locks: JobLocks


def _two_locks(keys: Keys, locks: JobLocks) -> tuple[str, ...]:
    """The locks of a job as exactly two keys: those that it has stand last."""
    return (keys.nothing,) * (2 - len(locks.keys)) + locks.keys


def _listed_arguments(jobs: Sequence[Listed]) -> list[Argument]:
    return [part for job in jobs for part in (job.raw, job.queue, job.locks.jid, int(job.locks.retake))]


def _ttl_of(jobs: Sequence[Listed]) -> int:
    """How long locks are kept: the same for all jobs that go back to their queues at once."""
    return max((job.locks.ttl for job in jobs), default=1)


def move_due(keys: Keys, source: str, entries: Sequence[tuple[bytes, bytes, str]]) -> Call:
    """`entries`: the entry as stored, the job to push, the name of its queue."""
    queue_keys = [keys.queue(queue) for _, _, queue in entries]
    return Call(MOVE_DUE, [source, keys.queues, *queue_keys], [part for entry in entries for part in entry])


def bury_due(keys: Keys, source: str, entry: bytes, payload: bytes, now: float) -> Call:
    return Call(BURY_DUE, [source, keys.dead, keys.failed, keys.throughput(now)], [entry, repr(now), payload])


def recover(
    keys: Keys,
    identity: str,
    jobs: Sequence[Listed],
    threshold: float,
    seen_gone: bool,
    max_orphanings: int,
    now: float,
) -> Call:
    """`jobs`: newest first."""
    jobs = [replace(job, queue=suspects_of(job.queue)) for job in jobs]
    job_keys = [
        key
        for job in jobs
        for key in (keys.queue(job.queue), keys.orphanings(job.locks.jid), *_two_locks(keys, job.locks))
    ]
    return Call(
        RECOVER,
        [
            keys.inprogress(identity),
            keys.process(identity),
            keys.inprogress_identities,
            keys.last_beat,
            keys.repeat_orphans,
            keys.queues,
            keys.dead,
            keys.raw_burials,
            keys.wards,
            *job_keys,
        ],
        [
            identity,
            repr(threshold),
            int(seen_gone),
            int(now),
            max_orphanings,
            ORPHANINGS_TTL,
            _ttl_of(jobs),
            *_listed_arguments(jobs),
        ],
    )


def bury_repeat_orphan(keys: Keys, raw: bytes, burial: Burial, now: float) -> Call:
    return Call(BURY_REPEAT_ORPHAN, *_burial_arguments(keys, keys.repeat_orphans, raw, burial, now))


def complete_burial(keys: Keys, raw: bytes, burial: Burial, now: float) -> Call:
    return Call(COMPLETE_BURIAL, *_burial_arguments(keys, keys.raw_burials, raw, burial, now))


def _burial_arguments(
    keys: Keys, source: str, raw: bytes, burial: Burial, now: float
) -> tuple[Sequence[str], Sequence[Argument]]:
    return (
        (
            source,
            keys.dead,
            keys.failed,
            keys.throughput(now),
            keys.orphanings(burial.jid),
            keys.attempts(burial.jid),
            *burial.locks.keys,
        ),
        (raw, repr(burial.outcome.score), burial.outcome.payload, burial.jid, burial.outcome.attempt),
    )


def farewell(keys: Keys, identity: str, acks: Sequence[bytes], jobs: Sequence[Listed], forget: bool) -> Call:
    """`acks`: jobs that only lack their ack. `jobs`: the jobs to requeue, newest first."""
    return Call(
        FAREWELL,
        [
            keys.inprogress(identity),
            keys.process(identity),
            keys.workers(identity),
            keys.processes,
            keys.inprogress_identities,
            keys.last_beat,
            keys.look(identity),
            keys.queues,
            *[key for job in jobs for key in (keys.queue(job.queue), *_two_locks(keys, job.locks))],
        ],
        [identity, int(forget), _ttl_of(jobs), len(acks), *acks, *_listed_arguments(jobs)],
    )


def park(keys: Keys, identity: str, done: Settlement, record: bytes, lost: bool, now: float) -> Call:
    """`record`: what goes to the list unsettled. `lost`: no list holds the job any more.

    A burial is counted by the one who files it, as every program of the wire format does; a retry is counted here.
    """
    counted = "failed" if done.outcome.kind is Kind.RETRY else ""
    return Call(
        PARK,
        [
            keys.inprogress(identity),
            keys.unsettled,
            keys.failed,
            keys.throughput(now),
            keys.attempts(done.jid),
            *done.locks,
        ],
        [done.raw, record, counted, done.outcome.attempt, int(lost), done.jid, max(done.lock_ttl, 1)],
    )


def file_parked(
    keys: Keys, record: bytes, target: str, score: float, payload: bytes, locks: JobLocks, now: float
) -> Call:
    """`locks`: those that the job holds; released if the target is dead."""
    return Call(
        FILE_PARKED,
        [keys.unsettled, target, keys.failed, keys.throughput(now), keys.orphanings(locks.jid), *locks.keys],
        [record, repr(score), payload, locks.jid, int(target == keys.dead), locks.ttl],
    )


def set_record_aside(keys: Keys, record: bytes) -> Call:
    return Call(SET_RECORD_ASIDE, [keys.unsettled, keys.quarantined_records], [record, QUARANTINE_TTL])


def quarantine(key: str, new_name: str, expected: str) -> Call:
    """`expected`: the type that the key should have, as TYPE names it."""
    return Call(QUARANTINE, [key, new_name], [expected, QUARANTINE_TTL])


def release_lock(key: str, owner: str) -> Call:
    """`owner`: the jid that the lock must hold."""
    return Call(RELEASE_LOCK, [key], [owner])


@dataclass(frozen=True, slots=True)
class StatusWrite:
    """What the status of a job says when it is pushed.

    Attributes:
        key: of the hash; ttl: whole seconds; fields: names and values in turn.
    """

    key: str
    ttl: int
    fields: tuple[str, ...]

    def commands(self) -> list[tuple[Any, ...]]:
        return [("HSET", self.key, *self.fields), ("EXPIRE", self.key, self.ttl)]


def push_unique(
    keys: Keys, lock: JobLocks, queue: str, raw: bytes, due: float | None, status: StatusWrite | None = None
) -> Call:
    """`lock`: the unique lock of the job; `due`: epoch seconds, or None for now."""
    told_keys: Sequence[str] = (status.key,) if status is not None else ()
    told: Sequence[Argument] = (status.ttl, *status.fields) if status is not None else ()
    return Call(
        PUSH_UNIQUE,
        [*lock.keys, keys.queue(queue) if due is None else keys.schedule, *told_keys],
        [lock.jid, lock.ttl, raw, "" if due is None else repr(due), *told],
    )


@dataclass(frozen=True, slots=True)
class LockRefresh:
    """A lock of a job at work: its key, the jid that owns it, whole seconds, whether a lapsed one is taken again."""

    key: str
    owner: str
    ttl: int
    retake: bool


def refresh_locks(locks: Sequence[LockRefresh]) -> Call:
    return Call(
        REFRESH_LOCKS,
        [lock.key for lock in locks],
        [part for lock in locks for part in (lock.owner, lock.ttl, int(lock.retake))],
    )


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of a periodic entry.

    Attributes:
        slot: its time, epoch seconds.
        until_executed: one run at a time.
        memory: seconds for which the server remembers it.
    """

    pjid: str
    slot: int
    until_executed: bool
    memory: int


def _claim_arguments(keys: Keys, slot: Slot) -> tuple[Sequence[str], Sequence[Argument]]:
    return (
        (
            keys.periodic_disabled,
            keys.periodic_last_slot(slot.pjid),
            keys.periodic_lock(slot.pjid, slot.slot),
            keys.periodic_running(slot.pjid),
        ),
        (slot.pjid, slot.slot, int(slot.until_executed)),
    )


def fire_slot(
    keys: Keys,
    slot: Slot,
    identity: str,
    jid: str,
    raw: bytes,
    queue: str,
    due: float | None,
    unique: JobLocks | None,
    ttl: int,
) -> Call:
    """`unique`: the unique lock of the job, if it has one. `ttl`: seconds that the running lock lives at first."""
    claim_keys, claim_args = _claim_arguments(keys, slot)
    return Call(
        FIRE_SLOT,
        [
            *claim_keys,
            keys.queue(queue) if due is None else keys.schedule,
            keys.queues,
            *(unique.keys if unique is not None else (keys.nothing,)),
            keys.periodic_fired(slot.pjid),
        ],
        [
            *claim_args,
            jid,
            ttl,
            unique.ttl if unique is not None else "",
            SLOT_LOCK_TTL,
            slot.memory,
            raw,
            queue,
            "" if due is None else repr(due),
            identity,
            SLOT_RECEIPTS_TTL,
            SLOT_RECEIPTS,
        ],
    )


def reserve_slot(keys: Keys, slot: Slot, who: str, ttl: int) -> Call:
    claim_keys, claim_args = _claim_arguments(keys, slot)
    return Call(RESERVE_SLOT, [*claim_keys, keys.periodic_reservation(slot.pjid)], [*claim_args, who, ttl])


def pass_slot(keys: Keys, slot: Slot) -> Call:
    return Call(PASS_SLOT, [keys.periodic_seen(slot.pjid)], [slot.slot, slot.memory])


def record_runs(
    keys: Keys,
    runs: Sequence[RunRecord],
    costs: Mapping[str, Sequence[int]],
    counts: tuple[int, int],
    most: int,
    oldest: float,
    now: float,
) -> Call:
    """Write runs down.

    Args:
        runs: those whose entries are kept.
        costs: for each job its sums, as `costs.Sums` has them.
        counts: how many runs were successes and failures.
        most: how many entries each set keeps; oldest: epoch seconds from which on.
    """
    good = [run for run in runs if run.succeeded]
    bad = [run for run in runs if run.failed]
    entries: list[Argument] = [part for run in good for part in (run.finished_at, run.entry)]
    entries += [part for run in bad for part in (run.finished_at, run.entry)]
    entries += [part for run in bad for part in (run.finished_at, run.full_entry)]
    sums: list[Argument] = []
    for name, row in costs.items():
        sums += (name, *row)
    return Call(
        RECORD_RUNS,
        [
            *(keys.history("all"), keys.history("success"), keys.history("failed")),
            *(keys.history_of_day(now), keys.cost_of_day(now)),
        ],
        [
            *(repr(oldest), most, *counts, DAILY_TTL, COST_TTL, MOST_NAMES),
            *(len(good), len(bad), len(costs), *entries, *sums),
        ],
    )


def write_status(keys: Keys, jid: str, fields: Mapping[str, str], ttl: int, over: str) -> Call:
    """Write a job's status. `ttl`: whole seconds; `over`: see the script."""
    pairs = [part for pair in fields.items() for part in pair]
    return Call(WRITE_STATUS, [keys.status(jid)], [ttl, over, *pairs])


def retry_entry(keys: Keys, source: str, entry: bytes, job: bytes, queue: str, locks: JobLocks) -> Call:
    """`entry`: as the sorted set has it; `job`: as it is pushed."""
    return Call(
        RETRY_ENTRY,
        [source, keys.queue(queue), keys.queues, *locks.keys],
        [entry, job, queue, locks.jid, max(locks.ttl, 1)],
    )


def bury_entry(keys: Keys, source: str, entry: bytes, score: float, locks: JobLocks) -> Call:
    return Call(BURY_ENTRY, [source, keys.dead, *locks.keys], [entry, repr(score), locks.jid])


def delete_entry(keys: Keys, source: str, entry: bytes, locks: JobLocks) -> Call:
    return Call(DELETE_ENTRY, [source, keys.attempts(locks.jid), *locks.keys], [entry, locks.jid])


def delete_queued(keys: Keys, queue: str, jobs: Sequence[Listed]) -> Call:
    return Call(
        DELETE_QUEUED,
        [keys.queue(queue), *[key for job in jobs for key in _two_locks(keys, job.locks)]],
        [part for job in jobs for part in (job.raw, job.locks.jid)],
    )


def basic_settle(keys: Keys, done: Settlement, now: float) -> Call:
    return Call(BASIC_SETTLE, *_basic_settle_arguments(keys, done, now))


def basic_settle_and_fetch(
    keys: Keys, done: Settlement, now: float, queues: Sequence[str], queue_keys: Sequence[str]
) -> Call:
    head_keys, head_args = _basic_settle_arguments(keys, done, now)
    return Call(BASIC_SETTLE_AND_FETCH, [*head_keys, keys.paused_queues, *queue_keys], [*head_args, *queues])


def _basic_settle_arguments(keys: Keys, done: Settlement, now: float) -> tuple[Sequence[str], Sequence[Argument]]:
    """As a reliable settlement, without the list, its owner and the entry."""
    reliable_keys, reliable_args = _settle_arguments(keys, "", done, now)
    return reliable_keys[2:], reliable_args[2:]


def basic_fetch(keys: Keys, queues: Sequence[str], queue_keys: Sequence[str]) -> Call:
    return Call(BASIC_FETCH, [keys.paused_queues, *queue_keys], queues)


def basic_requeue(
    keys: Keys, raw: bytes, queue: str, blame: bool, max_orphanings: int, burial: Burial, now: float
) -> Call:
    job_keys, job_args = _requeue_arguments(keys, queue, blame, max_orphanings, burial, now)
    return Call(BASIC_REQUEUE, job_keys, [raw, *job_args])
