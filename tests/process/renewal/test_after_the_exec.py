"""The new program, or a child, fails at the moment of the exec or after it."""

from __future__ import annotations

import signal

import pytest

from tests.process.renewal.deploys import AS_DAEMON, Folder, Start, came, ended, go, held, rolled
from tests.process.test_renewal import each_once, in_order, ready_slots, renewed
from tests.support import ROOT, Client, eventually, inprogress, push_raw, zombies

pytestmark = pytest.mark.timeout(180)

# ---- a child dies at the moment of the exec -------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGSEGV, signal.SIGTERM))],
)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
