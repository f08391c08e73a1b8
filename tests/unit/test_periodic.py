"""Periodic entries: how they are declared, what is refused, what they become, and what crosses a pipe."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from cogworkerd import App
from cogworkerd.errors import SettingsError
from cogworkerd.job import Job
from cogworkerd.periodic import Declaration, Entry, declarations_in, declare, described, entries_in, resolve_all
from cogworkerd.registry import Registry
from cogworkerd.settings import BadEntry, Layer, combine, environment_layers, unknown_variables
from tests.support import ROOT

HOURLY = "0 * * * *"
VECTOR = "9104b90cb8b0a08e3b3e3c944e6d62618c3f46e3"  # of the wire format: 0 * * * *|HourlyCleanupJob|[]
PYPROJECT = "pyproject.toml [tool.cogworkerd]"
NOON = 1_700_000_000 // 86_400 * 86_400 + 43_200
DAY = 86_400


def report(region: str = "all", *, full: bool = False) -> None:
    """A job's function."""


def no_arguments() -> None:
    """A job's function."""


def any_arguments(*args: Any, **kwargs: Any) -> None:
    """A job's function."""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("COGWORKERD_") or name == "REDIS_URL"]:
        monkeypatch.delenv(name)


@pytest.fixture
def app() -> App:
    return App()


def registered(app: App, function: Callable[..., Any] = report, /, **options: Any) -> Job[..., Any]:
    options.setdefault("name", "report")
    found: Job[..., Any] = app.job(**options)(function)
    return found


def entry_of(app: App) -> Entry:
    (found,) = resolve_all(app)
    return found


def entry(cron: str = HOURLY, job: str = "HourlyCleanupJob", **options: Any) -> Entry:
    found = App()
    found.periodic(cron, job, **options)
    return entry_of(found)


def in_tables(app: App, *tables: dict[str, Any]) -> App:
    """An app with these entries in its project's file."""
    app.use(combine(app.layer, Layer(PYPROJECT, {"periodic": list(tables)})).settings)
    return app


