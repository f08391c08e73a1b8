"""The ledger against the tables and the traces of the settlement protocol. P and H numbers are its rules and holes."""

from __future__ import annotations

import itertools

import pytest

from cogworkerd.outcome import SUCCESS, Kind, Outcome
from cogworkerd.supervisor.ledger import Ledger, Orphan, ProtocolError, SlotPhase, SlotRecord, Unsettled
from cogworkerd.worker import reports
from cogworkerd.worker.reports import Report, Result

A, B = b'{"class":"a"}', b'{"class":"b"}'
FAILED = Outcome(Kind.RETRY, 1000.0, b'{"class":"a","retry_count":1}', b'{"attempt":1}')
DEAD = Outcome(Kind.DEAD, 1000.0, b'{"class":"a"}')
DISCARDED = Outcome(Kind.DISCARD, attempt=b"{}")
NOW = 1234.5


class Crew:
    """A ledger, and children that report to it in whole frames."""

    def __init__(self, slots: int = 1) -> None:
        self.ledger = Ledger()
        for slot in range(slots):
            self.fork(slot)

    def fork(self, slot: int) -> None:
        """A new child that says hello and waits for a job."""
        self.ledger.forked(slot)
        self.report(slot, Report.READY)
        self.idle(slot)

    def report(self, slot: int, kind: Report, body: bytes = b"") -> None:
        self.ledger.report(slot, kind, body, NOW)

    def idle(self, slot: int, queue: str = "default") -> None:
        self.report(slot, Report.IDLE, queue.encode())

    def started(self, slot: int, raw: bytes, queue: str = "default") -> None:
        self.report(slot, Report.STARTED, job_body(raw, queue))

    def performed(self, slot: int, outcome: Outcome = SUCCESS) -> None:
        self.report(slot, Report.PERFORMED, outcome.encode())

    def finished(self, slot: int, result: Result = Result.SETTLED) -> None:
        self.report(slot, Report.FINISHED, bytes((result,)))

    def returned(self, slot: int, raw: bytes, queue: str = "default") -> None:
        self.report(slot, Report.RETURNED, job_body(raw, queue))

    def died(self, slot: int, ours: bool = False, reason: str = "signal 9") -> SlotRecord:
        return self.ledger.died(slot, ours, reason)

    def look(self, *listed: bytes) -> list[bytes]:
        """A look and its judgement, with nothing in between."""
        self.ledger.begin_look()
        return self.ledger.judge(list(listed))


def job_body(raw: bytes, queue: str = "default") -> bytes:
    frame = reports.with_job(Report.STARTED, queue, raw)
    return frame[len(reports.frame(Report.STARTED)) :]


def phase(crew: Crew, slot: int = 0) -> SlotPhase:
    return crew.ledger.slots[slot].phase


def in_phase(wanted: SlotPhase) -> Crew:
    """One slot in this phase; it runs A where it runs something."""
    crew = Crew(0)
    crew.ledger.forked(0)
    if wanted is not SlotPhase.FORKED:
        crew.report(0, Report.READY)
    if wanted in (SlotPhase.STARTED, SlotPhase.PERFORMED):
        crew.started(0, A, "mail")
    if wanted is SlotPhase.PERFORMED:
        crew.performed(0, FAILED)
    return crew


BODIES = {
    Report.READY: b"",
    Report.CONNECTED: (7).to_bytes(8, "big"),
    Report.IDLE: b"default",
    Report.STARTED: job_body(A, "mail"),
    Report.PERFORMED: FAILED.encode(),
    Report.RETURNED: job_body(A, "mail"),
    Report.FINISHED: bytes((Result.SETTLED,)),
    Report.TROUBLE: b"WRONGTYPE",
    Report.UNRELEASED: b"[]",
    Report.UNANSWERED: b"",
    Report.DEATH_HOOK: b"",
    Report.RUN: b"",
}

