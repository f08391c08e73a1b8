"""What is written down of runs on a real server, and how it is read back, whoever wrote it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from cogworkerd import App
from cogworkerd.costs import COST_TTL, MOST_NAMES, OTHERS, UNREGISTERED, read_costs
from cogworkerd.history import History
from cogworkerd.inspect import read_attempts, read_status, read_statuses
from cogworkerd.job import Job
from cogworkerd.jobsets import Store
from cogworkerd.locks import Locks
from cogworkerd.outcome import Kind
from cogworkerd.receipt import Receipt
from cogworkerd.recording import BATCH, Recording
from cogworkerd.run_record import RunRecord
from cogworkerd.settings import Settings
from cogworkerd.stats import Stats
from cogworkerd.store.keys import DAILY_TTL, Keys
from cogworkerd.throughput import read_throughput
from tests.support import Client, Server

KEYS = Keys()
NOW = time.time()
DAY = 86_400
RECEIPT = Receipt(1.5, 0.25, 0.125, 2048, 100, 7, 3, 0.5)
HISTORIES = [KEYS.history(kind) for kind in ("all", "success", "failed")]


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with redis.Redis(port=server.port) as client:
        yield Store(client, KEYS, Locks(KEYS))


def run(n: int = 0, kind: Kind = Kind.SUCCESS, name: str = "mail", ago: float = 0.0, **fields: Any) -> RunRecord:
    """A run as a child reports it."""
    end = NOW - ago
    entry: dict[str, Any] = {"jid": f"j{n}", "class": name or "Stranger", "queue": "low", "args": [n]}
    entry |= {"status": "success" if kind is Kind.SUCCESS else "failed", "started_at": end - 1, "finished_at": end}
    backtrace = b""
    if kind is not Kind.SUCCESS:
        entry |= {"error_class": "ValueError", "error_message": "no luck"}
        backtrace = b'["in f","ValueError: no luck"]'
    raw = b"" if kind is Kind.REQUEUE else json.dumps(entry).encode()
    return RunRecord(kind, end, name, **{"receipt": RECEIPT, "entry": raw, "backtrace": backtrace, **fields})


def write(store: Store, *runs: RunRecord, now: float = NOW, **settings: Any) -> None:
    recording = Recording(store.keys, Settings(**settings))
    for each in runs:
        recording.add(each)
    write_all(store, recording, now)


def write_all(store: Store, recording: Recording, now: float = NOW) -> None:
    while (batch := recording.take(now)) is not None:
        store.call(batch.call)


def jids(store: Store, kind: str) -> list[str]:
    return [found.jid for found in History(store).page(kind, size=1000)]


# ---- entries --------------------------------------------------------------------------------------------


def test_a_success_and_each_kind_of_failure_have_an_entry_and_a_requeue_has_none(store: Store) -> None:
    write(store, *(run(n, Kind(n), ago=10.0 - n) for n in range(5)))
    assert jids(store, "all") == ["j3", "j2", "j1", "j0"], "newest first"
    assert jids(store, "success") == ["j0"]
    assert jids(store, "failed") == ["j3", "j2", "j1"]


def test_only_the_failed_ones_carry_a_traceback(store: Store) -> None:
    write(store, run(1, Kind.RETRY))
    (short,), (full,) = History(store).page("all"), History(store).page("failed")
    assert (short.backtrace, full.backtrace) == ([], ["in f", "ValueError: no luck"])
    assert (full.jid, full.name, full.queue, full.ok) == ("j1", "mail", "low", False)
    assert (full.error_class, full.error_message) == ("ValueError", "no luck")
    assert (full.started_at, full.finished_at) == (NOW - 1, NOW)
    assert short.fields == {name: value for name, value in full.fields.items() if name != "backtrace"}


def test_entries_are_read_in_pages_and_by_job(store: Store) -> None:
    write(store, *(run(n % 100, Kind(n % 2), ago=1000.0 - n) for n in range(2 * BATCH + 50)))
    history = History(store)
    assert (history.size(), history.size("success"), history.size("failed")) == (450, 225, 225)
    assert [found.jid for found in history.page("all", 3, 2)] == ["j46", "j45"]
    assert history.page("all", 450) == []
    assert [found.finished_at for found in history.of_job("j5")] == [NOW - 1000 + n for n in (405, 305, 205, 105, 5)]
    assert history.of_job("j5", "success") == []
    assert history.of_job("*") == []


def test_a_page_of_no_entries_is_empty(store: Store) -> None:
    write(store, run(1), run(2))
    assert History(store).page("all", 0, 0) == []


@pytest.mark.parametrize("method", ["size", "page"])
def test_there_are_three_kinds_of_history(method: str, store: Store) -> None:
    with pytest.raises(ValueError, match="history 'alle': allowed is all, success, failed"):
        getattr(History(store), method)("alle")


@pytest.mark.parametrize(
    "jid",
    [
        *("a*b", "[x]", "?", "a^b-c", "\u00e9"),
        *("a\\b", 'a"b'),
    ],
)
def test_runs_of_a_job_with_an_odd_id_are_found(jid: str, store: Store) -> None:
    entry = {"jid": jid, "class": "x", "status": "success", "started_at": 1, "finished_at": NOW}
    store.client.zadd(KEYS.history("all"), {json.dumps(entry, ensure_ascii=False).encode(): NOW})
    write(store, run(1))
    assert [each.jid for each in History(store).of_job(jid)] == [jid]


# ---- trimming -------------------------------------------------------------------------------------------


def test_each_kind_keeps_its_newest_entries(store: Store) -> None:
    runs = [run(n, Kind.RETRY if n % 3 == 0 else Kind.SUCCESS, ago=600.0 - n) for n in range(600)]
    write(store, *runs, history_max=50)
    assert jids(store, "all") == [f"j{n}" for n in range(599, 549, -1)]
    assert jids(store, "success") == [f"j{n}" for n in range(599, 0, -1) if n % 3][:50]
    assert jids(store, "failed") == [f"j{n}" for n in range(597, 0, -3)][:50]


def test_entries_older_than_the_setting_go_with_the_next_write_and_those_at_the_limit_stay(store: Store) -> None:
    write(store, *(run(n, ago=float(n)) for n in (1000, 101, 100, 99, 1)), history_max_age=5000)
    assert len(jids(store, "all")) == 5
    write(store, run(7, Kind.DEAD, name="other", ago=0.5), history_max_age=100)
    assert jids(store, "all") == ["j7", "j1", "j99", "j100"]
    assert jids(store, "success") == ["j1", "j99", "j100"]


def test_a_run_that_is_already_too_old_is_counted_and_not_kept(store: Store) -> None:
    write(store, run(1, ago=200), history_max_age=100)
    assert jids(store, "all") == []
    assert today(store) == {"success": 1, "failed": 0}


def test_without_history_runs_are_counted_and_summed_and_leave_no_entry(store: Store, client: Client) -> None:
    write(store, run(1, entry=b""), run(2, Kind.DEAD, entry=b"", backtrace=b""))
    assert set(client.keys("*")) == {KEYS.history_of_day(NOW), KEYS.cost_of_day(NOW)}


# ---- counts ---------------------------------------------------------------------------------------------


def today(store: Store) -> dict[str, int]:
    (counts,) = History(store).daily(1, NOW).values()
    return counts


def test_runs_are_counted_by_day_for_four_hundred_days(store: Store, client: Client) -> None:
    write(store, *(run(n, Kind(n % 5)) for n in range(BATCH + 100)))
    assert today(store) == {"success": 60, "failed": 180}
    assert DAILY_TTL - 60 < client.ttl(KEYS.history_of_day(NOW)) <= DAILY_TTL
    client.expire(KEYS.history_of_day(NOW), 100)
    write(store, run(1))
    assert client.ttl(KEYS.history_of_day(NOW)) > DAILY_TTL - 60


def test_days_are_those_of_utc_today_first_and_a_day_without_runs_has_noughts(store: Store) -> None:
    midnight = NOW // DAY * DAY
    write(store, run(1), now=midnight)
    write(store, run(2, Kind.DEAD), run(3, Kind.DEAD), now=midnight - 0.001)
    write(store, run(4), now=midnight + DAY - 0.001)
    found = History(store).daily(3, midnight + 5)
    assert list(found.values()) == [
        {"success": 2, "failed": 0},
        {"success": 0, "failed": 2},
        {"success": 0, "failed": 0},
    ]
    assert list(found) == [time.strftime("%Y-%m-%d", time.gmtime(midnight - back * DAY)) for back in range(3)]
    assert list(Stats(store).daily(1).values()) == [found[next(iter(found))]]


# ---- costs ----------------------------------------------------------------------------------------------


def test_costs_add_up_over_batches_and_days_and_peaks_are_maxima(store: Store, client: Client) -> None:
    big = run(1, Kind.DEAD, receipt=Receipt(2.0, 1.0, 0.5, 9000, 50, 1, 1, None))
    small = run(2, receipt=Receipt(0.5, 0.25, 0.25, 100, -20, 1, 1, 2.0))
    write(store, small)
    write(store, big)
    write(store, small, small)
    write(store, run(3, receipt=big.receipt._replace(rss_peak_kb=8000)), now=NOW - DAY)
    (cost,) = read_costs(store, 1, NOW)
    assert (cost.name, cost.runs, cost.failed, cost.waits, cost.wait) == ("mail", 4, 1, 3, 6.0)
    assert (cost.wall, cost.cpu_user, cost.cpu_system, cost.cpu) == (3.5, 1.75, 1.25, 3.0)
    assert (cost.rss_peak_kb, cost.rss_growth_kb, cost.switches, cost.preempted) == (9000, -10, 4, 4)
    (both,) = read_costs(store, 2, NOW)
    assert (both.runs, both.failed, both.cpu, both.rss_peak_kb) == (5, 1, 4.5, 9000)
    assert COST_TTL - 60 < client.ttl(KEYS.cost_of_day(NOW)) <= COST_TTL


def test_a_requeued_run_has_costs_and_is_no_failure(store: Store) -> None:
    write(store, run(1, Kind.REQUEUE))
    (cost,) = Stats(store).costs()
    assert (cost.runs, cost.failed, cost.cpu) == (1, 0, 0.375)
    assert today(store) == {"success": 0, "failed": 0}


def test_the_job_that_took_most_cpu_comes_first(store: Store) -> None:
    write(store, *(run(n, name=f"job-{n}", receipt=RECEIPT._replace(cpu_user=float(n))) for n in (2, 5, 1, 3)))
    assert [cost.name for cost in read_costs(store, 1, NOW)] == ["job-5", "job-3", "job-2", "job-1"]


@pytest.mark.parametrize("name", ["a:b", "runs", "runs:", ":", "\u00e9", "x" * 200, OTHERS])
def test_a_name_may_be_any_text(name: str, store: Store) -> None:
    write(store, run(1, name=name), run(2, name=name))
    (cost,) = read_costs(store, 1, NOW)
    assert (cost.name, cost.runs, cost.rss_peak_kb) == (name, 2, 2048)


def test_runs_of_strangers_are_summed_under_one_name(store: Store) -> None:
    write(store, run(1, name=""), run(2, name=""))
    (cost,) = read_costs(store, 1, NOW)
    assert (cost.name, cost.runs) == (UNREGISTERED, 2)


def test_names_beyond_the_limit_are_summed_together_and_those_before_it_go_on(store: Store, client: Client) -> None:
    write(store, *(run(n, name=f"job-{n}", entry=b"") for n in range(MOST_NAMES + 150)))
    write(store, run(0, name="job-0", entry=b""), run(1, name="newcomer", entry=b""))
    found = {cost.name: cost for cost in read_costs(store, 1, NOW)}
    assert len(found) == MOST_NAMES + 1
    assert (found["job-0"].runs, found[f"job-{MOST_NAMES - 1}"].runs) == (2, 1)
    assert (found[OTHERS].runs, found[OTHERS].rss_peak_kb) == (151, 2048)
    assert sum(cost.runs for cost in found.values()) == MOST_NAMES + 152
    assert client.hlen(KEYS.cost_of_day(NOW)) == 11 * (MOST_NAMES + 1)


# ---- keys of a wrong type -------------------------------------------------------------------------------

WRITTEN = [*HISTORIES, KEYS.history_of_day(NOW), KEYS.cost_of_day(NOW)]


@pytest.mark.parametrize("spoilt", [*([key] for key in WRITTEN), WRITTEN], ids=lambda keys: "+".join(keys)[-30:])
@pytest.mark.parametrize("wrong", ["string", "list"])
def test_a_key_of_a_wrong_type_keeps_nothing_else_from_being_written(
    spoilt: list[str], wrong: str, store: Store, client: Client
) -> None:
    for key in spoilt:
        client.set(key, "mine") if wrong == "string" else client.rpush(key, "mine")
    write(store, run(1), run(2, Kind.DEAD, status=json.dumps({"jid": "j2", "status": "failed"}).encode()))
    sizes = dict(zip(WRITTEN, [2, 1, 1, 2, 11], strict=True))
    for key, size in sizes.items():
        if key in spoilt:
            assert client.type(key) == wrong
            assert client.ttl(key) == -1 or key in WRITTEN[4:], "it is not ours to let it run out"
        else:
            assert (client.zcard if key in HISTORIES else client.hlen)(key) == size, key
    assert client.hget(KEYS.status("j2"), "status") == "failed"
    if KEYS.cost_of_day(NOW) in spoilt:
        assert read_costs(store, 1, NOW) == []
    if KEYS.history_of_day(NOW) in spoilt:
        assert today(store) == {"success": 0, "failed": 0}


@pytest.mark.parametrize("trouble", ["memory", "replica", "replicas"])
def test_runs_that_the_server_refuses_to_write_are_not_taken_for_written(
    trouble: str, make_server: Callable[..., Server]
) -> None:
    change, mend = {
        "memory": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        "replica": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        "replicas": ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    }[trouble]
    server = make_server()
    with redis.Redis(port=server.port) as client:
        store = Store(client, KEYS, Locks(KEYS))
        client.execute_command(*change.split())
        try:
            write(store, run(1))
        except redis.RedisError:
            return  # the recorder puts it back
        finally:
            client.execute_command(*mend.split())
        assert jids(store, "all") == ["j1"]


def test_a_costs_key_of_a_wrong_type_is_not_made_to_run_out(store: Store, client: Client) -> None:
    client.set(KEYS.cost_of_day(NOW), "somebody's")
    write(store, run(1))
    assert client.ttl(KEYS.cost_of_day(NOW)) == -1


@pytest.mark.parametrize("junk", ["", "x", "1.5", "99999999999999999999"])
def test_counters_that_hold_nonsense_keep_nothing_else_from_being_counted(
    junk: str, store: Store, client: Client
) -> None:
    client.hset(KEYS.history_of_day(NOW), "success", junk)
    for field in ("runs", "wall_us", "rss_peak_kb"):
        client.hset(KEYS.cost_of_day(NOW), f"{field}:mail", junk)
    write(store, run(1), run(2, Kind.DEAD))
    assert client.hget(KEYS.history_of_day(NOW), "failed") == "1"
    assert client.hget(KEYS.cost_of_day(NOW), "failed:mail") == "1"
    read_costs(store, 1, NOW)


# ---- statuses -------------------------------------------------------------------------------------------


def note(recording: Recording, jid: str, **fields: str) -> None:
    recording.note(json.dumps({"jid": jid, **fields}).encode())


def say(store: Store, jid: str, status: str, **fields: str) -> None:
    recording = Recording(KEYS, Settings(status_ttl=99.5))
    note(recording, jid, status=status, **fields)
    write_all(store, recording)


def test_a_status_is_written_whole_and_lives_from_its_last_change(store: Store, client: Client) -> None:
    say(
        store,
        "j",
        "working",
        update_time="5.5",
        **{"class": "mail", "queue": "low", "pct": "40", "message": "m"},
        rows="7",
    )
    assert client.ttl(KEYS.status("j")) == 100, "whole seconds, rounded up"
    found = read_status(store, "j")
    assert found is not None
    assert (found.jid, found.status, found.updated_at, found.name, found.queue) == ("j", "working", 5.5, "mail", "low")
    assert (found.pct, found.message, found.fields) == (40.0, "m", {"rows": "7"})
    assert (found.error_class, found.error_message) == ("", "")
    client.expire(KEYS.status("j"), 5)
    say(store, "j", "complete")
    assert client.ttl(KEYS.status("j")) == 100
    assert client.hget(KEYS.status("j"), "rows") == "7", "what a run has stored stays"


@pytest.mark.parametrize(
    ("then", "stays"), [("working", True), ("complete", False), ("queued", False), ("retrying", False)]
)
def test_an_error_is_told_until_the_next_run_has_ended(then: str, stays: bool, store: Store, client: Client) -> None:
    say(store, "j", "retrying", error_class="ValueError", error_message="no luck")
    say(store, "j", then)
    error = client.hmget(KEYS.status("j"), "error_class", "error_message")
    assert error == (["ValueError", "no luck"] if stays else [None, None])
    say(store, "j", "failed", error_class="KeyError", error_message="other")
    found = read_status(store, "j")
    assert found is not None
    assert (found.error_class, found.error_message) == ("KeyError", "other")


def test_a_status_key_of_a_wrong_type_is_the_servers_error_and_stays_as_it_is(store: Store, client: Client) -> None:
    client.set(KEYS.status("j"), "mine")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        say(store, "j", "working")
    assert (client.get(KEYS.status("j")), client.ttl(KEYS.status("j"))) == ("mine", -1)


def test_a_status_that_comes_late_from_another_daemon_does_not_replace_a_newer_one(
    store: Store, client: Client
) -> None:
    """A job that was requeued is taken by another daemon at once, and each daemon writes when its turn comes."""
    left, right = Recording(KEYS, Settings()), Recording(KEYS, Settings())
    note(left, "j", status="queued", update_time="100.0")
    note(right, "j", status="complete", update_time="100.1")
    write_all(store, right)
    write_all(store, left)
    assert client.hget(KEYS.status("j"), "status") == "complete"


# ---- reading what others wrote --------------------------------------------------------------------------

GARBAGE: list[Any] = [
    "",
    "x",
    "5",
    "null",
    "[]",
    "{}",
    '"text"',
    "\xff",
    "[" * 100_000,
    '{"jid":1}',
    '{"jid":"x","class":"y","status":"success","started_at":"soon","finished_at":2}',
    '{"jid":"x","class":"y","status":"failed","started_at":1,"finished_at":2,"backtrace":5}',
    '{"attempt":"first","failed_at":1,"outcome":"dead"}',
    '{"attempt":1,"failed_at":null,"outcome":"dead"}',
]


@pytest.mark.parametrize("raw", GARBAGE, ids=lambda raw: ascii(raw)[:30])
def test_garbage_in_a_history_is_left_out(raw: str, store: Store) -> None:
    write(store, run(1))
    store.client.zadd(KEYS.history("all"), {raw.encode("latin-1"): NOW + 5})
    assert jids(store, "all") == ["j1"]
    assert [found.jid for found in History(store).of_job("x")] == []
    assert History(store).size() == 2


@pytest.mark.parametrize("field", ["started_at", "finished_at"])
def test_a_time_beyond_all_numbers_in_a_history_is_garbage(field: str, store: Store) -> None:
    write(store, run(1))
    entry = {"jid": "x", "class": "y", "status": "success", "started_at": 1, "finished_at": 2, field: 10**400}
    store.client.zadd(KEYS.history("all"), {json.dumps(entry).encode(): NOW + 5})
    assert jids(store, "all") == ["j1"]


@pytest.mark.parametrize("raw", GARBAGE, ids=lambda raw: ascii(raw)[:30])
def test_garbage_in_an_attempts_log_is_left_out(raw: str, store: Store) -> None:
    good = {"attempt": 2, "failed_at": 5.5, "outcome": "retrying", "error_class": "E", "error_message": "m"}
    store.client.rpush(KEYS.attempts("j"), raw.encode("latin-1"), json.dumps(good).encode())
    (found,) = read_attempts(store, "j")
    assert vars(found) == good
    assert Stats(store).attempts("j") == [found]


@pytest.mark.parametrize(("field", "value"), [("attempt", "Infinity"), ("attempt", "1e999"), ("failed_at", "1" * 400)])
def test_a_number_beyond_all_numbers_in_an_attempts_log_is_garbage(field: str, value: str, store: Store) -> None:
    good = {"attempt": 2, "failed_at": 5.5, "outcome": "retrying"}
    bad = json.dumps({**good, field: "?"}).replace('"?"', value)
    store.client.rpush(KEYS.attempts("j"), json.dumps(good).encode(), bad.encode())
    assert [found.attempt for found in read_attempts(store, "j")] == [2]


def test_an_entry_of_the_gem_is_read_like_ours(store: Store) -> None:
    entry = {
        "jid": "abc",
        "class": "GreetingJob",
        "queue": "default",
        "args": ["world"],
        "status": "failed",
        "started_at": 1.25,
        "finished_at": 2.5,
        "error_class": "RuntimeError",
        "error_message": "no\u00e9",
        "backtrace": ["app/jobs/greeting_job.rb:5:in `perform'", "lib/x.rb:1"],
    }
    store.client.zadd(KEYS.history("failed"), {json.dumps(entry, ensure_ascii=False).encode(): 2.5})
    (found,) = History(store).page("failed")
    assert (found.jid, found.name, found.queue, found.ok) == ("abc", "GreetingJob", "default", False)
    assert (found.started_at, found.finished_at) == (1.25, 2.5)
    assert (found.error_class, found.error_message) == ("RuntimeError", "no\u00e9")
    assert (found.backtrace, found.fields) == (entry["backtrace"], entry)


JUNK = [
    *("", "x", "-5", "1.5", "\u0665", " 5"),
    "9" * 5000,
]


@pytest.mark.parametrize("junk", JUNK, ids=lambda text: ascii(text)[:9])
def test_counters_of_other_programs_that_are_no_numbers_read_as_nought(junk: str, store: Store, client: Client) -> None:
    client.hset(KEYS.history_of_day(NOW), mapping={"success": junk, "failed": 3})
    client.hset(KEYS.throughput(NOW), mapping={"processed": junk, "failed": 4})
    client.set(KEYS.processed, junk)
    client.set(KEYS.failed, 5)
    assert today(store) == {"success": 0, "failed": 3}
    (hour,) = read_throughput(store, 1, NOW)
    assert (hour.processed, hour.failed) == (0, 4)
    assert (Stats(store).processed, Stats(store).failed) == (0, 5)


def test_costs_that_make_no_sense_are_left_out(store: Store, client: Client) -> None:
    write(store, run(1))
    nonsense = {"": 5, ":": 5, "runs": 5, "odd:mail": 5, "wall_us:mail": "x", "failed:mail": "9" * 5000}
    client.hset(KEYS.cost_of_day(NOW), mapping=nonsense)
    store.client.hset(KEYS.cost_of_day(NOW), b"runs:\xff", 3)  # a name that is no text
    found = {cost.name: cost for cost in read_costs(store, 1, NOW)}
    assert {name: cost.runs for name, cost in found.items()} == {"mail": 1, "\ufffd": 3}
    assert (found["mail"].wall, found["mail"].failed, found["mail"].cpu) == (0.0, 0, 0.375)


def test_a_status_that_another_program_wrote_is_read_as_far_as_it_makes_sense(store: Store, client: Client) -> None:
    store.client.hset(KEYS.status("j"), mapping={b"pct": b"nan", b"update_time": b"soon", b"\xff": b"\xfe"})
    client.set(KEYS.status("text"), "x")
    found = read_statuses(store, ["j", "text", "nobody", "j"])
    assert list(found) == ["j", "text", "nobody"]
    assert (found["text"], found["nobody"]) == (None, None)
    status = found["j"]
    assert status is not None
    assert (status.status, status.updated_at, status.pct, status.fields) == ("", 0.0, None, {"\ufffd": "\ufffd"})


def test_throughput_has_each_hour_the_present_one_last_and_25_at_most(store: Store, client: Client) -> None:
    this = int(NOW) // 3600 * 3600
    client.hset(KEYS.throughput(this), mapping={"processed": 5})
    client.hset(KEYS.throughput(this - 3600), mapping={"processed": 1, "failed": 2})
    client.set(KEYS.throughput(this - 7200), "text")
    found = read_throughput(store, 4, NOW)
    assert [(hour.start, hour.processed, hour.failed) for hour in found] == [
        *((this - 10_800, 0, 0), (this - 7200, 0, 0), (this - 3600, 1, 2), (this, 5, 0))
    ]
    assert len(read_throughput(store, 1000, NOW)) == 25
    assert read_throughput(store, 0, NOW) == []


# ---- statuses of pushes ---------------------------------------------------------------------------------


class Shop:
    """An application whose jobs have statuses."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.app = App(url, status_ttl=77, **settings)

        @self.app.job(name="plain", status=True, queue="low")
        def plain(n: int) -> None: ...

        @self.app.job(name="once", status=True, queue="low", unique="until_executed")
        def once(n: int) -> None: ...

        @self.app.job(name="quiet")
        def quiet(n: int) -> None: ...

        self.plain: Job[..., None] = plain
        self.once: Job[..., None] = once
        self.quiet: Job[..., None] = quiet


