"""The commands besides `run`: what they print, and their exit status."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cogworkerd.cli.parser import COMMANDS
from tests.support import APPS, Client, Command, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]


APP = ("jobs:app", "--app-dir", str(APPS))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples(command: Command, name: str) -> None:
    done = command(name, "--help")
    assert done.returncode == 0
    examples = done.stdout.split("examples:")[1].strip().splitlines()
    assert examples
    assert all("cogworkerd" in example for example in examples)


def test_the_words_of_every_example_are_understood() -> None:
    from cogworkerd.cli import parser

    for name in COMMANDS:
        module = __import__(f"cogworkerd.cli.{name}", fromlist=["EXAMPLES"])
        for line in module.EXAMPLES.splitlines()[1:]:
            words = shlex.split(line)
            parser.build().parse_args(words[words.index("cogworkerd") + 1 :])


def test_status_shows_what_runs(daemon: Start, command: Command, client: Client, witness: Client) -> None:
    running = daemon("-c", "2", "--tag", "shop").ready()
    jid = push_raw(client, "book", 1, 6)  # as long as the three looks at it take on a busy machine
    push_raw(client, "nobody", queue="elsewhere", enqueued_at=time.time() - 100)
    eventually(lambda: json.loads(command("status", "--json").stdout)["running"], 6)
    state = json.loads(command("status", "--json").stdout)
    process = state["processes"][0]
    assert process["pid"] == running.pid
    assert (process["tag"], process["busy"], process["concurrency"], process["quiet"]) == ("shop", 1, 2, False)
    assert process["rss_kb"] > 10_000
    assert {slot["pid"] for slot in process["slots"]} == set(running.child_pids())
    assert [slot["jid"] for slot in process["slots"] if slot["jid"]] == [jid]
    queues = {queue["name"]: queue for queue in state["queues"]}
    assert queues["elsewhere"]["size"] == 1
    assert 99 < queues["elsewhere"]["latency"] < 200
    assert (state["running"][0]["jid"], state["running"][0]["class"]) == (jid, "book")
    text = command("status").stdout
    assert "nobody reads it" in text
    assert "1/2" in text
    eventually(lambda: not json.loads(command("status", "--json").stdout)["running"], 12)


def test_enqueue_pushes_by_name(command: Command, client: Client) -> None:
    jid = command("enqueue", *APP, "book", "[1]").stdout.strip()
    from_stdin = command("enqueue", *APP, "book", "-", text="[2, 0.5]").stdout.strip()
    jobs = [json.loads(raw) for raw in client.lrange("cogworker:queue:default", 0, -1)]
    assert [(job["jid"], job["args"]) for job in jobs] == [(from_stdin, [2, 0.5]), (jid, [1])]
    later = command("enqueue", *APP, "mailed", "[3]", "--in", "60", "--queue", "slow")
    (entry,) = client.zrange("cogworker:schedule", 0, -1)
    assert json.loads(entry)["jid"] == later.stdout.strip()
    assert json.loads(entry)["queue"] == "slow"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nope", "[1]"), "is no job of this app"),
        (("book", "[1"), "ARGS is not JSON"),
        (("book", "{}"), "must be a JSON array"),
        (("book", "[]"), "missing a required argument: 'n'"),
        (("book", "[1]", "--kwargs", '{"m": 1}'), "unexpected keyword argument 'm'"),
    ],
)
def test_enqueue_refuses_what_makes_no_sense(
    command: Command, client: Client, words: tuple[str, ...], said: str
) -> None:
    done = command("enqueue", *APP, *words)
    assert done.returncode == 78
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert client.keys("cogworker:queue:*") == []


def test_check_shows_settings_jobs_and_server(command: Command, client: Client) -> None:
    push_raw(client, "x", queue="forgotten")
    done = command("check", *APP, "-c", "3", "-q", "default", COGWORKERD_SHUTDOWN_TIMEOUT="7")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}
    assert "--concurrency" in rows["concurrency"]
    assert "7.0" in rows["shutdown_timeout"]
    assert "COGWORKERD_SHUTDOWN_TIMEOUT" in rows["shutdown_timeout"]
    assert "mailed" in done.stdout
    assert "warning: job mailed goes to queue 'mail', which is not read here" in done.stdout
    assert "warning: queue 'forgotten' holds 1 jobs and nobody reads it" in done.stdout
    assert "writable, all commands allowed  yes" in done.stdout
    assert not [key for key in client.keys("*") if ":x:check:" in key]


def test_check_names_the_commands_that_an_acl_takes_away(command: Command, make_server: Callable[..., Server]) -> None:
    guarded = make_server()
    with guarded.client() as admin:
        admin.execute_command("ACL SETUSER weak on >secret ~* &* +@all -blmove -info -config")
    done = command("check", *APP, url=f"redis://weak:secret@127.0.0.1:{guarded.port}/0")
    assert done.returncode == 0, done.stderr
    assert "does not let this user do: BLMOVE" in done.stdout
    assert "unknown" in done.stdout
    assert "secret" not in done.stdout + done.stderr


def test_check_warns_of_a_policy_that_evicts(command: Command, make_server: Callable[..., Server]) -> None:
    evicting = make_server("--maxmemory-policy", "allkeys-lru")
    done = command("check", *APP, url=evicting.url)
    assert "maxmemory-policy is allkeys-lru" in done.stdout


@pytest.mark.parametrize("words", [("status",), ("check", *APP), ("enqueue", *APP, "book", "[1]")])
def test_a_server_that_is_away_is_one_line_and_69(command: Command, words: tuple[str, ...]) -> None:
    done = command(*words, url="redis://:topsecret@127.0.0.1:1/0")
    assert done.returncode == 69
    assert "Traceback" not in done.stderr
    assert "topsecret" not in done.stdout + done.stderr


def test_usage_errors_are_2(command: Command) -> None:
    assert command("fly").returncode == 2
    assert command().returncode == 2
    assert command("enqueue").returncode == 2


def test_a_bad_setting_names_key_value_place_and_what_is_allowed(command: Command, tmp_path: Path) -> None:
    (tmp_path / "cogworkerd.toml").write_text('concurency = 4\nlog_level = "loud"\n')
    done = command("check", "jobs:app", "--app-dir", str(tmp_path))
    assert done.returncode == 78
    (tmp_path / "jobs.py").write_text("from cogworkerd import App\napp = App()\n")
    done = command("check", "jobs:app", "--app-dir", str(tmp_path), COGWORKERD_MAX_ORPHANINGS="0")
    assert done.returncode == 78
    assert "cogworkerd.toml: unknown setting 'concurency': did you mean 'concurrency'?" in done.stderr
    assert "log_level = 'loud' cannot be used; allowed: 'debug' or 'info'" in done.stderr
    assert (
        "COGWORKERD_MAX_ORPHANINGS: max_orphanings = '0' cannot be used; allowed: a whole number from 1" in done.stderr
    )
