"""The next release has other settings, or another number of slots."""

from __future__ import annotations

import json
import signal

import pytest

from tests.process.renewal.deploys import Folder, Start, came, ended, go, held
from tests.process.test_isolation import assert_descriptors_are_apart
from tests.process.test_renewal import each_once, in_order, renewed
from tests.support import Client, eventually, push_raw

pytestmark = pytest.mark.timeout(180)

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


@pytest.mark.slow
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


@pytest.mark.slow
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
