"""Renewals while much goes on, and whatever else a daemon may be."""

from __future__ import annotations

import os
import random
import signal
import time

import psutil
import pytest

from tests.process.renewal.deploys import AS_DAEMON, Folder, Start, ask, came, ended, go, held, never, refused, rolled
from tests.process.test_isolation import assert_descriptors_are_apart, descriptors
from tests.process.test_renewal import each_once, in_order, ready_slots, renewed
from tests.support import Client, Server, eventually, inprogress, push_raw, zombies

pytestmark = pytest.mark.timeout(180)

# ---- what else a daemon may be --------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
