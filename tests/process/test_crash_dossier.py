"""Crash dossiers: whatever ends a process, what is known of it stands in the dead entry, the history and one line."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cogworkerd import App
from cogworkerd.inspect import History, Run, Running, Store
from tests.support import APPS, Client, Daemon, Server, eventually, inprogress, push_raw, zombies

Start = Callable[..., Daemon]
SLOTS = 2
DEAD = "cogworker:dead"
PROGRESS = "last progress: 40 % half way"
WITHOUT_CORES = ("sh", "-c", 'ulimit -c 0 && exec "$@"', "sh")
WITH_CORES = ("sh", "-c", 'ulimit -c unlimited && exec "$@"', "sh")
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
ENDS = {
    "reads null": "signal 11 (SIGSEGV)",
    "aborts": "signal 6 (SIGABRT)",
    "reads beyond its file": "signal 7 (SIGBUS)",
    "divides": "signal 8 (SIGFPE)",
    "exits with 3": "exit status 3",
    "exits with 0": "exit status 0",
    "waits": "signal 9 (SIGKILL)",
}
CRASHED_IN = {
    "reads null": "_read_null",
    "aborts": "_abort",
    "reads beyond its file": "_read_beyond_the_file",
    "divides": "_divide",
}


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    """A client that knows the jobs by their names."""
    made = App(server.url)
    yield made
    made.client.close()


@pytest.fixture
def start(daemon: Start, tmp_path: Path) -> Start:
    """Start a daemon whose children leave their cores, if any, in a folder of the test."""

    def begin(*flags: str, slots: int = SLOTS, wrap: tuple[str, ...] = WITHOUT_CORES, **options: Any) -> Daemon:
        limits = ("-c", str(slots), "--max-orphanings", "1")
        return daemon(*limits, *flags, target="crashing_jobs:app", wrap=wrap, cwd=tmp_path, **options).ready()

    return begin


def marks(witness: Client, jid: str, word: str) -> list[int]:
    """The processes in which the job came this far."""
    found = [mark.rsplit(" ", 1) for mark in witness.lrange(f"t:marks:{jid}", 0, -1)]
    return [int(pid) for each, pid in found if each == word]


def kill_each_run(witness: Client, jid: str, runs: int = 2) -> None:
    for number in range(1, runs + 1):
        pids = eventually(lambda number=number: marks(witness, jid, "began")[number - 1 :], 10)
        os.kill(pids[0], signal.SIGKILL)


def buried(client: Client, jid: str, within: float = 15) -> dict[str, Any]:
    """Wait for the job in dead; it is there once, and nowhere else."""

    def found() -> list[dict[str, Any]]:
        return [entry for entry in map(json.loads, client.zrange(DEAD, 0, -1)) if entry["jid"] == jid]

    (entry,) = eventually(found, within, f"{jid} in dead")
    assert entry["error_class"] == "ProcessDied"
    return entry


def runs_of(app: App, jid: str, count: int) -> list[Run]:
    """Wait for so many runs in the history, the oldest first; each has lost its process."""
    history = History(Store.of(app))
    eventually(lambda: len(history.of_job(jid)) >= count)
    runs = history.of_job(jid, "failed")
    assert len(runs) == len(history.of_job(jid)) == count
    assert {run.error_class for run in runs} == {"ProcessDied"}
    return runs[::-1]


def deaths(running: Daemon, count: int) -> list[dict[str, Any]]:
    """Wait for so many lines about deaths; there are no more."""
    eventually(lambda: len(running.lines("child.died")) >= count)
    lines = running.lines("child.died")
    assert len(lines) == count
    return lines


def headline(how: str, progress: str = PROGRESS) -> str:
    """A pattern. A program that the system pipes cores into gets them whatever the limit is."""
    said = f", {re.escape(progress)}" if progress else ""
    return rf"{re.escape(how)}(, core dumped)?, peak RSS [1-9]\d* MiB{said}"


def line_of(function: str) -> str:
    """The beginning of what a stack says of a function of the jobs."""
    return rf'File "{re.escape(str(APPS))}/crashing_jobs\.py", line \d+ in {function}$'


def is_a_crash_in(lines: list[str], *functions: str) -> None:
    """The stack is that of a crash in these functions of the job, the innermost first, and there it ends."""
    assert lines[0].startswith("Fatal Python error: ")
    frames = [line.strip() for line in lines if re.match(r'\s*File "', line)]
    own = [frame for frame in frames if re.match(line_of(r"\w+"), frame)]
    assert [re.fullmatch(line_of(r"(\w+)"), frame)[1] for frame in own] == list(functions)  # type: ignore[index]
    assert [frame for frame in frames if "/cogworkerd/" in frame.removeprefix('File "').removeprefix(str(APPS))] == []
    assert len({*lines}) > 2


def in_order(running: Daemon, client: Client, deaths: int, slots: int = SLOTS) -> None:
    """Every slot takes jobs, nothing is left in progress, nobody is left behind, and the daemon stops."""
    where = f"t:meeting:{running.pid}"
    jids = {push_raw(client, "meet", where, slots, retry=False) for _ in range(slots)}
    eventually(lambda: jids <= {line["jid"] for line in running.lines("job.done")}, 15, "every slot has done a job")
    eventually(lambda: inprogress(client) == [])
    assert client.llen("cogworker:queue:default") == 0
    assert len(running.children()) == slots
    assert client.keys("cogworker:orphanings:*") == []
    eventually(lambda: zombies(running.pid) == [])
    assert running.stop() == 0
    assert len(running.lines("child.died")) == deaths
    running.clean_log()


# ---- each kind of death ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *("reads null", "exits with 3", "waits"),
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("aborts", "reads beyond its file", "divides", "exits with 0")
        ),
    ],
)
def test_each_death_is_told_in_the_dead_entry_in_the_history_of_each_run_and_in_one_line(
    kind: str, start: Start, app: App, client: Client, witness: Client
) -> None:
    running = start()
    jid = push_raw(client, "crash", kind, retry=5)
    if kind == "waits":
        kill_each_run(witness, jid)
    entry = buried(client, jid)
    pattern = headline(ENDS[kind])
    first, *stack = entry["error_message"].split("\n")
    assert re.fullmatch(f"the process that ran it died 2 times; last by {pattern}", first)

    runs = runs_of(app, jid, 2)
    lines = deaths(running, 2)
    assert [line["child"] for line in lines] == marks(witness, jid, "began")
    for run, line in zip(runs, lines, strict=True):
        assert re.fullmatch(pattern, run.error_message)
        assert run.error_message == line["reason"]
        assert (line["jid"], line["job"], line["level"], line["respawn_in"]) == (jid, "crash", "error", 0)
        assert line["rss_kb"] == run.fields["rss_peak_kb"] > 1000
        assert run.started_at <= run.finished_at
        if kind in CRASHED_IN:
            is_a_crash_in(line["frames"], CRASHED_IN[kind], "crash")
            is_a_crash_in(run.backtrace, CRASHED_IN[kind], "crash")
        else:
            assert line["frames"] == run.backtrace == []
    if kind in CRASHED_IN:
        is_a_crash_in(stack, CRASHED_IN[kind], "crash")
    else:
        assert stack == []

    status: Any = eventually(lambda: (found := app.status(jid)) and found.status == "failed" and found)
    assert (status.error_class, status.error_message) == ("ProcessDied", entry["error_message"])
    eventually(lambda: client.get("cogworker:stats:failed") == "1")
    in_order(running, client, 2)


def test_after_a_requeue_the_status_is_queued_and_keeps_what_the_run_has_said(
    start: Start, app: App, client: Client, witness: Client
) -> None:
    running = start()
    jid = push_raw(client, "crash", "waits")
    (pid,) = eventually(lambda: marks(witness, jid, "began"))
    eventually(lambda: (found := app.status(jid)) and found.status == "working")
    running.signal(signal.SIGTSTP)  # or the next run might begin before anybody has looked
    eventually(lambda: running.lines("daemon.quiet"))
    os.kill(pid, signal.SIGKILL)
    status: Any = eventually(lambda: (found := app.status(jid)) and found.status == "queued" and found)
    assert (status.pct, status.message, status.error_class) == (40, "half way", "ProcessDied")
    assert re.fullmatch(headline(ENDS["waits"]), status.error_message)
    assert [json.loads(raw)["jid"] for raw in client.lrange("cogworker:queue:default", 0, -1)] == [jid]
    running.signal(signal.SIGCONT)
    eventually(lambda: len(marks(witness, jid, "began")) == 2)
    os.kill(marks(witness, jid, "began")[1], signal.SIGKILL)
    eventually(lambda: (found := app.status(jid)) and found.status == "failed")
    in_order(running, client, 2)


def test_what_the_last_run_has_said_stays_in_the_status_of_the_buried_job(
    start: Start, app: App, client: Client
) -> None:
    running = start(slots=1)
    # Several: the recorder may just have taken its turn between the two notes.
    for _ in range(5):
        jid = push_raw(client, "count_runs")
        status: Any = eventually(lambda jid=jid: (found := app.status(jid)) and found.status == "failed" and found)
        assert (status.pct, status.fields) == (2, {"run": "2"})
    assert running.stop() == 0


def test_a_job_that_has_ended_well_after_a_crash_has_no_status_that_says_that_it_waits(
    start: Start, app: App, client: Client, witness: Client
) -> None:
    running = start()
    jid = push_raw(client, "crash_once")
    eventually(lambda: marks(witness, jid, "ended"), 10)
    eventually(lambda: [run.ok for run in History(Store.of(app)).of_job(jid)] == [True, False])
    eventually(lambda: (found := app.status(jid)) is None or found.status == "complete", 2)
    in_order(running, client, 1)


# ---- what the stack shows -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("crash_in_a_thread", ("_read_null", "crash_in_a_thread")),
        ("crash_asynchronously", ("_read_null", "crash_asynchronously")),
    ],
)
def test_the_stack_of_a_crash_in_a_thread_or_in_an_async_job_shows_the_jobs_own_lines(
    name: str, functions: tuple[str, ...], start: Start, app: App, client: Client
) -> None:
    running = start()
    jid = push_raw(client, name, "reads null")
    entry = buried(client, jid)
    assert ENDS["reads null"] in entry["error_message"]
    is_a_crash_in(entry["error_message"].split("\n")[1:], *functions)
    for run in runs_of(app, jid, 2):
        is_a_crash_in(run.backtrace, *functions)
    for line in deaths(running, 2):
        is_a_crash_in(line["frames"], *functions)
        assert re.fullmatch(headline(ENDS["reads null"]), line["reason"])
    in_order(running, client, 2)


@pytest.mark.parametrize(("name", "size"), [("crash_among_threads", 30), ("crash_deep", 150)])
def test_where_a_stack_is_too_long_the_line_that_crashed_is_not_what_is_left_out(
    name: str, size: int, start: Start, app: App, client: Client
) -> None:
    running = start(slots=1)
    jid = push_raw(client, name, size)
    stacks = [
        buried(client, jid)["error_message"].split("\n")[1:],
        *(run.backtrace for run in runs_of(app, jid, 2)),
        *(line["frames"] for line in deaths(running, 2)),
    ]
    assert running.stop() == 0
    for lines in stacks:
        assert lines[0].startswith("Fatal Python error: ")
        assert any(re.fullmatch(line_of("_read_null"), line.strip()) for line in lines), lines


def test_a_stack_that_was_asked_for_before_is_no_part_of_a_dossier(
    start: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(slots=1)
    jid = push_raw(client, "crash", "waits")
    for number in range(2):
        pids = eventually(lambda number=number: marks(witness, jid, "began")[number:], 10)
        for _ in range(2):
            stack: Any = eventually(lambda: Running(app).stack(jid))
            assert any(re.search(line_of("_wait"), line) for line in stack.lines)
        os.kill(pids[0], signal.SIGKILL)
    assert "\n" not in buried(client, jid)["error_message"]
    assert [line["frames"] for line in deaths(running, 2)] == [[], []]
    assert [run.backtrace for run in runs_of(app, jid, 2)] == [[], []]
    in_order(running, client, 2, slots=1)


def test_the_stack_of_a_crash_stands_alone_in_a_slot_whose_earlier_child_has_crashed_too(
    start: Start, client: Client
) -> None:
    running = start(slots=1)
    for name, functions in (("crash", ("_abort", "crash")), ("crash_in_a_thread", ("_abort", "crash_in_a_thread"))):
        entry = buried(client, push_raw(client, name, "aborts"))
        is_a_crash_in(entry["error_message"].split("\n")[1:], *functions)
    in_order(running, client, 4, slots=1)


def test_the_stack_of_a_copy_that_an_earlier_job_forked_is_no_part_of_the_dossier_of_a_later_one(
    start: Start, client: Client, witness: Client
) -> None:
    running = start(slots=1)
    earlier = push_raw(client, "crash_in_a_copy")
    eventually(lambda: marks(witness, earlier, "ended"))
    jid = push_raw(client, "crash", "waits")
    kill_each_run(witness, jid)
    entry = buried(client, jid)
    lines = deaths(running, 2)
    assert running.stop() == 0
    assert [line["frames"] for line in lines] == [[], []]
    assert "\n" not in entry["error_message"]


def test_a_stack_that_was_given_too_late_is_no_part_of_a_dossier(
    start: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(slots=1)
    jid = push_raw(client, "answer_late")
    (pid,) = eventually(lambda: marks(witness, jid, "began"))
    stack: Any = eventually(lambda: Running(app).stack(jid))
    assert stack.lines == []
    witness.set("t:gate", 1)
    eventually(lambda: marks(witness, jid, "answered"))
    os.kill(pid, signal.SIGKILL)
    (line,) = deaths(running, 1)
    assert line["frames"] == []


# ---- what else is known ---------------------------------------------------------------------------------


def test_the_largest_size_of_the_process_is_told_also_if_it_was_smaller_when_it_died(
    start: Start, app: App, client: Client
) -> None:
    running = start(slots=1)
    jid = push_raw(client, "peak", 200)
    buried(client, jid)
    sizes = [line["rss_kb"] // 1024 for line in deaths(running, 2)]
    assert all(200 <= size < 400 for size in sizes), sizes
    for run, size in zip(runs_of(app, jid, 2), sizes, strict=True):
        assert re.fullmatch(rf"exit status 3, peak RSS {size} MiB", run.error_message)
    in_order(running, client, 2, slots=1)


def test_the_progress_that_is_told_is_that_of_the_run_that_died(start: Start, app: App, client: Client) -> None:
    running = start(slots=1)
    jid = push_raw(client, "tell_once")
    buried(client, jid)
    first, second = runs_of(app, jid, 2)
    assert running.stop() == 0
    assert re.fullmatch(headline("exit status 3", "last progress: 40 % of the first run"), first.error_message)
    assert re.fullmatch(headline("exit status 3", ""), second.error_message)


def test_a_job_that_said_nothing_has_no_progress_in_its_dossier_whatever_the_one_before_it_said(
    start: Start, app: App, client: Client
) -> None:
    running = start(slots=1)
    buried(client, push_raw(client, "crash", "exits with 3"))
    jid = push_raw(client, "crash_silently", "exits with 3")
    buried(client, jid)
    assert all(re.fullmatch(headline("exit status 3", ""), run.error_message) for run in runs_of(app, jid, 2))
    in_order(running, client, 4, slots=1)


def test_a_crash_between_two_jobs_is_told_in_one_line_and_no_job_is_blamed(
    start: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(slots=1)
    before = running.child_pids()
    jid = push_raw(client, "crash_later")
    eventually(lambda: client.get("cogworker:stats:processed") == "1")
    eventually(lambda: inprogress(client) == [])
    witness.set("t:gate", 1)
    (line,) = deaths(running, 1)
    assert [line["child"]] == before
    assert (line["jid"], line["job"]) == ("", "")
    assert re.fullmatch(headline(ENDS["reads null"], ""), line["reason"])
    assert any(re.fullmatch(line_of("_read_null"), frame) for frame in line["frames"])
    assert running.lines("job.orphaned") == []
    eventually(lambda: [run.ok for run in History(Store.of(app)).of_job(jid)] == [True])
    assert client.zcard(DEAD) == 0
    in_order(running, client, 1, slots=1)
    assert client.get("cogworker:stats:failed") is None


def _no_cores() -> str:
    """Why no core can be made here; "" if one can."""
    try:
        pattern = CORE_PATTERN.read_text().strip()
    except OSError as error:
        return f"no core pattern: {error}"
    if pattern.startswith(("|", "/")) or not pattern:
        return f"cores do not go to the working directory here: {pattern!r}"
    import resource

    return "" if resource.getrlimit(resource.RLIMIT_CORE)[1] else "cores are not allowed here"


def test_a_core_file_is_told_where_one_is_made_and_only_there(start: Start, client: Client, tmp_path: Path) -> None:
    reason = _no_cores()
    if reason:
        pytest.skip(reason)
    running = start(wrap=WITH_CORES)
    crashed = buried(client, push_raw(client, "crash", "aborts"))
    assert "last by signal 6 (SIGABRT), core dumped, peak RSS " in crashed["error_message"]
    assert all(line["reason"].startswith("signal 6 (SIGABRT), core dumped, ") for line in deaths(running, 2))
    assert [path for path in tmp_path.iterdir() if "core" in path.name] != []
    ended = buried(client, push_raw(client, "crash", "exits with 3"))
    assert "core" not in ended["error_message"]
    in_order(running, client, 4)
