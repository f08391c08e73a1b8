"""python -m tests.chaos: try every fault at every step of every scenario, several runs at once.

Without options it tries everything. A violation prints what is needed to look into it, and the line that repeats it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from .campaign import Campaign, Choice
from .faults import ALL_FAULTS, ROLES
from .scenarios import SCENARIOS

_TERMINATED = 143
WORKERS = 3 * len(os.sched_getaffinity(0))
"""Most of a run is a wait: more of them at once than there are processors."""


def main() -> int:
    """Returns: 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="one scenario; may be repeated")
    parser.add_argument("--role", choices=ROLES, help="whose steps")
    parser.add_argument("--fault", choices=ALL_FAULTS)
    parser.add_argument("--at", type=int, metavar="N", help="this step only")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only each K-th step")
    parser.add_argument("--count", action="store_true", help="count the steps only, without a fault")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"how many runs at once (default: {WORKERS})")
    parser.add_argument("--server", choices=("redis", "valkey"), default="redis")
    parser.add_argument("--keep-going", action="store_true", help="go on after a violation")
    given = parser.parse_args()
    scenarios = tuple(given.scenario or SCENARIOS)
    choice = Choice(scenarios, given.role, given.fault, given.at, given.every, given.count)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # servers and daemons are ended, too
    return 0 if Campaign(choice, given.workers, given.server, given.keep_going).run() else 1


if __name__ == "__main__":
    sys.exit(main())
