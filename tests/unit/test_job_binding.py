"""Jobs before they are enqueued: names, options, binding, due times, and errors where the mistake stands."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from cogworkerd import BURY, App, context, current_job
from cogworkerd.client import Push
from cogworkerd.errors import SettingsError
from cogworkerd.job import OPTION_NAMES, Call, Job, Options
from cogworkerd.middleware import PendingJob
from tests.support import ROOT


class Shelf(App):
    """An app whose pushes end on a shelf."""

    def __init__(self, **settings: Any) -> None:
        super().__init__("redis://127.0.0.1:1", **settings)
        self.pushed: list[Push] = []

    def send(self, pending: PendingJob) -> str | None:
        return self.send_many([pending])[0]

    def send_many(self, pending: Sequence[PendingJob]) -> list[str | None]:
        self.pushed += [self.push_of(job) for job in pending]
        return [job.jid for job in pending]

    async def asend(self, pending: PendingJob) -> str | None:
        return self.send(pending)

    async def asend_many(self, pending: Sequence[PendingJob]) -> list[str | None]:
        return self.send_many(pending)

    @property
    def payloads(self) -> list[dict[str, Any]]:
        return [json.loads(push.raw) for push in self.pushed]


@pytest.fixture
def app() -> Shelf:
    return Shelf()


def plain(user_id: int, *, lang: str = "en") -> str:
    """Says who."""
    return f"{user_id} {lang}"


def defaults(a: int = 1, b: int = 2, /, c: int = 3, *rest: int, d: int = 4, **more: int) -> None:
    pass


async def asynchronous(n: int) -> int:
    return n


def odd_annotations(n: NotThere, m: Also.Not.There = 0) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
    pass


class Holder:
    def method(self) -> None:
        pass


def lambda_at_top() -> Callable[[], None]:
    return lambda: None


# ---- names ---------------------------------------------------------------------------------------------


def test_a_jobs_name_is_its_module_and_function(app: Shelf) -> None:
    assert app.job(plain).name == f"{__name__}.plain"
    assert app.job(name="mail.send")(plain).name == "mail.send"
    assert list(app.jobs) == [f"{__name__}.plain", "mail.send"]


def test_a_job_is_still_its_function(app: Shelf) -> None:
    job = app.job(plain)
    assert job(42, lang="de") == "42 de"
    assert (getattr(job, "__name__", ""), job.__doc__, job.function) == ("plain", "Says who.", plain)
    assert repr(job) == f"<Job {__name__}.plain>"
    async_job = app.job(asynchronous)
    assert async_job.is_async
    assert not job.is_async
    assert asyncio.run(async_job(3)) == 3


def test_what_no_worker_can_find_is_an_error_at_the_decorator(app: Shelf) -> None:
    def local() -> None:
        pass

    for function, part in ((local, "<locals>"), (lambda_at_top(), "<lambda>"), (Holder.method, "method")):
        with pytest.raises(ValueError, match=part):
            app.job(function)
    with pytest.raises(TypeError, match="takes a function, not partial"):
        app.job(functools.partial(plain, 1))
    with pytest.raises(TypeError, match="takes a function, not int"):
        app.job(5)  # type: ignore[call-overload]
    assert app.jobs == {}


def test_an_explicit_name_lifts_that(app: Shelf) -> None:
    def local(n: int) -> None:
        pass

    app.job(name="local")(local).enqueue(1)
    assert app.payloads[0]["class"] == "local"


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\x00", "\ud800", "\u202e", 5, b"x"])
def test_a_name_is_a_printable_text(app: Shelf, name: Any) -> None:
    with pytest.raises(ValueError, match="printable text of 1 to 200"):
        app.job(name=name)(plain)
    with pytest.raises(ValueError, match="printable text of 1 to 200"):
        app.push(name)


def test_a_second_job_of_one_name_is_an_error_that_says_where_the_first_is(app: Shelf) -> None:
    app.job(plain)
    with pytest.raises(ValueError) as caught:
        app.job(plain)
    assert f"{__name__}.plain" in str(caught.value)
    assert f"{__file__}:{plain.__code__.co_firstlineno}" in str(caught.value)


SCRIPT = """
from cogworkerd import App
app = App()

@app.job
def hello():
    return "called"

