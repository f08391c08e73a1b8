"""Servers, clocks, folders, interpreters and service managers around a renewal."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import redis

from cogworkerd import App, embedded
from cogworkerd.inspect import Running
from tests.process.renewal.deploys import (
    Folder,
    Start,
    came,
    ended,
    go,
    held,
    point,
    refused,
    renewed_around_a_job,
    rolled,
)
from tests.process.test_renewal import each_once, in_order, renewed
from tests.process.test_service import Manager, environment
from tests.support import ROOT, Client, Server, eventually, inprogress, push_raw

pytestmark = pytest.mark.timeout(180)

# ---- the server in trouble ------------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    point(current, folders[1].folder)
    renewed_around_a_job(running, client, witness)
    assert witness.hgetall("t:release") == {"1": "1", "2": "2" if told else "1"}
    assert os.readlink(f"/proc/{running.pid}/cwd") == str(folders[1 if told else 0].folder)
    in_order(running, client, 2)


@pytest.mark.slow
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
    point(current, tmp_path / "venv-2")
    renewed_around_a_job(running, client, witness)
    assert witness.hgetall("t:release") == {"1": "1", "2": "2"}
    in_order(running, client, 2)


# ---- hooks, boots, the service manager ------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
