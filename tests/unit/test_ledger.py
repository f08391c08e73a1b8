"""The ledger: every report in every phase, every death, and the looks. Rules by their numbers in the protocol."""

from __future__ import annotations

import itertools

import pytest

from cogworkerd.outcome import SUCCESS, Kind, Outcome
from cogworkerd.supervisor.ledger import Ledger, Orphan, ProtocolError, SlotPhase, Unsettled
from cogworkerd.worker import reports
from cogworkerd.worker.reports import Report, Result

A, B = b'{"class":"a"}', b'{"class":"b"}'
FAILED = Outcome(Kind.RETRY, 5.0, b"entry", b"attempt")


def body(frame: bytes) -> bytes:
    return frame[5:]


BODIES = {
    Report.READY: b"",
    Report.CONNECTED: body(reports.connected(7)),
    Report.IDLE: b"default",
    Report.STARTED: body(reports.with_job(Report.STARTED, "default", A)),
    Report.RETURNED: body(reports.with_job(Report.RETURNED, "default", A)),
    Report.PERFORMED: SUCCESS.encode(),
    Report.FINISHED: bytes((Result.SETTLED,)),
}
TO_REACH = {
    SlotPhase.FORKED: (),
    SlotPhase.IDLE: (Report.READY, Report.IDLE),
    SlotPhase.STARTED: (Report.READY, Report.STARTED),
    SlotPhase.PERFORMED: (Report.READY, Report.STARTED, Report.PERFORMED),
}
ALLOWED = {
    (SlotPhase.FORKED, Report.READY): SlotPhase.IDLE,
    (SlotPhase.IDLE, Report.IDLE): SlotPhase.IDLE,
    (SlotPhase.IDLE, Report.STARTED): SlotPhase.STARTED,
    (SlotPhase.IDLE, Report.RETURNED): SlotPhase.IDLE,
    (SlotPhase.STARTED, Report.PERFORMED): SlotPhase.PERFORMED,
    (SlotPhase.PERFORMED, Report.FINISHED): SlotPhase.IDLE,
    **{(phase, Report.CONNECTED): phase for phase in SlotPhase},
}


class Crew:
    """A ledger with words for what its children do."""

    def __init__(self, *slots: int) -> None:
        self.ledger = Ledger()
        for slot in slots:
            self.ledger.forked(slot)
            self.say(slot, Report.READY)
            self.say(slot, Report.IDLE)

    def say(self, slot: int, kind: Report, data: bytes | None = None) -> None:
        self.ledger.report(slot, kind, BODIES[kind] if data is None else data, now=1.0)

    def start(self, slot: int, raw: bytes = A) -> None:
        self.say(slot, Report.STARTED, body(reports.with_job(Report.STARTED, "default", raw)))

    def give_back(self, slot: int, raw: bytes = A) -> None:
        self.say(slot, Report.RETURNED, body(reports.with_job(Report.RETURNED, "default", raw)))

    def end(self, slot: int, outcome: Outcome = SUCCESS) -> None:
        self.say(slot, Report.PERFORMED, outcome.encode())

    def finish(self, slot: int, result: Result = Result.SETTLED) -> None:
        self.say(slot, Report.FINISHED, bytes((result,)))

    def look(self, *listed: bytes) -> list[bytes]:
        self.ledger.begin_look()
        return self.ledger.judge(list(listed))


def at(phase: SlotPhase) -> Crew:
    crew = Crew()
    crew.ledger.forked(1)
    for kind in TO_REACH[phase]:
        crew.say(1, kind)
    return crew


@pytest.mark.parametrize(("phase", "kind"), list(itertools.product(SlotPhase, Report)))
def test_each_report_in_each_phase(phase: SlotPhase, kind: Report) -> None:
    """P1: a report that cannot come in a phase is a protocol error and changes nothing."""
    crew = at(phase)
    if (phase, kind) in ALLOWED:
        crew.say(1, kind)
        assert crew.ledger.slots[1].phase is ALLOWED[phase, kind]
    else:
        with pytest.raises(ProtocolError, match=kind.name):
            crew.say(1, kind)
        assert crew.ledger.slots[1].phase is phase
        assert crew.ledger.orphans == []


