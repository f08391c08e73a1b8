"""What becomes of a failure: when it is tried again, or dead, or discarded."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any

from cogworkerd.outcome import Kind, Outcome
from cogworkerd.payload import dump, failures_of, queue_of, retry_budget, unparseable
from cogworkerd.text import error_class, error_message, storable

_MAX_DELAY = 10 * 365 * 86_400.0  # a retry further away than ten years is a mistake in somebody's arithmetic


class Decision(Enum):
    """What a `retry_in` hook may answer instead of a number of seconds."""

    BURY = "bury"
    DISCARD = "discard"


BURY = Decision.BURY
DISCARD = Decision.DISCARD

Verdict = float | timedelta | Decision | None
Hook = Callable[[int, Any, Any], Verdict]


def backoff(attempt: int) -> float:
    """Seconds before the retry that follows this attempt: `n**4 + 15 + randint(0..29) * (n + 1)`, n = attempt - 1.

    The formula is the wire format's, so that mixed fleets back off alike; the random part spreads jobs that failed in
    the same second.
    """
    failures = attempt - 1
    return min(failures**4 + 15.0 + random.randrange(30) * (failures + 1), _MAX_DELAY)


def decide(
    payload: Mapping[str, Any],
    raw: bytes,
    found: str,
    error: BaseException,
    now: float,
    ask_hook: Callable[[int], Verdict] | None = None,
) -> Outcome:
    """The outcome of a run that failed.

    Args:
        payload: the job.
        raw: its bytes as fetched, kept when the payload cannot be written again.
        found: the queue it was fetched from.
        error: what it raised.
        now: epoch seconds.
        ask_hook: the job's `retry_in` hook for this attempt; it is not asked after the last one.
    """
    attempt = failures_of(payload) + 1
    verdict: Verdict = BURY
    if attempt <= retry_budget(payload):
        verdict = ask_hook(attempt) if ask_hook else None
    if verdict is DISCARD:
        return Outcome(Kind.DISCARD, attempt=attempt_record(attempt, error, verdict, now))
    try:
        entry = dump(with_failure(payload, found, attempt, error, now))
    except ValueError as problem:
        entry = dump(unparseable(raw, queue_of(payload, found), f"cannot be written again as JSON: {problem}", now))
        verdict = BURY
    record = attempt_record(attempt, error, verdict, now)
    if verdict is BURY:
        return Outcome(Kind.DEAD, now, entry, record)
    return Outcome(Kind.RETRY, now + _delay(verdict, attempt), entry, record)


def with_failure(
    payload: Mapping[str, Any], found: str, attempt: int, error: BaseException, now: float
) -> dict[str, Any]:
    """The payload with the fields of its last failure."""
    return {
        **payload,
        "queue": queue_of(payload, found),
        "retry_count": attempt,
        "failed_at": payload.get("failed_at") or now,
        "error_class": error_class(error),
        "error_message": error_message(error),
    }


def attempt_record(attempt: int, error: BaseException, verdict: Verdict, now: float) -> bytes:
    """One line of the job's attempts log."""
    outcomes = {BURY: "dead", DISCARD: "discarded"}
    record = {
        "attempt": attempt,
        "failed_at": now,
        "outcome": outcomes[verdict] if isinstance(verdict, Decision) else "retrying",
        "error_class": error_class(error),
        "error_message": storable(error_message(error), 1000),
    }
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()


def _delay(verdict: Verdict, attempt: int) -> float:
    if isinstance(verdict, timedelta):
        return min(max(verdict.total_seconds(), 0.0), _MAX_DELAY)
    if isinstance(verdict, int | float) and not isinstance(verdict, bool):
        return min(max(float(verdict), 0.0), _MAX_DELAY)
    return backoff(attempt)


def check_verdict(value: object) -> Verdict:
    """What a hook answered, if it is one of the things a hook may answer.

    Raises:
        TypeError: it is something else.
    """
    if value is None or isinstance(value, Decision):
        return value
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
        if 0 <= seconds < math.inf:
            return seconds
    raise TypeError(f"a retry_in hook answers seconds from 0 up, None, BURY or DISCARD, not {value!r:.80}")
