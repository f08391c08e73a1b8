"""What a supervisor is told to run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cogworkerd.app import App
from cogworkerd.log import Log
from cogworkerd.settings import Settings


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        target: the app as the command line names it, for the start line.
        app: imported before the fork, or None: each child imports it.
        load: imports the app, in a child.
        slots_by: where the number of slots comes from, in words.
        url_hint: the URL to reach an embedded server with, or "".
        keep: descriptors that children keep (an embedded server's life).
        early: signals that came before the supervisor could handle them; it may grow until then.
    """

    target: str
    app: App | None
    load: Callable[[], App]
    settings: Settings
    concurrency: int
    slots_by: str
    tag: str
    log: Log
    url_hint: str = ""
    keep: frozenset[int] = frozenset()
    early: Sequence[signal.Signals] = ()