@pytest.fixture
def shop(server: Server) -> Iterator[Shop]:
    found = Shop(server.url)
    yield found
    found.app.client.close()


def pushed(client: Client) -> list[dict[str, Any]]:
    raws = [*client.lrange(KEYS.queue("low"), 0, -1), *client.zrange(KEYS.schedule, 0, -1)]
    return [json.loads(raw) for raw in raws]


WAYS: dict[str, Callable[[Job[..., None]], list[str | None]]] = {
    "one": lambda job: [job.enqueue(1)],
    "later": lambda job: [job.enqueue_in(500, 1)],
    "many": lambda job: job.enqueue_many([(n,) for n in range(5)]),
    "by name": lambda job: [job.app.push(job.name, [1])],
    "a twin": lambda job: [job.app.jobs["quiet"].using(status=True, queue="low").enqueue(1)],
    "async": lambda job: [asyncio.run(job.aenqueue(1))],
    "async later": lambda job: [asyncio.run(job.aenqueue_in(500, 1))],
    "async many": lambda job: asyncio.run(job.aenqueue_many([(n,) for n in range(5)])),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["plain", "once"])
def test_the_status_of_a_job_can_be_read_from_the_moment_it_is_enqueued(
    kind: str, way: str, shop: Shop, client: Client
) -> None:
    before = time.time()
    found = WAYS[way](getattr(shop, kind))
    assert len(pushed(client)) == len(found)
    assert {job["jid"] for job in pushed(client)} == set(found)
    for jid in found:
        assert jid is not None
        status = shop.app.status(jid)
        assert status is not None
        assert (status.status, status.queue, status.pct, status.fields) == ("queued", "low", None, {})
        assert status.name == ("quiet" if way == "a twin" else kind)
        assert before <= status.updated_at <= time.time()
        assert 70 < client.ttl(KEYS.status(jid)) <= 77
    assert len(client.keys("status:*")) == len(found)


