"""What a soak finds: violations of the protocol, each counted, the first ones of each rule with their story."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MOST_TOLD = 5
"""Of each rule so many violations are kept in words; a fault that hits every job must not fill the memory."""


@dataclass(frozen=True)
class Violation:
    """One violation.

    Attributes:
        rule: what was broken.
        text: how.
        jid: whose story belongs to it; "" for none.
    """

    rule: str
    text: str
    jid: str = ""


@dataclass
class Findings:
    """All violations of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    told: list[Violation] = field(default_factory=list)

    def add(self, rule: str, text: str, jid: str = "") -> None:
        self.counts[rule] += 1
        if self.counts[rule] <= MOST_TOLD:
            self.told.append(Violation(rule, text, jid))

    @property
    def total(self) -> int:
        return sum(self.counts.values())