def problem_of_tables(tables: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        combine(Layer(PYPROJECT, {"periodic": tables}))
    (problem,) = caught.value.problems
    return problem


# ---- how an entry is declared --------------------------------------------------------------------------


def test_an_entry_is_declared_with_a_job_of_the_app(app: App) -> None:
    job = registered(app)
    app.periodic(HOURLY, job, args=["eu"])
    found = entry_of(app)
    assert (found.cron, found.job, found.args, found.kwargs) == (HOURLY, "report", ["eu"], {})


def test_an_entry_is_declared_with_a_name_that_only_another_program_knows(app: App) -> None:
    app.periodic(HOURLY, "HourlyCleanupJob")
    assert entry_of(app).pjid == VECTOR
    assert not app.jobs


def test_above_a_job_the_decorator_leaves_the_job(app: App) -> None:
    job = registered(app)
    assert app.periodic(HOURLY, kwargs={"full": True})(job) is job
    assert entry_of(app).kwargs == {"full": True}


def test_above_a_plain_function_the_decorator_makes_it_a_job(app: App) -> None:
    made: Any = app.periodic(HOURLY)(no_arguments)
    assert isinstance(made, Job)
    assert app.jobs == {made.name: made}
    assert made.name.endswith(".no_arguments")
    assert entry_of(app).job == made.name


def test_one_job_may_have_many_entries(app: App) -> None:
    job = registered(app)
    app.periodic("30 2 * * mon-fri", tz="Europe/Berlin")(app.periodic("*/15 * * * *")(job))
    assert [found.cron for found in resolve_all(app)] == ["*/15 * * * *", "30 2 * * mon-fri Europe/Berlin"]


@pytest.mark.parametrize(
    ("cron", "tz", "published"),
    [
        (HOURLY, None, HOURLY),
        ("  0   *  * * * ", None, HOURLY),
        ("@daily", None, "@daily"),
        ("0 * * * * */10", None, "0 * * * * */10"),
        ("0 6 * * * Europe/Berlin", None, "0 6 * * * Europe/Berlin"),
        ("0 6 * * *", "Europe/Berlin", "0 6 * * * Europe/Berlin"),
        ("0 6 * * *", ZoneInfo("Europe/Berlin"), "0 6 * * * Europe/Berlin"),
        ("0 6 * * * Europe/Berlin", "Europe/Berlin", "0 6 * * * Europe/Berlin"),
        ("@daily", "Asia/Tokyo", "@daily Asia/Tokyo"),
        ("0 6 * * *", "UTC", "0 6 * * * UTC"),
    ],
)
def test_the_time_zone_stands_behind_the_published_expression(cron: str, tz: Any, published: str) -> None:
    options = {} if tz is None else {"tz": tz}
    found = entry(cron, **options)
    assert found.cron == published
    assert json.loads(found.published())["cron"] == published


def test_the_fields_speak_of_the_clock_of_the_zone() -> None:
    assert entry("0 6 * * *", tz="Asia/Tokyo").schedule.next_after(NOON) == NOON + 9 * 3600


# ---- what is refused -----------------------------------------------------------------------------------

BAD = [
    pytest.param({"cron": "* * * *"}, "4 fields", id="too few fields"),
    pytest.param({"cron": "* * * * * * *"}, "7 fields", id="too many fields"),
    pytest.param({"cron": "@never"}, "@hourly", id="unknown macro"),
    pytest.param({"cron": "61 * * * *"}, "out of range", id="out of range"),
    pytest.param({"cron": "x * * * *"}, "not acceptable", id="no expression"),
    pytest.param({"cron": ""}, "0 fields", id="empty"),
    pytest.param({"cron": 5}, "no text", id="no text"),
    pytest.param({"cron": "R * * * *"}, "'R': R and H", id="R"),
    pytest.param({"cron": "0 H(0-5) * * *"}, "'H(0-5)': R and H", id="H"),
    pytest.param({"cron": "0 0 30 2 *"}, "never fires", id="never fires"),
    pytest.param({"cron": "0 0 * * * Mars/Base"}, "no time zone 'Mars/Base'", id="zone behind"),
    pytest.param({"tz": "Mars/Base"}, "no time zone 'Mars/Base'", id="zone beside"),
    pytest.param({"tz": 1}, "tz = 1: allowed", id="zone of another type"),
    pytest.param(
        {"cron": "0 0 * * * Asia/Tokyo", "tz": "UTC"}, "two time zones, Asia/Tokyo and tz = UTC", id="two zones"
    ),
    pytest.param({"queue": "a b"}, "queue's name", id="queue with a space"),
    pytest.param({"queue": ""}, "queue's name", id="empty queue"),
    pytest.param({"queue": 1}, "queue's name", id="queue of another type"),
    pytest.param({"retry": -1}, "retry = -1: allowed", id="retry below 0"),
    pytest.param({"retry": 1.5}, "retry = 1.5: allowed", id="retry in part"),
    pytest.param({"retry": "3"}, "retry = '3': allowed", id="retry of another type"),
    pytest.param({"unique": "until_started"}, "unique = 'until_started': allowed", id="unique"),
    pytest.param({"unique": True}, "unique = True: allowed", id="unique of another type"),
    pytest.param({"catch_up": "all"}, "catch_up = 'all': allowed", id="catch_up"),
    pytest.param({"catch_up": True}, "catch_up = True: allowed", id="catch_up true"),
    pytest.param({"jitter": -0.5}, "jitter = -0.5: allowed", id="jitter below 0"),
    pytest.param({"jitter": float("nan")}, "jitter = nan: allowed", id="jitter nan"),
    pytest.param({"jitter": float("inf")}, "jitter = inf: allowed", id="jitter without end"),
    pytest.param({"jitter": True}, "jitter = True: allowed", id="jitter true"),
    pytest.param({"jitter": "5"}, "jitter = '5': allowed", id="jitter of another type"),
    pytest.param(
        {"jitter": 10**400},
        "allowed are seconds",
        id="jitter beyond a float",
    ),
    pytest.param({"args": "eu"}, "args = 'eu': allowed", id="args a text"),
    pytest.param({"args": {"a": 1}}, "allowed is a list of arguments", id="args a table"),
    pytest.param({"args": 3}, "args = 3: allowed", id="args a number"),
    pytest.param({"args": [1, {2}]}, "args[1]: set is not JSON", id="args not JSON"),
    pytest.param({"args": [[float("nan")]]}, "args[0][0]: nan is not JSON", id="args with nan"),
    pytest.param({"args": ["\ud800"]}, "args[0]: the text holds a lone surrogate", id="args not UTF-8"),
    pytest.param({"kwargs": ["full"]}, "kwargs = ['full']: allowed", id="kwargs a list"),
    pytest.param({"kwargs": {"when": timedelta(1)}}, 'kwargs["when"]: timedelta is not JSON', id="kwargs not JSON"),
    pytest.param({"kwargs": {1: 2}}, "key must be a str", id="kwargs with a number"),
]


@pytest.mark.parametrize(("given", "reason"), BAD)
def test_a_bad_value_is_an_error_that_names_entry_expression_and_reason(
    given: dict[str, Any], reason: str, app: App
) -> None:
    options = {"cron": HOURLY, **given}
    cron = options.pop("cron")
    with pytest.raises(BadEntry) as caught:
        app.periodic(cron, "Cleanup", **options)
    assert f"periodic entry 'Cleanup' ({cron!r:.80})" in str(caught.value)
    assert reason in str(caught.value)
    assert not app.declarations


@pytest.mark.parametrize(("given", "reason"), BAD)
def test_a_bad_value_in_a_table_is_an_error_that_names_file_and_number_too(given: dict[str, Any], reason: str) -> None:
    good, bad = {"cron": HOURLY, "job": "Good"}, {"cron": HOURLY, "job": "Cleanup", **given}
    problem = problem_of_tables([good, bad])
    place = f"{PYPROJECT}: periodic, number 2: periodic entry 'Cleanup' ({bad['cron']!r:.80}): "
    assert problem.startswith(place)
    assert reason in problem.removeprefix(place)


@pytest.mark.parametrize("name", ["", 7, [], b"Job"], ids=repr)
def test_an_entry_needs_the_name_of_a_job(name: Any) -> None:
    with pytest.raises(BadEntry, match=r"^here: job = .*: allowed is the name of a job$"):
        declare(HOURLY, name, where="here")


def test_a_zone_without_a_name_is_refused(app: App) -> None:
    counts, japan = struct.pack(">6l", 0, 0, 0, 0, 1, 4), struct.pack(">lbb", 9 * 3600, 0, 0) + b"JST\0"
    nameless = ZoneInfo.from_file(io.BytesIO(b"TZif" + bytes(16) + counts + japan))
    assert nameless.utcoffset(datetime(2026, 1, 1)) == timedelta(hours=9)
    with pytest.raises(BadEntry):
        app.periodic(HOURLY, "Cleanup", tz=nameless)


def test_an_unknown_option_is_an_error_with_a_hint(app: App) -> None:
    with pytest.raises(TypeError, match=r"'0 \* \* \* \*'.*unknown option 'catchup': did you mean 'catch_up'\?"):
        app.periodic(HOURLY, "Cleanup", catchup="none")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"unknown option 'where'"):
        app.periodic(HOURLY, "Cleanup", where="x")  # type: ignore[call-overload]
    assert not app.declarations


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"args": ["eu", "us"]}, "too many positional arguments"),
        ({"kwargs": {"fast": True}}, "unexpected keyword argument 'fast'"),
        ({"args": ["eu"], "kwargs": {"region": "us"}}, "multiple values for argument 'region'"),
    ],
)
def test_arguments_that_do_not_fit_the_function_are_refused_where_they_stand(
    options: dict[str, Any], reason: str, app: App
) -> None:
    job = registered(app)
    for declared in (lambda: app.periodic(HOURLY, job, **options), lambda: app.periodic(HOURLY, **options)(job)):
        with pytest.raises(TypeError, match=f"^.*report.*: .*{reason}"):
            declared()
    assert not app.declarations


