"""An application that pushes one unique job until it is told that it is there; its pushes are steps like any others.

    python -m tests.chaos.unique_client URL

It may be killed at any of them: somebody else then starts it anew.
"""

from __future__ import annotations

import sys
import time

import redis.exceptions

from cogworkerd import App

SECONDS = 0.4
NAME = "short"
PUSHES = 2
_AGAIN = 0.1


def main(url: str) -> int:
    """Push the same job twice, each until the server answers: a jid, or None for the duplicate that it is by then."""
    app = App(url)
    for _ in range(PUSHES):
        while True:
            try:
                app.push(NAME, [SECONDS], unique="until_executed")
                break
            except redis.exceptions.RedisError:
                time.sleep(_AGAIN)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
