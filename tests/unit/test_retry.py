"""What becomes of a failure: the wait, the budget, the hook, and jobs that cannot be written again."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any

import pytest

from cogworkerd.outcome import Kind, Outcome
from cogworkerd.payload import appended, dump, parse
from cogworkerd.retry import BURY, DISCARD, Verdict, backoff, check_verdict, decide

NOW = 1_700_000_000.25
TEN_YEARS = 10 * 365 * 86_400
JOB = {"class": "a", "jid": "j", "args": [1], "queue": "mail", "created_at": 1.5}


def fail(
    fields: dict[str, Any], verdict: Verdict | list[int] = None, error: BaseException | None = None
) -> tuple[Outcome, dict[str, Any]]:
    """Let a job fail; its hook answers `verdict`. Given a list, it notes the attempts there and answers None.

    Returns:
        The outcome and the entry to file, {} for none.
    """
    raw = dump({**JOB, **fields})

    def ask(attempt: int) -> Verdict:
        if isinstance(verdict, list):
            verdict.append(attempt)
            return None
        return verdict

    outcome = decide(parse(raw), raw, "found", error or ValueError("no luck"), NOW, ask)
    return outcome, json.loads(outcome.payload) if outcome.payload else {}


# ---- the wait ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [1, 2, 3, 10, 25])
def test_the_wait_follows_the_formula_of_the_wire_format(attempt: int) -> None:
    n = attempt - 1
    allowed = {n**4 + 15 + r * (n + 1) for r in range(30)}
    seen = {backoff(attempt) for _ in range(500)}
    assert seen <= allowed
    assert len(seen) > 15  # jobs that failed in the same second are spread


@pytest.mark.parametrize("attempt", [1000, 2**31, 2**31 + 1])
def test_the_wait_has_a_limit(attempt: int) -> None:
    assert backoff(attempt) == TEN_YEARS


def test_a_failure_is_due_after_the_wait() -> None:
    outcome, entry = fail({})
    assert outcome.kind is Kind.RETRY
    assert NOW + 15 <= outcome.score <= NOW + 15 + 29
    assert entry["retry_count"] == 1


# ---- the budget ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry", "count", "kind"),
    [
        (True, 0, Kind.RETRY),
        (True, 24, Kind.RETRY),
        (True, 25, Kind.DEAD),
        (False, 0, Kind.DEAD),
        (0, 0, Kind.DEAD),
        (1, 0, Kind.RETRY),
        (1, 1, Kind.DEAD),
        ("2", 1, Kind.RETRY),
        ("2", 2, Kind.DEAD),
        ("nonsense", 0, Kind.DEAD),
        (None, 0, Kind.DEAD),
        (10**100, 2**31 - 3, Kind.RETRY),
        (3, 10**100, Kind.DEAD),
        (10**100, 10**100, Kind.DEAD),
        (3, "2", Kind.RETRY),
        (3, -7, Kind.RETRY),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_r32_a_job_is_tried_again_as_long_as_its_budget_lasts(retry: object, count: object, kind: Kind) -> None:
    outcome, entry = fail({"retry": retry, "retry_count": count})
    assert outcome.kind is kind
    assert isinstance(entry["retry_count"], int)
    assert 1 <= entry["retry_count"] <= 2**31
    assert math.isfinite(outcome.score)


def test_a_job_without_a_retry_field_has_25() -> None:
    for count, kind in ((24, Kind.RETRY), (25, Kind.DEAD)):
        assert fail({"retry_count": count})[0].kind is kind


def test_dead_at_the_time_of_its_death() -> None:
    outcome, entry = fail({"retry": False})
    assert outcome.score == NOW
    assert json.loads(outcome.attempt)["outcome"] == "dead"
    assert entry["class"] == "a"


# ---- the fields of a failure ---------------------------------------------------------------------------


def test_a_failure_adds_its_fields_and_keeps_the_others() -> None:
    outcome, entry = fail({"odd": {"kept": [2**70]}, "enqueued_at": 2.5})
    assert entry == {
        **JOB,
        "odd": {"kept": [2**70]},
        "enqueued_at": 2.5,
        "retry_count": 1,
        "failed_at": NOW,
        "error_class": "ValueError",
        "error_message": "no luck",
    }
    assert json.loads(outcome.attempt) == {
        "attempt": 1,
        "failed_at": NOW,
        "outcome": "retrying",
        "error_class": "ValueError",
        "error_message": "no luck",
    }


def test_failed_at_is_that_of_the_first_failure() -> None:
    assert fail({"failed_at": 3.5, "retry_count": 1})[1]["failed_at"] == 3.5
    assert fail({"failed_at": None, "retry_count": 1})[1]["failed_at"] == NOW


def test_a_job_without_a_usable_queue_is_filed_with_the_one_it_was_found_on() -> None:
    assert fail({"queue": ""})[1]["queue"] == "found"
    assert fail({"queue": 7})[1]["queue"] == "found"


def test_r30_the_message_is_cut_in_the_entry_and_more_so_in_the_log_of_attempts() -> None:
    outcome, entry = fail({}, error=ValueError("x" * 1_000_000))
    assert len(entry["error_message"]) == 10_000
    assert entry["error_message"].startswith("xxx")
    assert len(json.loads(outcome.attempt)["error_message"]) == 1000


# ---- the hook ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "wait"),
    [
        (0.0, 0),
        (30.0, 30),
        (2.5, 2.5),
        (timedelta(minutes=2), 120),
        (timedelta(seconds=-5), 0),
        (1e300, TEN_YEARS),
        (timedelta.max, TEN_YEARS),
    ],
)
def test_the_hook_says_when(verdict: Verdict, wait: float) -> None:
    outcome, _ = fail({}, verdict)
    assert outcome.kind is Kind.RETRY
    assert outcome.score == NOW + wait
    assert json.loads(outcome.attempt)["outcome"] == "retrying"


def test_a_hook_that_answers_none_leaves_the_usual_wait() -> None:
    outcome, _ = fail({}, None)
    assert NOW + 15 <= outcome.score <= NOW + 44


def test_a_hook_can_bury() -> None:
    outcome, entry = fail({}, BURY)
    assert (outcome.kind, outcome.score) == (Kind.DEAD, NOW)
    assert entry["retry_count"] == 1
    assert json.loads(outcome.attempt)["outcome"] == "killed"


def test_a_hook_can_discard() -> None:
    outcome, entry = fail({}, DISCARD)
    assert outcome.kind is Kind.DISCARD
    assert entry == {}
    assert not outcome.files
    assert json.loads(outcome.attempt)["outcome"] == "discarded"


def test_the_hook_is_asked_with_the_attempt_and_not_after_the_last_one() -> None:
    asked: list[int] = []
    for count in range(4):
        fail({"retry": 3, "retry_count": count}, asked)
    assert asked == [1, 2, 3]


def test_the_hook_is_not_asked_for_a_job_without_retries() -> None:
    asked: list[int] = []
    assert fail({"retry": False}, asked)[0].kind is Kind.DEAD
    assert asked == []


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (None, None),
        (BURY, BURY),
        (DISCARD, DISCARD),
        (0, 0.0),
        (5, 5.0),
        (1.5, 1.5),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_what_a_hook_may_answer(answer: object, verdict: Verdict) -> None:
    assert check_verdict(answer) == verdict


@pytest.mark.parametrize(
    "answer",
    [-1, -0.5, math.nan, math.inf, True, False, "5", [5], "bury", object(), 10**400],
    ids=lambda answer: type(answer).__name__,
)
def test_what_a_hook_may_not_answer(answer: object) -> None:
    with pytest.raises(TypeError, match="BURY or DISCARD"):
        check_verdict(answer)


# ---- what cannot be written again ----------------------------------------------------------------------


ODD = b'{"class":"a","jid":"j","queue":"mail","args":[1e400],"retry_count":1 }\n'
ODD_WITHOUT_JID = b'{"class":"a","args":[NaN]}'


def failed(raw: bytes, verdict: Verdict = None) -> Outcome:
    return decide(parse(raw), raw, "found", ValueError("no luck"), NOW, lambda attempt: verdict)


def test_r27_a_payload_that_cannot_be_written_again_is_filed_from_its_original_bytes() -> None:
    outcome = failed(ODD)
    assert outcome.payload.startswith(b'{"class":"a","jid":"j","queue":"mail","args":[1e400],"retry_count":1,')
    entry = parse(outcome.payload)
    assert (entry["retry_count"], entry["interrupted_count"], entry["failed_at"]) == (2, 1, NOW)
    assert (entry["error_class"], entry["error_message"], entry["queue"]) == ("ValueError", "no luck", "mail")
    assert entry["args"] == [math.inf]


def test_r27_it_waits_thirty_seconds_for_each_interruption_and_is_dead_after_three() -> None:
    raw, waits = ODD, []
    for _ in range(4):
        outcome = failed(raw)
        waits.append((outcome.kind, outcome.score - NOW))
        raw = outcome.payload
    assert waits == [(Kind.RETRY, 30.0), (Kind.RETRY, 60.0), (Kind.RETRY, 90.0), (Kind.DEAD, 0.0)]
    assert parse(raw)["interrupted_count"] == 4
    assert json.loads(outcome.attempt)["outcome"] == "dead"


def test_r27_it_is_dead_at_once_when_no_retry_is_left_or_its_hook_ended_it() -> None:
    assert failed(b'{"class":"a","args":[NaN],"retry":0}').kind is Kind.DEAD
    assert failed(ODD, BURY).kind is Kind.DEAD
    assert failed(ODD, 7.0).score == NOW + 30.0


def test_r27_a_payload_without_an_id_keeps_the_one_it_was_given() -> None:
    assert parse(failed(ODD_WITHOUT_JID).payload)["jid"] == parse(ODD_WITHOUT_JID)["jid"]


@pytest.mark.parametrize("stored", ["often", -1, None, True, [1], 1e400])
def test_r27_an_unusable_count_of_interruptions_starts_over_or_ends_it(stored: object) -> None:
    raw = json.dumps({"class": "a", "args": [math.nan], "interrupted_count": stored}).encode()
    assert parse(failed(raw).payload)["interrupted_count"] in (1, 2**31)


def test_members_are_appended_to_any_object() -> None:
    for raw in (b"{}", b" { } ", b'{"a":1}', b'{"a":{}}\r\n'):
        assert json.loads(appended(raw, {"b": [2]})) == {**json.loads(raw), "b": [2]}


def test_a_payload_that_cannot_be_written_again_may_still_be_discarded() -> None:
    raw = b'{"class":"a","args":[NaN]}'
    outcome = decide(parse(raw), raw, "found", ValueError("no luck"), NOW, lambda attempt: DISCARD)
    assert outcome.kind is Kind.DISCARD


def test_lone_surrogates_of_another_program_survive_a_failure() -> None:
    raw = b'{"class":"a","args":["\\ud800"],"jid":"j"}'
    outcome = decide(parse(raw), raw, "found", ValueError("\udfff"), NOW)
    assert outcome.kind is Kind.RETRY
    outcome.payload.decode()
    outcome.attempt.decode()
    assert json.loads(outcome.payload)["args"] == ["\ud800"]
