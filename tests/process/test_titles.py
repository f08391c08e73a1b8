"""The process listing is an interface: titles and command names of the supervisor and of the slots."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.support import Client, Daemon, eventually, push_raw

Start = Callable[..., Daemon]


def listing(running: Daemon, column: str = "args") -> list[str]:
    """What ps shows of the supervisor, then of its children by slot."""
    pids = ",".join(str(pid) for pid in [running.pid, *running.child_pids()])
    shown = subprocess.run(["ps", "-o", f"{column}=", "-p", pids], capture_output=True, text=True, check=True).stdout
    return sorted((line.strip() for line in shown.splitlines()), key=lambda line: (":slot" in line, line))


def test_titles_follow_the_work(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "2").ready()
    idle = ["cogworkerd:supervisor jobs [0/2 busy]", "cogworkerd:slot-1 jobs [idle]", "cogworkerd:slot-2 jobs [idle]"]
    eventually(lambda: listing(running) == idle)

    jid = push_raw(client, "book", 1, 2)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    eventually(lambda: listing(running)[0] == "cogworkerd:supervisor jobs [1/2 busy]")
    slots = {re.sub(r"slot-\d", "slot-N", title) for title in listing(running)[1:]}
    assert slots == {"cogworkerd:slot-N jobs [idle]", f"cogworkerd:slot-N jobs [book {jid}]"}
    eventually(lambda: listing(running) == idle)

    running.signal(signal.SIGTSTP)
    eventually(lambda: listing(running)[0] == f"{idle[0]} quiet")
    running.signal(signal.SIGCONT)
    eventually(lambda: listing(running) == idle)

    push_raw(client, "book", 2, 1)
    eventually(lambda: witness.hget("t:start", "2") == "1")
    running.signal(signal.SIGTERM)
    eventually(lambda: running.title() == "cogworkerd:supervisor jobs [1/2 busy] stopping")
    assert running.exited() == 0


def test_an_async_job_a_failing_one_and_one_with_a_long_name_show_and_leave_the_title(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1").ready()
    push_raw(client, "later", 1, 1)
    eventually(lambda: listing(running)[1].startswith("cogworkerd:slot-1 jobs [later "))
    push_raw(client, "boom", "x" * 1000, retry=3)
    push_raw(client, "a" * 190, retry=3)
    eventually(lambda: client.zcard("cogworker:retry") + client.zcard("cogworker:dead") == 2)
    eventually(lambda: listing(running)[1] == "cogworkerd:slot-1 jobs [idle]")
    assert running.stop() == 0


def test_the_tag_is_in_every_title(daemon: Start) -> None:
    running = daemon("-c", "1", "--tag", "shop").ready()
    eventually(lambda: listing(running) == ["cogworkerd:supervisor shop [0/1 busy]", "cogworkerd:slot-1 shop [idle]"])
    assert running.stop() == 0


def test_the_command_names_tell_supervisor_and_slots(daemon: Start) -> None:
    running = daemon("-c", "2").ready()
    assert listing(running, "comm") == ["cogworkerd:supe", "cogworkerd:slot", "cogworkerd:slot"]
    found = subprocess.run(
        ["pgrep", "-P", str(running.pid), "-f", "cogworkerd:slot-2 jobs"], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) in running.child_pids()
    assert running.stop() == 0


@pytest.mark.slow
def test_a_replaced_child_has_the_title_of_its_slot(daemon: Start) -> None:
    running = daemon("-c", "2").ready()
    before = running.child_pids()
    running.signal(signal.SIGHUP)
    eventually(lambda: running.lines("roll.done"), 20)
    assert not set(before) & set(running.child_pids())
    eventually(lambda: listing(running)[1:] == ["cogworkerd:slot-1 jobs [idle]", "cogworkerd:slot-2 jobs [idle]"])
    assert running.stop() == 0


@pytest.mark.parametrize("variables", [0, 50])
@pytest.mark.slow
def test_titles_are_whole_whatever_the_size_of_the_environment(daemon: Start, variables: int) -> None:
    """The room for a title is the environment's."""
    tag = "t" * 40
    running = daemon("-c", "1", "--tag", tag, env={f"ROOM_{n}": "x" * 100 for n in range(variables)}).ready()
    titles = [f"cogworkerd:supervisor {tag} [0/1 busy]", f"cogworkerd:slot-1 {tag} [idle]"]
    eventually(lambda: listing(running) == titles)
    assert running.stop() == 0
