"""What a job decides by what it raises, how that stands to its `retry_in` hook and to middleware, and its death."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

from cogworkerd import BURY, DISCARD, App, Bury, Discard, Retry, current_job
from cogworkerd.errors import CogworkerdError, RecordedError
from cogworkerd.locks import Locks
from cogworkerd.outcome import Kind, Outcome
from cogworkerd.payload import UNPARSEABLE, dump, parse
from cogworkerd.retry import Verdict, decide
from cogworkerd.settings import Settings
from cogworkerd.store.keys import Keys
from cogworkerd.worker.death_hooks import Death, call_death_hooks, death_of
from cogworkerd.worker.perform import Performer
from cogworkerd.worker.reports import Held
from cogworkerd.worker.slot_page import SlotPage
from tests.support import Recorder

CallNext = Callable[[], None]
NOW = 1_700_000_000.25
TEN_YEARS = 10 * 365 * 86_400


# ---- the exceptions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(0, 0.0), (7, 7.0), (2.5, 2.5), (timedelta(minutes=2), 120.0), (timedelta(0), 0.0), (1e300, 1e300), (None, None)],
)
def test_what_retry_takes_as_its_delay(delay: Any, seconds: float | None) -> None:
    assert Retry(delay=delay).delay == seconds
    assert Retry("no luck", delay=delay).delay == seconds


@pytest.mark.parametrize("delay", [True, False, "5", b"5", [5], object(), 1j], ids=lambda delay: type(delay).__name__)
def test_a_delay_of_another_type_is_an_error_where_it_is_written(delay: Any) -> None:
    with pytest.raises(TypeError, match=r"delay = .*seconds from 0 up, a timedelta, or None"):
        Retry(delay=delay)


@pytest.mark.parametrize(
    "delay",
    [
        *(-1, -0.001, math.nan, math.inf, -math.inf, timedelta(seconds=-1)),
        pytest.param(
            10**400,
        ),
    ],
    ids=lambda delay: repr(delay)[:20],
)
def test_a_delay_that_is_no_time_to_come_is_an_error_where_it_is_written(delay: Any) -> None:
    with pytest.raises(ValueError, match=r"delay = .*seconds from 0 up, a timedelta, or None"):
        Retry(delay=delay)


def test_a_delay_is_given_by_its_name() -> None:
    """`Retry(5)` would be a reason of 5."""
    with pytest.raises(TypeError):
        Retry("no luck", 5)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [Retry, Bury, Discard])
def test_each_has_a_message_of_its_own_or_that_of_the_job(kind: type[CogworkerdError]) -> None:
    assert "asked" in str(kind())
    assert str(kind("no such customer")) == "no such customer"


# ---- the decision ---------------------------------------------------------------------------------------


def decided(error: BaseException, hook: Verdict = None, asked: list[int] | None = None, **fields: Any) -> Outcome:
    """The outcome of a job that raised this; its hook answers `hook` and notes the attempt in `asked`."""

    def ask(attempt: int) -> Verdict:
        if asked is not None:
            asked.append(attempt)
        return hook

    raw = dump({"class": "a", "jid": "j", "args": [], "queue": "mail", **fields})
    return decide(parse(raw), raw, "found", error, NOW, ask)


def logged(outcome: Outcome) -> str:
    """What the log of attempts says became of it."""
    return str(json.loads(outcome.attempt)["outcome"])


class Later(Retry):
    """An application's own."""


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (Retry(delay=30), 30),
        (Retry(delay=0), 0),
        (Retry(delay=timedelta(hours=1)), 3600),
        (Retry(delay=timedelta.max), TEN_YEARS),
        (Retry(delay=1e300), TEN_YEARS),
        (Later(delay=9), 9),
    ],
    ids=lambda value: repr(getattr(value, "delay", value)),
)
def test_a_job_says_when_it_is_tried_again(error: Retry, wait: float) -> None:
    outcome = decided(error)
    assert (outcome.kind, outcome.score, logged(outcome)) == (Kind.RETRY, NOW + wait, "retrying")
    entry = json.loads(outcome.payload)
    assert (entry["error_class"], entry["retry_count"]) == (type(error).__name__, 1)


def test_a_retry_without_a_delay_has_the_usual_wait() -> None:
    outcome = decided(Retry("again"), hook=7.0)
    assert outcome.kind is Kind.RETRY
    assert NOW + 15 <= outcome.score <= NOW + 44
    assert json.loads(outcome.payload)["error_message"] == "again"


def test_a_job_can_bury_itself() -> None:
    outcome = decided(Bury("no such customer"))
    assert (outcome.kind, outcome.score, logged(outcome)) == (Kind.DEAD, NOW, "killed")
    entry = json.loads(outcome.payload)
    assert (entry["error_class"], entry["error_message"], entry["retry_count"]) == ("Bury", "no such customer", 1)


