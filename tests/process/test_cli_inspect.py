"""What the command line shows of jobs: where they are, how far, what they did, what they cost; and what it hides."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import Client, Command, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]
SECRETS = ("hunter2-password", "tok-4711-secret")
GEM = {
    "class": "GreetingJob",
    "args": ["world", {"k": [1.5, None]}, "é/ü"],
    "queue": "ruby",
    "jid": "b4a577edbccf1d805744efa9",
    "retry": True,
    "created_at": 1_700_000_000.5,
    "retry_count": 2,
    "failed_at": 1_700_000_100.25,
    "error_class": "NameError",
    "error_message": "uninitialized constant Greeter",
    "interrupted_count": 1,
    "wrapped": "ActiveJob::Wrapper",
}


def shop(daemon: Start, *flags: str, **options: Any) -> Daemon:
    return daemon("-c", "2", "-q", "default", "-q", "mail", *flags, target="shop_jobs:app", **options).ready()


def objects(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ---- running jobs ---------------------------------------------------------------------------------------


def test_running_jobs_are_listed_with_how_far_they_are(
    daemon: Start, client: Client, witness: Client, command: Command
) -> None:
    running = shop(daemon)
    first = push_raw(client, "shop.reports.build", 1, 25, "rows")
    eventually(lambda: witness.hget("t:start", "1"))
    second = push_raw(client, "shop.reports.build", 2, 100, "almost \x1b[31mdone")
    eventually(lambda: len(objects(command("jobs", "list", "running", "--json"))["jobs"]) == 2, 15)
    text = eventually(lambda: _with(command("jobs", "list", "running").stdout, "100 %", "25 %"), 10)
    assert re.search(
        rf"{first}  shop\.reports\.build  default  \d.* s +\[#####\.{{15}}\] 25 % rows$", text, re.MULTILINE
    )
    assert re.search(rf"{second} .* \[#{{20}}\] 100 % almost \\x1b\[31mdone$", text, re.MULTILINE)
    jobs = objects(command("jobs", "list", "running", "--json"))["jobs"]
    assert {(job["jid"], job["class"], job["queue"]) for job in jobs} == {
        (first, "shop.reports.build", "default"),
        (second, "shop.reports.build", "default"),
    }
    assert all(job["identity"] and job["tid"] and job["run_at"] for job in jobs)
    assert len(objects(command("jobs", "list", "running", "--limit", "1", "--json"))["jobs"]) == 1
    assert "nothing" in command("jobs", "list", "running", "--name", "shop.other").stdout
    shown = objects(command("jobs", "show", first))
    assert shown["running"]["jid"] == first
    assert (shown["status"]["status"], shown["status"]["pct"], shown["status"]["message"]) == ("working", 25, "rows")
    assert shown["status"]["fields"] == {"rows": "1"}
    witness.set("t:gate", 1)
    eventually(lambda: "nothing" in command("jobs", "list", "running").stdout, 15)
    assert running.stop() == 0


def _with(text: str, *words: str) -> str:
    return text if all(word in text for word in words) else ""


def test_a_job_is_shown_with_its_status_its_attempts_and_its_history(
    daemon: Start, client: Client, witness: Client, command: Command
) -> None:
    running = shop(daemon)
    jid = push_raw(client, "shop.reports.flaky", 7)
    look = _Look(command, jid)
    eventually(lambda: "running" in look() and "history" in look(), 15)
    shown = look()
    assert [(each["attempt"], each["outcome"]) for each in shown["attempts"]] == [(1, "retrying")]
    assert shown["attempts"][0]["error_message"] == "once"
    (failed,) = shown["history"]
    assert (failed["status"], failed["error_class"], failed["class"]) == ("failed", "ValueError", "shop.reports.flaky")
    assert any("once" in line for line in failed["backtrace"])
    witness.set("t:gate", 1)
    eventually(lambda: look().get("status", {}).get("status") == "complete" and len(look()["history"]) == 2, 15)
    shown = look()
    assert sorted(run["status"] for run in shown["history"]) == ["failed", "success"]
    assert shown["status"]["fields"] == {"rows": "7"}
    assert not {"job", "running"} & shown.keys()
    raw = command("jobs", "show", jid, "--raw")
    assert (raw.returncode, raw.stderr) == (1, f"{jid}: in no set and no queue\n")
    assert running.stop() == 0


class _Look:
    """What `jobs show` says of one job now; empty while nothing is known of it."""

    def __init__(self, command: Command, jid: str) -> None:
        self._command = command
        self._jid = jid

    def __call__(self) -> dict[str, Any]:
        return dict(json.loads(self._command("jobs", "show", self._jid).stdout or "{}"))


# ---- costs ----------------------------------------------------------------------------------------------


def test_costs_are_those_of_the_runs(daemon: Start, client: Client, command: Command) -> None:
    running = shop(daemon)
    for number in (1, 2, -3):
        push_raw(client, "shop.reports.sum", number, 0.3, enqueued_at=time.time() - 100)
    push_raw(client, "shop.mail.send_welcome", 1, queue="mail")
    push_raw(client, "nobody.knows", 1, retry=False)

    def ended() -> dict[str, Any]:
        found = {each["name"]: each for each in objects(command("jobs", "cost", "--json"))["jobs"]}
        return found if sum(each["runs"] for each in found.values()) == 5 else {}

    costs = eventually(ended, 20)
    assert objects(command("jobs", "cost", "--json"))["days"] == 1
    assert costs.keys() == {"shop.reports.sum", "shop.mail.send_welcome", "(not registered)"}
    summed = costs["shop.reports.sum"]
    assert (summed["runs"], summed["failed"], summed["waits"]) == (3, 1, 3)
    assert 0.85 <= summed["cpu"] <= summed["wall"] + 0.1
    assert summed["cpu"] == pytest.approx(summed["cpu_user"] + summed["cpu_system"])
    assert summed["wait"] >= 300
    assert summed["rss_peak_kb"] > 10_000
    assert (costs["shop.mail.send_welcome"]["runs"], costs["shop.mail.send_welcome"]["waits"]) == (1, 0)
    text = command("jobs", "cost").stdout.splitlines()
    assert text[0] == "Costs today (UTC)"
    assert text[1].split()[:4] == ["job", "runs", "failed", "CPU"]
    assert text[2].split()[:3] == ["shop.reports.sum", "3", "1"], "the job that took most comes first"
    assert "unknown" in next(line for line in text if "send_welcome" in line)
    assert command("jobs", "cost", "--days", "35").stdout.startswith("Costs of the last 35 days (UTC)\n")
    assert running.stop() == 0


def test_costs_of_a_day_without_runs_are_none(server: Server, command: Command) -> None:
    assert command("jobs", "cost").stdout == "Costs today (UTC): nothing ran\n"
    assert objects(command("jobs", "cost", "--json")) == {"days": 1, "jobs": []}


# ---- check ----------------------------------------------------------------------------------------------


def test_check_prints_the_memory_that_records_can_reach(daemon: Start, client: Client, command: Command) -> None:
    running = shop(daemon)
    for number in range(5):
        push_raw(client, "shop.mail.send_welcome", number, queue="mail")
    push_raw(client, "nobody.knows", retry=False)
    eventually(lambda: client.zcard("cogworker:history:all") == 6, 15)
    apps = ("check", "shop_jobs:app", "--app-dir", str(Path(__file__).parent.parent / "apps"))
    rows = _memory(command(*apps))
    assert {"history:all": "6", "history:success": "5", "history:failed": "1", "dead": "1"}.items() <= rows.items()
    assert {"statuses", "attempts", "costs"} <= rows.keys()
    limited = command(*apps, "--history-max", "1000000000", "--dead-max", "10").stdout
    assert re.search(r"dead jobs +1 .* dead_max$", limited, re.MULTILINE)
    assert "history:all" not in _memory(command(*apps, "--no-history"))
    assert running.stop() == 0


def _memory(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The first word and the count of each row."""
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("Memory that records can reach\n")[1].split("\n\n")[0].splitlines()
    assert table[0].split() == ["records", "now", "bytes", "each", "reach", "bounded", "by"]
    rows = [re.split(r" {2,}", line.strip()) for line in table[1:]]
    return {row[0].split()[0]: row[1] for row in rows}


