"""Entries for systemd's journal: one datagram an event, every field by its name."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from cogworkerd import events, journal
from cogworkerd.journal import JournalLines
from cogworkerd.log import configure


def read(datagram: bytes) -> dict[str, str]:
    """The fields of an entry, as the journal takes it apart."""
    found = {}
    while datagram:
        line, _, rest = datagram.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", rest)
            value, rest = rest[8 : 8 + size], rest[8 + size + 1 :]
        found[name.decode()] = value.decode()
        datagram = rest
    return found


def test_an_event_is_one_entry_with_its_fields() -> None:
    event = {"timestamp": "t", "level": "warning", "event": "job.failed", "jid": "j1", "job": "mail", "seconds": 0.5}
    assert read(journal.render(None, "", dict(event))) == {
        "MESSAGE": "job.failed jid=j1 job=mail seconds=0.5",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "cogworkerd",
        "COGWORKERD_EVENT": "job.failed",
        "COGWORKERD_JID": "j1",
        "COGWORKERD_JOB": "mail",
        "COGWORKERD_SECONDS": "0.5",
    }


def test_a_traceback_is_part_of_its_entry() -> None:
    trace = '  File "a.py", line 1\nValueError: no'
    fields = read(journal.render(None, "", {"level": "error", "event": "job.dead", "exception": trace}))
    assert fields["MESSAGE"] == f"job.dead\n{trace}"
    assert fields["PRIORITY"] == "3"


def test_no_value_can_break_out_of_its_field() -> None:
    nasty = {"level": "info", "event": "x", "text": "a\nPRIORITY=0\n", "söme field": "é", "n": None}
    fields = read(journal.render(None, "", nasty))
    assert fields["COGWORKERD_TEXT"] == "a\nPRIORITY=0\n"
    assert fields["COGWORKERD_S_ME_FIELD"] == "é"
    assert fields["PRIORITY"] == "6"


def test_a_descriptor_is_the_journals_if_device_and_inode_are_those_that_were_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "log").open("w") as file:
        status = os.fstat(file.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        assert journal.is_ours(file.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + 1}")
        assert not journal.is_ours(file.fileno())
        monkeypatch.delenv("JOURNAL_STREAM")
        assert not journal.is_ours(file.fileno())
    assert not journal.is_ours(999)


def test_lines_of_a_process_and_of_one_that_it_forks_arrive(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        hears.bind(str(tmp_path / "journal"))
        lines = JournalLines(str(tmp_path / "journal"))
        lines.info(b"MESSAGE=one\n")
        pid = os.fork()
        if pid == 0:
            lines.info(b"MESSAGE=two\n")
            os._exit(0)
        os.waitpid(pid, 0)
        assert [hears.recv(100) for _ in range(2)] == [b"MESSAGE=one\n", b"MESSAGE=two\n"]
        lines.close()


def test_the_log_writes_entries_where_the_settings_ask_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        hears.bind(str(tmp_path / "journal"))
        made: list[JournalLines] = []
        monkeypatch.setattr(journal.JournalLines, "__init__", _leads_to(str(tmp_path / "journal"), made))
        log = configure("journal", "info")
        log.emit(events.JOB_DONE, seconds=0.1)
        try:
            raise ValueError("no")
        except ValueError as error:
            log.emit(events.JOB_DEAD, exc_info=error, error="ValueError")
        first, second = read(hears.recv(10_000)), read(hears.recv(10_000))
        for lines in made:
            lines.close()
    assert (first["COGWORKERD_EVENT"], first["COGWORKERD_SECONDS"], first["PRIORITY"]) == ("job.done", "0.1", "6")
    assert "timestamp" not in first["MESSAGE"]
    assert second["MESSAGE"].endswith("ValueError: no")


def _leads_to(address: str, made: list[JournalLines]) -> object:
    original = JournalLines.__init__

    def init(self: JournalLines) -> None:
        original(self, address)
        made.append(self)

    return init
