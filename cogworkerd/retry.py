"""What becomes of a failure: when it is tried again, or dead, or discarded."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any

from cogworkerd.errors import Bury, Discard, JobCancelled, Requeue, Retry
from cogworkerd.outcome import Kind, Outcome
from cogworkerd.payload import appended, dump, failures_of, interruptions_of, queue_of, retry_budget
from cogworkerd.redact import masker
from cogworkerd.text import Mask, error_class, error_message, storable

INTERRUPTION_DELAY = 30.0
MAX_INTERRUPTIONS = 3
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


def is_last_attempt(payload: Mapping[str, Any]) -> bool:
    """Whether no retry is left for this run."""
    return failures_of(payload) + 1 > retry_budget(payload)


def raised_verdict(error: BaseException) -> tuple[bool, Verdict]:
    """Whether a job has decided by what it raised, and how."""
    if isinstance(error, Retry):
        return True, error.delay
    if isinstance(error, Bury):
        return True, BURY
    if isinstance(error, Discard):
        return True, DISCARD
    if isinstance(error, JobCancelled) and error.then in ("bury", "discard"):
        return True, BURY if error.then == "bury" else DISCARD
    return False, None


def asks_for_requeue(error: BaseException) -> bool:
    """Whether a run that ended with this is no failure but goes back to its queue."""
    return isinstance(error, Requeue) or (isinstance(error, JobCancelled) and error.then == "requeue")


def decide(
    payload: Mapping[str, Any],
    raw: bytes,
    found: str,
    error: BaseException,
    now: float,
    ask_hook: Callable[[int], Verdict] | None = None,
) -> Outcome:
    """The outcome of a run that failed. What was raised decides (Requeue, Retry, Bury, Discard), then the job's hook,
    then the usual back-off.

    Args:
        payload: the job.
        raw: its bytes as fetched; filed as they are when the payload cannot be written again.
        found: the queue it was fetched from.
        error: what it raised.
        now: epoch seconds.
        ask_hook: the job's `retry_in` hook for this attempt; it is not asked after the last one.
    """
    if asks_for_requeue(error):
        return Outcome(Kind.REQUEUE, payload=raw)
    attempt = failures_of(payload) + 1
    decided, verdict = raised_verdict(error)
    last = is_last_attempt(payload)
    if not decided and not last:
        verdict = ask_hook(attempt) if ask_hook else None
    if verdict is DISCARD:
        return Outcome(Kind.DISCARD, attempt=attempt_record(attempt, error, "discarded", now, masker(payload)))
    end = "killed" if verdict is BURY else "dead"
    if last:
        verdict = BURY
    fields = failure_fields(payload, found, attempt, error, now)
    try:
        entry = dump({**payload, **fields})
    except ValueError:
        return _interrupted(payload, raw, fields, end if verdict is BURY else "", error, now)
    if verdict is BURY:
        return Outcome(Kind.DEAD, now, entry, attempt_record(attempt, error, end, now, masker(payload)))
    record = attempt_record(attempt, error, "retrying", now, masker(payload))
    return Outcome(Kind.RETRY, now + _delay(verdict, attempt), entry, record)


def _interrupted(
    payload: Mapping[str, Any],
    raw: bytes,
    fields: Mapping[str, Any],
    end: str,
    error: BaseException,
    now: float,
) -> Outcome:
    """A failure that cannot be recorded, since the payload cannot be written again: the original bytes are filed, with
    the failure's fields behind them. The rule is the wire format's: 30 s for each interruption, and three of them.

    Args:
        end: how the attempts log names this end of the job; "" if it is not over.
    """
    count = interruptions_of(payload) + 1
    attempt = fields["retry_count"]
    entry = appended(raw, {"jid": payload["jid"], **fields, "failed_at": now, "interrupted_count": count})
    if end or count > MAX_INTERRUPTIONS:
        return Outcome(Kind.DEAD, now, entry, attempt_record(attempt, error, end or "dead", now, masker(payload)))
    record = attempt_record(attempt, error, "retrying", now, masker(payload))
    return Outcome(Kind.RETRY, now + INTERRUPTION_DELAY * count, entry, record)


def failure_fields(
    payload: Mapping[str, Any], found: str, attempt: int, error: BaseException, now: float
) -> dict[str, Any]:
    """The fields that tell of a job's last failure."""
    return {
        "queue": queue_of(payload, found),
        "retry_count": attempt,
        "failed_at": _first_failure(payload, now),
        "error_class": error_class(error),
        "error_message": error_message(error),
    }


def _first_failure(payload: Mapping[str, Any], now: float) -> float:
    """When a job failed first: what is stored, if that is a time."""
    stored = payload.get("failed_at")
    if isinstance(stored, int | float) and not isinstance(stored, bool) and 0 < stored < 1e12:
        return stored
    return now


def attempt_record(attempt: int, error: BaseException, outcome: str, now: float, mask: Mask | None = None) -> bytes:
    """One line of the job's attempts log. `outcome`: retrying, dead (no retry was left), killed (it was decided so) or
    discarded."""
    record = {
        "attempt": attempt,
        "failed_at": now,
        "outcome": outcome,
        "error_class": error_class(error),
        "error_message": storable(error_message(error, mask), 1000),
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