# P1: READY, (IDLE | STARTED, PERFORMED, FINISHED)*; CONNECTED comes on every connect, TROUBLE after a fetch that was
# refused. What is missing is an error.
ANY_TIME = (Report.CONNECTED, Report.TROUBLE, Report.UNRELEASED, Report.UNANSWERED)
AFTERWARDS = {
    (SlotPhase.FORKED, Report.READY): SlotPhase.IDLE,
    (SlotPhase.IDLE, Report.IDLE): SlotPhase.IDLE,
    (SlotPhase.IDLE, Report.STARTED): SlotPhase.STARTED,
    (SlotPhase.IDLE, Report.RETURNED): SlotPhase.IDLE,
    (SlotPhase.STARTED, Report.PERFORMED): SlotPhase.PERFORMED,
    (SlotPhase.PERFORMED, Report.FINISHED): SlotPhase.IDLE,
    (SlotPhase.STARTED, Report.RUN): SlotPhase.STARTED,
    (SlotPhase.PERFORMED, Report.DEATH_HOOK): SlotPhase.PERFORMED,
    **{
        (each, kind): each
        for each in SlotPhase
        for kind in (Report.CONNECTED, Report.TROUBLE, Report.UNRELEASED, Report.UNANSWERED)
    },
}


# ---- the table: phase and report -----------------------------------------------------------------------


@pytest.mark.parametrize(("before", "kind"), list(itertools.product(SlotPhase, Report)))
def test_p1_each_report_in_each_phase_leads_on_or_is_a_protocol_error(before: SlotPhase, kind: Report) -> None:
    crew = in_phase(before)
    after = AFTERWARDS.get((before, kind))
    if after is None:
        with pytest.raises(ProtocolError, match=f"{kind.name} while {before.value}"):
            crew.report(0, kind, BODIES[kind])
        after = before
    else:
        crew.report(0, kind, BODIES[kind])
    assert phase(crew) is after


@pytest.mark.parametrize("before", list(SlotPhase))
def test_after_a_protocol_error_the_death_is_judged_by_the_last_valid_phase(before: SlotPhase) -> None:
    for kind in Report:
        if (before, kind) in AFTERWARDS:
            continue
        crew = in_phase(before)
        with pytest.raises(ProtocolError):
            crew.report(0, kind, BODIES[kind])
        crew.died(0, ours=True)
        orphans = [(orphan.raw, orphan.blame) for orphan in crew.ledger.orphans]
        unsettled = [(item.raw, item.outcome) for item in crew.ledger.unsettled]
        assert orphans == ([(A, False)] if before is SlotPhase.STARTED else [])
        assert unsettled == ([(A, FAILED)] if before is SlotPhase.PERFORMED else [])


@pytest.mark.parametrize(
    ("before", "kind", "body"),
    [
        (SlotPhase.FORKED, Report.CONNECTED, b""),
        (SlotPhase.FORKED, Report.CONNECTED, b"\0" * 9),
        (SlotPhase.IDLE, Report.IDLE, b"\xff"),
        (SlotPhase.IDLE, Report.STARTED, b""),
        (SlotPhase.IDLE, Report.STARTED, b"\0"),
        (SlotPhase.IDLE, Report.STARTED, b"\0\1\xff{}"),
        (SlotPhase.IDLE, Report.STARTED, b"\0\x09short"),
        (SlotPhase.IDLE, Report.RETURNED, b""),
        (SlotPhase.IDLE, Report.RETURNED, b"\0\x09short"),
        (SlotPhase.STARTED, Report.PERFORMED, b""),
        (SlotPhase.STARTED, Report.PERFORMED, FAILED.encode()[:-1]),
        (SlotPhase.STARTED, Report.PERFORMED, FAILED.encode() + b"x"),
        (SlotPhase.STARTED, Report.PERFORMED, b"\x09" + SUCCESS.encode()[1:]),
        (SlotPhase.PERFORMED, Report.FINISHED, b""),
        (SlotPhase.PERFORMED, Report.FINISHED, b"\x04"),
    ],
)
def test_a_report_whose_body_makes_no_sense_is_a_protocol_error_and_changes_nothing(
    before: SlotPhase, kind: Report, body: bytes
) -> None:
    crew = in_phase(before)
    held = crew.ledger.slots[0].raw
    with pytest.raises(ProtocolError, match=kind.name):
        crew.report(0, kind, body)
    assert phase(crew) is before
    assert crew.ledger.slots[0].raw == held
    assert crew.ledger.orphans == []
    assert crew.ledger.unsettled == []