if __name__ == "__main__":
    print(hello.name, hello())
    try:
        hello.enqueue()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_job_of_a_script_has_its_modules_name_or_says_why_it_cannot_be_enqueued(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    for file in ("script.py", "__main__.py"):
        (package / file).write_text(SCRIPT)
    env = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "REDIS_URL": "redis://127.0.0.1:1", "PATH": "/usr/bin:/bin"}
    ways = ([str(package / "script.py")], ["-m", "shop.script"], ["-m", "shop"])
    running = [
        subprocess.Popen([sys.executable, *way], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
        for way in ways
    ]
    by_file, by_module, by_package = (process.communicate(timeout=60)[0].splitlines() for process in running)
    assert by_file[0] == "__main__.hello called"
    assert by_file[1].startswith("RuntimeError __main__.hello is defined in a script")
    assert "python -m" in by_file[1]
    assert "name=" in by_file[1]
    assert by_module[0] == "shop.script.hello called"
    assert by_package[0] == "shop.hello called"
    for lines in (by_module, by_package):
        assert lines[1].startswith("ConnectionError")


# ---- options -------------------------------------------------------------------------------------------


def test_options_of_a_job_travel_with_it(app: Shelf) -> None:
    job = app.job(queue="mail", retry=5, tags=["a", "b"], meta={"k": [1, (2,)]})(plain)
    job.enqueue(42, lang="de")
    (payload,) = app.payloads
    assert payload == {
        "class": f"{__name__}.plain",
        "args": [42],
        "kwargs": {"lang": "de"},
        "queue": "mail",
        "jid": app.pushed[0].jid,
        "retry": 5,
        "tags": ["a", "b"],
        "meta": {"k": [1, [2]]},
        "created_at": payload["created_at"],
        "enqueued_at": payload["created_at"],
    }
    assert app.pushed[0].queue == "mail"


def test_what_is_not_given_is_not_on_the_wire(app: Shelf) -> None:
    app.job(plain).enqueue(1)
    assert set(app.payloads[0]) == {"class", "args", "queue", "jid", "retry", "created_at", "enqueued_at"}
    assert (app.payloads[0]["queue"], app.payloads[0]["retry"]) == ("default", True)


@pytest.mark.parametrize("retry", [True, False, 0, 1, 25, 10**6])
def test_retry_options(app: Shelf, retry: int) -> None:
    app.job(retry=retry)(plain).enqueue(1)
    found = app.payloads[0]["retry"]
    assert (found, type(found)) == (retry, type(retry))


BAD_OPTIONS: dict[str, tuple[Any, ...]] = {
    "queue": ("", "a b", "a,b", "x" * 201, "a\x00", "\ud800", 5, None, ["mail"]),
    "retry": (-1, 1.5, "5", None, []),
    "tags": ("text", b"text", 5, None, [1], ["\ud800"], [None]),
    "meta": ([], "text", 5, None, {1: 2}, {"k": {1}}, {"k": math.nan}),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in BAD_OPTIONS.items() for value in values],
    ids=lambda value: ascii(value)[:20],
)
def test_a_bad_option_is_an_error_that_names_it(app: Shelf, name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    ways: list[Callable[[], object]] = [
        lambda: app.job(name="bad", **options)(plain),
        lambda: app.job(name="good")(plain).using(**options),
        lambda: app.push("elsewhere", [], **options),
    ]
    for way in ways:
        with pytest.raises((TypeError, ValueError), match=name):
            way()
    assert list(app.jobs) == ["good"]
    assert app.pushed == []


@pytest.mark.parametrize(("name", "hint"), [("queu", "queue"), ("retries", "retry"), ("tag", "tags")])
def test_an_unknown_option_is_a_type_error_with_the_nearest_one(app: Shelf, name: str, hint: str) -> None:
    options: dict[str, Any] = {name: 1}
    job = app.job(name="good")(plain)
    ways: list[Callable[[], object]] = [
        lambda: app.job(**options)(plain),
        lambda: job.using(**options),
        lambda: app.push("elsewhere", [], **options),
    ]
    for way in ways:
        with pytest.raises(TypeError, match=f"unknown option '{name}': did you mean '{hint}'"):
            way()


def test_the_default_options_and_their_names() -> None:
    assert set(OPTION_NAMES) >= {"queue", "retry", "tags", "meta"}
    assert Options() == Options(queue=None, retry=True, tags=(), meta=None)


def test_using_makes_a_twin_and_leaves_the_job_alone(app: Shelf) -> None:
    job = app.job(queue="mail", retry=3)(plain)
    low = job.using(queue="low")
    assert isinstance(low, Job)
    assert (low.name, low.queue, low.options.retry) == (job.name, "low", 3)
    assert low.using(retry=False).options == Options(queue="low", retry=False)
    assert (job.queue, job.options.retry) == ("mail", 3)
    assert low(1, lang="de") == "1 de"
    low.enqueue(1)
    job.enqueue(2)
    assert [push.queue for push in app.pushed] == ["low", "mail"]
    assert app.jobs[job.name] is job


def test_a_hook_is_shared_by_all_twins(app: Shelf) -> None:
    job = app.job(plain)
    before, other = job.using(queue="low"), app.job(name="other")(plain)

    @before.retry_in
    def hook(attempt: int, error: object, job: object) -> Any:
        return BURY

    assert job.retry_hook is before.retry_hook is job.using(retry=3).retry_hook is hook
    assert other.retry_hook is None


def test_hooks_are_plain_functions(app: Shelf) -> None:
    async def hook(*_: object) -> None:
        pass

    with pytest.raises(TypeError, match="plain function"):
        app.job(plain).retry_in(hook)  # type: ignore[type-var]
    for register in (app.on_child_start, app.on_child_stop):
        with pytest.raises(TypeError, match="plain function"):
            register(hook)  # type: ignore[type-var]


def test_the_queues_of_an_app_are_default_and_those_its_jobs_name(app: Shelf) -> None:
    assert app.queues == ["default"]
    for name in ("z", "a", "default"):
        app.job(name=name, queue=name)(plain)
    app.job(name="again", queue="a")(plain).using(queue="elsewhere")
    assert app.queues == ["default", "a", "z"]


def test_a_mistake_in_a_setting_is_an_error_where_the_app_stands() -> None:
    with pytest.raises(SettingsError, match=r"App\(\.\.\.\): concurrency = 0"):
        App(concurrency=0)
    with pytest.raises(SettingsError, match=r"App\(\.\.\.\): redis_url: .*http"):
        App("http://h")


# ---- binding -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "bound"),
    [
        ((42,), {}, ([42], {})),
        ((), {"user_id": 42}, ([42], {})),
        ((42,), {"lang": "de"}, ([42], {"lang": "de"})),
        ((), {"lang": "de", "user_id": 42}, ([42], {"lang": "de"})),
    ],
)
def test_what_can_be_positional_is_and_only_keyword_only_arguments_are_kwargs(
    app: Shelf, args: tuple[Any, ...], kwargs: dict[str, Any], bound: tuple[list[Any], dict[str, Any]]
) -> None:
    call = app.job(plain).call(*args, **kwargs)
    assert (call.args, call.kwargs) == bound


