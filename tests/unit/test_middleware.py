"""Middleware: what may be registered, and what a chain around a run does. The runs are real, in this process."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from cogworkerd import App, current_job
from cogworkerd.errors import UnknownJob
from cogworkerd.locks import Locks
from cogworkerd.outcome import Kind, Settlement
from cogworkerd.payload import dump
from cogworkerd.settings import Settings
from cogworkerd.store.keys import Keys
from cogworkerd.worker.death_hooks import call_death_hooks
from cogworkerd.worker.perform import Performer
from cogworkerd.worker.reports import Held
from cogworkerd.worker.slot_page import SlotPage
from tests.support import Recorder

CallNext = Callable[[], None]
shade: contextvars.ContextVar[str] = contextvars.ContextVar("shade", default="none")


class Bench:
    """An app, and a performer that runs its jobs here.

    Attributes:
        told: what jobs and middleware have said, in its order.
    """

    def __init__(self) -> None:
        self.app = App()
        self.log = Recorder()
        self.told: list[Any] = []
        self.performer = Performer(
            self.app, Settings(), Locks(Keys()), cast(Any, self.log), SlotPage(), None, [False], lambda text: None
        )

    def run(self, name: str, *args: Any, **fields: Any) -> Settlement:
        raw = dump({"class": name, "jid": "j1", "args": args, "queue": "default", **fields})
        return self.performer.perform(Held("default", raw, 1))

    def kind(self, name: str, *args: Any, **fields: Any) -> Kind:
        return self.run(name, *args, **fields).outcome.kind


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Two jobs that do the same, one of them async: they tell the shade they see and leave their own."""
    found = Bench()

    @found.app.job(name="plain")
    def plain(leave: str = "") -> str:
        found.told.append(("job", shade.get()))
        if leave:
            shade.set(leave)
        return "a result"

    @found.app.job(name="async")
    async def later(leave: str = "") -> str:
        await asyncio.sleep(0)
        found.told.append(("job", shade.get()))
        if leave:
            shade.set(leave)
        await asyncio.sleep(0)
        return "a result"

    @found.app.job(name="fails")
    def fails(leave: str = "") -> None:
        if leave:
            shade.set(leave)
        raise ValueError("no luck")

    @found.app.job(name="async fails")
    async def later_fails(leave: str = "") -> None:
        await asyncio.sleep(0)
        if leave:
            shade.set(leave)
        raise ValueError("no luck")

    yield found
    found.performer.close()


both = pytest.mark.parametrize("job", ["plain", "async"])
both_that_fail = pytest.mark.parametrize("job", ["fails", "async fails"])


# ---- registration ---------------------------------------------------------------------------------------


async def _coroutine(job: Any, call_next: CallNext) -> None: ...


async def _generator(job: Any, call_next: CallNext) -> Any:
    yield


class _AsyncCall:
    async def __call__(self, job: Any, call_next: CallNext) -> None: ...


class _AsyncGeneratorCall:
    async def __call__(self, job: Any, call_next: CallNext) -> Any:
        yield


class _Methods:
    async def late(self, job: Any, call_next: CallNext) -> None: ...

    def __call__(self, job: Any, call_next: CallNext) -> None: ...


kinds = pytest.mark.parametrize("kind", ["client_middleware", "server_middleware"])


@kinds
@pytest.mark.parametrize(
    "middleware",
    [
        _coroutine,
        _generator,
        _AsyncCall(),
        _AsyncGeneratorCall(),
        _Methods().late,
        functools.partial(_coroutine),
    ],
    ids=["function", "generator", "object", "object with a generator", "method", "partial"],
)
def test_async_middleware_is_refused_and_the_error_says_that_it_is_async(kind: str, middleware: Any) -> None:
    app = App()
    with pytest.raises(TypeError, match=f"{kind} .*is async: .*plain function"):
        getattr(app, kind)(middleware)
    assert not app.client_chain
    assert not app.server_chain


@kinds
@pytest.mark.parametrize(
    "middleware",
    [
        lambda: None,
        lambda job: None,
        lambda job, call_next, more: None,
        lambda job, call_next, *, more: None,
        lambda *, job, call_next: None,
    ],
    ids=["none", "one", "three", "a keyword more", "keywords alone"],
)
def test_middleware_that_does_not_take_two_arguments_is_refused(kind: str, middleware: Any) -> None:
    app = App()
    with pytest.raises(TypeError, match=f"{kind} .*two arguments"):
        getattr(app, kind)(middleware)
    assert not app.client_chain
    assert not app.server_chain


@kinds
@pytest.mark.parametrize("thing", [None, "name", 5])
def test_what_cannot_be_called_is_no_middleware(kind: str, thing: Any) -> None:
    with pytest.raises(TypeError, match=f"{kind} takes a function"):
        getattr(App(), kind)(thing)


