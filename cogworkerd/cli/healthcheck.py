"""cogworkerd healthcheck: whether this host's daemon is well, for containers and their keepers."""

from __future__ import annotations

import argparse
import socket
import sys
import time

import psutil
import redis

from cogworkerd.cli import options
from cogworkerd.snapshot import Process, last_beats, snapshot
from cogworkerd.store.keys import Keys

HELP = "Exit 0 if a daemon on this host beat lately and all its slots are alive."
EXAMPLES = """examples:
  cogworkerd healthcheck
  cogworkerd healthcheck --tag shop --within 30"""

EXIT_UNWELL = 1

_REPLACED_WITHIN = 3.0
"""Seconds for which a slot whose process is gone is looked at again: children are replaced, and a daemon says so once a
second."""

_LOOK_AGAIN = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tag", metavar="NAME", help="only the daemon of this tag")
    parser.add_argument("--within", metavar="SECONDS", type=float, default=20.0, help="how old a beat may be (20)")
    options.add_server(parser)
    options.add_embedded(parser, starts=False)


def perform(arguments: argparse.Namespace) -> int:
    """Print one line. Returns 0, or 1 when no daemon of this host is well; a server that is away is 69."""
    found = options.effective(arguments, extra=options.embedded_layer(arguments))
    client, keys = options.connect(found)
    until = time.monotonic() + _REPLACED_WITHIN
    while True:
        ours = _daemons_of_this_host(client, keys, arguments.tag)
        ages = last_beats(client, keys, time.time())
        late = {process.identity: _lateness(ages.get(process.identity), arguments.within) for process in ours}
        problems = {process.identity: late[process.identity] or _dead_slots(process) for process in ours}
        for process in ours:
            if not problems[process.identity]:
                print(f"{process.identity}: well, {process.busy}/{process.concurrency} busy")
                return 0
        if all(late.values()) or time.monotonic() > until:
            break
        time.sleep(_LOOK_AGAIN)
    for identity, problem in problems.items():
        print(f"{identity}: {problem}", file=sys.stderr)
    if not ours:
        print(f"no daemon of this host ({socket.gethostname()}) has said anything lately", file=sys.stderr)
    return EXIT_UNWELL


def _daemons_of_this_host(client: redis.Redis, keys: Keys, tag: str | None) -> list[Process]:
    """Those whose process lives, but for wards."""
    host = socket.gethostname()
    return [
        process
        for process in snapshot(client, keys).processes
        if process.host == host and not process.ward and tag in (None, process.tag) and psutil.pid_exists(process.pid)
    ]


def _lateness(age: float | None, within: float) -> str:
    """What is wrong with the age of a beat, in seconds; "" for nothing."""
    return f"its last beat is {age:.0f} s old" if age is not None and age > within else ""


def _dead_slots(process: Process) -> str:
    """What is wrong with the slots of a daemon; "" for nothing."""
    gone = [str(slot.get("pid")) for slot in process.slots if not _alive(slot.get("pid"))]
    return f"{len(gone)} of {process.concurrency} slots have no living process" if gone else ""


def _alive(pid: object) -> bool:
    try:
        return isinstance(pid, int) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