def test_r48_an_outcome_whose_child_died_in_its_hooks_is_remembered_with_that() -> None:
    """Its hooks have begun, so nobody else calls them; the next job of the slot begins anew."""
    crew = in_phase(SlotPhase.PERFORMED)
    crew.report(0, Report.DEATH_HOOK, b"")
    crew.died(0, ours=False)
    assert [item.hooks_begun for item in crew.ledger.unsettled] == [True]
    crew = in_phase(SlotPhase.PERFORMED)
    crew.report(0, Report.DEATH_HOOK, b"")
    crew.report(0, Report.FINISHED, BODIES[Report.FINISHED])
    crew.started(0, A, "mail")
    crew.performed(0, FAILED)
    crew.died(0, ours=False)
    assert [item.hooks_begun for item in crew.ledger.unsettled] == [False]


# ---- what the record shows -----------------------------------------------------------------------------


def test_a_started_job_is_on_record_with_its_queue_bytes_and_time() -> None:
    crew = Crew()
    crew.started(0, A, "mail")
    record = crew.ledger.slots[0]
    assert (record.queue, record.raw, record.started_at, record.waits_on) == ("mail", A, NOW, "")
    assert record.busy


def test_r21_a_job_is_running_until_it_is_settled() -> None:
    crew = Crew(2)
    assert crew.ledger.busy == 0
    crew.started(0, A)
    assert crew.ledger.busy == 1
    crew.performed(0)
    assert crew.ledger.busy == 1
    crew.finished(0)
    assert crew.ledger.busy == 0
    assert crew.ledger.slots[0].raw == b""
    assert crew.ledger.slots[0].outcome is None


def test_idle_slots_and_the_queues_they_wait_on() -> None:
    crew = Crew(3)
    crew.ledger.forked(3)
    crew.idle(1, "mail")
    crew.idle(2, "")
    assert crew.ledger.idle_slots() == [0, 1, 2]
    assert crew.ledger.waited_on() == {"default", "mail", ""}
    crew.started(0, A)
    assert crew.ledger.idle_slots() == [1, 2]
    assert "default" not in crew.ledger.waited_on()


def test_the_client_id_is_the_one_of_the_last_connect_and_goes_with_the_child() -> None:
    crew = Crew()
    for number in (7, 2**63):
        crew.report(0, Report.CONNECTED, number.to_bytes(8, "big"))
        assert crew.ledger.slots[0].client_id == number
    crew.died(0)
    crew.ledger.forked(0)
    assert crew.ledger.slots[0].client_id == 0


# ---- FINISHED: settled, gone, taken, unknown -----------------------------------------------------------


@pytest.mark.parametrize("result", [Result.SETTLED, Result.TAKEN])
@pytest.mark.parametrize("outcome", [SUCCESS, FAILED, DEAD, DISCARDED])
def test_settled_and_taken_are_forgotten(outcome: Outcome, result: Result) -> None:
    crew = Crew()
    crew.started(0, A)
    crew.performed(0, outcome)
    crew.finished(0, result)
    assert crew.ledger.unsettled == []
    assert crew.ledger.orphans == []


@pytest.mark.parametrize("outcome", [SUCCESS, DISCARDED])
def test_an_ack_that_is_gone_is_forgotten(outcome: Outcome) -> None:
    crew = Crew()
    crew.started(0, A)
    crew.performed(0, outcome)
    crew.finished(0, Result.GONE)
    assert crew.ledger.unsettled == []


