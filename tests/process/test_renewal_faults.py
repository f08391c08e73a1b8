"""A renewal in trouble: code, settings, signals, servers and processes that fail at the worst moment."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from cogworkerd import App, embedded
from cogworkerd.inspect import Running
from tests.process.test_isolation import assert_descriptors_are_apart, descriptors
from tests.process.test_renewal import Releases, each_once, in_order, ready_slots, renewed
from tests.process.test_service import Manager, environment
from tests.support import ROOT, Client, Daemon, Server, eventually, inprogress, push_raw, zombies

pytestmark = pytest.mark.timeout(180)

Start = Callable[..., Daemon]


CODE = """
import os, signal, sys, time, redis, setproctitle
from pathlib import Path
from cogworkerd import App, Retry, current_job
from cogworkerd.errors import Interruption
CHECK = setproctitle.getproctitle() == "cogworkerd:check"
HERE = Path(__file__).parent
RELEASE = {release}
{before}
app = App({app_settings})
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])

@app.job(name="work")
def work(n, seconds=0.0, ballast=""):
    witness.hincrby("t:start", str(n), 1)
    time.sleep(seconds)
    witness.hset("t:release", str(n), RELEASE)
    witness.hincrby("t:end", str(n), 1)

@app.job(name="hold")
def hold(n):
    "Runs until the test says go."
    witness.hset("t:pid", str(n), os.getpid())
    witness.hincrby("t:start", str(n), 1)
    began = time.monotonic()
    try:
        while not witness.hexists("t:go", str(n)):
            time.sleep(0.02)
    finally:
        witness.hset("t:seconds", str(n), time.monotonic() - began)
    witness.hset("t:release", str(n), RELEASE)
    witness.hincrby("t:end", str(n), 1)

@app.job(name="stubborn", retry=False)
def stubborn(n):
    "Is not impressed by an interruption."
    witness.hincrby("t:start", str(n), 1)
    while True:
        try:
            time.sleep(60)
        except Interruption:
            witness.hincrby("t:told", str(n), 1)

@app.job(name="fail", retry=1)
def fail(n, size):
    witness.hincrby("t:start", str(n), 1)
    witness.hincrby("t:end", str(n), 1)
    raise ValueError("x" * size)
{more}
"""


class Folder(Releases):
    """An application's folder, with a configuration file beside the code."""

    def deploy(self, number: int, app_settings: str = "", more: str = "", before: str = "") -> None:
        self.write(CODE.format(release=number, app_settings=app_settings, more=more, before=before))

    def configure(self, **settings: Any) -> None:
        text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        (self.folder / "cogworkerd.toml").write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = tmp_path / "app"
    made.mkdir()
    return Folder(made)


@pytest.fixture
def deployed(daemon: Start, folder: Folder) -> Start:
    """Starts a daemon of the release that is there, or of release 1."""

    def start(*flags: str, **options: Any) -> Daemon:
        if not (folder.folder / "deployed.py").exists():
            folder.deploy(1)
        options.setdefault("app_dir", folder.folder)
        return daemon(*flags, target="deployed:app", **options).ready()

    return start


@pytest.fixture
def mortal(make_server: Callable[..., Server]) -> Server:
    """A server that the test may stop; it forgets nothing."""
    return make_server("--appendonly", "yes", "--appendfsync", "always")


def held(client: Client, witness: Client, *numbers: int, **fields: Any) -> dict[int, int]:
    """Push jobs that run until the test says go, wait until they run; the pids of their children."""
    for number in numbers:
        push_raw(client, "hold", number, **fields)
    eventually(lambda: all(witness.hexists("t:pid", str(number)) for number in numbers), 10)
    return {number: int(witness.hget("t:pid", str(number))) for number in numbers}


def go(witness: Client, *numbers: int) -> None:
    for number in numbers:
        witness.hset("t:go", str(number), 1)


def ended(witness: Client, *numbers: int, within: float = 10) -> None:
    """Wait until these jobs have ended."""
    eventually(lambda: all(witness.hexists("t:end", str(number)) for number in numbers), within, f"{numbers} ended")


def refused(running: Daemon, times: int = 1, within: float = 15) -> str:
    """Wait until new code was refused so often; the last reason."""
    lines = eventually(lambda: found if len(found := running.lines("renewal.refused")) >= times else [], within)
    assert len(lines) == times
    assert lines[-1]["level"] == "error"
    return str(lines[-1]["reason"])


def came(running: Daemon, event: str, times: int = 1, within: float = 20) -> list[dict[str, Any]]:
    """Wait until an event was logged so often."""

    def look() -> list[dict[str, Any]]:
        lines = running.lines(event)
        return lines if len(lines) >= times else []

    return eventually(look, within, f"{times} x {event}")


def ask(running: Daemon) -> None:
    """USR2, and wait until the daemon has heard it."""
    before = len(running.lines("renewal.started"))
    running.signal(signal.SIGUSR2)
    came(running, "renewal.started", before + 1)


def recorded(client: Client, count: int) -> None:
    """Wait until so many runs are written down; each is counted once, too."""

    def look() -> tuple[int, int]:
        counts = [int(count) for key in client.keys("cogworker:history:daily:*") for count in client.hvals(key)]
        return client.zcard("cogworker:history:all"), sum(counts)

    eventually(lambda: look() == (count, count), message=f"{look()}, and not {count}, runs and counts")


def rolled(running: Daemon, within: float = 30) -> None:
    """Wait until a renewal is done and nothing is under way."""

    def look() -> bool:
        names = [line["event"] for line in running.lines()]
        last = {name: index for index, name in enumerate(names)}
        tried = max(last.get("renewal.done", -1), last.get("renewal.refused", -1))
        begun = max(last.get("roll.started", -1), last.get("renewal.done", -1))
        return "renewal.done" in last and tried > last.get("renewal.started", -1) and last.get("roll.done", -1) > begun

    eventually(look, within, "renewal.done, then roll.done")


# ---- code and settings that cannot follow ---------------------------------------------------------------


def stays_as_it_was(
    running: Daemon, folder: Folder, client: Client, witness: Client, words: str, before: list[int]
) -> None:
    """The new code was refused for this reason; nothing has changed, and a good release works."""
    assert words in refused(running), running.lines("renewal.refused")
    push_raw(client, "work", 1)
    ended(witness, 1)
    assert running.child_pids() == before
    assert zombies(running.pid) == []
    assert running.lines("roll.started") == []
    (folder.folder / "cogworkerd.toml").unlink(missing_ok=True)
    folder.deploy(3)
    running.signal(signal.SIGUSR2)
    renewed(running)
    push_raw(client, "work", 2)
    ended(witness, 2)
    assert witness.hgetall("t:release") == {"1": "1", "2": "3"}
    each_once(witness, 2)
    in_order(running, client, 2, complaints=1)