def test_defaults_are_not_filled_in(app: Shelf) -> None:
    job = app.job(defaults)
    for args, kwargs, bound in (
        ((), {}, ([], {})),
        ((7,), {}, ([7], {})),
        ((7, 8), {"c": 9}, ([7, 8, 9], {})),
        ((7, 8, 9, 10, 11), {"d": 12}, ([7, 8, 9, 10, 11], {"d": 12})),
        ((), {"d": 1, "e": 2}, ([], {"d": 1, "e": 2})),
    ):
        call = job.call(*args, **kwargs)
        assert (call.args, call.kwargs) == bound


def test_however_it_was_called_the_function_gets_the_same(app: Shelf) -> None:
    def seen(a: int, b: int = 0, *rest: int, c: int = 0, **more: int) -> tuple[Any, ...]:
        return a, b, rest, c, more

    job = app.job(name="seen")(seen)
    for args, kwargs in (
        ((1,), {}),
        ((), {"a": 1}),
        ((1,), {"b": 2}),
        ((), {"b": 2, "a": 1, "c": 3}),
        ((1, 2, 3), {"z": 4}),
    ):
        call = job.call(*args, **kwargs)
        assert seen(*call.args, **call.kwargs) == seen(*args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2), {}), ((1,), {"colour": "red"}), ((1,), {"user_id": 2}), ((), {"lang": "de"})],
)
def test_arguments_that_do_not_fit_are_a_type_error_at_the_call(
    app: Shelf, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    job = app.job(plain)
    ways: list[Callable[[], object]] = [
        lambda: job.enqueue(*args, **kwargs),
        lambda: job.enqueue_in(1, *args, **kwargs),
        lambda: job.enqueue_at(1.0, *args, **kwargs),
        lambda: job.call(*args, **kwargs),
        lambda: asyncio.run(_awaited(job.aenqueue(*args, **kwargs))),
    ]
    for way in ways:
        with pytest.raises(TypeError, match=r"plain: "):
            way()
    assert app.pushed == []


async def _awaited(answer: Any) -> Any:
    return await answer


def test_c47b_arguments_that_are_not_json_are_a_type_error_with_the_path(app: Shelf) -> None:
    job = app.job(plain)
    for value, path in (({"when": datetime.now(UTC)}, 'args[0]["when"]'), ([b""], "args[0][0]"), (math.nan, "args[0]")):
        with pytest.raises(TypeError) as caught:
            job.enqueue(value)  # type: ignore[arg-type]
        assert str(caught.value).startswith(f"{path}: ")
    with pytest.raises(TypeError) as caught:
        job.enqueue(1, lang={1})  # type: ignore[arg-type]
    assert "lang" in str(caught.value)
    assert "set is not JSON" in str(caught.value)
    assert app.pushed == []


def test_a_caller_that_changes_its_arguments_afterwards_changes_nothing(app: Shelf) -> None:
    job = app.job(name="any")(lambda value: None)
    value = {"k": [1]}
    call = job.call(value)
    value["k"].append(2)
    app.enqueue_many([call])
    assert app.payloads[0]["args"] == [{"k": [1]}]


def test_annotations_are_never_evaluated(app: Shelf) -> None:
    assert app.job(odd_annotations).call(1).args == [1]


def test_a_parameter_may_have_the_name_of_one_of_ours(app: Shelf) -> None:
    def odd(delay: int, when: int, name: int) -> None:
        pass

    app.job(name="odd")(odd).enqueue_in(5, delay=1, when=2, name=3)
    assert app.payloads[0]["args"] == [1, 2, 3]


def test_a_job_that_is_too_large_is_refused_before_it_is_sent() -> None:
    app = Shelf(max_payload="1K")
    job = app.job(name="any")(lambda value: None)
    with pytest.raises(ValueError, match="max_payload = 1024"):
        job.enqueue("x" * 2000)
    assert app.pushed == []
    job.enqueue("x" * 500)


# ---- due times -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [10, 10.0, timedelta(seconds=10)])
def test_r3_a_delay_is_seconds_or_a_timedelta(app: Shelf, delay: Any) -> None:
    before = time.time()
    app.job(plain).enqueue_in(delay, 1)
    (push,), (payload,) = app.pushed, app.payloads
    assert push.due is not None
    assert before + 10 <= push.due <= time.time() + 10
    assert payload["at"] == push.due
    assert "enqueued_at" not in payload


@pytest.mark.parametrize("when", [4e9, 4_000_000_000, datetime.fromtimestamp(4e9, timezone(timedelta(hours=5)))])
def test_r3_a_time_is_an_aware_datetime_or_epoch_seconds(app: Shelf, when: Any) -> None:
    app.job(plain).enqueue_at(when, 1)
    assert app.pushed[0].due == app.payloads[0]["at"] == 4e9


@pytest.mark.parametrize("delay", [0, -5, timedelta(0), timedelta(days=-1)])
def test_r3_what_is_due_goes_to_its_queue(app: Shelf, delay: Any) -> None:
    app.job(plain).enqueue_in(delay, 1)
    assert app.pushed[0].due is None
    assert "at" not in app.payloads[0]
    assert "enqueued_at" in app.payloads[0]


def test_r3_a_time_in_the_past_goes_to_its_queue(app: Shelf) -> None:
    app.job(plain).enqueue_at(datetime(2001, 1, 1, tzinfo=UTC), 1)
    assert app.pushed[0].due is None


@pytest.mark.parametrize("delay", ["5", None, True, [5], datetime(2030, 1, 1, tzinfo=UTC)])
def test_another_delay_is_a_type_error(app: Shelf, delay: Any) -> None:
    with pytest.raises(TypeError, match="number of seconds or a timedelta"):
        app.job(plain).enqueue_in(delay, 1)
    assert app.pushed == []


@pytest.mark.parametrize("when", ["2030-01-01", None, True, timedelta(1), datetime(2030, 1, 1, tzinfo=UTC).date()])
def test_another_time_is_a_type_error(app: Shelf, when: Any) -> None:
    with pytest.raises(TypeError, match="aware datetime or epoch seconds"):
        app.job(plain).enqueue_at(when, 1)
    assert app.pushed == []


def test_a_naive_datetime_is_an_error(app: Shelf) -> None:
    with pytest.raises(ValueError, match="naive"):
        app.job(plain).enqueue_at(datetime(2030, 1, 1), 1)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**400], ids=lambda number: ascii(number)[:10])