def test_the_error_about_arguments_that_do_not_fit_names_the_expression(app: App) -> None:
    with pytest.raises(TypeError) as caught:
        app.periodic(HOURLY, registered(app), args=["eu", "us"])
    assert HOURLY in str(caught.value)


def test_arguments_for_a_job_that_is_registered_later_are_checked_when_the_app_is_complete(app: App) -> None:
    app.periodic(HOURLY, "report", args=["eu", "us"])
    in_tables(app, {"cron": "@daily", "job": "report", "kwargs": {"fast": True}})
    registered(app)
    with pytest.raises(SettingsError) as caught:
        resolve_all(app)
    first, second = caught.value.problems
    assert first == f"app.periodic: periodic entry 'report' ({HOURLY!r}): report: too many positional arguments"
    assert second.startswith("periodic, number 1: periodic entry 'report' ('@daily'): ")
    assert "'fast'" in second


# ---- tables of the project's file ----------------------------------------------------------------------


def test_a_table_may_say_all_that_app_periodic_may(app: App) -> None:
    options = {
        "args": [1, {"a": [None]}],
        "kwargs": {"full": True},
        "queue": "low",
        "retry": 3,
        "unique": "until_executed",
        "tz": "Europe/Berlin",
        "catch_up": "first",
        "jitter": 2.5,
    }
    (table,) = declarations_in([{"cron": HOURLY, "job": "J", **options}])
    app.periodic(HOURLY, "J", **options)  # type: ignore[call-overload]
    (called,) = app.declarations
    assert table.where == "periodic, number 1"
    assert table == Declaration(**{**vars(called), "where": table.where})


