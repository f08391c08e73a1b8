"""Unique jobs and the locks of jobs: digests, keys, lifetimes."""

from __future__ import annotations

from typing import Any

import pytest

from cogworkerd.locks import Locks
from cogworkerd.outcome import SUCCESS, Kind, Outcome
from cogworkerd.payload import parse
from cogworkerd.store.keys import Keys
from cogworkerd.unique import periodic_id, unique_digest


@pytest.mark.parametrize(
    ("name", "queue", "args", "digest"),
    [
        ("GreetingJob", "default", ["world"], "84566ef6873964f1385859f3b70785e53e69175d"),
        ("GreetingJob", "default", [], "9019ee3ad801f73509b5e9ce23bb3f1019683871"),
        (
            "Billing::ChargeJob",
            "low",
            [1, "a b", True, None, {"k": [1.5]}],
            "ea4c9ffa021d4fd7507001976459498c442c9335",
        ),
        ("ReportJob", "default", ["é/ü"], "6792a7c132aecb5f9687fcec1950f87d709ed436"),
        # The digest of a periodic entry is `cron|class|args`: the same rule with other words in the first two places.
        ("0 * * * *", "HourlyCleanupJob", [], "9104b90cb8b0a08e3b3e3c944e6d62618c3f46e3"),
    ],
)
def test_the_vectors_of_the_wire_format(name: str, queue: str, args: list[Any], digest: str) -> None:
    assert unique_digest({"class": name, "args": args}, queue) == digest


def test_the_digest_has_kwargs_only_where_there_are_any_and_in_any_order() -> None:
    plain = unique_digest({"class": "a", "args": [1]}, "q")
    assert unique_digest({"class": "a", "args": [1], "kwargs": {}}, "q") == plain
    assert unique_digest({"class": "a", "args": [1], "kwargs": None}, "q") == plain
    one = unique_digest({"class": "a", "args": [1], "kwargs": {"x": 1, "y": "é"}}, "q")
    other = unique_digest({"class": "a", "args": [1], "kwargs": {"y": "é", "x": 1}}, "q")
    assert one == other != plain


def test_the_digest_depends_on_name_queue_and_args_only() -> None:
    base = {"class": "a", "args": [1], "jid": "1", "retry": 3}
    digest = unique_digest(base, "q")
    assert unique_digest({**base, "jid": "2", "retry": 5}, "q") == digest
    assert unique_digest(base, "r") != digest
    assert unique_digest({**base, "class": "b"}, "q") != digest
    assert unique_digest({**base, "args": ["1"]}, "q") != digest


def test_locks_of_a_job_follow_its_queue() -> None:
    locks = Locks(Keys("x"))
    job = parse(b'{"class":"a","args":[1],"unique":"until_executed","periodic_pjid":"p"}')
    digest = unique_digest(job, "found")
    assert list(locks.held(job, "found")) == [f"x:cogworker:unique:{digest}", "x:periodic:running:p"]
    assert locks.held({**job, "queue": "mail"}, "found")[0] != locks.held(job, "found")[0]
    assert locks.held({"class": "a", "unique": "while_executing", "periodic_pjid": 5}, "q") == ()


@pytest.mark.parametrize(
    "args", [b"[NaN]", b"[Infinity]", b"[1e400]", b'["\\ud800"]', b'[{"k":"\\ud800"}]'], ids=lambda args: args.decode()
)
@pytest.mark.parametrize("field", [b"args", b"kwargs"])
def test_r24_asking_for_a_jobs_locks_never_fails_after_it_ran(field: bytes, args: bytes) -> None:
    value = b'{"k":' + args + b"}" if field == b"kwargs" else args
    job = parse(b'{"class":"a","unique":"until_executed","' + field + b'":' + value + b"}")
    assert len(Locks(Keys()).held(job, "default")) == 1


def test_members_of_a_dict_in_args_stay_in_their_order() -> None:
    """As they do in the other programs of the wire format."""
    one = unique_digest({"class": "a", "args": [{"x": 1, "y": 2}]}, "q")
    assert one != unique_digest({"class": "a", "args": [{"y": 2, "x": 1}]}, "q")


def test_an_entrys_id_is_the_digest_of_its_expression_name_and_arguments() -> None:
    assert periodic_id("0 * * * *", "HourlyCleanupJob", []) == "9104b90cb8b0a08e3b3e3c944e6d62618c3f46e3"
    assert periodic_id("0 * * * *", "a", [], {}) == periodic_id("0 * * * *", "a", [])
    assert periodic_id("0 * * * *", "a", [], {"k": 1}) != periodic_id("0 * * * *", "a", [])


@pytest.mark.parametrize(("ttl", "seconds"), [(86_400.0, 86_400), (1.5, 2), (0.2, 1)])
def test_r6_a_fractional_unique_lock_ttl_is_rounded_up(ttl: float, seconds: int) -> None:
    locks = Locks(Keys(), ttl, 0.3)
    assert locks.waiting_ttl() == seconds
    assert locks.waiting_ttl(-5.0) == seconds
    assert locks.waiting_ttl(0.5) in (seconds, seconds + 1)
    assert locks.active_ttl == 121


def test_r52_a_retry_keeps_the_locks_for_its_delay_and_an_end_releases_them() -> None:
    locks = Locks(Keys(), 100.0)
    job = parse(b'{"class":"a","jid":"j","unique":"until_executed"}')
    kept = locks.settlement(b"raw", job, "q", Outcome(Kind.RETRY, 1030.0, b"{}"), 1000.0)
    assert (kept.lock_ttl, len(kept.locks)) == (130, 1)
    for outcome in (SUCCESS, Outcome(Kind.DEAD, 1.0, b"{}"), Outcome(Kind.DISCARD)):
        assert locks.settlement(b"raw", job, "q", outcome, 1000.0).lock_ttl == 0


@pytest.mark.parametrize(
    ("fields", "retake"),
    [
        (b'"periodic_pjid":"p","periodic_until_executed":true', True),
        (b'"periodic_pjid":"p"', False),
        (b'"periodic_pjid":"p","periodic_until_executed":"true"', False),
        (b'"periodic_until_executed":true', False),
    ],
)
def test_r42_only_an_until_executed_run_takes_its_running_lock_again(fields: bytes, retake: bool) -> None:
    locks = Locks(Keys(), 60.0)
    held = locks.of_bytes(b'{"class":"a","jid":"j",' + fields + b"}", "q")
    assert (held.jid, held.retake, held.ttl) == ("j", retake, 60)
    assert locks.of_bytes(b"no job", "q").keys == ()
