"""What the supervisor needs to know about a job that lost its process: whose it is, and what it looks like in dead."""

from __future__ import annotations

from cogworkerd.errors import ProcessDied
from cogworkerd.locks import JobLocks, Locks
from cogworkerd.outcome import Kind, Outcome, Settlement
from cogworkerd.payload import (
    DEFAULT_QUEUE,
    UNPARSEABLE,
    Unparseable,
    dump,
    failures_of,
    id_of_bytes,
    parse,
    parse_or_none,
    queue_of,
    rewritten,
    unparseable,
)
from cogworkerd.redact import masker
from cogworkerd.retry import attempt_record, decide, failure_fields
from cogworkerd.store.scripts import Burial, Listed

from .ledger import SlotPhase, SlotRecord


def name_of(raw: bytes) -> tuple[str, str]:
    """The id and the name of a job; of bytes that are none, what stands for them."""
    try:
        payload = parse(raw)
    except Unparseable:
        return id_of_bytes(raw), UNPARSEABLE
    return payload["jid"], payload["class"]


def queue_for(raw: bytes, found: str) -> str:
    """The queue that a job of an in-progress list goes back to."""
    try:
        return queue_of(parse(raw), found)
    except Unparseable:
        return found


def listed_job(raw: bytes, locks: Locks) -> Listed:
    """A job of an in-progress list, with what its way back to its queue needs."""
    return Listed(raw, queue_for(raw, DEFAULT_QUEUE), locks.of_bytes(raw, DEFAULT_QUEUE))


def burial_of(raw: bytes, queue: str, reason: str, locks: Locks, now: float) -> Burial:
    """How to file this job in dead, should it have lost its process too often."""
    try:
        payload = parse(raw)
    except Unparseable as problem:
        lost = unparseable(raw, queue, f"{problem}; and {reason}", now)
        return Burial(JobLocks(lost["jid"]), Outcome(Kind.DEAD, now, dump(lost)))
    attempt = failures_of(payload) + 1
    error = ProcessDied(reason)
    entry = rewritten(payload, raw, failure_fields(payload, queue, attempt, error, now))
    outcome = Outcome(Kind.DEAD, now, entry, attempt_record(attempt, error, "dead", now, masker(payload)))
    return Burial(locks.waiting(payload, queue), outcome)


def verdict_on(record: SlotRecord, error: BaseException, now: float) -> Outcome | None:
    """What becomes of the job of a child that the supervisor has killed for it.

    The job's `retry_in` hook is not asked: its code is not for this process.

    Args:
        record: of the slot; error: what the job is said to have failed with.

    Returns:
        None where the job is to be requeued as it is, or was performed already.
    """
    payload = parse_or_none(record.raw) if record.phase is SlotPhase.STARTED else None
    if payload is None:
        return None
    outcome = decide(payload, record.raw, record.queue, error, now)
    return None if outcome.kind is Kind.REQUEUE else outcome


def settlement_of(raw: bytes, queue: str, outcome: Outcome, locks: Locks, now: float) -> Settlement:
    """An outcome that a child reported, as its child would have settled it."""
    try:
        payload = parse(raw)
    except Unparseable:
        return Settlement(raw, id_of_bytes(raw), (), outcome)
    return locks.settlement(raw, payload, queue, outcome, now)