def test_a_table_says_no_more_than_that() -> None:
    assert problem_of_tables([{"cron": HOURLY, "job": "J", "qeue": "low"}]) == (
        f"{PYPROJECT}: periodic, number 1: unknown field 'qeue': did you mean 'queue'?"
    )
    assert "unknown field 'where'" in problem_of_tables([{"cron": HOURLY, "job": "J", "where": "x"}])


@pytest.mark.parametrize("missing", ["cron", "job"])
def test_a_table_has_an_expression_and_a_job(missing: str) -> None:
    table = {"cron": HOURLY, "job": "J"}
    del table[missing]
    good = {"cron": HOURLY, "job": "Good"}
    assert problem_of_tables([good, good, table]) == f"{PYPROJECT}: periodic, number 3: {missing!r} is missing"


@pytest.mark.parametrize("tables", [{"cron": HOURLY, "job": "J"}, "J", [["cron", HOURLY]], [None], 1], ids=repr)
def test_entries_of_a_file_are_a_list_of_tables(tables: Any) -> None:
    assert problem_of_tables(tables) == (
        f"{PYPROJECT}: periodic: allowed is a list of tables: [[tool.cogworkerd.periodic]]"
    )


def test_an_app_takes_entries_as_a_setting_too() -> None:
    assert entry_of(App(periodic=[{"cron": HOURLY, "job": "HourlyCleanupJob"}])).pjid == VECTOR
    with pytest.raises(SettingsError, match=r"App\(\.\.\.\): periodic, number 1: 'job' is missing"):
        App(periodic=[{"cron": HOURLY}])


def test_entries_of_code_stand_before_those_of_the_file(app: App) -> None:
    in_tables(app, {"cron": HOURLY, "job": "Second"}, {"cron": HOURLY, "job": "Third"})
    app.periodic(HOURLY, "First")
    assert [found.job for found in resolve_all(app)] == ["First", "Second", "Third"]


# ---- what is decided by the job and the settings --------------------------------------------------------


def test_a_name_has_what_other_programs_of_the_wire_format_do_with_it() -> None:
    found = entry()
    assert (found.queue, found.retry, found.until_executed, found.catch_up, found.jitter, found.more) == (
        *("default", 0, False, "latest", 0.0),
        {},
    )


