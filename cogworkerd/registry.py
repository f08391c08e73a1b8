"""What a supervisor needs to know of an app, in a form that crosses a pipe: with preload off it never imports it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from cogworkerd.periodic import Entry, described, entries_in, resolve_all

if TYPE_CHECKING:
    from cogworkerd.app import App


@dataclass(frozen=True)
class Registry:
    """An app's description.

    Attributes:
        jobs: the names of its jobs, each with its queue.
        queues: what a daemon reads unless told otherwise.
        client_middleware: how many functions stand around its pushes.
        hooks_of_all: how many death hooks are called for every job.
        hooks_of_job: how many a job has of its own, where it has any.
        entries: its periodic entries, each as a JSON text.
    """

    jobs: Mapping[str, str] = field(default_factory=dict)
    queues: Sequence[str] = ()
    client_middleware: int = 0
    hooks_of_all: int = 0
    hooks_of_job: Mapping[str, int] = field(default_factory=dict)
    entries: Sequence[str] = ()

    @classmethod
    def of(cls, app: App) -> Registry:
        """Describe an app.

        Raises:
            SettingsError: a periodic entry cannot be used.
        """
        return cls(
            jobs={name: job.queue for name, job in sorted(app.jobs.items())},
            queues=app.queues,
            client_middleware=len(app.client_chain),
            hooks_of_all=len(app.death_hooks),
            entries=described(resolve_all(app)),
            hooks_of_job={name: len(job.death_hooks) for name, job in app.jobs.items() if job.death_hooks},
        )

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, body: bytes) -> Registry:
        return cls(**json.loads(body))

    def periodic(self) -> list[Entry]:
        """Its periodic entries."""
        return entries_in(self.entries)

    def death_hooks(self, name: str) -> int:
        """How many hooks are called when a job of this name is in dead."""
        return self.hooks_of_job.get(name, 0) + self.hooks_of_all
