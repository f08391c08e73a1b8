"""The title of a child in the process listing."""

from __future__ import annotations

from setproctitle import setproctitle


class SlotTitle:
    """`cogworkerd:slot-3 shop [idle]`, or what runs instead of idle. No space in the first 15 characters: with one,
    Python 3.12 and newer misread their own number of threads."""

    def __init__(self, slot: int, tag: str) -> None:
        self._head = f"cogworkerd:slot-{slot} {tag} ["

    def show(self, doing: str) -> None:
        setproctitle(f"{self._head}{doing}]")