def test_a_job_can_discard_itself() -> None:
    outcome = decided(Discard("stale"))
    assert (outcome.kind, outcome.payload, logged(outcome)) == (Kind.DISCARD, b"", "discarded")
    record = json.loads(outcome.attempt)
    assert (record["error_class"], record["error_message"]) == ("Discard", "stale")


@pytest.mark.parametrize("hook", [None, 7.0, timedelta(seconds=7), BURY, DISCARD], ids=str)
@pytest.mark.parametrize(
    ("error", "end"), [(Retry(delay=30), "retrying"), (Bury(), "killed"), (Discard(), "discarded")], ids=repr
)
def test_what_the_job_raised_goes_before_its_hook_which_is_not_asked(
    error: BaseException, end: str, hook: Verdict
) -> None:
    asked: list[int] = []
    outcome = decided(error, hook, asked)
    assert logged(outcome) == end
    assert asked == []
    assert outcome.score == {"retrying": NOW + 30, "killed": NOW, "discarded": 0}[end]


@pytest.mark.parametrize("last", [{"retry": False}, {"retry": 0}, {"retry": 2, "retry_count": 2}], ids=str)
@pytest.mark.parametrize(
    ("error", "kind", "end"),
    [
        (ValueError(), Kind.DEAD, "dead"),
        (Retry(), Kind.DEAD, "dead"),
        (Retry(delay=5), Kind.DEAD, "dead"),
        (Bury(), Kind.DEAD, "killed"),
        (Discard(), Kind.DISCARD, "discarded"),
    ],
    ids=repr,
)
def test_after_the_last_attempt_nothing_is_tried_again_and_the_hook_is_not_asked(
    error: BaseException, kind: Kind, end: str, last: dict[str, Any]
) -> None:
    asked: list[int] = []
    outcome = decided(error, 7.0, asked, **last)
    assert (outcome.kind, logged(outcome), asked) == (kind, end, [])
    assert outcome.score == (NOW if kind is Kind.DEAD else 0)


@pytest.mark.parametrize(
    ("hook", "end"), [(None, "retrying"), (7.0, "retrying"), (BURY, "killed"), (DISCARD, "discarded")], ids=str
)
def test_the_log_of_attempts_has_the_end_that_the_hook_chose(hook: Verdict, end: str) -> None:
    assert logged(decided(ValueError(), hook)) == end


def test_a_payload_that_cannot_be_written_again_follows_the_jobs_decision() -> None:
    """R27: the usual end is three interruptions away."""
    raw = b'{"class":"a","jid":"j","args":[1e400]}'
    buried = decide(parse(raw), raw, "found", Bury(), NOW)
    assert (buried.kind, logged(buried)) == (Kind.DEAD, "killed")
    assert decide(parse(raw), raw, "found", Discard(), NOW).kind is Kind.DISCARD
    assert decide(parse(raw), raw, "found", Retry(delay=1), NOW).kind is Kind.RETRY


# ---- the hook, the job and its middleware ---------------------------------------------------------------


class Bench:
    """An app with one job, which raises the error it is given; None: it does not fail.

    Attributes:
        told: what the job, its hook and its middleware have said, in its order.
        answer: of the `retry_in` hook; an exception is raised.
    """

    def __init__(self) -> None:
        self.app = App()
        self.log = Recorder()
        self.told: list[Any] = []
        self.error: BaseException | None = ValueError("no luck")
        self.answer: Any = 7
        self.performer = Performer(
            self.app, Settings(), Locks(Keys()), cast(Any, self.log), SlotPage(), None, [False], lambda text: None
        )

        @self.app.job(name="job")
        def job() -> None:
            self.told.append("job")
            if self.error is not None:
                raise self.error

        @job.retry_in
        def hook(attempt: int, error: Any, run: Any) -> Any:
            self.told.append(("hook", attempt, error, run is current_job()))
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer

        self.job = job

    def run(self, **fields: Any) -> Outcome:
        raw = dump({"class": "job", "jid": "j1", "args": [], "queue": "default", **fields})
        return self.performer.perform(Held("default", raw, 1)).outcome

    def replaces_by(self, error: BaseException | None) -> None:
        """Middleware that tells what it sees and raises this instead; None: the same."""

        @self.app.server_middleware
        def replaces(job: Any, call_next: CallNext) -> None:
            try:
                call_next()
            except BaseException as caught:
                self.told.append(("middleware", caught))
                raise error or caught

    @property
    def death(self) -> Death | None:
        return self.performer.death


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    found.performer.close()


def wait_of(outcome: Outcome) -> float:
    """Seconds until the retry, as from now: a little less than what was said."""
    assert outcome.kind is Kind.RETRY
    return outcome.score - time.time()