BROKEN = {
    "no Python": ("def (\n", "SyntaxError"),
    "a module that is missing": ("import nowhere_to_be_found\n", "nowhere_to_be_found"),
    "exit": ("import sys\nsys.exit(0)\n", "SystemExit"),
    "hard exit": ("import os\nos._exit(0)\n", "exit status 0"),
    "hard exit after a word": ("import os\nprint('loading', flush=True)\nos._exit(4)\n", "exit status 4"),
    "a crash": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "signal 11"),
    "no app": ("pass\n", "no attribute 'app'"),
    "another app": ("app = 3\n", "not an App"),
    "hangs": ("import time\ntime.sleep(600)\n", "not ready after 2 s"),
    "hangs with a process": ("import subprocess\nsubprocess.run(['sleep', '600'])\n", "not ready after 2 s"),
}


@pytest.mark.parametrize(
    "kind",
    list(BROKEN),
)
def test_code_that_cannot_follow_is_refused(
    kind: str, deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    code, words = BROKEN[kind]
    running = deployed("-c", "2", "--boot-timeout", "2" if "hangs" in kind else "20")
    before = running.child_pids()
    folder.write(code)
    running.signal(signal.SIGUSR2)
    stays_as_it_was(running, folder, client, witness, words, before)


def test_a_periodic_entry_that_cannot_be_used_is_refused(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    running = deployed("-c", "2")
    before = running.child_pids()
    folder.deploy(2, more='app.periodic("61 * * * *", "work")\n')
    running.signal(signal.SIGUSR2)
    stays_as_it_was(running, folder, client, witness, "61 * * * *", before)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"namespace": "other"}, "namespace"),
        ({"fetch": "basic"}, "fetch (reliable -> basic)"),
        ({"concurrency": "many"}, "concurrency"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_settings_that_jobs_at_hand_are_bound_to_are_refused(
    settings: dict[str, Any], words: str, deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    running = deployed("-c", "2") if "concurrency" not in settings else deployed()
    before = running.child_pids()
    folder.deploy(2)
    folder.configure(**settings)
    running.signal(signal.SIGUSR2)
    stays_as_it_was(running, folder, client, witness, words, before)


def test_another_server_is_refused(
    deployed: Start, folder: Folder, server: Server, client: Client, witness: Client
) -> None:
    folder.configure(redis_url=server.url)
    running = deployed("-c", "2", wrap=("env", "-u", "COGWORKERD_REDIS_URL"))
    before = running.child_pids()
    folder.configure(redis_url="redis://127.0.0.1:1/0")
    running.signal(signal.SIGUSR2)
    assert "redis_url" in refused(running)
    assert running.child_pids() == before
    folder.configure(redis_url=server.url)
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    renewed(running)
    push_raw(client, "work", 1)
    ended(witness, 1)
    in_order(running, client, 1, complaints=1)


@pytest.mark.parametrize("working_there", [False, True])
def test_a_folder_that_is_gone_is_refused(
    working_there: bool, deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    place = {"cwd": folder.folder, "env": {"PYTHONPATH": str(ROOT)}} if working_there else {}
    running = deployed("-c", "2", **place)
    before = running.child_pids()
    away = folder.folder.rename(folder.folder.with_name("away"))
    running.signal(signal.SIGUSR2)
    reason = refused(running)
    assert str(folder.folder) in reason, reason
    away.rename(folder.folder)
    stays_as_it_was(running, folder, client, witness, str(folder.folder), before)


# ---- code that can follow, and says more than that ------------------------------------------------------

TALKATIVE = {
    "a line at its end": "import atexit\natexit.register(print, 'bye')\n",
    "a line without an end": "if CHECK:\n    print('loading ... ', end='')\n",
    "a lot": "for n in range(2000):\n    print(n, 'x' * 100)\n",
    "somewhere else": "sys.stdout = (HERE / 'out').open('a')\n",
    "a thread that stays": "import threading\nthreading.Thread(target=time.sleep, args=(600,)).start()\n",
}


@pytest.mark.parametrize("kind", TALKATIVE)
def test_code_that_a_daemon_can_start_with_can_also_follow(
    kind: str, deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """The same code in both releases: the daemon runs with it."""
    folder.deploy(1, before=TALKATIVE[kind])
    running = deployed("-c", "1", "--boot-timeout", "5")
    folder.deploy(2, before=TALKATIVE[kind])
    running.signal(signal.SIGUSR2)
    eventually(lambda: running.lines("renewal.done") or running.lines("renewal.refused"), 15)
    assert running.lines("renewal.refused") == []
    renewed(running)
    push_raw(client, "work", 1)
    ended(witness, 1)
    assert witness.hget("t:release", "1") == "2"
    assert running.stop() == 0


def test_settings_of_the_apps_own_types_can_be_handed_over(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    enum = "import enum\nclass Names(enum.StrEnum):\n    DEFAULT = 'default'\n    MAIL = 'mail'\n"
    wanted = {"app_settings": "queues=[Names.DEFAULT, Names.MAIL]", "before": enum}
    folder.deploy(1, **wanted)
    running = deployed("-c", "1")
    folder.deploy(2, **wanted)
    running.signal(signal.SIGUSR2)
    eventually(lambda: running.lines("renewal.done") or running.lines("renewal.refused"), 15)
    assert running.lines("renewal.refused") == []
    renewed(running)
    push_raw(client, "work", 1)
    ended(witness, 1)
    in_order(running, client, 1)


def test_without_a_free_descriptor_all_stays_as_it_was(deployed: Start, client: Client, witness: Client) -> None:
    running = deployed("-c", "1")
    push_raw(client, "work", 1)
    ended(witness, 1)
    soft, hard = resource.prlimit(running.pid, resource.RLIMIT_NOFILE)
    most = max(int(name) for name in os.listdir(f"/proc/{running.pid}/fd"))
    numbers = {int(name) for name in os.listdir(f"/proc/{running.pid}/fd")}
    first_free = next(number for number in range(most + 2) if number not in numbers)
    resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (first_free, hard))
    running.signal(signal.SIGUSR2)
    eventually(lambda: running.lines("renewal.refused") or running.lines("daemon.crashed"), 15)
    resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert running.lines("daemon.crashed") == []
    running.signal(signal.SIGUSR2)
    renewed(running)
    push_raw(client, "work", 2)
    ended(witness, 2)
    assert running.stop() == 0


# ---- the number of slots, and other settings ------------------------------------------------------------


def test_more_slots(deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    folder.configure(concurrency=2)
    running = deployed()
    held(client, witness, 1, 2)
    folder.configure(concurrency=4)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    held(client, witness, 3, 4)
    assert len(running.child_pids()) == 4
    go(witness, 1, 2, 3, 4)
    renewed(running)
    assert len(running.child_pids()) == 4
    ended(witness, 1, 2, 3, 4)
    each_once(witness, 4)
    assert_descriptors_are_apart(running)
    assert "/4 busy" in running.title()
    in_order(running, client, 4)


def test_fewer_slots_with_jobs_in_all(deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    folder.configure(concurrency=4)
    running = deployed()
    held(client, witness, 1, 2, 3, 4)
    folder.configure(concurrency=2)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    assert len(running.child_pids()) == 4
    push_raw(client, "work", 5)
    go(witness, 1, 2, 3, 4)
    renewed(running)
    eventually(lambda: len(running.child_pids()) == 2)
    ended(witness, 1, 2, 3, 4, 5)
    each_once(witness, 5)
    assert_descriptors_are_apart(running)
    eventually(lambda: running.title().endswith("[0/2 busy]"))
    (key,) = client.keys("cogworker:process:*")
    eventually(lambda: len(json.loads(client.hget(key, "info"))["slots"]) == 2, 10)
    in_order(running, client, 5)


def test_fewer_slots_and_more_again_while_the_jobs_run(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """A slot that was to go is needed again before its child has left."""
    folder.configure(concurrency=4)
    running = deployed()
    held(client, witness, 1, 2, 3, 4)
    for count, times in ((2, 1), (4, 2), (1, 3), (3, 4)):
        folder.configure(concurrency=count)
        running.signal(signal.SIGUSR2)
        came(running, "renewal.done", times)
    go(witness, 1, 2, 3, 4)
    renewed(running, 4)
    ended(witness, 1, 2, 3, 4)
    eventually(lambda: len(running.child_pids()) == 3)
    held(client, witness, 5, 6, 7)
    go(witness, 5, 6, 7)
    ended(witness, 5, 6, 7)
    each_once(witness, 7)
    assert_descriptors_are_apart(running)
    in_order(running, client, 7)


def test_other_settings_are_those_of_the_new_release(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """A job that runs keeps the limit that it began with."""
    folder.configure(tag="old", queues="default")
    running = deployed("-c", "2")
    held(client, witness, 1)
    push_raw(client, "work", 2, queue="mail")
    folder.configure(tag="new", queues="default mail", timeout=2, timeout_grace=1)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    assert "cogworkerd:supervisor new [" in eventually(running.title)
    ended(witness, 2)
    push_raw(client, "hold", 3)
    (line,) = came(running, "job.interrupted")
    assert line["reason"] == "still running after 2 s"
    assert not witness.hexists("t:end", "3")
    assert witness.hget("t:start", "1") == "1"
    go(witness, 1)
    ended(witness, 1)
    renewed(running)
    assert all("slot" in " ".join(child.cmdline()) and "new" in child.cmdline()[0] for child in running.children())
    assert running.stop() == 0


# ---- a child dies at the moment of the exec -------------------------------------------------------------

AS_DAEMON = "if not CHECK and RELEASE == 2:\n    "


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_child_that_dies_while_the_new_program_starts(
    number: signal.Signals, deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """Exactly its job is orphaned and runs again; TERM is an order to leave, and no death."""
    running = deployed("-c", "3")
    pids = held(client, witness, 1, 2, 3)
    code = f"os.kill({pids[2]}, {int(number)})\n    time.sleep(0.3)\n"
    folder.deploy(2, more=AS_DAEMON + code)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    if number is not signal.SIGTERM:
        eventually(lambda: witness.hget("t:start", "2") == "2", 10)
        (line,) = came(running, "job.orphaned")
        assert (line["blame"], line["result"]) == (True, "requeued")
    go(witness, 1, 2, 3)
    renewed(running)
    ended(witness, 1, 2, 3)
    once = {"1": "1", "2": "1", "3": "1"}
    assert witness.hgetall("t:end") == once
    assert witness.hgetall("t:start") == (once if number is signal.SIGTERM else {**once, "2": "2"})
    eventually(lambda: inprogress(client) == [])
    eventually(lambda: zombies(running.pid) == [])
    assert len(running.lines("child.died")) == (0 if number is signal.SIGTERM else 1)
    assert running.stop() == 0
    running.clean_log()


def test_all_children_die_while_the_new_program_starts(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    running = deployed("-c", "3")
    pids = held(client, witness, 1, 2)
    everyone = running.child_pids()
    assert set(pids.values()) < set(everyone)
    folder.deploy(2, more=AS_DAEMON + f"[os.kill(pid, 9) for pid in {everyone}]\n    time.sleep(0.3)\n")
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    eventually(lambda: witness.hgetall("t:start") == {"1": "2", "2": "2"}, 15)
    go(witness, 1, 2)
    renewed(running)
    ended(witness, 1, 2)
    assert witness.hgetall("t:end") == {"1": "1", "2": "1"}
    eventually(lambda: inprogress(client) == [])
    assert running.stop() == 0


# ---- the new program fails after the exec ---------------------------------------------------------------


def test_a_program_that_ends_after_the_exec_loses_no_job(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    running = deployed("-c", "2")
    held(client, witness, 1, 2)
    for number in range(3, 13):
        push_raw(client, "work", number)
    folder.deploy(2, more=AS_DAEMON + "os._exit(1)\n")
    running.signal(signal.SIGUSR2)
    assert running.exited() == 1
    go(witness, 1, 2)
    ended(witness, 1, 2)
    folder.deploy(3)
    second = deployed("-c", "2")
    ended(witness, *range(1, 13), within=20)
    each_once(witness, 12)
    eventually(lambda: inprogress(client) == [], 20)
    assert second.stop() == 0
    assert client.keys("cogworker:orphanings:*") == []


def test_settings_that_break_after_the_exec_lose_no_job(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """The daemon ends with one sentence; its children end in order."""
    running = deployed("-c", "2")
    held(client, witness, 1)
    breaks = "(HERE / 'cogworkerd.toml').write_text('namespace = \"other\"')\n"
    folder.deploy(2, more=AS_DAEMON + breaks)
    running.signal(signal.SIGUSR2)
    assert running.exited() == 1
    assert "cogworkerd: changed settings need a stop and a start: namespace" in running.text()
    go(witness, 1)
    ended(witness, 1)
    (folder.folder / "cogworkerd.toml").unlink()
    folder.deploy(3)
    push_raw(client, "work", 2)
    second = deployed("-c", "2")
    ended(witness, 2)
    each_once(witness, 2)
    eventually(lambda: inprogress(client) == [], 20)
    assert second.stop() == 0
    running.clean_log()


@pytest.mark.parametrize("how", ["raise ValueError('only here')", "sys.exit(3)"])
def test_a_program_that_cannot_be_imported_any_more_goes_on_with_the_old_children(
    how: str, deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """One slot is down at most, until a good release comes; the old code works on meanwhile."""
    running = deployed("-c", "2")
    held(client, witness, 1)
    folder.deploy(2, more=f"if not CHECK:\n    {how}\n")
    running.signal(signal.SIGUSR2)
    (line,) = came(running, "renewal.without_app")
    assert "importing deployed failed" in line["reason"]
    go(witness, 1)
    ended(witness, 1)
    push_raw(client, "work", 2)
    ended(witness, 2)
    assert witness.hget("t:release", "2") == "1"
    assert len(running.child_pids()) >= 1
    folder.deploy(3)
    running.signal(signal.SIGUSR2)
    renewed(running, 2)
    push_raw(client, "work", 3)
    ended(witness, 3)
    assert witness.hget("t:release", "3") == "3"
    each_once(witness, 3)
    assert len(running.child_pids()) == 2
    assert min(ready_slots(running)) == 1
    eventually(lambda: inprogress(client) == [])
    assert running.stop() == 0


def test_the_old_program_goes_on_if_the_new_one_cannot_be_started(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """The working directory goes between the check and the exec."""
    place = folder.folder.parent / "place"
    place.mkdir()
    running = deployed("-c", "2", cwd=place, env={"PYTHONPATH": str(ROOT), "PWD": str(place)})
    held(client, witness, 1)
    goes = f"if CHECK:\n    os.rename({str(place)!r}, {str(place) + '-away'!r})\n"
    folder.deploy(2, more=goes)
    running.signal(signal.SIGUSR2)
    (line,) = came(running, "renewal.failed")
    assert str(place) in line["error"]
    push_raw(client, "work", 2)
    ended(witness, 2)
    go(witness, 1)
    ended(witness, 1)
    place.with_name("place-away").rename(place)
    folder.deploy(3)
    rolled(running)
    done = len(running.lines("renewal.done"))
    running.signal(signal.SIGUSR2)
    renewed(running, done + 1)
    push_raw(client, "work", 3)
    ended(witness, 3)
    assert witness.hgetall("t:release") == {"1": "1", "2": "1", "3": "3"}
    each_once(witness, 3)
    in_order(running, client, 3, complaints=1)


# ---- signals --------------------------------------------------------------------------------------------


def drained(deployed: Start, folder: Folder, client: Client, witness: Client, count: int) -> None:
    """A second daemon does what is left; every job of all has run once."""
    folder.deploy(9)
    last = deployed("-c", "2")
    eventually(lambda: witness.hlen("t:end") == count, 30)
    eventually(lambda: inprogress(client) == [], 20)
    each_once(witness, count)
    assert client.keys("cogworker:orphanings:*") == []
    assert last.stop() == 0


def test_a_stop_right_after(deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    running = deployed("-c", "2")
    push_raw(client, "work", 1, 1.0)
    eventually(lambda: witness.hexists("t:start", "1"))
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    running.signal(signal.SIGTERM)
    assert running.exited() == 0
    assert witness.hgetall("t:end") == {"1": "1"}
    running.clean_log()
    drained(deployed, folder, client, witness, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_stop_at_any_moment(seed: int, deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    """TERM up to two seconds after USR2, which is before, at and after the exec."""
    chance = random.Random(seed)
    running = deployed("-c", "2")
    for number in range(30):
        push_raw(client, "work", number, chance.uniform(0, 0.4))
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    time.sleep((seed + chance.random()) / 6)  # the moment is the case
    assert running.stop() == 0
    running.clean_log()
    drained(deployed, folder, client, witness, 30)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_stop_while_the_new_program_starts(
    name: str, deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """It comes at the import, before the new program can handle it."""
    _stop_at_the_import(f"os.kill(os.getpid(), signal.{name})\n", deployed, folder, client, witness)


def test_a_stop_while_the_new_program_turns_preload_off(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """It is becoming another program once more, to be rid of a thread."""
    code = (
        "import threading\n    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "    from cogworkerd.supervisor.handover import Handover\n    _write = Handover.write\n"
        "    Handover.write = lambda self: (time.sleep(0.3), _write(self))[1]\n"
        "    if setproctitle.getproctitle().startswith('cogworkerd:supervisor'):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    _stop_at_the_import(code, deployed, folder, client, witness)


def _stop_at_the_import(code: str, deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    running = deployed("-c", "2")
    held(client, witness, 1)
    folder.deploy(2, more=AS_DAEMON + code)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    came(running, "daemon.stopping", within=10)
    go(witness, 1)
    assert running.exited() == 0
    assert running.lines("daemon.stopped")
    running.clean_log()
    drained(deployed, folder, client, witness, 1)


def test_signals_while_the_new_program_starts_are_kept(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """TSTP, CONT, HUP and USR2 at its import."""
    running = deployed("-c", "2")
    names = ("SIGHUP", "SIGUSR2", "SIGTSTP")
    code = "".join(f"os.kill(os.getpid(), signal.{name}); " for name in names)
    folder.deploy(
        2,
        more=AS_DAEMON + code + "(HERE / 'deployed.py').write_text(Path(__file__).read_text()"
        ".replace('RELEASE = 2', 'RELEASE = 3'))\n",
    )
    running.signal(signal.SIGUSR2)
    came(running, "daemon.quiet")
    came(running, "renewal.done", 2)
    rolled(running)
    push_raw(client, "work", 1)
    assert "quiet" in running.title()
    running.signal(signal.SIGCONT)
    ended(witness, 1)
    in_order(running, client, 1)


@pytest.mark.parametrize("others", [(), (signal.SIGHUP,), (signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT)])
def test_many_at_once(
    others: tuple[signal.Signals, ...], deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """The newest code runs in the end."""
    running = deployed("-c", "2")
    held(client, witness, 1)
    for number in range(2, 8):
        folder.deploy(number)
        running.signal(signal.SIGUSR2)
        for other in others:
            running.signal(other)
    ask(running)
    go(witness, 1)
    rolled(running)
    push_raw(client, "work", 2)
    ended(witness, 1, 2)
    assert witness.hget("t:release", "2") == "7"
    each_once(witness, 2)
    in_order(running, client, 2)


def test_quiet_lasts_over_a_renewal(deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    running = deployed("-c", "2")
    held(client, witness, 1)
    running.signal(signal.SIGTSTP)
    came(running, "daemon.quiet")
    push_raw(client, "work", 2)
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    go(witness, 1)
    renewed(running)
    assert "quiet" in running.title()
    assert client.llen("cogworker:queue:default") == 1
    assert not witness.hexists("t:start", "2")
    running.signal(signal.SIGCONT)
    ended(witness, 1, 2)
    assert witness.hget("t:release", "2") == "2"
    assert "quiet" not in running.title()
    each_once(witness, 2)
    in_order(running, client, 2)


def test_in_the_middle_of_a_roll_that_waits_for_a_long_job(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    running = deployed("-c", "2")
    before = set(running.child_pids())
    pids = held(client, witness, 1)
    running.signal(signal.SIGHUP)
    eventually(lambda: set(running.child_pids()) & before == {pids[1]}, 10)
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    push_raw(client, "work", 2)
    ended(witness, 2)
    go(witness, 1)
    renewed(running)
    each_once(witness, 2)
    in_order(running, client, 2)


def test_no_second_slot_goes_down_where_a_roll_before_has_told_one(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """The first roll has told the slot with the long job, which may go down at any moment: the second waits for it."""
    slow = "@app.on_child_start\ndef slow():\n    time.sleep(1.5)\n"
    folder.deploy(1, more=slow)
    running = deployed("-c", "2")
    before = set(running.child_pids())
    pids = held(client, witness, 1)
    running.signal(signal.SIGHUP)
    eventually(lambda: running.lines("child.left") and set(running.child_pids()) & before == {pids[1]}, 10)
    # The other one is ready again, and the slot with the job is the next to be told.
    eventually(lambda: len([1 for line in running.lines("report") if line["kind"] == "READY"]) == 3, 10)
    left = len(running.lines("child.left"))
    folder.deploy(2, more=slow)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    eventually(lambda: len(running.lines("roll.started")) == 2)
    assert len(running.lines("child.left")) == left
    go(witness, 1)
    renewed(running)
    ended(witness, 1)
    each_once(witness, 1)
    assert min(ready_slots(running)) == 1
    in_order(running, client, 1)


def test_a_stop_while_it_comes_to_rest_drains_as_any_stop(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """Timeouts go on during the drain."""
    rests = (
        "import asyncio\nfrom cogworkerd.supervisor.supervisor import Supervisor\n"
        "_rest = Supervisor._come_to_rest\n"
        "async def _slow(self):\n    await _rest(self)\n    witness.set('t:resting', 1)\n    await asyncio.sleep(1)\n"
        "Supervisor._come_to_rest = _slow\n"
    )
    folder.deploy(1, more=rests)
    running = deployed("-c", "2", "--shutdown-timeout", "20")
    held(client, witness, 1, timeout=4, retry=False)
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    eventually(lambda: witness.exists("t:resting"), 15)
    running.signal(signal.SIGTERM)
    assert running.exited() == 0
    (line,) = running.lines("job.interrupted")
    assert line["order"] == "timeout"
    assert float(witness.hget("t:seconds", "1")) < 6
    assert client.zcard("cogworker:dead") == 1


def test_reports_while_it_leaves_are_not_lost(deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    """Hanging up takes a while; what children say meanwhile counts."""
    slow = (
        "import asyncio\nfrom cogworkerd.supervisor.supervisor import Supervisor\n"
        "_close = Supervisor._close_connections\n"
        "async def _slowly(self):\n    witness.set('t:closing', 1)\n    await asyncio.sleep(0.5)\n"
        "    await _close(self)\n"
        "Supervisor._close_connections = _slowly\n"
    )
    folder.deploy(1, more=slow)
    running = deployed("-c", "2")
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    pushed = 0
    while not running.lines("renewal.done"):
        for _ in range(20):
            push_raw(client, "work", pushed, 0.01)
            pushed += 1
        eventually(lambda: client.llen("cogworker:queue:default") < 5, 20)
    renewed(running)
    eventually(lambda: witness.hlen("t:end") == pushed, 20)
    each_once(witness, pushed)
    recorded(client, pushed)
    in_order(running, client, pushed)


def test_a_child_that_says_hello_while_it_leaves_is_known_as_ready(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """Its job is not killed for a hello that was heard."""
    slow = (
        "import asyncio\nfrom cogworkerd.supervisor.supervisor import Supervisor\n"
        "_close = Supervisor._close_connections\n"
        "async def _slowly(self):\n    witness.set('t:closing', 1)\n    await asyncio.sleep(1)\n"
        "    await _close(self)\n"
        "Supervisor._close_connections = _slowly\n"
        "@app.on_child_start\ndef gate():\n"
        "    while witness.exists('t:gate') and not witness.exists('t:closing'):\n        time.sleep(0.01)\n"
    )
    folder.deploy(1, more=slow)
    running = deployed("-c", "2", "--boot-timeout", "6")
    witness.set("t:gate", 1)
    victim = running.child_pids()[0]
    os.kill(victim, signal.SIGTERM)
    came(running, "child.started", 3)
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    witness.delete("t:gate")
    renewed(running, within=15)
    assert running.lines("child.killed") == []
    assert running.stop() == 0
    running.clean_log()


def test_code_that_was_refused_last_is_not_what_runs(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """Good code was found fit and waits for the end of a death hook; broken code comes meanwhile, and is tried, too."""
    hook = (
        "@app.on_death\ndef slow_hook(job, error):\n"
        "    witness.set('t:hook', 1)\n"
        "    while not witness.exists('t:hook:go'):\n        time.sleep(0.02)\n"
    )
    folder.deploy(1, more=hook)
    running = deployed("-c", "1", "--max-orphanings", "1")
    for times in ("1", "2"):
        eventually(lambda: running.child_pids(), 10)
        if times == "1":
            push_raw(client, "hold", 1)
        eventually(lambda times=times: witness.hget("t:start", "1") == times, 15)
        os.kill(int(witness.hget("t:pid", "1")), signal.SIGKILL)
    eventually(lambda: witness.exists("t:hook"), 10)
    before = _pids_below(running)
    folder.deploy(2, more=hook)
    running.signal(signal.SIGUSR2)
    (check,) = eventually(lambda: _pids_below(running) - before, 10)
    eventually(lambda: check not in _pids_below(running), 10)
    folder.write("import nowhere_to_be_found\n")
    running.signal(signal.SIGUSR2)
    came(running, "renewal.started", 2)
    witness.set("t:hook:go", 1)
    assert "nowhere_to_be_found" in refused(running)
    never(lambda: running.lines("renewal.without_app"), 4)
    assert running.stop() == 0


def never(look: Callable[[], Any], seconds: float) -> None:
    """What would be wrong does not come within this time."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        found = look()
        assert not found, found
        time.sleep(0.02)


def _pids_below(running: Daemon) -> set[int]:
    return {child.pid for child in psutil.Process(running.pid).children()}


# ---- the server in trouble ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["suspended", pytest.param("suspended for long", marks=pytest.mark.slow), "killed"])
def test_the_server_is_away_meanwhile(
    how: str, deployed: Start, folder: Folder, mortal: Server, witness: Client
) -> None:
    running = deployed("-c", "2", url=mortal.url)
    with mortal.client() as client:
        held(client, witness, 1)
        for number in range(2, 30):
            push_raw(client, "work", number, 0.05)
        ended(witness, 5)
        folder.deploy(2)
        assert mortal.process is not None
        if how == "killed":
            running.signal(signal.SIGUSR2)
            mortal.stop()
        else:
            mortal.process.send_signal(signal.SIGSTOP)
            running.signal(signal.SIGUSR2)
    came(running, "renewal.done", within=30)
    if how == "killed":
        mortal.start()
    else:
        if how.endswith("long"):
            time.sleep(15)  # the length is the case
        mortal.process.send_signal(signal.SIGCONT)
    go(witness, 1)
    rolled(running, 40)
    ended(witness, *range(1, 30), within=30)
    with mortal.client() as client:
        eventually(lambda: inprogress(client) == [], 20)
        each_once(witness, 29)
        assert client.keys("cogworker:orphanings:*") == []
        assert client.zcard("cogworker:retry") == 0
    assert running.lines("child.died") == []
    assert running.lines("child.killed") == []
    assert running.stop() == 0
    running.clean_log()


# ---- clocks that span it --------------------------------------------------------------------------------


def test_a_timeout_that_began_before_ends_the_job_after_it_on_time(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    running = deployed("-c", "2")
    held(client, witness, 1, timeout=5, retry=1)
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    assert running.lines("job.interrupted") == []
    (line,) = came(running, "job.interrupted")
    assert line["order"] == "timeout"
    seconds = float(eventually(lambda: witness.hget("t:seconds", "1")))
    assert 4.9 < seconds < 6.5
    renewed(running)
    eventually(lambda: client.zcard("cogworker:retry") == 1)
    assert witness.hgetall("t:start") == {"1": "1"}
    assert running.lines("child.died") == []
    assert running.stop() == 0


def test_a_cancel_whose_grace_spans_it_kills_on_time(
    deployed: Start, folder: Folder, server: Server, client: Client, witness: Client
) -> None:
    running = deployed("-c", "2")
    (identity,) = client.smembers("cogworker:processes")
    jid = push_raw(client, "stubborn", 1, retry=False)
    eventually(lambda: witness.hexists("t:start", "1"))
    eventually(lambda: client.pubsub_numsub(f"cogworker:signal:{identity}")[0][1])
    app = App(server.url)
    assert Running(app).cancel(jid, grace=5.0)
    began = time.monotonic()
    app.client.close()
    eventually(lambda: witness.hget("t:told", "1") == "1")
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    assert running.lines("child.killed") == []
    (line,) = came(running, "child.killed")
    assert "JobCancelled" in line["why"]
    assert 4.5 < time.monotonic() - began < 7.5
    renewed(running)
    eventually(lambda: client.zcard("cogworker:dead") == 1)
    assert witness.hgetall("t:start") == {"1": "1"}
    eventually(lambda: inprogress(client) == [])
    assert running.stop() == 0


# ---- ways to be deployed --------------------------------------------------------------------------------


def test_with_a_private_server(deployed: Start, folder: Folder, tmp_path: Path, witness: Client) -> None:
    data = tmp_path / "data"
    running = deployed("-c", "2", "--embedded", str(data))
    url = embedded.url_of(str(data))
    with redis.Redis.from_url(url, decode_responses=True) as client:
        server = client.info()["process_id"]
        held(client, witness, 1)
        for number in (2, 3, 4):
            folder.deploy(number)
            running.signal(signal.SIGUSR2)
            came(running, "renewal.done", number - 1)
            push_raw(client, "work", number)
            ended(witness, number)
        go(witness, 1)
        renewed(running, 3)
        ended(witness, 1)
        push_raw(client, "work", 5)
        ended(witness, 5)
        each_once(witness, 5)
        assert witness.hget("t:release", "5") == "4"
        assert client.info()["process_id"] == server
        eventually(lambda: client.get("cogworker:stats:processed") == "5")
    assert running.stop() == 0
    assert not psutil.pid_exists(server)
    running.clean_log()


@pytest.mark.parametrize("kind", ["no preload", "a thread", "a thread later"])
def test_without_preload(kind: str, deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    thread = "import threading\nthreading.Thread(target=time.sleep, args=(600,), name='metrics', daemon=True).start()\n"
    flags = ["--no-preload"] if kind == "no preload" else []
    folder.deploy(1, more=thread if kind == "a thread" else "")
    running = deployed("-c", "2", *flags)
    held(client, witness, 1)
    for number in (2, 3):
        folder.deploy(number, more=thread if kind != "no preload" else "")
        running.signal(signal.SIGUSR2)
        came(running, "renewal.done", number - 1)
        push_raw(client, "work", number)
        ended(witness, number)
    assert psutil.Process(running.pid).num_threads() == 1
    go(witness, 1)
    renewed(running, 2)
    push_raw(client, "work", 4)
    ended(witness, 1, 4)
    each_once(witness, 4)
    assert witness.hget("t:release", "4") == "3"
    complaints = {"no preload": 0, "a thread": 3, "a thread later": 2}[kind]
    assert len(running.lines("preload.threads")) == complaints
    in_order(running, client, 4, complaints)


@pytest.mark.parametrize("told", [True, False])
def test_a_link_to_the_newest_release_as_working_directory(
    told: bool, daemon: Start, tmp_path: Path, client: Client, witness: Client
) -> None:
    """Where PWD names the link, the new program works behind it; else it stays where it is."""
    folders = []
    for number in (1, 2):
        (tmp_path / f"release-{number}").mkdir()
        folders.append(Folder(tmp_path / f"release-{number}"))
        folders[-1].deploy(number)
    current = tmp_path / "current"
    current.symlink_to(folders[0].folder)
    named = str(current) if told else "/"
    running = daemon(
        "-c", "2", target="deployed:app", app_dir=".", cwd=current, env={"PYTHONPATH": str(ROOT), "PWD": named}
    ).ready()
    held(client, witness, 1)
    (tmp_path / "next").symlink_to(folders[1].folder)
    (tmp_path / "next").rename(current)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    go(witness, 1)
    renewed(running)
    push_raw(client, "work", 2)
    ended(witness, 1, 2)
    assert witness.hgetall("t:release") == {"1": "1", "2": "2" if told else "1"}
    assert os.readlink(f"/proc/{running.pid}/cwd") == str(folders[1 if told else 0].folder)
    in_order(running, client, 2)


def test_an_interpreter_behind_a_link(
    deployed: Start, folder: Folder, tmp_path: Path, client: Client, witness: Client
) -> None:
    """Each virtual environment has a module of its own."""
    for number in (1, 2):
        made = tmp_path / f"venv-{number}"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
        (packages,) = made.glob("lib/*/site-packages")
        (packages / "marker.py").write_text(f"RELEASE = {number}\n")
    current = tmp_path / "current"
    current.symlink_to(tmp_path / "venv-1")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    folder.deploy(0, more="from marker import RELEASE\n")
    running = deployed(
        *("-c", "2"),
        wrap=("sh", "-c", f'shift; exec {current}/bin/python "$@"', "sh"),
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), *ours])},
    )
    held(client, witness, 1)
    (tmp_path / "next").symlink_to(tmp_path / "venv-2")
    (tmp_path / "next").rename(current)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    go(witness, 1)
    renewed(running)
    push_raw(client, "work", 2)
    ended(witness, 1, 2)
    assert witness.hgetall("t:release") == {"1": "1", "2": "2"}
    in_order(running, client, 2)


# ---- hooks, boots, the service manager ------------------------------------------------------------------


def test_death_hooks_that_wait_are_not_cut_off(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """Each has its own time, here 4 s instead of 30: one that has begun ends, the next is called by the new program."""
    hook = (
        "import cogworkerd.supervisor.supervisor as a, cogworkerd.supervisor.death_hooks as b\n"
        "a.HOOK_LIMIT = b.HOOK_LIMIT = 4.0\n"
        "@app.on_death\ndef slow_hook(job, error):\n"
        "    witness.hincrby('t:hook:begun', job.jid, 1)\n    time.sleep(2.6)\n"
        "    witness.hincrby('t:hook:ended', job.jid, 1)\n"
    )
    folder.deploy(1, more=hook)
    running = deployed("-c", "3", "--max-orphanings", "1")
    for number in (1, 2, 3):
        push_raw(client, "hold", number)
    for times in ("1", "2"):
        eventually(lambda times=times: witness.hvals("t:start") == [times] * 3, 15)
        for pid in witness.hvals("t:pid"):
            os.kill(int(pid), signal.SIGKILL)
    eventually(lambda: witness.hlen("t:hook:begun") == 1, 10)
    folder.deploy(2, more=hook)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done", within=30)
    eventually(lambda: witness.hlen("t:hook:begun") == 3, 20)
    eventually(lambda: witness.hlen("t:hook:ended") == 3 or running.lines("death_hook.lost"), 20)
    assert running.lines("death_hook.lost") == []
    assert set(witness.hvals("t:hook:begun")) == {"1"}
    assert running.stop() == 0


def test_a_renewal_during_the_boot_says_ready_all_the_same(
    deployed: Start, daemon: Start, folder: Folder, client: Client, witness: Client
) -> None:
    folder.deploy(1, more="@app.on_child_start\ndef slow():\n    time.sleep(2.5)\n")
    running = daemon("-c", "2", target="deployed:app", app_dir=folder.folder)
    came(running, "child.started")
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    renewed(running)
    push_raw(client, "work", 1)
    ended(witness, 1)
    assert witness.hget("t:release", "1") == "2"
    assert running.lines("daemon.ready")
    in_order(running, client, 1)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.socket.close()


def test_the_service_manager_is_told_of_each_try(
    deployed: Start, folder: Folder, manager: Manager, client: Client, witness: Client
) -> None:
    """A try is a reload; it ends with a READY whether the code was good or not. Nobody else speaks."""
    running = deployed("-c", "2", env=environment(manager, 30.0))
    eventually(lambda: manager.said("READY=1"))
    folder.write("import nowhere_to_be_found\n")
    running.signal(signal.SIGUSR2)
    refused(running)
    eventually(lambda: manager.hear().count("READY=1") == 2)
    assert len([text for text in manager.hear() if text.startswith("RELOADING=1")]) == 1
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    renewed(running)
    told = manager.hear()
    assert told[-1 - told[::-1].index("READY=1") :].count("READY=1") == 1
    assert len([text for text in told if text.startswith("RELOADING=1")]) == 2
    heard = told.count("WATCHDOG=1")
    eventually(lambda: manager.hear().count("WATCHDOG=1") > heard, 15)
    assert manager.speakers() == {running.pid}
    assert running.stop() == 0


def test_the_watchdog_is_fed_while_the_new_program_starts(deployed: Start, folder: Folder, manager: Manager) -> None:
    """An import that the check has allowed is no hang: the manager is fed, or told to wait longer."""
    limit = 2.0
    running = deployed("-c", "1", env=environment(manager, limit))
    eventually(lambda: manager.hear().count("WATCHDOG=1") >= 2)
    folder.deploy(2, more="time.sleep(3)\n")
    running.signal(signal.SIGUSR2)
    came(running, "renewal.started")
    eventually(lambda: manager.hear() and running.lines("renewal.done"), 30)
    eventually(lambda: manager.hear() and running.lines("roll.done"), 20)
    fed = [when for when, _, text in manager.heard if "WATCHDOG=1" in text]
    gaps = max(after - before for before, after in itertools.pairwise(fed))
    assert gaps < limit or manager.said("WATCHDOG_USEC="), f"{gaps:.1f} s without a word"
    assert running.stop() == 0


# ---- what else a daemon may be --------------------------------------------------------------------------


def test_an_outcome_that_waits_for_the_server_is_settled_once(
    deployed: Start, folder: Folder, mortal: Server, witness: Client
) -> None:
    """The job has ended, the server is away, the child is killed: the new program settles it."""
    running = deployed("-c", "2", url=mortal.url)
    assert mortal.process is not None
    with mortal.client() as client:
        pids = held(client, witness, 1)
    mortal.process.send_signal(signal.SIGSTOP)
    go(witness, 1)
    ended(witness, 1)
    eventually(lambda: any(line["kind"] == "PERFORMED" for line in running.lines("report")))
    os.kill(pids[1], signal.SIGKILL)
    came(running, "child.died")
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done", within=30)
    mortal.process.send_signal(signal.SIGCONT)
    rolled(running, 40)
    with mortal.client() as client:
        eventually(lambda: inprogress(client) == [], 20)
        eventually(lambda: client.get("cogworker:stats:processed") == "1")
        each_once(witness, 1)
        assert client.llen("cogworker:queue:default") == 0
    assert running.stop() == 0


def test_with_basic_fetch(deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    running = deployed("-c", "2", "--fetch", "basic")
    held(client, witness, 0)
    pushed = 1
    for number in range(2, 5):
        folder.deploy(number)
        running.signal(signal.SIGUSR2)
        while len(running.lines("renewal.done")) < number - 1:
            if client.llen("cogworker:queue:default") < 20:
                push_raw(client, "work", pushed, 0.01)
                pushed += 1
            else:
                time.sleep(0.02)
    go(witness, 0)
    rolled(running)
    eventually(lambda: witness.hlen("t:end") == pushed, 30)
    each_once(witness, pushed)
    in_order(running, client, pushed)


def test_what_an_import_changes_does_not_reach_the_next_program(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """Working directory, umask, environment, arguments: each program begins as the first one did."""
    changes = (
        "_umask = os.umask(0o077)\n"
        "witness.rpush('t:began', repr((os.getcwd(), oct(_umask), os.environ.get('CHANGED'), sys.argv)))\n"
        "os.chdir('/')\nos.environ['CHANGED'] = 'yes'\nos.environ['PWD'] = '/'\nsys.argv.append('more')\n"
        "os.environ['COGWORKERD_NAMESPACE'] = 'other'\n"
    )
    folder.deploy(1, more=changes.replace("os.environ['COGWORKERD_NAMESPACE'] = 'other'\n", ""))
    running = deployed("-c", "2")
    for number in (2, 3):
        folder.deploy(number, more=changes.replace("os.environ['COGWORKERD_NAMESPACE'] = 'other'\n", ""))
        running.signal(signal.SIGUSR2)
        renewed(running, number - 1)
    began = witness.lrange("t:began", 0, -1)
    assert len(began) == 5
    assert len(set(began)) == 1
    assert running.stop() == 0


def test_a_program_that_cannot_be_imported_any_more_with_a_single_slot(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """The old child goes on, since nobody could take its place."""
    running = deployed("-c", "1")
    folder.deploy(2, more="if not CHECK:\n    raise ValueError('only here')\n")
    running.signal(signal.SIGUSR2)
    came(running, "renewal.without_app")
    never(lambda: running.process.poll() is not None, 4)
    push_raw(client, "work", 1)
    ended(witness, 1)
    assert running.stop() == 0


@pytest.mark.parametrize("catch_up", ["latest", "none"])
def test_a_periodic_slot_that_comes_while_the_new_program_starts_is_fired(
    catch_up: str, deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """A renewal is no downtime."""
    more = 'app.periodic("* * * * * */6", "work", args=["tick"])\n'
    folder.deploy(1, more=more)
    running = deployed("-c", "2", "--periodic-catch-up", catch_up)
    came(running, "cron.fired", 1)
    during = "time.sleep(6.05 - time.time() % 6)\n    witness.set('t:instant', int(time.time() // 6 * 6))\n"
    folder.deploy(2, more=more + AS_DAEMON + during)
    running.signal(signal.SIGUSR2)
    renewed(running)
    instant = int(witness.get("t:instant"))
    eventually(lambda: [line for line in running.lines("cron.fired") if line["slot"] >= instant], 15)
    slots = [line["slot"] for line in running.lines("cron.fired")]
    assert len(set(slots)) == len(slots)
    assert instant in slots
    assert running.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_in_any_order(
    seed: int, deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """Renewals, good and broken, rolls, pauses, killed children, other numbers of slots: a job runs twice only if its
    child was killed."""
    chance = random.Random(seed)
    folder.configure(concurrency=3)
    running = deployed()
    pushed, killed, asked, limit = 0, 0, False, time.monotonic() + 15
    while time.monotonic() < limit:
        for _ in range(20):
            push_raw(client, "work", pushed, chance.choice([0, 0, 0.05, 0.3]), jid=f"j{pushed:023}")
            pushed += 1
        what = chance.choice(["good", "good", "broken", "roll", "quiet", "kill", "slots"])
        if what == "kill" and (pids := running.child_pids()):
            os.kill(chance.choice(pids), signal.SIGKILL)
            killed += 1
        elif what == "roll":
            running.signal(signal.SIGHUP)
        elif what == "quiet":
            running.signal(signal.SIGTSTP)
            running.signal(signal.SIGCONT)
        elif what == "broken":
            if asked:
                rolled(running, 60)  # or it could take the place of a good one behind the check
            times = len(running.lines("renewal.refused"))
            folder.write("import nowhere_to_be_found\n")
            ask(running)
            refused(running, times + 1)
        else:
            if what == "slots":
                folder.configure(concurrency=chance.randint(1, 5))
            folder.deploy(pushed)
            ask(running)
            asked = True
        time.sleep(chance.uniform(0, 1))  # the pace is the case
    folder.configure(concurrency=2)
    folder.deploy(0)
    running.signal(signal.SIGCONT)
    ask(running)
    rolled(running, 60)
    eventually(lambda: witness.hlen("t:end") == pushed, 60)
    eventually(lambda: inprogress(client) == [], 20)
    eventually(lambda: len(running.child_pids()) == 2)
    victims = {int(line["jid"][1:]) for line in running.lines("child.died") if line["jid"]}
    victims |= {int(line["jid"][1:]) for line in running.lines("job.stray")}
    for name in ("t:start", "t:end"):
        twice = {int(number) for number, count in witness.hgetall(name).items() if count != "1"}
        assert twice <= victims, (twice, victims)
    assert len(running.lines("child.died")) <= killed
    assert running.lines("renewal.without_app") == []
    assert running.lines("child.killed") == []
    assert zombies(running.pid) == []
    assert_descriptors_are_apart(running)
    assert running.stop() == 0
    running.clean_log()


# ---- descriptors ----------------------------------------------------------------------------------------


def test_descriptors_do_not_grow(deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    running = deployed("-c", "3")

    def counts() -> list[dict[str, int]]:
        """Of the supervisor and its children, by kind; sockets come and go with the connections of a pool."""
        found = []
        for pid in (running.pid, *running.child_pids()):
            kinds = {kind: len(inodes) for kind, inodes in descriptors(pid).items()}
            found.append({kind: count for kind, count in kinds.items() if kind != "socket"})
        return found

    def sockets() -> int:
        return max(len(descriptors(pid)["socket"]) for pid in (running.pid, *running.child_pids()))

    first: list[dict[str, int]] = []
    for number in range(2, 8):
        held(client, witness, number)
        folder.deploy(number)
        running.signal(signal.SIGUSR2)
        came(running, "renewal.done", number - 1)
        go(witness, number)
        renewed(running, number - 1)
        ended(witness, number)
        assert_descriptors_are_apart(running)
        assert psutil.Process(running.pid).num_threads() == 1
        first = first or counts()
    eventually(lambda: counts() == first, 5, f"{first}")
    assert sockets() < 12
    for pid in running.child_pids():
        assert psutil.Process(pid).num_threads() == 1
    assert zombies(running.pid) == []
    each_once(witness, 6)
    in_order(running, client, 6)


# ---- many reports ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_large_and_many_reports_while_renewals_come_every_half_second(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """Payloads, errors and runs that fill pipes; each job once, each counted once."""
    running = deployed("-c", "4")
    pushed = failed = 0
    for number in range(2, 12):
        began = time.monotonic()
        with client.pipeline() as pipe:
            for n in range(100):
                if n % 10 == 0:
                    push_raw(pipe, "fail", pushed, 100_000, retry=False)
                    failed += 1
                else:
                    push_raw(pipe, "work", pushed, 0.0, "x" * (200_000 if n % 9 == 0 else 10))
                pushed += 1
            pipe.execute()
        folder.deploy(number)
        running.signal(signal.SIGUSR2)
        time.sleep(max(0.0, began + 0.5 - time.monotonic()))  # the pace is the case
    eventually(lambda: witness.hlen("t:end") == pushed, 90)
    ask(running)
    rolled(running, 60)
    push_raw(client, "work", pushed)
    ended(witness, pushed)
    assert witness.hget("t:release", str(pushed)) == "11"
    each_once(witness, pushed + 1)
    eventually(lambda: inprogress(client) == [])
    eventually(lambda: client.get("cogworker:stats:failed") == str(failed))
    eventually(lambda: client.get("cogworker:stats:processed") == str(pushed + 1 - failed))
    assert client.zcard("cogworker:dead") == failed
    assert min(ready_slots(running)) == 3
    for name in ("child.died", "child.killed", "job.orphaned", "job.stray"):
        assert running.lines(name) == []
    assert running.stop() == 0
    assert {line["event"] for line in running.complaints()} <= {"job.dead"}


def test_jobs_and_renewals_without_a_pause(deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    """Fast jobs all the time, eight renewals one after the other."""
    running = deployed("-c", "3")
    pushed = 0
    for number in range(2, 10):
        folder.deploy(number)
        running.signal(signal.SIGUSR2)
        while len(running.lines("renewal.done")) < number - 1:
            if client.llen("cogworker:queue:default") < 200:
                with client.pipeline() as pipe:
                    for _ in range(300):
                        push_raw(pipe, "work", pushed)
                        pushed += 1
                    pipe.execute()
            time.sleep(0.02)
    rolled(running)
    eventually(lambda: witness.hlen("t:end") == pushed, 60)
    each_once(witness, pushed)
    in_order(running, client, pushed)
