"""cogworkerd queues: list, pause, resume, clear."""

from __future__ import annotations

import argparse
import json
import sys

from cogworkerd.cli import options
from cogworkerd.cli.confirm import add_yes, confirm
from cogworkerd.cli.tables import duration, table
from cogworkerd.errors import SettingsError
from cogworkerd.jobsets import Queue
from cogworkerd.snapshot import QueueState, snapshot

HELP = "List queues; pause, resume or clear one."
EXAMPLES = """examples:
  cogworkerd queues list
  cogworkerd queues list --json
  cogworkerd queues pause mail
  cogworkerd queues resume mail
  cogworkerd queues clear mail --yes"""

EXIT_NOTHING = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="names, sizes, how long their oldest jobs wait")
    listing.add_argument("--json", action="store_true", help="one object, for scripts")
    for name, text in (("pause", "no daemon takes jobs from it"), ("resume", "the end of a pause")):
        verbs.add_parser(name, help=text).add_argument("queue", metavar="NAME")
    clear = verbs.add_parser("clear", help="delete every job that waits in it")
    clear.add_argument("queue", metavar="NAME")
    add_yes(clear)
    for verb in verbs.choices.values():
        options.add_server(verb)
        options.add_embedded(verb, starts=False)


def perform(arguments: argparse.Namespace) -> int:
    """Do what the verb says. Returns 0, or 1 when nothing was done."""
    found = options.effective(arguments, extra=options.embedded_layer(arguments))
    store = options.store(found)
    if arguments.verb == "list":
        return _list(arguments, snapshot(store.client, store.keys).queues)
    try:
        queue = Queue(store, arguments.queue)
    except ValueError as error:
        raise SettingsError(f"NAME = {arguments.queue!r:.80}: {error}")
    if arguments.verb == "pause":
        queue.pause()
        print(f"{queue.name}: paused")
    elif arguments.verb == "resume":
        queue.resume()
        print(f"{queue.name}: resumed")
    else:
        return _clear(arguments, queue)
    return 0


def _list(arguments: argparse.Namespace, queues: list[QueueState]) -> int:
    if arguments.json:
        print(json.dumps({"queues": [vars(queue) for queue in queues]}, indent=2))
        return 0
    rows = [
        (q.name, q.size, duration(q.latency), "paused" if q.paused else "read" if q.read else "nobody reads it")
        for q in queues
    ]
    print(table("Queues", ("name", "size", "latency", "state"), rows, "there is none"))
    return 0


def _clear(arguments: argparse.Namespace, queue: Queue) -> int:
    if not confirm(arguments, f"delete the {len(queue)} jobs of {queue.name}"):
        print("nothing was deleted", file=sys.stderr)
        return EXIT_NOTHING
    print(f"{queue.name}: {queue.clear()} jobs deleted")
    return 0
