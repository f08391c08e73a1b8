"""The rules of the protocol as switches, and the scenarios in which they are tried."""

from __future__ import annotations

from dataclasses import dataclass

TOLD, DEAF = 1, 2  # why a child is to finish and exit: it was told to, or its report pipe is broken
MAX_ORPHANINGS = 1  # the second orphaning buries the job: small, so that two kills reach it


@dataclass(frozen=True)
class Rules:
    """The protocol. Turning one off gives the weaker reading of the design."""

    drain_pipe_first: bool = True  # a dead child's pipe is read to its end before its death is judged
    performed_counts_as_fetching: bool = True  # settle-and-fetch is a fetch
    finished_is_no_answer: bool = True  # FINISHED does not tell what the same script fetched
    drain_all_before_judging: bool = True  # all pipes are read after the list's reply, before it is judged
    forget_stray_on_report: bool = True  # any report or action that names a payload restarts its waiting
    ignore_touched_since_look: bool = True  # a payload reported between look and judgement is not judged
    look_voids_requeues: bool = True  # a requeue acts only under the look that justified it
    retry_requeue_by_look: bool = True  # a requeue with unknown outcome is judged anew, not repeated
    parent_gives_back: bool = True  # a child with a living parent never requeues, it reports RETURNED
    doubt_copies: bool = True  # "gone" proves nothing once bytes like these had a settlement of unknown outcome
    gone_after_unknown_is_settled: bool = True  # "gone" after an attempt of unknown outcome: it had worked
    fence_by_registration: bool = True  # taken over = not registered any more; the orphan counter is no proof
    number_registrations: bool = True  # a job fetched before the last registration and now gone was taken over
    fetch_under_lease: bool = True  # children fetch only while the parent's last beat is fresh
    wait_for_children: bool = True  # a dead predecessor's list is touched only when its children are gone
    keep_registered: bool = True  # an identity with a command possibly in limbo stays registered
    second_look_at_dead: bool = True  # an identity is recovered at the second look, two beats after the first
    sentence_only_its_run: bool = True  # a child killed for one run may be at the next one when it dies
    kill_before_requeue: bool = True  # a straggler is dead and its pipe is read before its job is requeued
    release_in_settle: bool = True  # locks are released by the script that removes the entry
    release_only_if_removed: bool = True  # ... and only if it did remove it


@dataclass(frozen=True)
class Scenario:
    name: str
    jobs: str = "a"  # one letter a job; "aa" is two copies of one payload
    supervisors: int = 1
    slots: int = 1
    faults: int = 1
    kinds: str = "limbo kill"
    failing: bool = True  # runs may fail: first failure to retry, second to dead
    stops: int = 0  # how many TERMs to supervisor 0
    restarts: int = 0  # how many TERMs to a child (rolling restart)
    limits: int = 0  # how many runs go beyond a limit and are killed for it by supervisor 0
    same_host: bool = True  # a successor sees at once that a predecessor's processes are gone


SUITE = (
    Scenario("one job", kinds="limbo kill", faults=2),
    Scenario("one job, report pipe breaks", slots=2, kinds="deaf"),
    Scenario("one job, child replaced", restarts=1),
    Scenario("one job, two slots", slots=2),
    Scenario("one job beyond its limit", limits=1),
    Scenario("two jobs, one beyond its limit", jobs="ab", limits=1, failing=False),
    Scenario("two jobs", jobs="ab", failing=False),
    Scenario("two copies", jobs="aa", slots=2, failing=False),
    Scenario("stop", slots=2, stops=1, kinds="limbo kill", failing=False),
    Scenario("stop, failing", stops=1, kinds="limbo kill refuse"),
    Scenario("dead supervisor", supervisors=2, kinds="killsup limbo", failing=False),
    Scenario("false death", supervisors=2, kinds="cut", failing=False),
    Scenario("cut off, then dead", supervisors=2, kinds="cut killsup", faults=2, failing=False),
    Scenario("stop beside another", supervisors=2, stops=1, kinds="limbo", failing=False),
    Scenario("outage", supervisors=2, kinds="outage", failing=False),
    Scenario("lossy failover", slots=2, kinds="lossy", failing=False),
)

DEEP = (
    Scenario("report pipe breaks, 2 faults", kinds="deaf limbo kill", faults=2),
    Scenario("lossy failover, failing", slots=2, kinds="lossy"),
    Scenario("false death, failing", supervisors=2, kinds="cut"),
    Scenario("dead supervisor, failing", supervisors=2, kinds="killsup limbo"),
    Scenario("two jobs, child replaced", jobs="ab", restarts=1),
    Scenario("two jobs, two slots", jobs="ab", slots=2, failing=False),
    Scenario("three jobs", jobs="abc", failing=False),
    Scenario("two copies, failing, child killed", jobs="aa", slots=2, kinds="kill"),
    Scenario("two copies, failing", jobs="aa", slots=2),
    Scenario("one job, two slots, 2 faults", slots=2, faults=2, failing=False),
    Scenario("two jobs, 2 faults", jobs="ab", faults=2, failing=False),
    Scenario("stop, 2 faults", stops=1, slots=2, kinds="limbo kill", faults=2, failing=False),
    Scenario("stop, failing, 2 faults", stops=1, kinds="limbo kill refuse", faults=2),
    Scenario("stop beside another, failing", supervisors=2, stops=1, kinds="limbo kill"),
    Scenario("dead supervisor, 2 faults", supervisors=2, kinds="killsup kill limbo", faults=2, failing=False),
    Scenario("false death, 2 faults", supervisors=2, kinds="cut kill limbo", faults=2, failing=False),
    Scenario("outage, failing", supervisors=2, kinds="outage"),
    Scenario("outage, 2 faults", supervisors=2, kinds="outage kill", faults=2, failing=False),
    Scenario("lossy failover, 2 faults", slots=2, kinds="lossy kill limbo", faults=2, failing=False),
)

# Without the rule on the left, the scenario on the right shows why it is there.
HOLES = {
    "drain_pipe_first": "one job",
    "performed_counts_as_fetching": "two jobs",
    "finished_is_no_answer": "two jobs",
    "drain_all_before_judging": "one job",
    "forget_stray_on_report": "stop",
    "ignore_touched_since_look": "stop",
    "look_voids_requeues": "one job",
    "retry_requeue_by_look": "one job",
    "parent_gives_back": "one job, child replaced",
    "doubt_copies": "two copies, failing, child killed",
    "gone_after_unknown_is_settled": "one job",
    "fence_by_registration": "false death, failing",
    "number_registrations": "false death, failing",
    "fetch_under_lease": "cut off, then dead",
    "wait_for_children": "dead supervisor",
    "keep_registered": "stop",
    "second_look_at_dead": "outage",
    "kill_before_requeue": "stop beside another",
    "sentence_only_its_run": "two jobs, one beyond its limit",
    "release_in_settle": "one job",
    "release_only_if_removed": "false death",
}