@pytest.mark.parametrize("replacement", [None, KeyError("instead")], ids=["same error", "another"])
def test_the_hook_is_asked_once_before_the_middleware_sees_the_error_and_its_verdict_stays(
    replacement: BaseException | None, bench: Bench
) -> None:
    bench.answer = 3600
    bench.replaces_by(replacement)
    outcome = bench.run(retry=3, retry_count=1)
    assert bench.told == ["job", ("hook", 2, bench.error, True), ("middleware", bench.error)]
    assert 3590 < wait_of(outcome) <= 3600
    assert json.loads(outcome.payload)["error_class"] == type(replacement or bench.error).__name__


@pytest.mark.parametrize(("answer", "kind"), [(BURY, Kind.DEAD), (DISCARD, Kind.DISCARD)])
def test_middleware_that_replaces_the_error_does_not_bring_back_what_the_hook_gave_up(
    answer: object, kind: Kind, bench: Bench
) -> None:
    bench.answer = answer
    bench.replaces_by(KeyError("instead"))
    assert bench.run().kind is kind


def test_middleware_that_swallows_the_error_makes_the_verdict_moot(bench: Bench) -> None:
    @bench.app.server_middleware
    def calm(job: Any, call_next: CallNext) -> None:
        with pytest.raises(ValueError, match="no luck"):
            call_next()

    bench.answer = BURY
    assert bench.run().kind is Kind.SUCCESS
    assert bench.told == ["job", ("hook", 1, bench.error, True)]


@pytest.mark.parametrize("where", ["before", "after"])
def test_of_an_error_of_the_middleware_itself_the_hook_is_asked_too(where: str, bench: Bench) -> None:
    bench.error, bench.answer = None, 3600
    mine = KeyError("mine")

    @bench.app.server_middleware
    def breaks(job: Any, call_next: CallNext) -> None:
        if where == "after":
            call_next()
        raise mine

    assert 3590 < wait_of(bench.run()) <= 3600
    asked = [said for said in bench.told if said != "job"]
    assert [said[:3] for said in asked] == [("hook", 1, mine)]


def test_the_hook_is_not_asked_after_the_last_attempt_whatever_middleware_makes_of_the_error(bench: Bench) -> None:
    bench.replaces_by(KeyError("instead"))
    assert bench.run(retry=2, retry_count=2).kind is Kind.DEAD
    assert bench.told == ["job", ("middleware", bench.error)]


@pytest.mark.parametrize("answer", [RuntimeError("hook"), SystemExit(2), -1, "soon", True], ids=repr)
@pytest.mark.parametrize("replacement", [None, KeyError("instead")], ids=["same error", "another"])
def test_a_hook_that_raises_or_answers_nonsense_is_logged_and_asked_no_second_time(
    answer: object, replacement: BaseException | None, bench: Bench
) -> None:
    bench.answer = answer
    bench.replaces_by(replacement)
    assert 14 < wait_of(bench.run()) <= 44
    assert [said[0] for said in bench.told if said != "job"] == ["hook", "middleware"]
    assert len(bench.log.fields("job.hook_failed")) == 1


@pytest.mark.parametrize(
    ("error", "end"), [(Retry(delay=3600), "retrying"), (Bury(), "killed"), (Discard(), "discarded")], ids=repr
)
def test_what_a_job_raised_decides_also_through_middleware(error: BaseException, end: str, bench: Bench) -> None:
    bench.error = error
    bench.replaces_by(None)
    outcome = bench.run()
    assert bench.told == ["job", ("middleware", error)]
    assert logged(outcome) == end
    if end == "retrying":
        assert 3590 < wait_of(outcome) <= 3600


# ---- deaths ---------------------------------------------------------------------------------------------


def nothing(job: Any, error: Any) -> None: ...


@pytest.mark.parametrize("of_job", [False, True], ids=["app", "job"])
@pytest.mark.parametrize("replacement", [None, KeyError("instead")], ids=["same error", "another"])
def test_a_job_that_goes_to_dead_has_a_death_with_the_very_error_that_came_out(
    replacement: BaseException | None, of_job: bool, bench: Bench
) -> None:
    (bench.job if of_job else bench.app).on_death(nothing)
    bench.replaces_by(replacement)
    bench.run(retry=0, meta={"k": 1})
    death = bench.death
    assert death is not None
    assert death.error is (replacement or bench.error)
    assert (death.job.jid, death.job.name, death.job.attempt, death.job.payload["meta"]) == ("j1", "job", 1, {"k": 1})


@pytest.mark.parametrize("error", [None, ValueError(), Retry(), Discard()], ids=repr)
def test_what_does_not_go_to_dead_has_no_death(error: BaseException | None, bench: Bench) -> None:
    bench.app.on_death(nothing)
    bench.error = Bury()
    bench.run()
    assert bench.death is not None
    bench.error = error
    bench.run()
    assert bench.death is None