def test_an_entry_has_the_options_of_its_job(app: App) -> None:
    options = {"queue": "reports", "retry": 7, "unique": "until_executed", "tags": ["a", "b"], "meta": {"k": [1]}}
    app.periodic(HOURLY, registered(app, **options))
    found = entry_of(app)
    assert (found.queue, found.retry) == ("reports", 7)
    assert found.more == {"unique": "until_executed", "tags": ["a", "b"], "meta": {"k": [1]}}
    assert not found.until_executed  # of the job is one lock, of the entry another


def test_a_job_without_options_has_25_retries_on_the_default_queue(app: App) -> None:
    app.periodic(HOURLY, registered(app))
    found = entry_of(app)
    assert (found.queue, found.retry, found.more) == ("default", True, {})


@pytest.mark.parametrize("retry", [False, 0, True, 4])
def test_what_an_entry_says_wins_over_its_job(retry: bool | int, app: App) -> None:
    app.periodic(HOURLY, registered(app, queue="reports", retry=7), queue="low", retry=retry)
    found = entry_of(app)
    assert found.queue == "low"
    assert found.retry is retry


def test_an_entry_of_a_twin_has_the_options_of_the_twin(app: App) -> None:
    app.periodic(HOURLY, registered(app).using(queue="low"))
    assert entry_of(app).queue == "low"


@pytest.mark.parametrize(
    ("setting", "own", "effective"),
    [
        (None, None, "latest"),
        ("first", None, "first"),
        (False, None, "none"),
        ("first", "none", "none"),
        ("first", False, "none"),
        ("none", "latest", "latest"),
    ],
)
def test_catch_up_is_that_of_the_entry_or_else_of_the_settings(setting: Any, own: Any, effective: str) -> None:
    found = App(**({} if setting is None else {"periodic_catch_up": setting}))
    found.periodic(HOURLY, "J", catch_up=own)
    assert entry_of(found).catch_up == effective


@pytest.mark.parametrize("value", ["all", True, None, 0])
def test_the_setting_of_catch_up_takes_its_three_words_or_false(value: Any) -> None:
    with pytest.raises(SettingsError, match=r"periodic_catch_up = .* cannot be used; allowed: 'latest' or 'none'"):
        App(periodic_catch_up=value)


def test_environment_variables_speak_of_catch_up_and_pruning_but_hold_no_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COGWORKERD_PERIODIC_CATCH_UP", "false")
    monkeypatch.setenv("COGWORKERD_PERIODIC_PRUNE", "yes")
    settings = combine(*environment_layers()).settings
    assert (settings.periodic_catch_up, settings.periodic_prune) == ("none", True)
    assert unknown_variables({"COGWORKERD_PERIODIC": "x"})


# ---- entries that are the same -------------------------------------------------------------------------


def test_two_entries_of_one_expression_job_and_arguments_are_an_error(app: App) -> None:
    app.periodic(HOURLY, "J", args=[1], queue="low")
    app.periodic(HOURLY, "J", args=[2])
    in_tables(app, {"cron": "0  *  *  *  *", "job": "J", "args": [1], "retry": 4})
    with pytest.raises(SettingsError) as caught:
        resolve_all(app)
    assert caught.value.problems == (
        f"periodic, number 1: periodic entry 'J' ({HOURLY!r}) is declared twice: "
        "expression, job and arguments are those of another entry",
    )


@pytest.mark.parametrize(
    "other", [{"args": [2]}, {"args": ["1"]}, {"kwargs": {"a": 1}}, {"tz": "UTC"}, {"cron": "@hourly"}, {"job": "K"}]
)
def test_entries_that_differ_in_one_of_them_are_two(other: dict[str, Any], app: App) -> None:
    in_tables(app, {"cron": HOURLY, "job": "J", "args": [1]}, {"cron": HOURLY, "job": "J", "args": [1], **other})
    first, second = resolve_all(app)
    assert first.pjid != second.pjid


