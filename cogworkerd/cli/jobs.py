"""cogworkerd jobs: list, show, retry, delete, bury."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from cogworkerd.cli import options
from cogworkerd.cli.confirm import add_yes, confirm
from cogworkerd.cli.tables import table
from cogworkerd.errors import UsageError
from cogworkerd.jobsets import DeadSet, Entry, JobSet, Queue, RetrySet, ScheduledSet, Store
from cogworkerd.snapshot import snapshot

HELP = "List and show jobs of the sets and queues; retry, delete or bury them."
EXAMPLES = """examples:
  cogworkerd jobs list dead
  cogworkerd jobs list retry --name shop.mail.send_welcome --limit 50 --json
  cogworkerd jobs list queue:mail
  cogworkerd jobs show 4f3a91c0ffee4f3a91c0ffee
  cogworkerd jobs retry 4f3a91c0ffee4f3a91c0ffee
  cogworkerd jobs retry --from dead --name shop.mail.send_welcome --yes
  cogworkerd jobs delete --from dead --all --yes
  cogworkerd jobs bury 4f3a91c0ffee4f3a91c0ffee"""

SETS: dict[str, type[JobSet]] = {"scheduled": ScheduledSet, "retry": RetrySet, "dead": DeadSet}
QUEUE = "queue:"
EXIT_NOTHING = 1
_ACTS = {
    "retry": "put them on their queues now",
    "delete": "delete them",
    "bury": "move them from scheduled or retry to dead",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="jobs of a set or a queue")
    listing.add_argument("place", metavar="PLACE", help="scheduled, retry, dead, or queue:NAME")
    listing.add_argument("--name", metavar="JOB", help="only jobs of this name")
    listing.add_argument("--limit", metavar="N", type=int, default=20, help="how many at most (20)")
    listing.add_argument("--json", action="store_true", help="one object, for scripts")
    show = verbs.add_parser("show", help="one job, whole, wherever it is")
    show.add_argument("jid", metavar="JID")
    for act, text in _ACTS.items():
        verb = verbs.add_parser(act, help=text)
        verb.add_argument("jids", metavar="JID", nargs="*")
        verb.add_argument("--from", dest="place", metavar="SET", choices=SETS, help="every job of this set")
        verb.add_argument("--name", metavar="JOB", help="with --from: of this name")
        verb.add_argument("--all", action="store_true", help="with --from: of any name")
        add_yes(verb)
    # People look for it: there are two things that it could mean.
    verbs.add_parser("kill", help=argparse.SUPPRESS).add_argument("jids", nargs="*", help=argparse.SUPPRESS)
    for verb in verbs.choices.values():
        options.add_server(verb)
        options.add_embedded(verb, starts=False)


def perform(arguments: argparse.Namespace) -> int:
    """Do what the verb says. Returns 0, or 1 when a job that was named is not there."""
    if arguments.verb == "kill":
        raise UsageError("there is no jobs kill: bury moves a waiting job to dead; a running one goes on")
    found = options.effective(arguments, extra=options.embedded_layer(arguments))
    client, keys = options.connect(found)
    store = Store(client, keys, found.settings.locks(keys))
    if arguments.verb == "list":
        return _list(arguments, store)
    if arguments.verb == "show":
        return _show(arguments.jid, store)
    return _act_on_all(arguments, store) if arguments.place else _act_on_each(arguments, store)


# ---- looking --------------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace, store: Store) -> int:
    entries: list[Entry] = []
    for entry in _entries(arguments.place, store):
        if arguments.name in (None, entry.name):
            entries.append(entry)
        if len(entries) >= arguments.limit:
            break
    if arguments.json:
        print(json.dumps({"jobs": [_object(entry) for entry in entries]}, indent=2))
        return 0
    rows = [
        (entry.jid, entry.name, entry.queue, _time(entry.score), _shown(entry.payload.get("error_message", "")))
        for entry in entries
    ]
    print(table(f"Jobs in {arguments.place}", ("jid", "job", "queue", "time", "error"), rows, "there is none"))
    return 0


def _entries(place: str, store: Store) -> Iterator[Entry]:
    """The jobs of a place, those of a set by their times."""
    if place.startswith(QUEUE):
        yield from Queue(store, place.removeprefix(QUEUE))
        return
    if place not in SETS:
        raise UsageError(f"{place!r} is no place; allowed: {', '.join(SETS)}, queue:NAME")
    jobs, start = SETS[place](store), 0
    while page := jobs.page(start, 500, newest=place == "dead"):
        yield from page
        start += len(page)


def _object(entry: Entry) -> dict[str, Any]:
    return {"score": entry.score, **entry.payload}


def _time(score: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(score)) if 0 < score < 1e11 else ""


def _shown(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= 60 else line[:57] + "..."


def _show(jid: str, store: Store) -> int:
    for place, found in _everywhere(jid, store):
        print(json.dumps({"in": place, **_object(found)}, indent=2, ensure_ascii=False))
        return 0
    print(f"{jid}: in no set and no queue", file=sys.stderr)
    return EXIT_NOTHING


def _everywhere(jid: str, store: Store) -> Iterator[tuple[str, Entry]]:
    for place, kind in SETS.items():
        found = kind(store).find(jid)
        if found is not None:
            yield place, found
    for queue in snapshot(store.client, store.keys).queues:
        found = Queue(store, queue.name).find(jid)
        if found is not None:
            yield f"{QUEUE}{queue.name}", found


# ---- changing -------------------------------------------------------------------------------------------


def _act_on_each(arguments: argparse.Namespace, store: Store) -> int:
    if not arguments.jids:
        raise UsageError(f"jobs {arguments.verb}: name jobs, or --from SET with --name or --all")
    missing = 0
    for jid in arguments.jids:
        places = (place for place, entry in _everywhere(jid, store) if _act(arguments.verb, place, entry, store))
        done = next(places, "")
        if done:
            print(f"{jid}: {_DONE[arguments.verb]} (was in {done})")
        else:
            print(f"{jid}: nothing to {arguments.verb}", file=sys.stderr)
            missing += 1
    return EXIT_NOTHING if missing else 0


_DONE = {"retry": "on its queue", "delete": "deleted", "bury": "in dead"}


def _act(verb: str, place: str, entry: Entry, store: Store) -> bool:
    """Do it to one job. Returns whether it could be done."""
    if place.startswith(QUEUE):
        return verb == "delete" and Queue(store, place.removeprefix(QUEUE)).delete(entry)
    act: Callable[[Entry], bool] | None = getattr(SETS[place](store), verb, None)
    try:
        return act is not None and act(entry)
    except ValueError as error:
        raise UsageError(str(error))


def _act_on_all(arguments: argparse.Namespace, store: Store) -> int:
    if arguments.jids or (arguments.name is None) == (not arguments.all):
        raise UsageError("with --from: either --name JOB or --all, and no ids")
    jobs = SETS[arguments.place](store)
    act = getattr(jobs, f"{arguments.verb}_all", None)
    if act is None:
        raise UsageError(f"jobs of {arguments.place} cannot be buried: they are dead")
    what = f"every {arguments.name}" if arguments.name else f"all {len(jobs)} jobs"
    if not confirm(arguments, f"{arguments.verb} {what} of {arguments.place}"):
        print("nothing was done", file=sys.stderr)
        return EXIT_NOTHING
    done = act(lambda entry: arguments.name in (None, entry.name))
    print(f"{arguments.place}: {done} jobs, {_DONE[arguments.verb]}")
    return 0
