"""Jobs that come too late: what a client writes into a payload, and what a worker reads out of one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from cogworkerd import App
from cogworkerd.expiry import lateness
from cogworkerd.middleware import PendingJob
from cogworkerd.outcome import EXPIRED, Kind, Outcome
from cogworkerd.periodic import Entry, resolve_all

NOW = 1_800_000_000.0
HOUR = timedelta(hours=1)
EAST = timezone(HOUR)
NONSENSE: tuple[Any, ...] = (
    *(None, True, False, "", "soon", "1700000000", [], [1.0], {}, {"at": 1.0}),
    *(0, -1, -0.5, float("nan"), float("inf"), float("-inf"), 1e12, NOW * 1000, 10**400, -(10**400)),
)


# ---- reading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "late"),
    [(NOW - 5, 5.0), (NOW, 0.0), (int(NOW) - 1, 1.0), (NOW + 0.001, None), (NOW + 1e9, None), (1, NOW - 1)],
)
def test_a_job_is_late_from_the_instant_of_its_limit_on(limit: float, late: float | None) -> None:
    assert lateness({"expires_at": limit}, NOW) == late


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: f"{value!r:.20}")
def test_a_field_that_is_no_time_means_nothing(value: Any) -> None:
    assert lateness({"expires_at": value}, NOW) is None


@pytest.mark.parametrize("text", ["1e400", "-1e400", "NaN", "Infinity", "1" + "0" * 400, "1e12", "-0.0", '"1e9"'])
def test_a_number_beyond_measure_that_another_program_wrote_means_nothing(text: str) -> None:
    assert lateness(json.loads(f'{{"expires_at": {text}}}'), NOW) is None


def test_a_job_without_the_field_is_never_late() -> None:
    assert lateness({"expires_in": 1, "at": 1.0}, NOW) is None


# ---- writing --------------------------------------------------------------------------------------------


@pytest.fixture
def app() -> App:
    """Its client middleware keeps every job, so that there is nothing to be pushed and no server is asked."""
    made = App("redis://127.0.0.1:1/0")

    @made.client_middleware
    def keep(job: PendingJob, call_next: Callable[[], None]) -> None:
        pushed.append(dict(job.payload))

    pushed.clear()
    return made


pushed: list[dict[str, Any]] = []


def job_of(app: App, **options: Any) -> Any:
    def late() -> None:
        pass

    return app.job(name="late", **options)(late)


@pytest.mark.parametrize("seconds", [5, 0.25, timedelta(seconds=90), timedelta(days=3), 999_999_999])
def test_expires_in_counts_from_the_push_of_a_job_that_is_due_at_once(seconds: Any, app: App) -> None:
    given = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    assert job_of(app, expires_in=seconds).enqueue() is None
    (payload,) = pushed
    assert payload["expires_at"] == payload["enqueued_at"] + given
    assert "expires_in" not in payload


WAYS: dict[str, Callable[[Any], Any]] = {
    "in seconds": lambda job: job.enqueue_in(3600),
    "in a timedelta": lambda job: job.enqueue_in(HOUR),
    "at an aware datetime": lambda job: job.enqueue_at(datetime.now(EAST) + HOUR),
    "at epoch seconds": lambda job: job.enqueue_at(time.time() + 3600),
    "asynchronously in seconds": lambda job: asyncio.run(job.aenqueue_in(3600)),
    "asynchronously at a time": lambda job: asyncio.run(job.aenqueue_at(time.time() + 3600)),
}


@pytest.mark.parametrize("way", WAYS)
def test_expires_in_counts_from_when_a_job_is_due(way: str, app: App) -> None:
    WAYS[way](job_of(app, expires_in=5))
    (payload,) = pushed
    assert payload["expires_at"] == payload["at"] + 5
    assert 3500 < payload["at"] - payload["created_at"] <= 3600


def test_expires_in_counts_from_a_due_time_that_is_over_too(app: App) -> None:
    job_of(app, expires_in=5).enqueue_at(NOW - 1e9)
    (payload,) = pushed
    assert payload["expires_at"] == NOW - 1e9 + 5
    assert lateness(payload, time.time()) is not None


def test_many_jobs_each_have_their_limit(app: App) -> None:
    job = job_of(app, expires_in=5)
    job.enqueue_many([(), ()])
    asyncio.run(job.aenqueue_many([()]))
    asyncio.run(job.aenqueue())
    app.push("another programs", expires_in=5)
    assert [payload["expires_at"] - payload["enqueued_at"] for payload in pushed] == [5] * 5


@pytest.mark.parametrize(
    "when",
    [
        datetime.fromtimestamp(NOW, UTC),
        datetime.fromtimestamp(NOW, EAST),
        datetime.fromtimestamp(NOW, timezone(timedelta(hours=-11.5))),
        NOW,
        int(NOW),
    ],
    ids=repr,
)
def test_expires_at_is_an_instant_whatever_its_zone_and_whenever_the_job_is_due(when: Any, app: App) -> None:
    job = job_of(app, expires_at=when)
    job.enqueue()
    job.enqueue_in(3600)
    job_of(App(), expires_in=5).using(expires_at=when)
    app.push("another programs", expires_at=when)
    assert [payload["expires_at"] for payload in pushed] == [NOW] * 3


def test_expires_at_wins_over_expires_in_and_none_takes_either_back(app: App) -> None:
    job = job_of(app, expires_in=5)
    for options in ({"expires_at": NOW}, {"expires_at": None}, {"expires_in": None}, {"expires_in": 7}):
        job.using(**options).enqueue()
    job.using(expires_at=NOW).using(expires_in=None).enqueue()
    job.using(expires_at=NOW).using(expires_at=None, expires_in=None).enqueue()
    limits = [payload.get("expires_at", 0) for payload in pushed]
    enqueued = [payload["enqueued_at"] for payload in pushed]
    assert limits == [NOW, enqueued[1] + 5, 0, enqueued[3] + 7, NOW, 0]


def test_a_job_without_these_options_has_no_limit(app: App) -> None:
    job_of(app).enqueue()
    assert "expires_at" not in pushed[0]


WRONG: list[tuple[str, Any, type[Exception]]] = [
    *(("expires_in", value, ValueError) for value in (0, -1, float("nan"), float("inf"), 1e9, 10**400, timedelta(0))),
    *(("expires_in", value, ValueError) for value in ("5", True, [5], timedelta(seconds=-1), datetime.now(UTC))),
    ("expires_at", datetime(2030, 1, 1), ValueError),
    *(("expires_at", value, ValueError) for value in (float("nan"), float("inf"), 10**400)),
    *(("expires_at", value, TypeError) for value in ("2030-01-01", True, HOUR, [NOW], datetime.now(UTC).date())),
]


@pytest.mark.parametrize(("name", "value", "error"), WRONG, ids=lambda value: f"{value!r:.30}")
def test_a_value_that_cannot_be_used_is_an_error_that_names_job_option_and_value(
    name: str, value: Any, error: type[Exception], app: App
) -> None:
    with pytest.raises(error) as raised:
        job_of(app, **{name: value})
    assert f"late: {name} = {value!r:.80}" in str(raised.value)
    with pytest.raises(error, match=f"late.using: {name}"):
        job_of(app).using(**{name: value})
    with pytest.raises(error, match=name):
        app.push("another programs", **{name: value})
    assert pushed == []


def test_a_naive_datetime_is_an_error_that_says_what_to_do(app: App) -> None:
    with pytest.raises(ValueError, match="give it a tzinfo"):
        job_of(app, expires_at=datetime(2030, 1, 1))


@pytest.mark.parametrize("when", [0, -1, 1e12, NOW * 1000, datetime(1960, 1, 1, tzinfo=UTC)], ids=repr)
def test_expires_at_is_refused_where_a_worker_would_not_heed_it(when: Any, app: App) -> None:
    with pytest.raises(ValueError, match="expires_at"):
        job_of(app, expires_at=when)


# ---- periodic entries -----------------------------------------------------------------------------------


def entry_of(app: App, job: Any, **options: Any) -> Entry:
    app.periodic("* * * * *", job, **options)
    (entry,) = resolve_all(app)
    return entry


def payload_of(entry: Entry, slot: int = int(NOW)) -> dict[str, Any]:
    return entry.payload(slot, "j" * 24, slot + 30.0)


def test_the_limit_of_a_periodic_job_counts_from_its_slot_and_not_from_its_push(app: App) -> None:
    """So that a slot that is caught up after a downtime is dropped."""
    assert payload_of(entry_of(app, job_of(app, expires_in=20)))["expires_at"] == NOW + 20


def test_a_twin_of_a_job_may_bring_the_limit_of_an_entry(app: App) -> None:
    assert payload_of(entry_of(app, job_of(app).using(expires_in=20)))["expires_at"] == NOW + 20


def test_a_periodic_job_without_the_option_has_no_limit(app: App) -> None:
    assert "expires_at" not in payload_of(entry_of(app, job_of(app)))


def test_the_limit_of_a_periodic_job_with_jitter_counts_from_when_it_is_due(app: App) -> None:
    entry = entry_of(app, job_of(app, expires_in=5), jitter=50)
    for slot in range(int(NOW), int(NOW) + 600, 60):
        assert abs(payload_of(entry, slot)["expires_at"] - entry.instant(slot) - 5) < 1e-3


def test_a_periodic_job_with_expires_at_has_that_limit(app: App) -> None:
    assert payload_of(entry_of(app, job_of(app, expires_at=NOW + 20)))["expires_at"] == NOW + 20


# ---- the outcome ----------------------------------------------------------------------------------------


def test_an_expired_job_is_an_end_that_files_nothing_and_adds_to_no_counter() -> None:
    assert (EXPIRED.kind, EXPIRED.files, EXPIRED.statistic) == (Kind.EXPIRED, False, "")
    assert Outcome.decode(EXPIRED.encode()) == EXPIRED