@pytest.mark.parametrize("outcome", [FAILED, DEAD])
def test_p17_a_failure_that_is_gone_is_to_be_filed_all_the_same(outcome: Outcome) -> None:
    crew = Crew()
    crew.started(0, A, "mail")
    crew.performed(0, outcome)
    crew.finished(0, Result.GONE)
    assert crew.ledger.unsettled == [Unsettled("mail", A, outcome, vanished=True)]


@pytest.mark.parametrize("outcome", [SUCCESS, FAILED, DEAD, DISCARDED])
def test_p16_r22_an_outcome_of_unknown_fate_is_remembered(outcome: Outcome) -> None:
    crew = Crew()
    crew.started(0, A, "mail")
    crew.performed(0, outcome)
    crew.finished(0, Result.UNKNOWN)
    assert crew.ledger.unsettled == [Unsettled("mail", A, outcome)]
    assert phase(crew) is SlotPhase.IDLE
    crew.ledger.settled(crew.ledger.unsettled[0])
    assert crew.ledger.unsettled == []


@pytest.mark.parametrize("doubt", ["unknown to the child", "the child died"])
def test_p17_h22_gone_proves_nothing_once_a_settlement_of_the_bytes_was_of_unknown_outcome(doubt: str) -> None:
    crew = Crew(2)
    for slot in (0, 1):
        crew.started(slot, A)
        crew.performed(slot, FAILED)
    if doubt == "the child died":
        crew.died(0)
    else:
        crew.finished(0, Result.UNKNOWN)
    crew.ledger.settled(crew.ledger.unsettled[0])  # it may have taken the copy's entry
    crew.finished(1, Result.GONE)
    assert crew.ledger.unsettled == []


def test_p17_the_doubt_lasts_as_long_as_the_supervisor_and_is_about_these_bytes_only() -> None:
    crew = Crew()
    crew.started(0, A)
    crew.performed(0, FAILED)
    crew.finished(0, Result.UNKNOWN)
    crew.ledger.settled(crew.ledger.unsettled[0])
    crew.look()
    crew.ledger.fence([])
    for raw, filed in ((A, 0), (B, 1)):
        crew.started(0, raw)
        crew.performed(0, FAILED)
        crew.finished(0, Result.GONE)
        assert len(crew.ledger.unsettled) == filed


# ---- deaths --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("before", [SlotPhase.FORKED, SlotPhase.IDLE])
def test_p11_a_death_without_a_job_leaves_nothing_but_a_look(before: SlotPhase, ours: bool) -> None:
    crew = in_phase(before)
    record = crew.died(0, ours)
    assert not record.busy
    assert crew.ledger.slots == {}
    assert crew.ledger.orphans == []
    assert crew.ledger.unsettled == []


@pytest.mark.parametrize("ours", [False, True])
def test_p11_i5_a_death_in_mid_job_is_an_orphan_blamed_unless_it_was_our_hand(ours: bool) -> None:
    crew = Crew()
    crew.started(0, A, "mail")
    record = crew.died(0, ours, "signal 11 (SEGV)")
    assert record.busy
    assert crew.ledger.orphans == [Orphan("mail", A, blame=not ours, reason="signal 11 (SEGV)")]
    assert crew.ledger.unsettled == []
    crew.ledger.requeued(crew.ledger.orphans[0])
    assert crew.ledger.orphans == []


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("outcome", [SUCCESS, FAILED, DEAD, DISCARDED])
def test_p11_h20_a_death_after_performed_is_settled_and_never_blamed(outcome: Outcome, ours: bool) -> None:
    """R24."""
    crew = Crew()
    crew.started(0, A, "mail")
    crew.performed(0, outcome)
    crew.died(0, ours)
    assert crew.ledger.orphans == []
    assert crew.ledger.unsettled == [Unsettled("mail", A, outcome)]


def test_a_death_after_finished_leaves_nothing() -> None:
    crew = Crew()
    crew.started(0, A)
    crew.performed(0, FAILED)
    crew.finished(0)
    crew.died(0)
    assert crew.ledger.orphans == []
    assert crew.ledger.unsettled == []


