"""What `quiet`, `resume` and `stop` share: which daemon is meant, and the order that is sent to it."""

from __future__ import annotations

import argparse
import sys

from cogworkerd.cli import options
from cogworkerd.cli.tables import table
from cogworkerd.errors import UsageError
from cogworkerd.fleet import Fleet
from cogworkerd.snapshot import Process

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
    if arguments.all and arguments.target is not None:
        raise UsageError(f"TARGET = {arguments.target!r:.80} and --all: give one of them")
    found = options.effective(arguments, extra=options.embedded_layer(arguments))
    fleet = Fleet(options.store(found))
    heard = fleet.send(order, daemons(fleet) if arguments.all else targets(fleet, arguments.target))
    for identity in [name for name, listens in heard.items() if listens]:
        print(f"{identity}: {order}")
    for identity in [name for name, listens in heard.items() if not listens]:
        print(f"{identity}: nobody listens", file=sys.stderr)
    if not heard:
        print("no daemon is running", file=sys.stderr)
    return 0 if heard and all(heard.values()) else EXIT_NOBODY


def daemons(fleet: Fleet) -> list[Process]:
    """All but wards, which obey the daemons that have started them."""
    return [process for process in fleet if not process.ward]


def targets(fleet: Fleet, target: str | None) -> list[Process]:
    """The daemons that a word names: one, or all of one tag; without a word the only one there is.

    Raises:
        UsageError: it names none, or could name several; the text has the list.
    """
    processes = daemons(fleet)
    if target is None:
        if len(processes) > 1:
            raise UsageError(f"there are {len(processes)} daemons: name one, or --all\n{_listing(processes)}")
        return processes
    named = fleet.named(target) if target else []
    if not named or (len(named) > 1 and any(process.tag != target for process in named)):
        problem = "names none" if not named else f"could be {len(named)}"
        raise UsageError(f"{target!r} {problem} of the daemons\n{_listing(processes)}")
    return named


def _listing(processes: list[Process]) -> str:
    rows = [(process.identity, process.tag, f"{process.busy}/{process.concurrency}") for process in processes]
    return table("Processes", ("identity", "tag", "busy"), rows, "none is running")