# ---- bulk work ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "ends"), [("delete", "deleted"), ("retry", "on its queue")])
def test_bulk_work_shows_how_far_it_is_on_a_terminal_and_not_elsewhere(
    verb: str, ends: str, server: Server, client: Client, command: Command
) -> None:
    words = ("jobs", verb, "--from", "dead", "--all", "--yes")
    _fill_dead(client, 3000)
    silent = command(*words)
    assert (silent.stdout, silent.stderr) == (f"dead: 3000 jobs, {ends}\n", "")
    _fill_dead(client, 3000)
    output, told = _with_errors_on_a_terminal(server, words)
    assert output == f"dead: 3000 jobs, {ends}\n"
    assert re.search(rf"\r{verb} from dead \[#*\.*\] +\d+% [\d,]+ seen, [\d,]+ done\x1b\[K", told)
    assert told.endswith("\r\x1b[K"), "the line is wiped at the end"


def _fill_dead(client: Client, count: int) -> None:
    client.zadd(
        "cogworker:dead", {json.dumps({"class": "x", "args": [], "jid": f"{n:024x}"}): n + 1 for n in range(count)}
    )


def _with_errors_on_a_terminal(server: Server, words: tuple[str, ...]) -> tuple[str, str]:
    """What a command writes to its output, a pipe, and to the terminal that its errors go to."""
    return _on_a_terminal([sys.executable, "-m", "cogworkerd", *words], COGWORKERD_REDIS_URL=server.url)


