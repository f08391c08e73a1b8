"""cogworkerd healthcheck: whether this host's daemon is well, for containers and their keepers."""

from __future__ import annotations

import argparse
import socket
import sys
import time

import psutil

from cogworkerd.cli import options
from cogworkerd.snapshot import Process, last_beats, snapshot

HELP = "Exit 0 if a daemon on this host beat lately and all its slots are alive."
EXAMPLES = """examples:
  cogworkerd healthcheck
  cogworkerd healthcheck --tag shop --within 30"""

EXIT_UNWELL = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tag", metavar="NAME", help="only the daemon of this tag")
    parser.add_argument("--within", metavar="SECONDS", type=float, default=20.0, help="how old a beat may be (20)")
    options.add_server(parser)
    options.add_embedded(parser, starts=False)


def perform(arguments: argparse.Namespace) -> int:
    """Print one line. Returns 0, or 1 when no daemon of this host is well; a server that is away is 69."""
    found = options.effective(arguments, extra=options.embedded_layer(arguments))
    client, keys = options.connect(found)
    host = socket.gethostname()
    ours = [
        process
        for process in snapshot(client, keys).processes
        if process.host == host
        and not process.ward
        and arguments.tag in (None, process.tag)
        and psutil.pid_exists(process.pid)
    ]
    ages = last_beats(client, keys, time.time())
    problems = {process.identity: _problem(process, ages, arguments.within) for process in ours}
    for process in ours:
        if not problems[process.identity]:
            print(f"{process.identity}: well, {process.busy}/{process.concurrency} busy")
            return 0
    for identity, problem in problems.items():
        print(f"{identity}: {problem}", file=sys.stderr)
    if not ours:
        print(f"no daemon of this host ({host}) has said anything lately", file=sys.stderr)
    return EXIT_UNWELL


def _problem(process: Process, ages: dict[str, float], within: float) -> str:
    """What is wrong with a daemon; "" for nothing."""
    age = ages.get(process.identity)
    if age is not None and age > within:
        return f"its last beat is {age:.0f} s old"
    gone = [str(slot.get("pid")) for slot in process.slots if not _alive(slot.get("pid"))]
    if gone:
        return f"{len(gone)} of {process.concurrency} slots have no living process"
    return ""


def _alive(pid: object) -> bool:
    try:
        return isinstance(pid, int) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
