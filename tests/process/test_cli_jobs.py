"""cogworkerd jobs and cogworkerd queues, as an operator types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support import ROOT, Client, Server

JID = "4f3a91c0ffee4f3a91c0ffee"


def cogworkerd(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COGWORKERD_REDIS_URL": server.url}
    command = [sys.executable, "-m", "cogworkerd", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=env, cwd=ROOT, timeout=60, stdin=subprocess.DEVNULL
    )


def job(jid: str = JID, name: str = "shop.mail", **fields: Any) -> str:
    return json.dumps({"class": name, "args": [1], "queue": "mail", "jid": jid, **fields})


def test_a_dead_job_is_listed_shown_and_retried(server: Server, client: Client) -> None:
    client.zadd("cogworker:dead", {job(error_message="no\nluck"): 1000.0})
    listed = cogworkerd(server, "jobs", "list", "dead").stdout
    assert JID in listed
    assert "no luck" in listed
    assert json.loads(cogworkerd(server, "jobs", "list", "dead", "--json").stdout)["jobs"][0]["jid"] == JID
    shown = json.loads(cogworkerd(server, "jobs", "show", JID).stdout)["job"]
    assert (shown["in"], shown["class"], shown["score"]) == ("dead", "shop.mail", 1000.0)
    done = cogworkerd(server, "jobs", "retry", JID)
    assert (done.returncode, done.stdout) == (0, f"{JID}: on its queue (was in dead)\n")
    assert json.loads(cogworkerd(server, "jobs", "show", JID).stdout)["job"]["in"] == "queue:mail"
    assert JID in cogworkerd(server, "jobs", "list", "queue:mail").stdout
    assert cogworkerd(server, "jobs", "delete", JID, "--yes").returncode == 0
    gone = cogworkerd(server, "jobs", "show", JID)
    assert (gone.returncode, "nothing is known of it" in gone.stderr) == (1, True)


def test_a_waiting_job_is_buried_and_a_dead_one_is_not(server: Server, client: Client) -> None:
    client.zadd("cogworker:retry", {job(): 4e9})
    assert cogworkerd(server, "jobs", "bury", JID).returncode == 0
    assert client.zcard("cogworker:dead") == 1
    again = cogworkerd(server, "jobs", "bury", JID)
    assert (again.returncode, again.stderr) == (1, f"{JID}: nothing to bury\n")


def test_many_are_retried_by_name_after_a_question(server: Server, client: Client) -> None:
    client.zadd("cogworker:dead", {job(f"{n:024d}", "a" if n % 2 else "b"): n + 1 for n in range(10)})
    asked = cogworkerd(server, "jobs", "retry", "--from", "dead", "--name", "a")
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    assert client.zcard("cogworker:dead") == 10
    done = cogworkerd(server, "jobs", "retry", "--from", "dead", "--name", "a", "--yes")
    assert (done.returncode, done.stdout) == (0, "dead: 5 jobs, on its queue\n")
    assert cogworkerd(server, "jobs", "delete", "--from", "dead", "--all", "--yes").returncode == 0
    assert client.zcard("cogworker:dead") == 0
    assert client.llen("cogworker:queue:mail") == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("jobs", "list", "nowhere"), "scheduled, retry, dead, queue:NAME"),
        (("jobs", "retry"), "name jobs"),
        (("jobs", "retry", "--from", "dead"), "either --name JOB or --all"),
        (("jobs", "delete", JID, "--from", "dead", "--all"), "no ids"),
        (("jobs", "bury", "--from", "dead", "--all", "--yes"), "they are dead"),
        (("jobs", "kill", JID), "bury moves a waiting job to dead"),
        (("jobs", "delete", JID), "--yes"),
        (("jobs", "cancel", JID), "--yes"),
        (("jobs", "cancel", JID, "--grace", "-1", "--yes"), "--grace -1"),
        (("jobs", "cost", "--days", "0"), "--days 0"),
        (("jobs", "kill", JID), "cancel ends a running one"),
        (("status", "--watch"), "draws on a terminal"),
        (("queues", "clear", "mail"), "--yes"),
    ],
)
def test_words_that_make_no_sense_are_told(words: tuple[str, ...], says: str, server: Server) -> None:
    done = cogworkerd(server, *words)
    assert done.returncode == 2
    assert says in done.stderr


def test_queues_are_listed_paused_resumed_and_cleared(server: Server, client: Client) -> None:
    client.sadd("cogworker:queues", "mail")
    client.lpush("cogworker:queue:mail", job(), job("x"))
    assert cogworkerd(server, "queues", "pause", "mail").stdout == "mail: paused\n"
    assert "paused" in cogworkerd(server, "queues", "list").stdout
    (shown,) = json.loads(cogworkerd(server, "queues", "list", "--json").stdout)["queues"]
    assert (shown["name"], shown["size"], shown["paused"]) == ("mail", 2, True)
    assert cogworkerd(server, "queues", "resume", "mail").returncode == 0
    assert cogworkerd(server, "queues", "clear", "mail", "--yes").stdout == "mail: 2 jobs deleted\n"
    assert client.llen("cogworker:queue:mail") == 0
    assert cogworkerd(server, "queues", "pause", "a b").returncode == 78
