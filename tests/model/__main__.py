"""An explicit-state model of the settlement protocol: `python -m tests.model`.

It tries every interleaving of queue, child, pipe, ledger, supervisor and server, with one or two faults a run. The
rules of the protocol are switches; each can be turned off to see why it is there.

    python -m tests.model                  the default suite, all rules on: under a minute, must end clean
    python -m tests.model --holes          each rule turned off in turn: the shortest trace that breaks without it
    python -m tests.model --deep           two faults, more jobs and slots: minutes (--limit: states)
    python -m tests.model --scenario stop --without keep_registered

A step is one write to a pipe, one read from it, one command (a script is one), one death, one reap. Everything may
happen between two steps, so a process that is suspended for a while is no fault here: it is a schedule that is tried.

Faults:
  limbo    a command is sent and its reply never comes. It takes effect at any later time, or never: lost before it took
           effect, reply lost, or carried out after the caller has long gone on (a paused server, a resent packet).
  kill     a child dies, at any step; its command in flight may stay in limbo. A frame cut in the middle counts as not
           written, so it is a kill before the write.
  killsup  a supervisor dies, at any step; its children live on as orphans.
  cut      a supervisor is taken for dead although it lives (suspended or cut off beyond the threshold).
  outage   the server was away for everybody longer than the threshold: all stamps are old at once.
  lossy    the server loses its last write (failover to a replica that had not got it).
  deaf     a child's report pipe breaks while the child lives (a job closed descriptors that are not its own).
  refuse   a filing is answered with an error (wrong type, out of memory): no effect, and that is known.

Slots are interchangeable and are sorted in each state to save work, so a slot's number may change within a trace. Not
modelled: time (a time limit is an order of events: "orphaned children are gone before the threshold"), order within a
queue, quiet, boot, the client's push, the text of payloads, basic fetch. Moving a due entry, filing a parked record and
recovery are one script each that checks its source first; they are taken to be safe to repeat.

A change of the protocol is made here first, seen clean, then made in the code. `--holes` must find a violation for
every rule: one that finds none is a rule that nobody needs, or a scenario that is too small.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace

from tests.model.explore import Result, explore
from tests.model.scenarios import DEEP, HOLES, SUITE, Rules, Scenario


def show(sc: Scenario, r: Result, without: str = "") -> None:
    verdict = r.violation or ("clean" if r.complete else "clean as far as searched")
    name = f"without {without} ({sc.name})" if without else sc.name
    print(f"{name:58} faults {sc.faults}  states {r.states:>9,}  steps {r.steps:>10,}  {r.seconds:6.1f} s  {verdict}")
    for i, line in enumerate(r.trace, 1):
        print(f"    {i:2}. {line}")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("--holes", action="store_true")
    parser.add_argument("--scenario")
    parser.add_argument("--without", action="append", default=[], choices=[f.name for f in fields(Rules)])
    parser.add_argument("--faults", type=int)
    parser.add_argument("--limit", type=int, default=1_000_000, help="states after which a search gives up")
    args = parser.parse_args()
    known = {sc.name: sc for sc in (*SUITE, *DEEP)}
    if args.holes:
        tasks = [(known[name], replace(Rules(), **{rule: False}), rule) for rule, name in HOLES.items()]
    else:
        rules = replace(Rules(), **dict.fromkeys(args.without, False))
        chosen = [known[args.scenario]] if args.scenario else DEEP if args.deep else SUITE
        tasks = [(replace(sc, faults=args.faults or sc.faults), rules, " ".join(args.without)) for sc in chosen]
    violations = 0
    with ProcessPoolExecutor() as pool:
        results = [pool.submit(explore, sc, rules, args.limit, not args.holes) for sc, rules, _ in tasks]
        for (sc, _, without), result in zip(tasks, results, strict=True):
            show(sc, result.result(), without)
            violations += bool(result.result().violation)
    if args.holes:
        return 0 if violations == len(tasks) else 1
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
