"""The vocabulary: whose steps are counted, which faults there are, and the point at which a run has its one fault."""

from __future__ import annotations

from dataclasses import dataclass

CHILD = "child"
SUPERVISOR = "supervisor"
CLIENT = "client"
REPORT = "report"
READ = "read"

_KILLS = ("kill-child-before", "kill-child-after", "kill-supervisor-before", "kill-supervisor-after")

FAULTS: dict[str, tuple[str, ...]] = {
    # Steps of the proxy: a command that a child sends, or the supervisor. "late" and "later" are carried out when the
    # connection is long gone. "kill-child-other" kills another child than the one whose step it is, and holds the reply
    # until the supervisor has looked at its list.
    CHILD: ("lost", "unanswered", "late", "later", "readonly", "oom", *_KILLS, "kill-child-other"),
    SUPERVISOR: ("lost", "unanswered", "late", "later", "readonly", "oom", *_KILLS),
    # Steps of the proxy by neither: an application that pushes, or an errand of the supervisor's.
    CLIENT: (
        *("lost", "unanswered", "late", "later", "readonly", "oom"),
        *("kill-client-before", "kill-client-after", "kill-supervisor-before", "kill-supervisor-after"),
    ),
    # A report that a child writes; "half" is a death in the middle of the write, "deaf" a descriptor that is closed.
    REPORT: (*_KILLS, "kill-child-half", "deaf"),
    # A read of reports by the supervisor.
    READ: ("kill-child-before", "kill-supervisor-before", "kill-supervisor-after"),
}
ROLES = tuple(FAULTS)
ALL_FAULTS = tuple(dict.fromkeys(fault for faults in FAULTS.values() for fault in faults))

_WRITES = frozenset(
    b"BLMOVE LMOVE LPUSH RPUSH RPOP BRPOP LREM LTRIM SET INCR SADD SREM ZADD ZREM HSET HDEL HINCRBY"
    b" RENAME EXPIRE DEL EVAL EVALSHA".split()
)
# Where a command changes nothing, it is all one whether the server has carried it out: one of the two is tried.
_AFTER_EFFECT = ("unanswered", "kill-child-after", "kill-client-after", "kill-supervisor-after")
_WITHOUT_MEMORY = frozenset(b"RPOP BRPOP LREM LTRIM SREM ZREM HDEL RENAME EXPIRE DEL".split())


@dataclass(frozen=True)
class Strike:
    """One fault: at the step of this number (from 1, counted from the moment of arming), or at the first one after it
    that the fault can hit."""

    role: str
    fault: str
    at: int

    @property
    def victim(self) -> str:
        """Whom it kills: "child", "supervisor", "client" (whose step it is) or nobody ("")."""
        return self.fault.split("-")[1] if self.fault.startswith("kill-") else ""

    @property
    def before(self) -> bool:
        """A kill that comes before the step is carried out."""
        return self.fault.endswith("-before")


@dataclass(frozen=True)
class Point:
    """One run: a scenario and its fault, or None to count the steps."""

    scenario: str
    strike: Strike | None = None

    @property
    def repeat(self) -> str:
        """The command line that runs it again."""
        line = f"python -m tests.chaos --scenario {self.scenario}"
        if self.strike is None:
            return f"{line} --count"
        return f"{line} --role {self.strike.role} --fault {self.strike.fault} --at {self.strike.at}"

    def __str__(self) -> str:
        if self.strike is None:
            return f"{self.scenario}, no fault"
        return f"{self.scenario}, {self.strike.role}, {self.strike.fault}, at {self.strike.at}"


def fits(fault: str, name: bytes, transaction: bool) -> bool:
    """Whether a fault of the proxy's makes sense at a command, and is not the same as another one there.

    Args:
        name: the command's.
        transaction: it is inside of one.
    """
    if fault in _AFTER_EFFECT:
        return name == b"EXEC" or (not transaction and name in (*_WRITES, b"CLIENT"))
    if fault == "oom":
        return name in _WRITES - _WITHOUT_MEMORY
    if fault == "readonly":
        return name in _WRITES
    if fault in ("late", "later"):
        # A question that is asked late is a question that is lost; a transaction is in limbo as a whole.
        return name == b"MULTI" or (not transaction and name in (*_WRITES, b"CLIENT"))
    return True
