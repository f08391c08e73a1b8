"""Three daemons at work, steered from the command line: each order reaches whom it means, shows within a beat, and no
job is lost or run twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cogworkerd import App
from cogworkerd.inspect import Running, Store
from tests.process.server_trouble import stays
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

BEAT = 5.0
TAGS = ("shop", "mail", "night")


class Fleet:
    """Daemons of three tags, one queue of jobs that never runs dry, and the command line."""

    def __init__(
        self, daemon: Callable[..., Daemon], server: Server, client: Client, witness: Client, folder: Path
    ) -> None:
        self._server = server
        self._client = client
        self._witness = witness
        self._folder = folder
        self.daemons = {tag: daemon("-c", "2", "-q", "default", "-q", "aside", "--tag", tag) for tag in TAGS}
        for running in self.daemons.values():
            running.ready()
        self.identities = {
            tag: str(running.lines("daemon.ready")[0]["identity"]) for tag, running in self.daemons.items()
        }
        for identity in self.identities.values():
            eventually(lambda identity=identity: client.pubsub_numsub(f"cogworker:signal:{identity}")[0][1])
        self._over = threading.Event()
        self.pushed = 0
        self._pusher = threading.Thread(target=self._push)
        self._pusher.start()
        eventually(lambda: witness.hlen("t:end") > 20, 15, "the fleet works")

    def _push(self) -> None:
        while not self._over.is_set():
            if self._client.llen("cogworker:queue:default") < 200:
                push_raw(self._client, "book", self.pushed, 0.05)
                self.pushed += 1
            self._over.wait(0.005)

    def order(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cogworkerd", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=self._folder,
            env={**os.environ, "COGWORKERD_REDIS_URL": self._server.url},
        )

    def status(self) -> Any:
        return json.loads(self.order("status", "--json").stdout)

    def quiet_ones(self) -> set[str]:
        return {process["tag"] for process in self.status()["processes"] if process["quiet"]}

    def size(self, queue: str) -> int:
        return int(next(each["size"] for each in self.status()["queues"] if each["name"] == queue))

    def word_for(self, way: str, tag: str) -> str:
        """How an operator names this daemon."""
        identity = self.identities[tag]
        return {
            "identity": identity,
            "unique beginning": identity[:-4],
            "host:pid": identity.rpartition(":")[0],
            "pid": str(self.daemons[tag].pid),
            "tag": tag,
            "--all": "--all",
        }[way]

    def end(self) -> None:
        """No more jobs are pushed."""
        self._over.set()
        self._pusher.join()

    def check_books(self) -> None:
        """Wait until every job has run; then none was lost and none has run twice."""
        self.end()
        done = self._witness.hlen
        eventually(lambda: done("t:end") == self.pushed and not inprogress(self._client), 30, "every job has run")
        for book in ("t:start", "t:end"):
            counts = self._witness.hgetall(book)
            assert {number: count for number, count in counts.items() if count != "1"} == {}
            assert sorted(map(int, counts)) == list(range(self.pushed))


@pytest.fixture
def fleet(
    daemon: Callable[..., Daemon], server: Server, client: Client, witness: Client, tmp_path: Path
) -> Iterator[Fleet]:
    made = Fleet(daemon, server, client, witness, tmp_path)
    yield made
    made.end()


WAYS = ("identity", "unique beginning", "host:pid", "pid", "tag", "--all")


@pytest.mark.parametrize(
    "way", [way if way in ("pid", "--all") else pytest.param(way, marks=pytest.mark.slow) for way in WAYS]
)
def test_quiet_resume_and_stop_reach_whom_they_name(way: str, fleet: Fleet, witness: Client) -> None:
    meant = set(TAGS) if way == "--all" else {"mail"}
    word = fleet.word_for(way, "mail")
    told = fleet.order("quiet", word)
    assert told.stdout.splitlines() == [f"{name}: quiet" for name in sorted(fleet.identities[tag] for tag in meant)]
    eventually(lambda: fleet.quiet_ones() == meant, BEAT)
    if meant == set(TAGS):
        eventually(lambda: all(process["busy"] == 0 for process in fleet.status()["processes"]), BEAT)
        before = witness.hlen("t:start")
        assert fleet.size("default") > 0
        assert witness.hlen("t:start") == before
    assert fleet.order("resume", word).returncode == 0
    eventually(lambda: fleet.quiet_ones() == set(), BEAT)
    before = witness.hlen("t:end")
    eventually(lambda: witness.hlen("t:end") > before + 20, 15)
    if meant == set(TAGS):
        fleet.end()
        eventually(lambda: fleet.size("default") == 0, 30)
    assert fleet.order("stop", word).returncode == 0
    for tag in meant:
        assert fleet.daemons[tag].exited() == 0
    left = {process["tag"] for process in fleet.status()["processes"]}
    assert left == set(TAGS) - meant
    fleet.check_books()
    for tag in left:
        assert fleet.daemons[tag].stop() == 0


def test_a_word_that_names_none_or_several_sends_nothing(fleet: Fleet) -> None:
    host = fleet.identities["shop"].split(":")[0]
    for words in (("stop",), ("stop", host), ("stop", "nobody"), ("stop", "0")):
        done = fleet.order(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        for identity in fleet.identities.values():
            assert identity in done.stderr
    assert len(fleet.status()["processes"]) == 3
    fleet.check_books()


@pytest.mark.parametrize("order", ["quiet", "stop"])
def test_a_name_and_all_at_once_are_refused(order: str, server: Server) -> None:
    """Whoever names one does not want to stop the others."""
    done = subprocess.run(
        [sys.executable, "-m", "cogworkerd", order, "shop", "--all"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COGWORKERD_REDIS_URL": server.url},
    )
    assert done.returncode == 2


def test_an_empty_name_names_nobody(daemon: Callable[..., Daemon], server: Server) -> None:
    """An unset variable of a script, say."""
    running = daemon("-c", "1").ready()
    done = subprocess.run(
        [sys.executable, "-m", "cogworkerd", "quiet", ""],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COGWORKERD_REDIS_URL": server.url},
    )
    assert running.stop() == 0
    assert done.returncode == 2


def test_a_queue_is_paused_cleared_and_resumed_under_load(fleet: Fleet, client: Client, witness: Client) -> None:
    assert fleet.order("queues", "pause", "aside").returncode == 0
    eventually(lambda: [q["name"] for q in fleet.status()["queues"] if q["paused"]] == ["aside"], BEAT)
    for number in range(50):
        push_raw(client, "pidof", "t:aside", 0, queue="aside", jid=f"{number:024x}")
    before = witness.hlen("t:end")
    eventually(lambda: witness.hlen("t:end") > before + 50, 15, "the other queue goes on")
    eventually(lambda: fleet.size("aside") == 50, BEAT)
    assert fleet.order("queues", "clear", "aside", "--yes").stdout == "aside: 50 jobs deleted\n"
    assert fleet.size("aside") == 0
    push_raw(client, "pidof", "t:aside", 0, queue="aside")
    assert fleet.order("queues", "resume", "aside").returncode == 0
    eventually(lambda: witness.llen("t:aside:done") == 1, BEAT)
    assert witness.llen("t:aside") == 1, "those that were cleared have never run"
    assert [q["name"] for q in fleet.status()["queues"] if q["paused"]] == []
    fleet.check_books()


@pytest.mark.parametrize(
    ("then", "place"),
    [("bury", "dead"), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("fail", "retry"), ("discard", "")))],
)
def test_a_running_job_is_looked_into_and_cancelled(
    then: str, place: str, fleet: Fleet, client: Client, witness: Client
) -> None:
    jid = push_raw(client, "pidof", "t:long", 600, queue="aside")
    eventually(lambda: witness.llen("t:long") == 1, 15)
    pid = int(witness.lindex("t:long", 0))
    stack = json.loads(fleet.order("stack", jid, "--json").stdout)
    assert (stack["pid"], stack["identity"] in fleet.identities.values()) == (pid, True)
    assert any("jobs.py" in line and "pidof" in line for line in stack["lines"])
    eventually(lambda: jid in [job["jid"] for job in fleet.status()["running"]], BEAT)
    told = fleet.order("jobs", "cancel", jid, "--then", then, "--yes")
    assert (told.returncode, told.stderr) == (0, "")
    if place:  # at once: a retry is due in a quarter of a minute
        shown = eventually(lambda: json.loads(fleet.order("jobs", "show", jid).stdout).get("job"), BEAT)
        assert (shown["in"], shown["error_class"]) == (place, "JobCancelled")
        assert fleet.status()["sets"][place] == 1
    eventually(lambda: jid not in [job["jid"] for job in fleet.status()["running"]], BEAT)
    assert fleet.order("stack", jid).returncode == 1
    again = fleet.order("jobs", "cancel", jid, "--yes")
    assert (again.returncode, "no daemon runs it" in again.stderr) == (1, True)
    assert witness.llen("t:long:done") == 0
    fleet.check_books()


def test_a_cancelled_job_that_is_to_be_requeued_runs_again(fleet: Fleet, client: Client, witness: Client) -> None:
    jid = push_raw(client, "pidof", "t:long", 600, queue="aside")
    eventually(lambda: witness.llen("t:long") == 1, 15)
    assert fleet.order("jobs", "cancel", jid, "--then", "requeue", "--yes").returncode == 0
    eventually(lambda: witness.llen("t:long") >= 2, 15)
    assert fleet.order("jobs", "cancel", jid, "--then", "discard", "--grace", "0", "--yes").returncode == 0
    eventually(lambda: fleet.order("stack", jid).returncode == 1, BEAT)
    assert fleet.status()["sets"] == {"scheduled": 0, "retry": 0, "dead": 0}
    fleet.check_books()


def test_one_order_ends_one_run_although_another_daemon_hears_it_when_it_runs_the_job_again(
    daemon: Callable[..., Daemon], server: Server, client: Client, witness: Client
) -> None:
    first = daemon("-c", "1", "--tag", "first").ready()
    jid = push_raw(client, "pidof", "t:long", 600)
    eventually(lambda: witness.llen("t:long") == 1, 15)
    second = daemon("-c", "1", "--tag", "second").ready()
    identities = [str(each.lines("daemon.ready")[0]["identity"]) for each in (first, second)]
    eventually(lambda: all(client.pubsub_numsub(f"cogworker:signal:{each}")[0][1] for each in identities))
    client.publish(f"cogworker:signal:{identities[0]}", "quiet")
    eventually(lambda: client.hget(f"cogworker:process:{identities[0]}", "quiet") == "true", BEAT)
    second.signal(signal.SIGSTOP)  # its child goes on by itself
    store = Store.of(App(server.url))
    assert Running(store).cancel(jid, "requeue")
    store.client.close()
    eventually(lambda: witness.llen("t:long") == 2, 15)
    second.signal(signal.SIGCONT)
    eventually(lambda: second.lines("remote.order"), 15)
    stays(1)
    assert second.lines("job.interrupted") == []
    assert witness.llen("t:long") == 2


def test_waiting_jobs_are_retried_buried_and_deleted_under_load(fleet: Fleet, client: Client, witness: Client) -> None:
    jids = {name: f"{name:0>24}" for name in ("retried", "buried", "deleted", "revived")}
    for name, jid in jids.items():
        job = {"class": "pidof", "args": [f"t:{name}", 0], "queue": "aside", "jid": jid}
        client.zadd("cogworker:dead" if name == "revived" else "cogworker:retry", {json.dumps(job): 4e9})
    assert fleet.order("jobs", "retry", jids["retried"], jids["revived"]).returncode == 0
    eventually(lambda: witness.llen("t:retried:done") == witness.llen("t:revived:done") == 1, BEAT)
    assert fleet.order("jobs", "bury", jids["buried"]).returncode == 0
    assert fleet.order("jobs", "delete", jids["deleted"], "--yes").returncode == 0
    assert fleet.status()["sets"] == {"scheduled": 0, "retry": 0, "dead": 1}
    gone = fleet.order("jobs", "retry", jids["deleted"], jids["retried"])
    assert (gone.returncode, gone.stderr.count("nothing to retry")) == (1, 2)
    assert fleet.order("jobs", "retry", "--from", "dead", "--all", "--yes").returncode == 0
    eventually(lambda: witness.llen("t:buried:done") == 1, BEAT)
    assert [witness.llen(f"t:{name}") for name in jids] == [1, 1, 0, 1]
    fleet.check_books()


@pytest.mark.slow
def test_a_fleet_that_is_told_many_things_in_a_row_loses_nothing(
    fleet: Fleet, daemon: Callable[..., Daemon], witness: Client
) -> None:
    for _ in range(4):
        for order in ("quiet", "resume"):
            assert fleet.order(order, "--all").returncode == 0
        for order, tag in (("quiet", "shop"), ("resume", "shop"), ("quiet", "night"), ("resume", "night")):
            assert fleet.order(order, tag).returncode == 0
        assert fleet.order("queues", "pause", "default").returncode == 0
        assert fleet.order("queues", "resume", "default").returncode == 0
    assert fleet.order("stop", "night").returncode == 0
    assert fleet.daemons["night"].exited() == 0
    daemon("-c", "2", "--tag", "night").ready()
    before = witness.hlen("t:end")
    eventually(lambda: witness.hlen("t:end") > before + 50, 15)
    fleet.check_books()
