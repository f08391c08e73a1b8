"""Orders by a daemon's channel, from the command line and from programs of the wire format."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.process.server_trouble import stays
from tests.support import ROOT, Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def identity_of(running: Daemon) -> str:
    return str(running.lines("daemon.ready")[0]["identity"])


def listening(client: Client, identity: str) -> bool:
    return bool(client.pubsub_numsub(f"cogworker:signal:{identity}")[0][1])


def listener(daemon: Start, client: Client, *flags: str) -> tuple[Daemon, str]:
    """A daemon that listens for orders."""
    running = daemon("-c", "2", *flags).ready()
    identity = identity_of(running)
    eventually(lambda: listening(client, identity))
    return running, identity


def cogworkerd(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COGWORKERD_REDIS_URL": server.url}
    command = [sys.executable, "-m", "cogworkerd", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=ROOT, timeout=60)


def test_r18_quiet_and_resume_by_the_channel(daemon: Start, client: Client, witness: Client) -> None:
    running, identity = listener(daemon, client)
    channel = f"cogworker:signal:{identity}"
    assert client.publish(channel, "quiet") == 1
    eventually(lambda: client.hget(f"cogworker:process:{identity}", "quiet") == "true")
    assert "quiet" in running.title()
    push_raw(client, "book", 1)
    stays(1)
    assert witness.hget("t:start", "1") is None
    client.publish(channel, "resume")
    eventually(lambda: witness.hget("t:end", "1") == "1")
    client.publish(channel, "dance\n")
    eventually(lambda: running.lines("remote.unknown"))
    assert running.stop() == 0


def test_r19_a_stop_by_the_channel_drains_settles_and_leaves(daemon: Start, client: Client, witness: Client) -> None:
    running, identity = listener(daemon, client)
    push_raw(client, "book", 1, 2)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    client.publish(f"cogworker:signal:{identity}", "stop")
    assert running.process.wait(20) == 0
    assert witness.hget("t:end", "1") == "1"
    assert inprogress(client) == []
    assert client.smembers("cogworker:processes") == set()
    assert not client.exists(f"cogworker:process:{identity}")
    assert running.lines("daemon.stopped")


def test_r18_a_lost_subscription_is_made_anew_and_its_outage_told_once(
    daemon: Start, client: Client, server: Server
) -> None:
    running, identity = listener(daemon, client)
    client.client_kill_filter(_type="pubsub")
    eventually(lambda: running.lines("redis.away"))
    eventually(lambda: listening(client, identity), 10)
    eventually(lambda: running.lines("redis.back"))
    away = [line for line in running.lines("redis.away") if line["site"] == "remote control"]
    back = [line for line in running.lines("redis.back") if line["site"] == "remote control"]
    assert (len(away), len(back)) == (1, 1)
    client.publish(f"cogworker:signal:{identity}", "stop")
    assert running.process.wait(20) == 0


def test_the_commands_find_the_daemon_that_is_meant(daemon: Start, client: Client, server: Server) -> None:
    first, one = listener(daemon, client, "--tag", "shop")
    only = cogworkerd(server, "quiet")
    assert (only.returncode, only.stdout) == (0, f"{one}: quiet\n")
    eventually(lambda: "quiet" in first.title())
    second, two = listener(daemon, client, "--tag", "mail")
    which = cogworkerd(server, "resume")
    assert which.returncode == 2
    assert one in which.stderr
    assert two in which.stderr
    for target in (one, f"{one.rpartition(':')[0]}", "shop", str(first.pid), one[:-3]):
        assert cogworkerd(server, "quiet", target).stdout == f"{one}: quiet\n", target
    assert cogworkerd(server, "quiet", "nobody").returncode == 2
    assert cogworkerd(server, "stop", "--all").returncode == 0
    for running in (first, second):
        assert running.process.wait(20) == 0
    assert cogworkerd(server, "stop").returncode == 1


@pytest.mark.parametrize("order", ["quiet", "resume", "stop"])
def test_an_order_that_nobody_hears_is_told(order: str, client: Client, server: Server) -> None:
    info = '{"hostname":"h","pid":1,"concurrency":1,"queues":[],"started_at":1}'
    client.sadd("cogworker:processes", "h:1:aaaaaaaaaaaa")
    client.hset("cogworker:process:h:1:aaaaaaaaaaaa", mapping={"info": info, "busy": "0", "quiet": "false"})
    done = cogworkerd(server, order)
    assert (done.returncode, done.stderr) == (1, "h:1:aaaaaaaaaaaa: nobody listens\n")