@kinds
@pytest.mark.parametrize(
    "middleware",
    [lambda job, call_next: None, lambda *both: None, lambda job, call_next, more=1: None, _Methods()],
    ids=["function", "any number", "a default more", "object"],
)
def test_registration_gives_back_what_was_registered(kind: str, middleware: Any) -> None:
    app = App()
    assert getattr(app, kind)(middleware) is middleware
    assert (len(app.client_chain), len(app.server_chain)) == ((1, 0) if kind == "client_middleware" else (0, 1))


# ---- the chain ------------------------------------------------------------------------------------------


@both
def test_the_first_one_registered_is_the_outermost(job: str, bench: Bench) -> None:
    def stands(name: str) -> None:
        @bench.app.server_middleware
        def middleware(job: Any, call_next: CallNext) -> None:
            bench.told.append(f"{name} in")
            call_next()
            bench.told.append(f"{name} out")

    for name in ("first", "second", "third"):
        stands(name)
    assert bench.kind(job) is Kind.SUCCESS
    assert bench.told == [
        *("first in", "second in", "third in", ("job", "none"), "third out", "second out", "first out"),
    ]


@both
def test_middleware_gets_the_current_job_and_call_next_returns_none_when_it_is_over(job: str, bench: Bench) -> None:
    @bench.app.server_middleware
    def look(job: Any, call_next: Any) -> str:
        bench.told.append((job is current_job(), job.name, job.jid, job.attempt, job.payload["meta"]))
        bench.told.append(call_next())
        bench.told.append(job is current_job())
        return "not looked at"

    assert bench.kind(job, meta={"k": 1}, retry_count=2) is Kind.SUCCESS
    assert bench.told == [(True, job, "j1", 3, {"k": 1}), ("job", "none"), None, True]
    assert not current_job()


@pytest.mark.parametrize("handled", [False, True], ids=["raised", "handled"])
@pytest.mark.parametrize(("job", "runs"), [("plain", 1), ("async", 1), ("fails", 0)])
def test_call_next_goes_on_once_only_also_after_a_failure(job: str, runs: int, handled: bool, bench: Bench) -> None:
    """The obvious way to write a retry in middleware would run a job twice under one STARTED."""

    @bench.app.server_middleware
    def eager(job: Any, call_next: CallNext) -> None:
        try:
            call_next()
        except ValueError:
            pass
        with pytest.raises(RuntimeError, match=r"server_middleware .*eager.* call_next\(\) a second time") as caught:
            call_next()
        if not handled:
            raise caught.value

    @bench.app.server_middleware
    def counts(job: Any, call_next: CallNext) -> None:
        bench.told.append("entered")
        call_next()

    settlement = bench.run(job)
    assert bench.told.count("entered") == 1
    assert bench.told.count(("job", "none")) == runs
    if handled:
        assert settlement.outcome.kind is Kind.SUCCESS
    else:
        assert settlement.outcome.kind is Kind.RETRY
        assert json.loads(settlement.outcome.payload)["error_class"] == "RuntimeError"


def test_each_run_may_call_next_anew(bench: Bench) -> None:
    bench.app.server_middleware(lambda job, call_next: call_next())
    assert [bench.kind("plain") for _ in range(3)] == [Kind.SUCCESS] * 3
    assert len(bench.told) == 3


def test_r33_a_job_that_nobody_registered_fails_like_any_other_through_the_middleware(bench: Bench) -> None:
    @bench.app.server_middleware
    def look(job: Any, call_next: CallNext) -> None:
        try:
            call_next()
        except BaseException as error:
            bench.told.append((job.name, type(error)))
            raise

    outcome = bench.run("nobody", retry=3).outcome
    assert bench.told == [("nobody", UnknownJob)]
    assert outcome.kind is Kind.RETRY
    entry = json.loads(outcome.payload)
    assert (entry["error_class"], entry["retry_count"]) == ("UnknownJob", 1)
    assert "nobody" in entry["error_message"]


@pytest.mark.parametrize("job", ["fails", "async fails", "nobody"])
@pytest.mark.parametrize("retry", [3, 0])
def test_middleware_that_swallows_the_error_makes_the_run_a_success(job: str, retry: int, bench: Bench) -> None:
    @bench.app.server_middleware
    def calm(job: Any, call_next: CallNext) -> None:
        try:
            call_next()
        except Exception as error:
            bench.told.append(type(error))

    assert bench.kind(job, retry=retry) is Kind.SUCCESS
    assert bench.told == [UnknownJob if job == "nobody" else ValueError]
    assert [name for name, _ in bench.log.told] == ["job.start", "job.done"]


def test_middleware_that_does_not_call_next_makes_the_run_a_success_of_a_job_that_is_not_run(bench: Bench) -> None:
    @bench.app.server_middleware
    def outer(job: Any, call_next: CallNext) -> None:
        call_next()
        bench.told.append("over")

    bench.app.server_middleware(lambda job, call_next: None)
    bench.app.server_middleware(lambda job, call_next: bench.told.append("never"))
    assert bench.kind("plain") is bench.kind("fails") is bench.kind("nobody") is Kind.SUCCESS
    assert bench.told == ["over"] * 3


