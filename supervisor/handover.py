"""What a supervisor hands to the program that follows it in the same process: the ledger, the slots, what still waits.

It travels through a memory file, pickled: who reads it is this very process. The program that is to follow reads a copy
beforehand, in a process of its own (`renewal`), so that one which cannot is never started.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cogworkerd
from cogworkerd.embedded import EmbeddedServer
from cogworkerd.errors import CogworkerdError
from cogworkerd.recording import Waiting
from cogworkerd.settings import Settings
from cogworkerd.store.scripts import Unreleased

from .interruptions import Clock
from .ledger import Ledger
from .slot import Slot

FORMAT = 1
"""To be raised whenever an older or newer program would take what is in here for something else."""

_BOUND = ("redis_url", "namespace", "fetch")


class HandoverError(CogworkerdError):
    """This program cannot take over; one sentence."""


@dataclass
class Handover:
    """Everything that outlives a supervisor's program.

    Attributes:
        bound: settings that running jobs are bound to.
        app_settings: what the app said in its own place, should the new one not be importable after all; pickled, since
            its values may be of types of the app, which is not imported yet.
        page, life: descriptors.
        slots: their states.
        look, unclear: of the reconciler.
        in_order: every child so far has left as it was asked to.
        retake: of the lock keeper.
        hooks: death hooks to be called: entry and number; `uncounted`: entries whose hooks are not known yet.
        slots_done: the newest slot that is done with, for each periodic entry that is looked after.
        private: the embedded server, if there is one.
        ward: pid of the daemon for suspects.
        registry: what the app held, as far as it is known.
        why: the signal or order that asked for new code.
    """

    identity: str
    started_at: float
    bound: Mapping[str, str]
    app_settings: bytes
    page: int
    life: int | None
    slots: list[dict[str, Any]]
    ledger: Ledger
    reliable: bool
    look: int
    unclear: bool
    in_order: bool
    retake: bool
    deferred: list[Unreleased]
    hooks: list[tuple[bytes, int]]
    uncounted: list[bytes]
    clocks: dict[int, Clock]
    waiting: Waiting
    private: EmbeddedServer | None = None
    slots_done: Mapping[str, int] = field(default_factory=dict)
    registry: bytes | None = None
    ward: int | None = None
    why: str = ""
    format: int = FORMAT
    version: str = field(default_factory=lambda: cogworkerd.__version__)

    def write(self) -> int:
        """Put it into a memory file.

        Returns:
            The file's descriptor.
        """
        file = os.memfd_create("cogworkerd-handover", os.MFD_CLOEXEC)
        data = memoryview(pickle.dumps(self))
        while data:
            data = data[os.write(file, data) :]
        return file

    @staticmethod
    def read(file: int) -> Handover:
        """Read what `write` wrote, perhaps of another version.

        Raises:
            HandoverError: it is of another format.
        """
        try:
            found = pickle.loads(os.pread(file, os.fstat(file).st_size, 0))
            format_ = found.format
        except Exception as error:
            raise HandoverError(f"what the running daemon would hand over cannot be read ({type(error).__name__})")
        if format_ != FORMAT:
            raise HandoverError(
                f"cogworkerd {found.version} would hand over in format {format_}, this is cogworkerd "
                f"{cogworkerd.__version__} with format {FORMAT}: stop the daemon and start it"
            )
        assert isinstance(found, Handover)
        return found

    def settings_of_app(self) -> dict[str, Any]:
        """What the app of the program before this one said.

        Raises:
            HandoverError: it was of types that there are no more.
        """
        try:
            return dict(pickle.loads(self.app_settings))
        except Exception as error:
            raise HandoverError(f"the settings of the app before cannot be read ({type(error).__name__})")

    def check(self, settings: Settings) -> None:
        """Whether a program with these settings can take over.

        Raises:
            HandoverError: the jobs at hand are bound to others.
        """
        now = bound_to(settings)
        changed = [f"{name} ({self.bound[name]} -> {now[name]})" for name in _BOUND if self.bound[name] != now[name]]
        if changed:
            raise HandoverError(f"changed settings need a stop and a start: {', '.join(changed)}")

    @property
    def descriptors(self) -> set[int]:
        """All that must stay open until the new program has taken over."""
        found = {self.page, *(fd for state in self.slots for fd in Slot.descriptors_in(state))}
        if self.life is not None:
            found.add(self.life)
        if self.private is not None:
            found.add(self.private.life)
        return found

    def keep_open(self, across_exec: bool) -> None:
        """Let the descriptors survive an exec, or no longer."""
        for fd in self.descriptors:
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, across_exec)


def bound_to(settings: Settings) -> dict[str, str]:
    """The settings that the jobs at hand are bound to. Passwords may change."""
    return {"redis_url": settings.server().masked, "namespace": settings.namespace, "fetch": settings.fetch}


def pickled(values: Mapping[str, Any]) -> bytes:
    """Values that anybody may have made; empty where one of them cannot be pickled."""
    try:
        return pickle.dumps(dict(values))
    except Exception:
        return b""