def test_the_order_of_keyword_arguments_makes_no_other_entry() -> None:
    assert entry(kwargs={"a": 1, "b": 2}).pjid == entry(kwargs={"b": 2, "a": 1}).pjid


# ---- what others read ----------------------------------------------------------------------------------


def test_what_is_published_has_the_fields_of_the_wire_format_and_the_queue() -> None:
    found = entry("0 6 * * *", tz="Europe/Berlin", args=["é", 1.5, None], catch_up="none", jitter=3)
    assert json.loads(found.published()) == {
        "cron": "0 6 * * * Europe/Berlin",
        "class": "HourlyCleanupJob",
        "retry": 0,
        "unique": None,
        "args": ["é", 1.5, None],
        "queue": "default",
    }
    assert "é".encode() in found.published()


def test_keyword_arguments_are_published_where_there_are_any() -> None:
    found = entry(kwargs={"full": True}, unique="until_executed", queue="low", retry=True)
    assert json.loads(found.published()) == {
        "cron": HOURLY,
        "class": "HourlyCleanupJob",
        "retry": True,
        "unique": "until_executed",
        "args": [],
        "queue": "low",
        "kwargs": {"full": True},
    }


def test_the_job_of_a_slot_has_its_fields_and_no_others() -> None:
    """R54: only the run of an until_executed entry says that it takes its lapsed running lock again."""
    plain = entry(args=["eu"]).payload(NOON, "j1", 12.5)
    assert plain == {
        "class": "HourlyCleanupJob",
        "args": ["eu"],
        "queue": "default",
        "jid": "j1",
        "retry": 0,
        "created_at": 12.5,
        "enqueued_at": 12.5,
        "periodic_pjid": entry(args=["eu"]).pjid,
        "periodic_slot": NOON,
    }
    assert type(plain["periodic_slot"]) is int
    alone = entry(args=["eu"], kwargs={"full": True}, unique="until_executed").payload(NOON, "j1", 12.5)
    assert {name: alone[name] for name in alone.keys() - plain.keys()} == {
        "kwargs": {"full": True},
        "periodic_until_executed": True,
    }


def test_the_job_of_a_slot_carries_the_options_of_the_registered_job(app: App) -> None:
    app.periodic(HOURLY, registered(app, unique="until_executed", tags=["a"], meta={"k": 1}))
    payload = entry_of(app).payload(NOON, "j1", 12.5)
    assert (payload["unique"], payload["tags"], payload["meta"]) == ("until_executed", ["a"], {"k": 1})
    assert "periodic_until_executed" not in payload


# ---- when a slot fires, and how long it is remembered ----------------------------------------------------


def test_without_jitter_a_slot_fires_at_its_time() -> None:
    assert entry().instant(NOON) == NOON


@pytest.mark.parametrize("jitter", [0.25, 60, timedelta(minutes=10)], ids=repr)
def test_jitter_spreads_the_instants_over_its_length(jitter: Any) -> None:
    found = entry(jitter=jitter)
    length = jitter.total_seconds() if isinstance(jitter, timedelta) else jitter
    spread = [found.instant(slot) - slot for slot in range(NOON, NOON + 400 * 3600, 3600)]
    assert all(0 <= offset < length for offset in spread)
    assert min(spread) < length / 10
    assert max(spread) > length * 9 / 10


def test_two_entries_of_one_expression_are_spread_apart() -> None:
    assert entry(args=[1], jitter=60).instant(NOON) != entry(args=[2], jitter=60).instant(NOON)


def test_jitter_is_the_same_in_every_process() -> None:
    program = (
        "from cogworkerd import App\n"
        "from cogworkerd.periodic import resolve_all\n"
        "app = App()\n"
        "app.periodic('0 * * * *', 'J', kwargs={'a': 1, 'b': 2}, jitter=600)\n"
        f"print([resolve_all(app)[0].instant({NOON} + hour * 3600) for hour in range(50)])\n"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    found = entry(job="J", kwargs={"b": 2, "a": 1}, jitter=600)
    assert json.loads(told[0]) == [found.instant(NOON + hour * 3600) for hour in range(50)]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("cron", "interval"), [("* * * * * *", 1), (HOURLY, 3600), ("0 12 * * *", DAY), ("0 12 * * 1", None)]
)
def test_a_slot_is_remembered_for_two_intervals_and_a_season_more(cron: str, interval: int | None) -> None:
    found = entry(cron)
    slot = found.schedule.next_after(NOON)
    assert found.memory_ttl(slot) == 2 * (7 * DAY if interval is None else interval) + 90 * DAY


