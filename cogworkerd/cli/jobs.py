"""cogworkerd jobs: list, show, retry, delete, bury, cancel, cost."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from cogworkerd.attempts import read_attempts
from cogworkerd.cli import cost, options
from cogworkerd.cli.confirm import add_yes, confirm
from cogworkerd.cli.progress import progress_line
from cogworkerd.cli.tables import duration, table
from cogworkerd.costs import COST_DAYS, read_costs
from cogworkerd.errors import CANCEL_ENDS, UsageError
from cogworkerd.fleet import Running
from cogworkerd.history import History
from cogworkerd.jobsets import DeadSet, Entry, JobSet, Queue, RetrySet, ScheduledSet, Store
from cogworkerd.orders import CANCEL_GRACE, MOST_GRACE
from cogworkerd.snapshot import snapshot
from cogworkerd.status import progress_bar, read_status, read_statuses

HELP = "List and show jobs; retry, delete or bury them; cancel a running one; what each kind of job costs."
EXAMPLES = """examples:
  cogworkerd jobs list dead
  cogworkerd jobs list retry --name shop.mail.send_welcome --limit 50 --json
  cogworkerd jobs list queue:mail
  cogworkerd jobs list running
  cogworkerd jobs show 4f3a91c0ffee4f3a91c0ffee
  cogworkerd jobs show 4f3a91c0ffee4f3a91c0ffee --raw
  cogworkerd jobs retry 4f3a91c0ffee4f3a91c0ffee
  cogworkerd jobs retry --from dead --name shop.mail.send_welcome --yes
  cogworkerd jobs delete --from dead --all --yes
  cogworkerd jobs bury 4f3a91c0ffee4f3a91c0ffee
  cogworkerd jobs cancel 4f3a91c0ffee4f3a91c0ffee --yes
  cogworkerd jobs cancel 4f3a91c0ffee4f3a91c0ffee --then requeue --grace 30 --yes
  cogworkerd jobs cost
  cogworkerd jobs cost --days 7 --json"""

SETS: dict[str, type[JobSet]] = {"scheduled": ScheduledSet, "retry": RetrySet, "dead": DeadSet}
QUEUE = "queue:"
RUNNING = "running"
EXIT_NOTHING = 1
_ACTS = {
    "retry": "put them on their queues now",
    "delete": "delete them",
    "bury": "move them from scheduled or retry to dead",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="jobs of a set or a queue")
    listing.add_argument("place", metavar="PLACE", help="scheduled, retry, dead, queue:NAME, or running")
    listing.add_argument("--name", metavar="JOB", help="only jobs of this name")
    listing.add_argument("--limit", metavar="N", type=int, default=20, help="how many at most (20)")
    listing.add_argument("--json", action="store_true", help="one object, for scripts")
    show = verbs.add_parser("show", help="one job, whole, wherever it is")
    show.add_argument("jid", metavar="JID")
    show.add_argument("--raw", action="store_true", help="its bytes and nothing else; of bytes that are no job, those")
    for act, text in _ACTS.items():
        verb = verbs.add_parser(act, help=text)
        verb.add_argument("jids", metavar="JID", nargs="*")
        verb.add_argument("--from", dest="place", metavar="SET", choices=SETS, help="every job of this set")
        verb.add_argument("--name", metavar="JOB", help="with --from: of this name")
        verb.add_argument("--all", action="store_true", help="with --from: of any name")
        add_yes(verb)
    cancel = verbs.add_parser("cancel", help="end running jobs")
    cancel.add_argument("jids", metavar="JID", nargs="+")
    cancel.add_argument("--then", choices=CANCEL_ENDS, default="bury", help="what becomes of them (bury)")
    cancel.add_argument(
        "--grace", metavar="SECONDS", type=float, default=CANCEL_GRACE, help="before they are killed (5)"
    )
    add_yes(cancel)
    costs = verbs.add_parser("cost", help="CPU, time and memory of each kind of job")
    costs.add_argument("--days", metavar="N", type=int, default=1, help="how many days, today included (1)")
    costs.add_argument("--json", action="store_true", help="one object, for scripts")
    # People look for it: there are two things that it could mean.
    verbs.add_parser("kill", help=argparse.SUPPRESS).add_argument("jids", nargs="*", help=argparse.SUPPRESS)
    for verb in verbs.choices.values():
        options.add_server(verb)
        options.add_embedded(verb, starts=False)


def perform(arguments: argparse.Namespace) -> int:
    """Do what the verb says. Returns 0, or 1 when a job that was named is not there."""
    if arguments.verb == "kill":
        raise UsageError("there is no jobs kill: bury moves a waiting job to dead, cancel ends a running one")
    store = options.store(options.effective(arguments, extra=options.embedded_layer(arguments)))
    if arguments.verb == "list":
        return _list(arguments, store)
    if arguments.verb == "show":
        return _show(arguments, store)
    if arguments.verb == "cancel":
        return _cancel(arguments, store)
    if arguments.verb == "cost":
        return _cost(arguments, store)
    return _act_on_all(arguments, store) if arguments.place else _act_on_each(arguments, store)


# ---- looking --------------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace, store: Store) -> int:
    if arguments.place == RUNNING:
        return _list_running(arguments, store)
    wanted = (entry for entry in _entries(arguments.place, store) if arguments.name in (None, entry.name))
    entries = list(itertools.islice(wanted, max(arguments.limit, 0)))
    if arguments.json:
        print(json.dumps({"jobs": [_object(entry) for entry in entries]}, indent=2))
        return 0
    rows = [
        (entry.jid, entry.name, entry.queue, _time(entry.score), _shown(entry.shown.get("error_message", "")))
        for entry in entries
    ]
    print(table(f"Jobs in {arguments.place}", ("jid", "job", "queue", "time", "error"), rows, "there is none"))
    return 0


def _list_running(arguments: argparse.Namespace, store: Store) -> int:
    wanted = [job for job in Running(store) if arguments.name in (None, job.class_name)][: max(arguments.limit, 0)]
    if arguments.json:
        jobs = [{**vars(job), "class": job.class_name} for job in wanted]
        print(json.dumps({"jobs": jobs}, indent=2))
        return 0
    statuses = read_statuses(store, [job.jid for job in wanted])
    now = time.time()
    rows = []
    for job in wanted:
        status = statuses[job.jid]
        bar = progress_bar(status.pct, status.message) if status is not None else ""
        rows.append((job.jid, job.class_name, job.queue, duration(max(0.0, now - job.run_at)), bar))
    print(table("Running now", ("jid", "job", "queue", "for", "progress"), rows, "nothing"))
    return 0


def _entries(place: str, store: Store) -> Iterator[Entry]:
    """The jobs of a place, those of a set by their times."""
    if place.startswith(QUEUE):
        yield from Queue(store, place.removeprefix(QUEUE))
        return
    if place not in SETS:
        raise UsageError(f"{place!r} is no place; allowed: {', '.join(SETS)}, queue:NAME, {RUNNING}")
    jobs, start = SETS[place](store), 0
    while page := jobs.page(start, 500, newest=place == "dead"):
        yield from page
        start += len(page)


def _object(entry: Entry) -> dict[str, Any]:
    return {"score": entry.score, **entry.shown}


def _time(score: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(score)) if 0 < score < 1e11 else ""


def _shown(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= 60 else line[:57] + "..."


def _show(arguments: argparse.Namespace, store: Store) -> int:
    jid = arguments.jid
    place, entry = next(_everywhere(jid, store), ("", None))
    if arguments.raw:
        if entry is None:
            print(f"{jid}: in no set and no queue", file=sys.stderr)
            return EXIT_NOTHING
        sys.stdout.buffer.write(entry.original)
        if entry.cut_from is not None:
            print(f"{jid}: cut, there were {entry.cut_from:,} bytes", file=sys.stderr)
        return 0
    found: dict[str, Any] = {}
    if entry is not None:
        found["job"] = {"in": place, **_object(entry)}
    running = next((job for job in Running(store) if job.jid == jid), None)
    if running is not None:
        found["running"] = vars(running)
    status = read_status(store, jid)
    if status is not None:
        found["status"] = vars(status)
    attempts = read_attempts(store, jid)
    if attempts:
        found["attempts"] = [vars(attempt) for attempt in attempts]
    runs = {run.started_at: run.fields for kind in ("all", "failed") for run in History(store).of_job(jid, kind)}
    if runs:
        found["history"] = list(runs.values())
    if not found:
        print(f"{jid}: nothing is known of it", file=sys.stderr)
        return EXIT_NOTHING
    print(json.dumps(found, indent=2, ensure_ascii=False))
    return 0


def _everywhere(jid: str, store: Store) -> Iterator[tuple[str, Entry]]:
    for place, kind in SETS.items():
        found = kind(store).find(jid)
        if found is not None:
            yield place, found
    for queue in snapshot(store.client, store.keys).queues:
        found = Queue(store, queue.name).find(jid)
        if found is not None:
            yield f"{QUEUE}{queue.name}", found


# ---- running jobs, costs --------------------------------------------------------------------------------


def _cancel(arguments: argparse.Namespace, store: Store) -> int:
    if not 0 <= arguments.grace <= MOST_GRACE:
        raise UsageError(f"--grace {arguments.grace:g}: allowed are 0 to {MOST_GRACE:g} seconds")
    count = len(arguments.jids)
    what = f"end {count} running job{'s' if count > 1 else ''}, then {_THEN[arguments.then]}"
    if not confirm(arguments, what):
        print("nothing was done", file=sys.stderr)
        return EXIT_NOTHING
    missing = 0
    for jid in arguments.jids:
        if Running(store).cancel(jid, arguments.then, arguments.grace):
            print(f"{jid}: told to end; killed in {arguments.grace:g} s if it has not")
        else:
            print(f"{jid}: no daemon runs it, or it was told before", file=sys.stderr)
            missing += 1
    return EXIT_NOTHING if missing else 0


_THEN = {"bury": "bury", "fail": "count a failure", "discard": "discard", "requeue": "requeue"}


def _cost(arguments: argparse.Namespace, store: Store) -> int:
    days = arguments.days
    if not 1 <= days <= COST_DAYS:
        raise UsageError(f"--days {days}: allowed is 1 to {COST_DAYS}; older sums are not kept")
    costs = read_costs(store, days)
    print(cost.as_json(costs, days) if arguments.json else cost.as_text(costs, days))
    return 0


# ---- changing -------------------------------------------------------------------------------------------


def _act_on_each(arguments: argparse.Namespace, store: Store) -> int:
    if not arguments.jids:
        raise UsageError(f"jobs {arguments.verb}: name jobs, or --from SET with --name or --all")
    if arguments.verb == "delete" and not confirm(arguments, f"delete {', '.join(arguments.jids)}"):
        print("nothing was done", file=sys.stderr)
        return EXIT_NOTHING
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
    with progress_line(f"{arguments.verb} from {arguments.place}", len(jobs)) as progress:
        done = act(lambda entry: arguments.name in (None, entry.name), progress)
    print(f"{arguments.place}: {done} jobs, {_DONE[arguments.verb]}")
    return 0