def test_p8_a_returned_job_is_requeued_uncounted() -> None:
    """R25."""
    crew = Crew()
    crew.returned(0, A, "mail")
    assert crew.ledger.orphans == [Orphan("mail", A, blame=False)]
    assert phase(crew) is SlotPhase.IDLE
    assert crew.ledger.waited_on() == {""}


# ---- looks and strays ----------------------------------------------------------------------------------


def test_p15_an_entry_that_nobody_holds_is_requeued_once_all_slots_have_answered() -> None:
    """R45."""
    crew = Crew(2)
    assert crew.look(A) == []
    crew.idle(0)
    assert crew.look(A) == []
    crew.idle(1)
    assert crew.look(A) == [A]
    crew.ledger.stray_requeued(A)
    assert crew.look() == []


def test_an_empty_list_has_no_strays() -> None:
    assert Crew(3).look() == []


@pytest.mark.parametrize("before", [SlotPhase.STARTED, SlotPhase.PERFORMED])
def test_an_entry_with_a_holder_is_no_stray(before: SlotPhase) -> None:
    crew = in_phase(before)
    crew.fork(1)
    for _ in range(3):
        crew.idle(1)
        assert crew.look(A) == []


@pytest.mark.parametrize("waits", [SlotPhase.FORKED, SlotPhase.IDLE, SlotPhase.PERFORMED])
def test_p15b_each_life_that_is_not_started_is_waited_for(waits: SlotPhase) -> None:
    crew = in_phase(waits)
    held = [A] if waits is SlotPhase.PERFORMED else []
    assert crew.look(B, *held) == []
    assert crew.look(B, *held) == []
    crew.died(0)
    assert crew.look(B) == [B]


def test_p15b_a_started_life_is_not_waited_for() -> None:
    crew = in_phase(SlotPhase.STARTED)
    assert crew.look(A, B) == [B]


def test_p15b_a_finished_life_is_waited_for() -> None:
    crew = in_phase(SlotPhase.PERFORMED)
    crew.finished(0)
    assert crew.look(B) == []


def test_without_any_child_a_stray_needs_no_answer() -> None:
    assert Crew(0).look(A) == [A]


@pytest.mark.parametrize("answer", ["STARTED", "IDLE", "RETURNED", "death"])
def test_p15c_started_idle_returned_and_death_are_answers(answer: str) -> None:
    crew = Crew()
    assert crew.look(B) == []
    if answer == "STARTED":
        crew.started(0, A)
    elif answer == "IDLE":
        crew.idle(0)
    elif answer == "RETURNED":
        crew.returned(0, A)
        crew.ledger.requeued(crew.ledger.orphans[0])
    else:
        crew.died(0)
    listed = [A, B] if answer == "STARTED" else [B]
    assert crew.look(*listed) == [B]


@pytest.mark.parametrize("kind", [Report.CONNECTED, Report.FINISHED])
def test_p15c_connected_and_finished_are_no_answers(kind: Report) -> None:
    crew = in_phase(SlotPhase.PERFORMED)
    assert crew.look(A, B) == []
    crew.report(0, kind, BODIES[kind])
    assert crew.look(B, *([A] if kind is Report.CONNECTED else [])) == []


def test_p15c_performed_is_no_answer() -> None:
    crew = Crew(2)
    crew.started(0, A)
    assert crew.look(A, B) == []  # slot 1 is waited for, slot 0 is not
    crew.performed(0)
    crew.idle(1)
    assert crew.look(A, B) == [B]


def test_a_child_forked_after_the_first_sight_is_not_waited_for() -> None:
    crew = Crew()
    assert crew.look(A) == []
    crew.died(0)
    crew.fork(0)
    crew.fork(1)
    assert crew.look(A) == [A]


def test_an_answer_counts_for_every_stray_and_only_for_its_own_slot() -> None:
    crew = Crew(2)
    assert crew.look(A, B) == []
    crew.idle(0)
    crew.idle(0)
    assert crew.look(A, B) == []
    crew.idle(1)
    assert sorted(crew.look(A, B)) == [A, B]