# ---- what crosses a pipe -------------------------------------------------------------------------------


def full_app() -> App:
    """An app that has one of everything."""
    found = App(periodic_catch_up="first")
    job = registered(found, any_arguments, name="mail", queue="mail", tags=["t"], meta={"deep": {"ä": [1.5, None]}})
    registered(found, no_arguments, name="plain")
    found.periodic(HOURLY, job, args=[1, ["x", {"y": None}]], kwargs={"k": "é"}, unique="until_executed", jitter=2)
    found.periodic("0 6 * * *", "Other", tz="Europe/Berlin", retry=False, catch_up="none")
    found.client_middleware(lambda job, call_next: call_next())
    found.client_middleware(lambda job, call_next: call_next())
    found.on_death(lambda job, error: None)
    job.on_death(lambda job, error: None)
    job.on_death(lambda job, error: None)
    return found


def test_a_registry_tells_what_the_supervisor_needs_to_know() -> None:
    found = Registry.of(full_app())
    assert found.jobs == {"mail": "mail", "plain": "default"}
    assert found.queues == ["default", "mail"]
    assert found.client_middleware == 2
    assert (found.hooks_of_all, found.hooks_of_job) == (1, {"mail": 2})
    assert [found.death_hooks(name) for name in ("mail", "plain", "unknown")] == [3, 1, 1]


def test_a_registry_comes_out_of_the_pipe_as_it_went_in() -> None:
    app = full_app()
    before = Registry.of(app)
    after = Registry.decode(before.encode())
    assert after == before
    assert after.periodic() == resolve_all(app)
    assert [found.pjid for found in after.periodic()] == [found.pjid for found in resolve_all(app)]
    assert [found.published() for found in after.periodic()] == [found.published() for found in resolve_all(app)]
    assert after.periodic()[0].payload(NOON, "j", 1.0) == resolve_all(app)[0].payload(NOON, "j", 1.0)


def test_an_empty_registry_crosses_the_pipe_too() -> None:
    empty = Registry.decode(Registry().encode())
    assert empty.encode() == Registry().encode()
    assert empty.periodic() == []


def test_a_registry_of_an_app_with_an_unusable_entry_is_an_error(app: App) -> None:
    app.periodic(HOURLY, "report", args=["eu", "us"])
    registered(app)
    with pytest.raises(SettingsError, match="too many positional arguments"):
        Registry.of(app)


def test_what_was_computed_of_an_entry_stays_on_its_side_of_the_pipe() -> None:
    found = entry()
    assert found.pjid == VECTOR
    assert found.schedule.next_after(NOON) == NOON + 3600
    assert entries_in(described([found])) == [found]


# ---- what a daemon reads -------------------------------------------------------------------------------


def test_a_daemon_reads_the_queue_of_an_entry_whose_job_is_registered(app: App) -> None:
    registered(app, queue="reports")
    app.periodic(HOURLY, "report", queue="nightly")
    app.periodic(HOURLY, "Elsewhere", queue="theirs")
    in_tables(app, {"cron": "@daily", "job": "report", "queue": "daily"}, {"cron": "@daily", "job": "X", "queue": "x"})
    assert app.queues == ["default", "daily", "nightly", "reports"]
    assert Registry.of(app).queues == app.queues


def test_a_job_that_is_registered_after_its_entry_counts(app: App) -> None:
    app.periodic(HOURLY, "report", queue="nightly")
    assert app.queues == ["default"]
    registered(app)
    assert app.queues == ["default", "nightly"]
