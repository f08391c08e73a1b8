"""What `quiet`, `resume` and `stop` share: which daemon is meant, and the order that is sent to it."""

from __future__ import annotations

import argparse
import socket
import sys

import redis

from cogworkerd.cli import options
from cogworkerd.cli.tables import table
from cogworkerd.errors import UsageError
from cogworkerd.snapshot import Process, snapshot
from cogworkerd.store.keys import Keys

EXIT_NOBODY = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="an identity or the beginning of one, host:pid, a pid of this host, or a tag; default: the only daemon",
    )
    parser.add_argument("--all", action="store_true", help="every daemon")
    options.add_server(parser)
    options.add_embedded(parser, starts=False)


def send(arguments: argparse.Namespace, order: str) -> int:
    """Send an order. Returns 0, or 1 when one of the daemons did not hear it."""
    found = options.effective(arguments, extra=options.embedded_layer(arguments))
    client, keys = options.connect(found)
    processes = snapshot(client, keys).processes
    meant = processes if arguments.all else targets(processes, arguments.target)
    deaf = [process.identity for process in meant if not _publish(client, keys, process, order)]
    for process in meant:
        if process.identity not in deaf:
            print(f"{process.identity}: {order}")
    for identity in deaf:
        print(f"{identity}: nobody listens", file=sys.stderr)
    if not meant:
        print("no daemon is running", file=sys.stderr)
    return EXIT_NOBODY if deaf or not meant else 0


def _publish(client: redis.Redis, keys: Keys, process: Process, order: str) -> bool:
    return bool(client.publish(keys.signal(process.identity), order))


def targets(processes: list[Process], target: str | None) -> list[Process]:
    """The daemons that a word names: one, or all of one tag.

    Raises:
        UsageError: it names none, or could name several; the text has the list.
    """
    if target is None:
        if len(processes) > 1:
            raise UsageError(f"there are {len(processes)} daemons: name one, or --all\n{_listing(processes)}")
        return processes
    tagged = [process for process in processes if process.tag == target]
    if tagged:
        return tagged
    here = socket.gethostname()
    named = [process for process in processes if target in (process.identity, f"{process.host}:{process.pid}")]
    named = named or [process for process in processes if process.host == here and target == str(process.pid)]
    named = named or [process for process in processes if process.identity.startswith(target)]
    if len(named) != 1:
        problem = "names none" if not named else f"could be {len(named)}"
        raise UsageError(f"{target!r} {problem} of the daemons\n{_listing(processes)}")
    return named


def _listing(processes: list[Process]) -> str:
    rows = [(process.identity, process.tag, f"{process.busy}/{process.concurrency}") for process in processes]
    return table("Processes", ("identity", "tag", "busy"), rows, "none is running")