def test_a_stray_that_left_the_list_waits_anew_when_it_is_back() -> None:
    crew = Crew()
    assert crew.look(A) == []
    crew.idle(0)
    assert crew.look() == []
    assert crew.look(A) == []
    crew.idle(0)
    assert crew.look(A) == [A]


@pytest.mark.parametrize("event", ["started", "returned", "died", "performed and finished"])
def test_p15d_bytes_that_a_report_named_between_look_and_judgement_are_not_judged(event: str) -> None:
    crew = Crew(2)
    crew.look(A)
    crew.idle(0)
    crew.idle(1)
    if event == "died":
        crew.started(0, A)
    elif event == "performed and finished":
        crew.started(0, A)
        crew.performed(0)
    crew.ledger.begin_look()
    if event == "started":
        crew.started(0, A)
        listed = [A, A]
    elif event == "returned":
        crew.returned(0, A)
        listed = [A, A]
    elif event == "died":
        crew.died(0)
        listed = [A]
    else:
        crew.finished(0)
        listed = [A]
    assert crew.ledger.judge(listed) == []


@pytest.mark.parametrize("answered", [True, False])
def test_p15d_bytes_that_an_action_named_between_look_and_judgement_are_not_judged(answered: bool) -> None:
    crew = Crew()
    crew.started(0, A)
    crew.died(0)
    orphan = crew.ledger.orphans[0]
    crew.ledger.begin_look()
    if answered:
        crew.ledger.requeued(orphan)
    else:
        crew.ledger.requeue_unknown(orphan)
    assert crew.ledger.judge([A]) == []


def test_p15d_a_settlement_between_look_and_judgement_counts_as_well() -> None:
    crew = Crew()
    crew.started(0, A)
    crew.performed(0)
    crew.died(0)
    crew.ledger.begin_look()
    crew.ledger.settled(crew.ledger.unsettled[0])
    assert crew.ledger.judge([A]) == []


def test_p15e_a_report_that_names_a_stray_makes_it_wait_anew() -> None:
    crew = Crew(2)
    assert crew.look(A) == []
    crew.idle(0)
    crew.idle(1)
    crew.started(0, A)
    crew.performed(0)
    crew.finished(0)
    assert crew.look(A) == []
    crew.idle(0)
    assert crew.look(A) == []
    crew.idle(1)
    assert crew.look(A) == [A]


def test_p15_known_outcomes_and_unanswered_orphans_are_no_strays() -> None:
    crew = Crew(2)
    crew.started(0, A)
    crew.performed(0)
    crew.died(0)
    crew.started(1, B)
    crew.died(1)
    for _ in range(3):
        assert crew.look(A, B) == []
    assert [orphan.raw for orphan in crew.ledger.orphans] == [B]


def test_an_unanswered_look_proves_nothing_and_leaves_no_trace() -> None:
    crew = Crew()
    assert crew.look(A) == []
    crew.ledger.begin_look()
    crew.idle(0)
    crew.ledger.forget_look()
    assert crew.look(A) == [A]


def test_a_stray_whose_requeue_was_not_answered_waits_anew() -> None:
    crew = Crew()
    crew.look(A)
    crew.idle(0)
    assert crew.look(A) == [A]
    crew.ledger.stray_unknown(A)
    assert crew.look(A) == []
    crew.idle(0)
    assert crew.look(A) == [A]


def test_r45_a_stray_whose_requeue_was_void_stays_ripe() -> None:
    crew = Crew(0)
    assert crew.look(A) == [A]
    assert crew.look(A) == [A]


# ---- two copies of one payload -------------------------------------------------------------------------


def test_r20_two_copies_run_at_once_and_are_counted() -> None:
    crew = Crew(2)
    crew.started(0, A)
    crew.started(1, A)
    assert crew.ledger.busy == 2
    assert crew.look(A, A) == []
    assert crew.look(A, A, A) == [A]