@pytest.mark.parametrize(
    ("phase", "kind", "data"),
    [
        (SlotPhase.IDLE, Report.STARTED, b"\xff"),
        (SlotPhase.IDLE, Report.IDLE, b"\xff\xfe"),
        (SlotPhase.STARTED, Report.PERFORMED, b"\x09"),
        (SlotPhase.PERFORMED, Report.FINISHED, b""),
        (SlotPhase.PERFORMED, Report.FINISHED, b"\x09"),
        (SlotPhase.IDLE, Report.CONNECTED, b"\x01"),
    ],
)
def test_a_body_that_makes_no_sense_is_a_protocol_error(phase: SlotPhase, kind: Report, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        at(phase).say(1, kind, data)


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("phase", SlotPhase)
def test_a_death_is_judged_by_its_phase(phase: SlotPhase, ours: bool) -> None:
    """P11: STARTED is an orphan, blamed unless we killed the child; PERFORMED is settled; else a look is all."""
    crew = at(phase)
    crew.ledger.died(1, ours, "signal 9")
    orphan = Orphan("default", A, blame=not ours, reason="signal 9")
    assert crew.ledger.orphans == ([orphan] if phase is SlotPhase.STARTED else [])
    assert crew.ledger.unsettled == ([Unsettled("default", A, SUCCESS)] if phase is SlotPhase.PERFORMED else [])
    assert crew.ledger.slots == {}


@pytest.mark.parametrize(
    ("outcome", "result", "left"),
    [
        (SUCCESS, Result.SETTLED, []),
        (FAILED, Result.SETTLED, []),
        (SUCCESS, Result.GONE, []),
        (FAILED, Result.GONE, [Unsettled("default", A, FAILED, vanished=True)]),
        (SUCCESS, Result.TAKEN, []),
        (FAILED, Result.TAKEN, []),
        (SUCCESS, Result.UNKNOWN, [Unsettled("default", A, SUCCESS)]),
        (FAILED, Result.UNKNOWN, [Unsettled("default", A, FAILED)]),
    ],
)
def test_what_finished_leaves_to_do(outcome: Outcome, result: Result, left: list[Unsettled]) -> None:
    """P6, P17: only a failure that is gone at the first attempt is filed all the same."""
    crew = Crew(1)
    crew.start(1)
    crew.end(1, outcome)
    crew.finish(1, result)
    assert crew.ledger.unsettled == left


def test_gone_proves_nothing_once_a_settlement_of_such_bytes_was_unknown() -> None:
    """P17, H22: two copies fail; the repeated settlement of the first took the entry of the second."""
    crew = Crew(1, 2)
    for slot in (1, 2):
        crew.start(slot)
        crew.end(slot, FAILED)
    crew.ledger.died(1, ours=False, reason="signal 9")
    crew.ledger.settled(crew.ledger.unsettled[0])
    crew.finish(2, Result.GONE)
    assert crew.ledger.unsettled == []


def test_a_stray_is_requeued_when_every_child_that_could_hold_it_has_answered() -> None:
    """P13, P15."""
    crew = Crew(1, 2)
    assert crew.look(A) == []
    crew.say(1, Report.IDLE)
    assert crew.look(A) == []
    crew.say(2, Report.IDLE)
    assert crew.look(A) == [A]


def test_a_job_that_is_held_is_no_stray_and_copies_are_counted() -> None:
    """R20, P15: entries minus holders."""
    crew = Crew(1, 2)
    crew.start(1)
    crew.say(2, Report.IDLE)
    assert crew.look(A) == []
    assert crew.look(A, A) == []
    crew.say(2, Report.IDLE)
    assert crew.look(A, A) == [A]


@pytest.mark.parametrize("answer", [Report.STARTED, Report.IDLE, Report.RETURNED])
def test_started_idle_and_returned_are_answers(answer: Report) -> None:
    """P15c."""
    crew = Crew(1)
    crew.look(A)
    crew.say(1, answer, body(reports.with_job(answer, "default", B)) if answer is not Report.IDLE else None)
    assert crew.look(A) == [A]


def test_a_death_is_an_answer_and_a_new_life_is_not_waited_for() -> None:
    crew = Crew(1)
    crew.look(A)
    crew.ledger.died(1, ours=False, reason="signal 9")
    crew.ledger.forked(1)
    assert crew.look(A) == [A]


def test_performed_is_waited_for_and_finished_is_no_answer() -> None:
    """P15b, P15c, H2, H3: settle-and-fetch is a fetch."""
    crew = Crew(1)
    crew.start(1, A)
    crew.end(1)
    assert crew.look(A, B) == []
    crew.finish(1)
    assert crew.look(B) == []
    crew.say(1, Report.IDLE)
    assert crew.look(B) == [B]


def test_a_child_that_runs_another_job_is_not_waited_for() -> None:
    """P15b: STARTED cannot hold an unreported job."""
    crew = Crew(1)
    crew.start(1, B)
    assert crew.look(A, B) == [A]


def test_a_report_between_look_and_judgement_voids_it() -> None:
    """P15d, H4, H6."""
    crew = Crew(1, 2)
    crew.look(A)
    for slot in (1, 2):
        crew.say(slot, Report.IDLE)
    crew.ledger.begin_look()
    crew.start(1, A)
    crew.end(1)
    crew.finish(1)
    assert crew.ledger.judge([A]) == []


def test_a_report_that_names_the_bytes_makes_them_wait_anew() -> None:
    """P15e, H5: the job was reported and lost its process meanwhile; slot 2 has fetched it again."""
    crew = Crew(1, 2)
    crew.look(A)
    crew.say(2, Report.IDLE)
    crew.start(1, A)
    crew.ledger.died(1, ours=False, reason="signal 9")
    crew.ledger.requeued(crew.ledger.orphans[0])
    assert crew.look(A) == []
    crew.say(2, Report.IDLE)
    assert crew.look(A) == [A]


def test_what_is_to_be_settled_or_requeued_is_no_stray() -> None:
    crew = Crew(1, 2, 3)
    crew.start(1, A)
    crew.end(1)
    crew.ledger.died(1, ours=False, reason="signal 9")
    crew.give_back(2, B)
    crew.say(2, Report.IDLE)
    crew.look(A, B)
    crew.say(2, Report.IDLE)
    crew.say(3, Report.IDLE)
    assert crew.look(A, B) == []


def test_a_requeue_without_an_answer_is_judged_anew_with_its_blame() -> None:
    """P14."""
    crew = Crew(1, 2)
    crew.start(1, A)
    crew.ledger.died(1, ours=False, reason="signal 9")
    crew.ledger.requeue_unknown(crew.ledger.orphans[0])
    assert crew.look(A) == []
    crew.say(2, Report.IDLE)
    assert crew.look(A) == [A]
    mark = crew.ledger.mark_of(A)
    assert mark is not None
    assert mark.blame
    crew.ledger.stray_requeued(A)
    assert crew.ledger.orphans == []


def test_a_requeue_without_an_answer_had_worked_when_the_job_starts_or_is_not_listed() -> None:
    """P14, H8."""
    for happens in ("starts", "is not listed"):
        crew = Crew(1, 2)
        crew.start(1, A)
        crew.ledger.died(1, ours=False, reason="signal 9")
        crew.ledger.requeue_unknown(crew.ledger.orphans[0])
        if happens == "starts":
            crew.start(2, A)
        else:
            crew.look()
        assert crew.ledger.orphans == []


def test_a_stray_whose_requeue_was_not_answered_waits_anew() -> None:
    crew = Crew(1)
    crew.look(A)
    crew.say(1, Report.IDLE)
    assert crew.look(A) == [A]
    crew.ledger.stray_unknown(A)
    assert crew.look(A) == []


def test_a_look_without_an_answer_leaves_nothing_behind() -> None:
    crew = Crew(1)
    crew.ledger.begin_look()
    crew.ledger.forget_look()
    crew.start(1, A)
    crew.ledger.died(1, ours=True, reason="")
    crew.ledger.requeued(crew.ledger.orphans[0])
    assert crew.look(A) == [A]


def test_the_fence_keeps_only_what_is_on_the_list() -> None:
    """P18."""
    crew = Crew(1, 2, 3)
    for slot, raw in ((1, A), (2, B)):
        crew.start(slot, raw)
    crew.end(1, FAILED)
    crew.ledger.died(1, ours=False, reason="signal 9")
    crew.ledger.died(2, ours=False, reason="signal 9")
    crew.look(b"stray")
    crew.ledger.fence([B])
    assert crew.ledger.unsettled == []
    assert [orphan.raw for orphan in crew.ledger.orphans] == [B]
    assert crew.look(b"stray") == []


def test_busy_idle_and_what_is_waited_on() -> None:
    crew = Crew(1, 2, 3)
    crew.start(1)
    crew.say(3, Report.IDLE, b"")
    assert crew.ledger.busy == 1
    assert crew.ledger.idle_slots() == [2, 3]
    assert crew.ledger.waited_on() == {"default", ""}
