"""Code and settings that cannot follow, and such as can although they look as if they could not."""

from __future__ import annotations

import os
import resource
import signal
from typing import Any

import pytest

from tests.process.renewal.deploys import Folder, Start, ended, followed, refused
from tests.process.test_renewal import each_once, in_order, renewed
from tests.support import ROOT, Client, Daemon, Server, eventually, push_raw, zombies

pytestmark = pytest.mark.timeout(180)

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
    "kind", [kind if kind == "no Python" else pytest.param(kind, marks=pytest.mark.slow) for kind in BROKEN]
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


@pytest.mark.slow
def test_a_periodic_entry_that_cannot_be_used_is_refused(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    running = deployed("-c", "2")
    before = running.child_pids()
    folder.deploy(2, more='app.periodic("61 * * * *", "work")\n')
    running.signal(signal.SIGUSR2)
    stays_as_it_was(running, folder, client, witness, "61 * * * *", before)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", TALKATIVE)
def test_code_that_a_daemon_can_start_with_can_also_follow(
    kind: str, deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """The same code in both releases: the daemon runs with it."""
    folder.deploy(1, before=TALKATIVE[kind])
    running = deployed("-c", "1", "--boot-timeout", "5")
    folder.deploy(2, before=TALKATIVE[kind])
    running.signal(signal.SIGUSR2)
    followed(running)
    push_raw(client, "work", 1)
    ended(witness, 1)
    assert witness.hget("t:release", "1") == "2"
    assert running.stop() == 0


@pytest.mark.slow
def test_settings_of_the_apps_own_types_can_be_handed_over(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    enum = "import enum\nclass Names(enum.StrEnum):\n    DEFAULT = 'default'\n    MAIL = 'mail'\n"
    wanted = {"app_settings": "queues=[Names.DEFAULT, Names.MAIL]", "before": enum}
    folder.deploy(1, **wanted)
    running = deployed("-c", "1")
    folder.deploy(2, **wanted)
    running.signal(signal.SIGUSR2)
    followed(running)
    push_raw(client, "work", 1)
    ended(witness, 1)
    in_order(running, client, 1)


@pytest.mark.slow
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