def test_r20_one_holder_of_two_entries_leaves_one_stray() -> None:
    crew = Crew(2)
    crew.started(0, A)
    assert crew.look(A, A) == []
    crew.idle(1)
    assert crew.look(A, A) == [A]


def test_r20_each_copy_has_its_own_orphan_and_its_own_outcome() -> None:
    crew = Crew(4)
    for slot in range(4):
        crew.started(slot, A)
    crew.died(0)
    crew.died(1)
    for slot in (2, 3):
        crew.performed(slot, FAILED)
        crew.died(slot)
    assert crew.ledger.orphans == [Orphan("default", A, True, "signal 9")] * 2
    assert crew.ledger.unsettled == [Unsettled("default", A, FAILED)] * 2
    crew.ledger.requeued(crew.ledger.orphans[0])
    crew.ledger.settled(crew.ledger.unsettled[0])
    assert len(crew.ledger.orphans) == 1
    assert len(crew.ledger.unsettled) == 1


# ---- marks ---------------------------------------------------------------------------------------------


def marked(slots: int = 2, ours: bool = False) -> Crew:
    """Slot 0 died in A; the requeue was not answered; slot 0 lives again."""
    crew = Crew(slots)
    crew.started(0, A, "mail")
    crew.died(0, ours)
    crew.ledger.requeue_unknown(crew.ledger.orphans[0])
    crew.fork(0)
    return crew


@pytest.mark.parametrize("ours", [False, True])
def test_p14_a_requeue_of_unknown_outcome_becomes_a_mark_that_keeps_its_blame(ours: bool) -> None:
    crew = marked(ours=ours)
    assert crew.ledger.mark_of(A) == Orphan("mail", A, not ours, "signal 9", marked=True)
    assert crew.ledger.mark_of(B) is None


def test_p14_a_marked_payload_is_judged_anew_as_a_stray() -> None:
    crew = marked()
    assert crew.look(A) == []
    crew.idle(0)
    crew.idle(1)
    assert crew.look(A) == [A]
    mark = crew.ledger.mark_of(A)
    assert mark is not None
    assert mark.blame
    crew.ledger.stray_requeued(A)
    assert crew.ledger.orphans == []


def test_p14_h8_started_of_the_same_bytes_ends_the_mark() -> None:
    crew = marked()
    crew.started(1, A)
    assert crew.ledger.orphans == []
    crew.performed(1, FAILED)
    crew.finished(1)
    assert crew.look() == []
    assert crew.ledger.orphans == []


def test_p14_started_of_other_bytes_leaves_the_mark() -> None:
    crew = marked()
    crew.started(1, B)
    assert crew.ledger.mark_of(A) is not None


def test_p14_a_mark_whose_bytes_are_not_on_the_list_had_worked() -> None:
    crew = marked()
    assert crew.look() == []
    assert crew.ledger.orphans == []


def test_p14_a_mark_stays_when_the_second_requeue_is_not_answered_either() -> None:
    crew = marked()
    crew.look(A)
    crew.idle(0)
    crew.idle(1)
    assert crew.look(A) == [A]
    crew.ledger.stray_unknown(A)
    mark = crew.ledger.mark_of(A)
    assert mark is not None
    assert mark.blame
    assert crew.look(A) == []


def test_p14_an_orphan_that_was_not_tried_is_no_mark_and_outlives_a_look_that_does_not_show_it() -> None:
    crew = Crew()
    crew.started(0, A)
    crew.died(0)
    assert crew.ledger.mark_of(A) is None
    crew.look()
    assert [orphan.raw for orphan in crew.ledger.orphans] == [A]


def test_p14_a_returned_job_whose_requeue_was_not_answered_is_marked_without_blame() -> None:
    crew = Crew()
    crew.returned(0, A, "mail")
    crew.ledger.requeue_unknown(crew.ledger.orphans[0])
    assert crew.ledger.mark_of(A) == Orphan("mail", A, blame=False, marked=True)


# ---- the fence -----------------------------------------------------------------------------------------