def _on_a_terminal(command: list[str], width: int = 80, **env: str) -> tuple[str, str]:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**{name: value for name, value in os.environ.items() if name != "COLUMNS"}, **env},
        start_new_session=True,
    )
    os.close(theirs)
    told = bytearray()
    try:
        while chunk := os.read(ours, 65536):
            told += chunk
    except OSError:
        pass  # its end is closed
    output, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0, told
    return output, told.decode()


@pytest.mark.parametrize(
    ("total", "width"),
    [(999, 80), (9_999, 80), (1_234_567, 80), (9_999, 120), (9_999, 40)],
)
def test_the_line_of_bulk_work_fits_a_terminal(total: int, width: int) -> None:
    program = (
        "from cogworkerd.cli.progress import progress_line\n"
        f"with progress_line('retry from scheduled', {total}) as show: show({total}, {total})\n"
    )
    _, told = _on_a_terminal([sys.executable, "-c", program], width)
    assert "retry from scheduled [#" in told
    assert max(len(line.removesuffix("\x1b[K")) for line in told.split("\r")) < width


# ---- masking --------------------------------------------------------------------------------------------


def login(client: Client, **fields: Any) -> str:
    """As the decorator's `redact=["password", "token"]` writes it."""
    password, token = SECRETS
    return push_raw(client, "shop.users.login", "ann", password, kwargs={"token": token}, redact=[1, "token"], **fields)


def shown_everywhere(command: Command, jid: str) -> str:
    """All that lists and shows tell."""
    places = ("scheduled", "retry", "dead", "queue:default", "running")
    lists = [command("jobs", "list", place, *json) for place in places for json in ((), ("--json",))]
    looks = [*lists, command("jobs", "show", jid), command("status"), command("status", "--json")]
    assert [done.stderr for done in looks if done.returncode] == []
    return "".join(done.stdout for done in looks)


def test_the_decorator_says_what_is_masked(client: Client, command: Command) -> None:
    apps = ("shop_jobs:app", "--app-dir", str(Path(__file__).parent.parent / "apps"))
    kwargs = json.dumps({"token": SECRETS[1]})
    done = command("enqueue", *apps, "login", json.dumps(["ann", SECRETS[0]]), "--kwargs", kwargs)
    jid = done.stdout.strip()
    shown = objects(command("jobs", "show", jid))["job"]
    assert (shown["args"], shown["kwargs"]) == (["ann", "[redacted]"], {"token": "[redacted]"})
    text = shown_everywhere(command, jid)
    assert not [secret for secret in SECRETS if secret in text]
    assert jid in text


def test_masked_arguments_of_a_running_job_and_of_one_that_waits_are_shown_nowhere(
    daemon: Start, client: Client, witness: Client, command: Command
) -> None:
    running = shop(daemon)
    jid = login(client)
    eventually(lambda: jid in command("jobs", "list", "running").stdout, 15)
    for key in ("schedule", "dead", "retry"):
        payload = {"class": "shop.users.login", "args": ["ann", SECRETS[0]], "jid": f"in {key}", "redact": [1]}
        client.zadd(f"cogworker:{key}", {json.dumps({**payload, "error_message": f"no {SECRETS[0]}"}): 4e9})
    text = "".join(shown_everywhere(command, each) for each in (jid, "in schedule", "in dead", "in retry"))
    assert [secret for secret in SECRETS if secret in text] == []
    assert "knocking" in text
    assert "no [redacted]" in text
    client.delete("cogworker:schedule", "cogworker:dead", "cogworker:retry")
    witness.set("t:gate", 1)
    assert running.stop() == 0


