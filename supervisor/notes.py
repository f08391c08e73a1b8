"""What a run has last said of itself, from the memory that its child shares; also after the child's death."""

from __future__ import annotations

import json

from .slot import Slot


def notes_of(slot: Slot, jid: str) -> dict[str, str]:
    """The notes of the run of this job in this slot; empty if it left none."""
    return fields_of(slot.page.read()[1], jid)


def fields_of(note: bytes, jid: str) -> dict[str, str]:
    """The fields of a note about this job; empty where it is none, or of another job."""
    try:
        fields = json.loads(note) if note else {}
    except ValueError:
        return {}  # a job has written into memory that is not its own
    if not isinstance(fields, dict) or fields.get("jid") != jid:
        return {}
    return {str(name): str(value) for name, value in fields.items()}
