"""What a supervisor is told to run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cogworkerd.app import App
from cogworkerd.embedded import EmbeddedServer
from cogworkerd.log import Log
from cogworkerd.settings import Settings

from .handover import Handover
from .origin import Origin


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        target: the app as the command line names it, for the start line.
        app: imported before the fork, or None: each child imports it.
        load: imports the app, in a child.
        slots_by: where the number of slots comes from, in words.
        private: the embedded server, if there is one.
        early: signals that came before the supervisor could handle them; it may grow until then.
        origin: how the program was started; None: it cannot be started anew.
        app_settings: what the app says of its settings.
        broken: the app could not be imported, and is left to each child: the children that are there stay.
        ward: run suspects, and leave when there are none.
        handover: what an earlier program of this process has left.
    """

    target: str
    app: App | None
    load: Callable[[], App]
    settings: Settings
    concurrency: int
    slots_by: str
    tag: str
    log: Log
    private: EmbeddedServer | None = None
    early: Sequence[signal.Signals] = ()
    origin: Origin | None = None
    app_settings: Mapping[str, Any] = field(default_factory=dict)
    handover: Handover | None = None
    ward: bool = False
    broken: bool = False