@pytest.mark.parametrize(
    "part",
    ["job", "status", "history", "attempts"],
)
def test_masked_arguments_in_the_error_that_a_job_raised_are_shown_nowhere(
    part: str, daemon: Start, client: Client, witness: Client, command: Command
) -> None:
    running = shop(daemon)
    witness.set("t:gate", 1)
    jid = login(client)
    look = _Look(command, jid)
    eventually(lambda: look().keys() >= {"job", "status", "history", "attempts"}, 15)
    text = json.dumps(look()[part])
    assert "ann is not let in with" in text
    assert [secret for secret in SECRETS if secret in text] == []
    assert running.stop() == 0


def test_the_log_of_a_failure_holds_no_masked_argument(daemon: Start, client: Client, witness: Client) -> None:
    running = shop(daemon)
    witness.set("t:gate", 1)
    login(client)
    eventually(lambda: running.lines("job.failed"), 15)
    assert running.stop() == 0
    assert [secret for secret in SECRETS if secret in running.text()] == []


# ---- the gem's payloads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "place"), [("schedule", "scheduled"), ("retry", "retry"), ("dead", "dead")])
def test_a_job_of_the_gem_is_listed_shown_retried_and_deleted_like_our_own(
    key: str, place: str, client: Client, command: Command
) -> None:
    raw, jid = json.dumps(GEM), str(GEM["jid"])  # with blanks and escapes that are not ours
    client.zadd(f"cogworker:{key}", {raw: 4e9})
    listed = command("jobs", "list", place, "--name", "GreetingJob").stdout
    assert re.search(rf"{jid}  GreetingJob  ruby  .*uninitialized constant Greeter$", listed, re.MULTILINE)
    (found,) = objects(command("jobs", "list", place, "--json"))["jobs"]
    assert found == {**GEM, "score": 4e9}
    assert objects(command("jobs", "show", jid))["job"] == {**GEM, "score": 4e9, "in": place}
    assert command("jobs", "show", jid, "--raw").stdout == raw
    assert command("jobs", "retry", jid).stdout == f"{jid}: on its queue (was in {place})\n"
    (queued,) = client.lrange("cogworker:queue:ruby", 0, -1)
    again = json.loads(queued)
    assert {**again, "enqueued_at": None} == {**GEM, "enqueued_at": None}
    assert again["enqueued_at"] > time.time() - 300
    assert jid in command("jobs", "list", "queue:ruby").stdout
    assert client.sismember("cogworker:queues", "ruby")
    assert command("jobs", "delete", jid, "--yes").stdout == f"{jid}: deleted (was in queue:ruby)\n"
    assert command("jobs", "show", jid).returncode == 1


def test_a_job_without_an_id_is_found_by_the_one_that_its_bytes_have(client: Client, command: Command) -> None:
    client.zadd("cogworker:dead", {'{"class":"Old::Job"}': 1})
    (found,) = objects(command("jobs", "list", "dead", "--json"))["jobs"]
    assert command("jobs", "show", found["jid"], "--raw").stdout == '{"class":"Old::Job"}'
    assert command("jobs", "retry", found["jid"]).returncode == 0
    (queued,) = client.lrange("cogworker:queue:default", 0, -1)
    assert json.loads(queued)["jid"] == found["jid"]


@pytest.mark.parametrize(
    "stamp",
    ["1e300", '"soon"', "-1e400", '"-inf"', "-Infinity", "1" + "0" * 400],
    ids=lambda stamp: stamp[:10],
)
@pytest.mark.parametrize("words", [("status",), ("queues", "list")])
def test_a_job_that_says_an_odd_time_of_its_enqueueing_breaks_no_list(
    words: tuple[str, ...], stamp: str, client: Client, command: Command
) -> None:
    client.sadd("cogworker:queues", "ruby")
    client.lpush("cogworker:queue:ruby", f'{{"class":"GreetingJob","jid":"a","enqueued_at":{stamp}}}')
    done = command(*words)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr[-500:]
    assert "ruby" in done.stdout


def test_a_status_with_a_huge_percentage_breaks_no_list(client: Client, command: Command) -> None:
    info = '{"hostname":"h","pid":1,"concurrency":1,"queues":[],"started_at":1}'
    client.sadd("cogworker:processes", "h:1:a")
    client.hset("cogworker:process:h:1:a", mapping={"info": info, "busy": "1", "quiet": "false"})
    job = {"queue": "ruby", "payload": {"class": "GreetingJob", "jid": "huge"}, "run_at": 1}
    client.hset("cogworker:workers:h:1:a", "tid", json.dumps(job))
    client.hset("status:huge", mapping={"status": "working", "pct": "1e17"})
    done = command("jobs", "list", "running")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr[-500:]