def test_times_are_finite(app: Shelf, number: Any) -> None:
    job = app.job(plain)
    for way in (job.enqueue_in, job.enqueue_at):
        with pytest.raises(ValueError, match="finite"):
            way(number, 1)
    assert app.pushed == []


def test_the_async_twins_do_the_same(app: Shelf) -> None:
    job = app.job(plain)

    async def all_of_them() -> None:
        await job.aenqueue(1)
        await job.aenqueue_in(10, 2)
        await job.aenqueue_at(4e9, 3, lang="de")
        await job.aenqueue_many([(4,), job.call(5)])
        await app.aenqueue_many([job.call(6)])
        await app.apush("elsewhere", [7], queue="ruby")

    asyncio.run(all_of_them())
    assert [payload["args"] for payload in app.payloads] == [[n] for n in range(1, 8)]
    assert [push.due is None for push in app.pushed] == [True, False, False, True, True, True, True]


# ---- many ----------------------------------------------------------------------------------------------


def test_many_calls_as_tuples_and_calls_in_order(app: Shelf) -> None:
    job = app.job(plain)
    low = job.using(queue="low")
    jids = job.enqueue_many([(1,), job.call(2, lang="de"), low.call(3)])
    assert jids == [push.jid for push in app.pushed]
    assert len(set(jids)) == 3
    assert [(p["args"], p.get("kwargs"), p["queue"]) for p in app.payloads] == [
        ([1], None, "default"),
        ([2], {"lang": "de"}, "default"),
        ([3], None, "low"),
    ]
    assert job.enqueue_many([]) == []