def test_without_hooks_there_is_nothing_to_call(bench: Bench) -> None:
    @bench.app.job(name="other")
    def other() -> None: ...

    other.on_death(nothing)
    bench.error = Bury()
    assert bench.run().kind is Kind.DEAD
    assert bench.death is None


@pytest.mark.parametrize("hooked", [True, False])
def test_bytes_that_are_no_job_have_a_death_for_the_hooks_of_the_app(hooked: bool, bench: Bench) -> None:
    bench.job.on_death(nothing)
    if hooked:
        bench.app.on_death(nothing)
    bench.performer.perform(Held("default", b"nonsense", 1))
    if not hooked:
        assert bench.death is None
        return
    assert bench.death is not None
    assert bench.death.job.name == UNPARSEABLE
    assert isinstance(bench.death.error, RecordedError)
    assert bench.death.error.error_class == "Unparseable"


def test_the_hooks_of_the_job_come_first_then_those_of_the_app_and_each_is_called_although_others_raise(
    bench: Bench,
) -> None:
    called: list[str] = []

    def hook(name: str, fails: BaseException | None, job: Any, error: Any) -> None:
        assert job is current_job()
        called.append(name)
        if fails is not None:
            raise fails

    bench.app.on_death(functools.partial(hook, "app 1", SystemExit(1)))
    bench.job.on_death(functools.partial(hook, "job 1", ValueError()))
    bench.job.using(queue="other").on_death(functools.partial(hook, "job 2", KeyboardInterrupt()))
    bench.app.on_death(functools.partial(hook, "app 2", None))
    bench.run(retry=0)
    assert bench.death is not None
    call_death_hooks(bench.app, bench.death, cast(Any, bench.log), lambda: None)
    assert called == ["job 1", "job 2", "app 1", "app 2"]
    assert [fields["error"] for fields in bench.log.fields("death_hook.failed")] == [
        *("ValueError", "KeyboardInterrupt", "SystemExit"),
    ]
    assert not current_job()


def test_a_death_is_told_from_its_entry() -> None:
    death = death_of(
        dump(
            {"class": "a", "jid": "j", "args": [1], "queue": "mail", "retry_count": 3}
            | {"error_class": "ProcessDied", "error_message": "it died"}
        )
    )
    assert (death.job.name, death.job.queue, death.job.attempt, death.job.stopping) == ("a", "mail", 3, False)
    assert isinstance(death.error, RecordedError)
    assert death.error.error_class == "ProcessDied"
    assert str(death.error) == "ProcessDied: it died"


@pytest.mark.parametrize(
    "fields", [{}, {"error_class": 5, "error_message": ["x"]}, {"queue": 7, "retry_count": "many"}], ids=str
)
def test_an_entry_whose_failure_is_not_told_still_makes_a_death(fields: dict[str, Any]) -> None:
    """Anybody may have parked it."""
    death = death_of(dump({"class": "a", "jid": "j", "args": [], **fields}))
    assert str(death.error) == "unknown error"
    assert (death.job.queue, death.job.attempt) == ("default", 1)


def test_an_entry_that_is_no_job_is_told_like_other_bytes_that_are_none() -> None:
    """R48: a parked record may hold anything."""
    death = death_of(b"nonsense")
    assert (death.job.name, death.job.payload["raw_payload"]) == ("(unparseable)", "nonsense")
    assert isinstance(death.error, RecordedError)
    assert death.error.error_class == "Unparseable"


async def _coroutine(job: Any, error: Any) -> None: ...


async def _generator(job: Any, error: Any) -> Any:
    yield


class _AsyncCall:
    async def __call__(self, job: Any, error: Any) -> None: ...


@pytest.mark.parametrize("of_job", [False, True], ids=["app", "job"])
@pytest.mark.parametrize(
    "hook",
    [
        pytest.param(_coroutine, id="function"),
        pytest.param(functools.partial(_coroutine), id="partial"),
        pytest.param(_AsyncCall().__call__, id="method"),
        pytest.param(_AsyncCall(), id="object"),
        pytest.param(_generator, id="generator"),
    ],
)
def test_an_async_hook_is_refused(hook: Any, of_job: bool, bench: Bench) -> None:
    with pytest.raises(TypeError, match=r"on_death .*plain function .*not async"):
        (bench.job if of_job else bench.app).on_death(hook)
    assert bench.app.death_hooks_of("job") == []


def test_registering_a_hook_gives_it_back(bench: Bench) -> None:
    assert bench.app.on_death(nothing) is bench.job.on_death(nothing) is nothing
    assert bench.app.death_hooks_of("job") == [nothing, nothing]
    assert bench.app.death_hooks_of("nobody") == [nothing]