@pytest.mark.parametrize("where", ["before", "after", "instead"])
@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_error_of_the_middleware_itself_is_the_failure_of_the_run(
    where: str, error: BaseException, bench: Bench
) -> None:
    @bench.app.server_middleware
    def breaks(job: Any, call_next: CallNext) -> None:
        if where == "before":
            raise error
        try:
            call_next()
        finally:
            raise error

    outcome = bench.run("fails" if where == "instead" else "plain").outcome
    assert outcome.kind is Kind.RETRY
    assert json.loads(outcome.payload)["error_class"] == type(error).__name__
    assert len(bench.told) == (where == "after")
    assert bench.kind("plain", leave="") is Kind.RETRY  # and the performer goes on


# ---- context variables ----------------------------------------------------------------------------------


@both
def test_what_is_set_before_call_next_is_seen_in_the_job_and_what_the_job_set_is_seen_after_it(
    job: str, bench: Bench
) -> None:
    @bench.app.server_middleware
    def paints(job: Any, call_next: CallNext) -> None:
        shade.set("blue")
        call_next()
        bench.told.append(("after", shade.get()))

    bench.run(job, "red")
    bench.run(job)
    assert bench.told == [("job", "blue"), ("after", "red"), ("job", "blue"), ("after", "blue")]


@both_that_fail
def test_what_a_job_that_fails_has_set_is_seen_by_who_handles_its_error(job: str, bench: Bench) -> None:
    @bench.app.server_middleware
    def paints(job: Any, call_next: CallNext) -> None:
        try:
            call_next()
        finally:
            bench.told.append(shade.get())

    bench.run(job, "red")
    assert bench.told == ["red"]


@pytest.mark.parametrize("then", ["plain", "async"])
@pytest.mark.parametrize("job", ["plain", "async", "fails", "async fails"])
def test_nothing_that_a_run_has_set_is_seen_in_the_next_one(job: str, then: str, bench: Bench) -> None:
    @bench.app.server_middleware
    def looks(job: Any, call_next: CallNext) -> None:
        bench.told.append(("before", shade.get()))
        try:
            call_next()
        finally:
            shade.set(f"{shade.get()} and more")

    for name in (job, then):
        bench.run(name, "red" if name == job else "")
    bench.run(then)
    assert bench.told[-4:] == [("before", "none"), ("job", "none")] * 2
    assert shade.get() == "none"


def test_a_task_that_an_async_job_starts_has_the_variables_of_the_middleware(bench: Bench) -> None:
    @bench.app.job(name="parent")
    async def parent() -> None:
        async def look() -> None:
            bench.told.append((shade.get(), current_job().name))

        await asyncio.gather(look(), asyncio.create_task(look()))

    @bench.app.server_middleware
    def paints(job: Any, call_next: CallNext) -> None:
        shade.set("blue")
        call_next()

    assert bench.kind("parent") is Kind.SUCCESS
    assert bench.told == [("blue", "parent")] * 2


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_an_async_job_that_breaks_its_loop_leaves_the_next_one_a_working_chain(
    error: type[BaseException], bench: Bench
) -> None:
    @bench.app.job(name="breaks")
    async def breaks() -> None:
        shade.set("red")
        raise error

    @bench.app.server_middleware
    def looks(job: Any, call_next: CallNext) -> None:
        try:
            call_next()
        except BaseException as caught:
            bench.told.append((type(caught), shade.get()))
            raise

    assert bench.kind("breaks") is Kind.RETRY
    assert bench.kind("async") is Kind.SUCCESS
    assert bench.told == [(error, "red"), ("job", "none")]


def test_what_a_death_hook_has_set_is_not_seen_in_the_next_run(bench: Bench) -> None:
    """A child calls its hooks between two runs."""
    bench.app.on_death(lambda job, error: shade.set("black"))

    def two_runs() -> None:
        assert bench.kind("fails", retry=0) is Kind.DEAD
        assert bench.performer.death is not None
        call_death_hooks(bench.app, bench.performer.death, cast(Any, bench.log), lambda: None)
        bench.run("plain")

    contextvars.copy_context().run(two_runs)
    assert bench.told == [("job", "none")]


def test_what_a_retry_in_hook_has_set_is_not_seen_in_the_next_run(bench: Bench) -> None:
    """Of an error that came from middleware it is asked when the run is over."""

    @bench.app.jobs["plain"].retry_in
    def paints(attempt: int, error: Any, job: Any) -> None:
        shade.set("black")

    @bench.app.server_middleware
    def breaks(job: Any, call_next: CallNext) -> None:
        call_next()
        raise KeyError("mine")

    def two_runs() -> None:
        assert bench.kind("plain") is bench.kind("plain") is Kind.RETRY

    contextvars.copy_context().run(two_runs)
    assert bench.told == [("job", "none")] * 2