@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
@pytest.mark.parametrize("twin", [False, True], ids=["sync", "async"])
def test_a_duplicate_leaves_no_status_behind(later: bool, twin: bool, shop: Shop, client: Client) -> None:
    def push() -> str | None:
        if twin:
            return asyncio.run(shop.once.aenqueue_in(500, 1) if later else shop.once.aenqueue(1))
        return shop.once.enqueue_in(500, 1) if later else shop.once.enqueue(1)

    first = push()
    assert [push(), push()] == [None, None]
    assert client.keys("status:*") == [f"status:{first}"]
    assert shop.once.enqueue_many([(1,), (2,), (2,)])[::2] == [None, None]
    assert len(client.keys("status:*")) == len(pushed(client)) == 2


def test_jobs_that_do_not_ask_have_no_status_and_mixed_ones_are_told_apart(shop: Shop, client: Client) -> None:
    calls = [shop.plain.call(1), shop.quiet.call(1), shop.once.call(1), shop.once.call(1), shop.plain.call(2)]
    found = shop.app.enqueue_many(calls)
    assert [jid is None for jid in found] == [False, False, False, True, False]
    assert set(client.keys("status:*")) == {f"status:{found[n]}" for n in (0, 2, 4)}
    wanted = [jid for jid in found if jid is not None]
    statuses = shop.app.statuses([*wanted, "nobody"])
    assert [status and status.name for status in statuses.values()] == ["plain", None, "once", "plain", None]


