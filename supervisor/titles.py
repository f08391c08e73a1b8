"""The supervisor's title in the process listing: an interface for operators."""

from __future__ import annotations

from setproctitle import setproctitle


class SupervisorTitle:
    """`cogworkerd:supervisor shop [3/10 busy]`, with `quiet`, `stopping`, `waiting for Redis` appended when so."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._shown = ""

    def show(self, busy: int, slots: int, notes: list[str]) -> None:
        title = f"cogworkerd:supervisor {self._tag} [{busy}/{slots} busy]{''.join(' ' + note for note in notes)}"
        if title != self._shown:
            self._shown = title
            setproctitle(title)