def test_calls_of_several_jobs(app: Shelf) -> None:
    one, two = app.job(plain), app.job(queue="mail")(asynchronous)
    app.enqueue_many(call for call in (one.call(1), two.call(2)))
    assert [payload["queue"] for payload in app.payloads] == ["default", "mail"]


@pytest.mark.parametrize(
    "calls",
    [
        *([(1,), [2]], [(1,), 2], [(1,), "ab"], [(1,), None], [(1,), {"user_id": 2}]),
        *([(1,), ()], [(1,), (1, 2)], [(1,), ({2},)]),
        *("ab", 5),
    ],
    ids=repr,
)
def test_a_mistake_in_one_call_is_a_type_error_before_anything_is_sent(app: Shelf, calls: Any) -> None:
    with pytest.raises(TypeError):
        app.job(plain).enqueue_many(calls)
    with pytest.raises(TypeError):
        asyncio.run(app.job(name="other")(plain).aenqueue_many(calls))
    assert app.pushed == []


@pytest.mark.parametrize("calls", [[(1,)], [None], ["ab"], 5, [plain]], ids=lambda calls: type(calls).__name__)
def test_an_apps_enqueue_many_takes_calls_only(app: Shelf, calls: Any) -> None:
    with pytest.raises(TypeError):
        app.enqueue_many(calls)
    with pytest.raises(TypeError):
        asyncio.run(app.aenqueue_many(calls))
    assert app.pushed == []


def test_an_iterator_that_fails_half_way_sends_nothing(app: Shelf) -> None:
    job = app.job(plain)

    def calls() -> Iterable[Call]:
        yield job.call(1)
        raise KeyError("half way")

    with pytest.raises(KeyError):
        job.enqueue_many(calls())
    assert app.pushed == []


# ---- by name -------------------------------------------------------------------------------------------