def test_p18_the_fence_keeps_only_what_is_still_on_the_list() -> None:
    raws = [f'{{"n":{n}}}'.encode() for n in range(6)]
    crew = Crew(6)
    for slot, raw in enumerate(raws):
        crew.started(slot, raw)
    for slot in (0, 1):
        crew.performed(slot, FAILED)
    for slot in range(6):
        crew.died(slot)
    for orphan in crew.ledger.orphans[2:]:
        crew.ledger.requeue_unknown(orphan)
    crew.ledger.fence([raws[0], raws[2], raws[4]])
    assert [item.raw for item in crew.ledger.unsettled] == [raws[0]]
    assert [(orphan.raw, orphan.marked) for orphan in crew.ledger.orphans] == [(raws[2], False), (raws[4], True)]


def test_p18_the_fence_leaves_those_that_run_alone() -> None:
    crew = Crew()
    crew.started(0, A)
    crew.ledger.fence([])
    assert phase(crew) is SlotPhase.STARTED
    crew.performed(0, FAILED)
    crew.finished(0, Result.TAKEN)
    assert crew.ledger.unsettled == []


def test_p18_the_fence_forgets_all_strays() -> None:
    crew = Crew()
    crew.look(A)
    crew.idle(0)
    crew.ledger.fence([A])
    assert crew.look(A) == []
    crew.idle(0)
    assert crew.look(A) == [A]


def test_p18_the_fence_forgets_the_look_under_way() -> None:
    crew = Crew()
    crew.ledger.begin_look()
    crew.ledger.fence([])
    crew.idle(0)
    assert crew.look(A) == []


# ---- the holes -----------------------------------------------------------------------------------------


def test_h2_a_slot_that_settles_may_have_fetched_and_is_waited_for() -> None:
    crew = Crew()
    crew.started(0, A)
    crew.performed(0)
    # Its settle-and-fetch has acknowledged A and taken B; nothing of it is in the pipe yet.
    assert crew.look(B) == []
    crew.finished(0)
    crew.started(0, B)
    assert crew.look(B) == []


def test_h3_finished_is_read_while_the_job_that_came_with_it_is_not_reported_yet() -> None:
    crew = Crew()
    crew.started(0, A)
    crew.performed(0)
    assert crew.look(B) == []
    crew.finished(0)
    assert crew.look(B) == []
    assert crew.look(B) == []
    crew.started(0, B)
    assert crew.look(B) == []


def test_h4_an_idle_that_is_read_with_the_started_behind_it_is_no_proof() -> None:
    crew = Crew()
    crew.ledger.begin_look()
    # P15a: every pipe is read empty after the look's reply, so the old IDLE comes with the STARTED.
    crew.idle(0)
    crew.started(0, A)
    assert crew.ledger.judge([A]) == []
    assert crew.look(A) == []


def test_h4_an_idle_before_the_look_is_no_answer_to_it() -> None:
    crew = Crew()
    crew.idle(0)
    assert crew.look(A) == []
    crew.started(0, A)
    assert crew.look(A) == []


def test_h5_a_stray_that_was_started_killed_and_requeued_waits_for_the_new_child() -> None:
    crew = Crew(2)
    assert crew.look(A) == []  # slot 0 has A, unreported
    crew.started(0, A)
    crew.died(0)
    crew.idle(1)
    crew.ledger.requeued(crew.ledger.orphans[0])
    crew.fork(0)
    # The new child has fetched A and has not said so.
    assert crew.look(A) == []
    crew.started(0, A)
    assert crew.look(A) == []


def test_h6_a_look_from_before_the_requeue_is_not_judged_after_it() -> None:
    crew = Crew(2)
    crew.started(0, A)
    crew.idle(1)
    crew.died(0)
    crew.ledger.begin_look()  # A is on it, left by the dead child
    crew.ledger.requeued(crew.ledger.orphans[0])
    # Slot 1 has fetched A and has not said so.
    assert crew.ledger.judge([A]) == []
    crew.started(1, A)
    assert crew.look(A) == []
