"""Memory that a slot's child shares with its supervisor: what the run at hand says of itself, and an order for it.

The child writes notes and never waits for anybody; the supervisor reads them when it likes, also when the child is
dead. Notes are written into two areas in turn, and the number of the newest one is written last: a reader sees whole
ones.
"""

from __future__ import annotations

from cogworkerd.worker.shared_memory import shared_memory

AREA = 256 * 1024
MOST = AREA - 8
"""The longest note, in bytes."""

_HEAD = 4096  # a page of its own, so that a note never shares one with the numbers
_FIELDS = 3
_NOTES, _ORDER, _RUN = range(_FIELDS)


class SlotPage:
    """The memory of one slot; it outlives the slot's children.

    Args:
        fd: of one that is there already.
    """

    def __init__(self, fd: int | None = None) -> None:
        size = _HEAD + 2 * AREA
        self.fd, self._map = shared_memory("cogworkerd-slot", size, fd)
        self._fields = memoryview(self._map)[: 8 * _FIELDS].cast("Q")

    # ---- notes: child to supervisor ----------------------------------------------------------------------

    @property
    def notes(self) -> int:
        """How many notes were ever written."""
        return self._fields[_NOTES]

    def write(self, note: bytes) -> None:
        """Leave a note.

        Raises:
            ValueError: it is longer than MOST.
        """
        if len(note) > MOST:
            raise ValueError(f"a note of {len(note)} bytes")
        number = self._fields[_NOTES] + 1
        start = _HEAD + number % 2 * AREA
        self._map[start : start + 8] = len(note).to_bytes(8, "big")
        self._map[start + 8 : start + 8 + len(note)] = note
        self._fields[_NOTES] = number

    def read(self) -> tuple[int, bytes]:
        """The number and the text of the newest note; (0, b"") before the first one, (-1, b"") if the child writes so
        fast that none can be read whole."""
        for _ in range(3):
            number = self._fields[_NOTES]
            if number == 0:
                return 0, b""
            start = _HEAD + number % 2 * AREA
            size = min(int.from_bytes(self._map[start : start + 8], "big"), MOST)
            note = self._map[start + 8 : start + 8 + size]
            if self._fields[_NOTES] == number:  # else its area may be in use again
                return number, note
        return -1, b""

    # ---- orders: supervisor to child ---------------------------------------------------------------------

    def order(self, code: int, run: int) -> None:
        """Leave an order for one run (see `run_number`); the child looks at it when it is signalled."""
        self._fields[_ORDER] = 0
        self._fields[_RUN] = run
        self._fields[_ORDER] = code

    def order_for(self, run: int) -> int:
        """The order for this run; 0: none."""
        # In this order: the number is written between the end of the last order and the next one.
        return self._fields[_ORDER] if self._fields[_RUN] == run else 0


def run_number(pid: int, count: int) -> int:
    """The number of a child's run: no other child's run of this boot has it.

    Args:
        count: how many runs this child has begun, this one included.
    """
    return pid << 32 | count & 0xFFFFFFFF