def test_a_push_by_name_takes_what_another_program_performs(app: Shelf) -> None:
    jid = app.push("GreetingJob", ["world"], kwargs={"k": 1}, queue="ruby", retry=2)
    (payload,) = app.payloads
    assert jid == payload["jid"]
    assert (payload["class"], payload["args"], payload["kwargs"]) == ("GreetingJob", ["world"], {"k": 1})
    assert (payload["queue"], payload["retry"]) == ("ruby", 2)


def test_a_push_of_an_own_job_has_its_options(app: Shelf) -> None:
    app.job(name="mail", queue="mail", retry=3)(plain)
    app.push("mail", (1,), retry=False)
    assert (app.payloads[0]["queue"], app.payloads[0]["retry"]) == ("mail", False)


def test_a_push_later(app: Shelf) -> None:
    app.push("a", delay=10)
    app.push("a", at=4e9)
    app.push("a", delay=timedelta(0))
    assert [push.due is None for push in app.pushed] == [False, False, True]
    with pytest.raises(TypeError, match="not both"):
        app.push("a", delay=1, at=4e9)


@pytest.mark.parametrize("args", ["text", b"text", 5, None, {"a": 1}, {1}])
def test_a_push_takes_a_list_of_arguments(app: Shelf, args: Any) -> None:
    with pytest.raises(TypeError, match="list of arguments"):
        app.push("a", args)


def test_c47b_a_push_checks_its_arguments(app: Shelf) -> None:
    with pytest.raises(TypeError) as caught:
        app.push("a", [1, {"when": {2}}])
    assert str(caught.value).startswith('args[1]["when"]: set')
    with pytest.raises(TypeError, match="kwargs"):
        app.push("a", [], kwargs={"k": {2}})
    with pytest.raises(TypeError, match="kwargs"):
        app.push("a", [], kwargs={1: 2})  # type: ignore[dict-item]
    assert app.pushed == []


# ---- the run that one is in ----------------------------------------------------------------------------


def test_outside_a_job_the_context_is_detached_and_harmless() -> None:
    job = current_job()
    assert not job
    assert (job.jid, job.name, job.queue, job.attempt, job.tags) == ("", "", "", 0, ())
    assert not job.stopping
    assert job.enqueued_at is None
    assert dict(job.payload) == {}
    assert repr(job) == "<JobContext detached>"
    assert isinstance(job.log, logging.Logger)
    assert current_job() is job


def test_inside_a_job_it_tells_about_the_run() -> None:
    stopping = [False]
    payload = {"jid": "j", "class": "shop.mail", "args": [1], "retry_count": 2, "tags": ["a"], "enqueued_at": 5}
    context.enter(context.context_of(payload, "mail", stopping))
    try:
        job = current_job()
        assert job
        assert (job.jid, job.name, job.queue, job.attempt, job.tags) == ("j", "shop.mail", "mail", 3, ("a",))
        assert job.enqueued_at == 5.0
        assert job.log.name == "shop.mail"
        assert job.payload == payload
        with pytest.raises(TypeError):
            job.payload["jid"] = "k"  # type: ignore[index]
        stopping[0] = True
        assert job.stopping
    finally:
        context.leave()
    assert not current_job()


@pytest.mark.parametrize(
    "fields",
    [
        *({"tags": "text"}, {"tags": None}),
        *({"enqueued_at": "soon"}, {"enqueued_at": None}, {"enqueued_at": 10**400}, {"enqueued_at": math.inf}),
        *({"retry_count": 10**100}, {"retry_count": "3"}),
    ],
    ids=lambda fields: ascii(fields)[:30],
)
def test_odd_fields_of_another_program_do_not_break_the_context(fields: dict[str, Any]) -> None:
    job = context.context_of({"jid": "j", "class": "a", "args": [], **fields}, "mail", [False])
    assert job.tags == ()
    assert job.attempt >= 1
    assert job.enqueued_at is None or isinstance(job.enqueued_at, float)


def test_a_generator_function_is_no_job() -> None:
    def yields(n: int) -> Iterator[int]:
        yield n

    async def yields_later(n: int) -> AsyncIterator[int]:
        yield n

    for function in (yields, yields_later):
        with pytest.raises(TypeError, match="generator function"):
            App().job(function, name="yields")  # type: ignore[call-overload]