@pytest.mark.parametrize("kind", ["plain", "once"])
@pytest.mark.parametrize("due", [None, 500])
@pytest.mark.parametrize("twin", [False, True], ids=["sync", "async"])
def test_a_status_key_of_a_wrong_type_does_not_stop_the_push(
    kind: str, due: float | None, twin: bool, shop: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cogworkerd.payload.new_jid", lambda: "j1")
    client.rpush(KEYS.status("j1"), "mine")
    job = getattr(shop, kind)
    if twin:
        jid = asyncio.run(job.aenqueue(1) if due is None else job.aenqueue_in(due, 1))
    else:
        jid = job.enqueue(1) if due is None else job.enqueue_in(due, 1)
    assert jid == "j1"
    assert [each["jid"] for each in pushed(client)] == ["j1"]
    assert client.lrange(KEYS.status("j1"), 0, -1) == ["mine"]
    assert shop.app.status("j1") is None


@pytest.mark.parametrize("kind", ["plain", "once"])
def test_a_push_that_is_refused_leaves_no_job_and_of_a_unique_one_no_status(
    kind: str, shop: Shop, client: Client
) -> None:
    client.set(KEYS.queue("low"), "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        getattr(shop, kind).enqueue(1)
    left = client.keys("status:*")
    assert all(0 < client.ttl(key) <= 77 for key in left)
    assert kind == "plain" or left == []
    assert client.keys("cogworker:unique:*") == []


def test_many_statuses_are_read_in_few_round_trips(shop: Shop, client: Client) -> None:
    found = shop.plain.enqueue_many([(n,) for n in range(1201)])
    wanted = [jid for jid in found if jid is not None]
    statuses = shop.app.statuses([*wanted, *wanted])
    assert list(statuses) == wanted
    assert all(status is not None and status.status == "queued" for status in statuses.values())
    assert shop.app.statuses([]) == {}


def test_a_namespace_has_statuses_of_its_own(server: Server, client: Client) -> None:
    shop = Shop(server.url, namespace="shop")
    jid = shop.plain.enqueue(1)
    assert client.keys("*status:*") == [f"shop:status:{jid}"]
    assert jid is not None
    assert shop.app.status(jid) is not None
    assert Shop(server.url).app.status(jid) is None
    shop.app.client.close()
