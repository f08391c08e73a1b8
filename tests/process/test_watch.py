"""`cogworkerd status --watch` on a real terminal of 80 columns and 24 lines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support import Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]
Watch = Callable[..., "Terminal"]
SEQUENCE = re.compile(r"\x1b\[(\?1049h|\?1049l|\?25h|\?25l|H|2K|J)|[\r\n]|[^\x00-\x1f\x7f]", re.DOTALL)


class Screen:
    """What a terminal shows that is sent the few sequences that the watch writes, as xterm has it: a character in the
    last column leaves the cursor there, and only the next one wraps.

    Attributes:
        alternate: the other screen is shown; cursor: it is visible.
        scrolled: lines that were pushed out at the top.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.alternate, self.cursor, self.scrolled = False, True, 0
        self.row = self.column = 0
        self.wraps = False
        self.rows = [[" "] * width for _ in range(height)]

    def take(self, text: str) -> None:
        """Take a whole output; raises AssertionError at what the watch is not known to write."""
        position = 0
        while position < len(text):
            match = SEQUENCE.match(text, position)
            assert match is not None, f"the terminal was sent {text[position : position + 20]!r}"
            position = match.end()
            if match[1] is None:
                self._put(match[0])
            else:
                self._obey(match[1])

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column, self.wraps = 0, False
        elif char == "\n":
            self._down()
        else:
            if self.wraps:
                self.column, self.wraps = 0, False
                self._down()
            self.rows[self.row][self.column] = char
            self.wraps = self.column == self.width - 1
            self.column = min(self.column + 1, self.width - 1)

    def _down(self) -> None:
        if self.row == self.height - 1:
            self.scrolled += 1
            self.rows = [*self.rows[1:], [" "] * self.width]
        else:
            self.row += 1

    def _obey(self, order: str) -> None:
        if order.startswith("?1049"):
            self.alternate = order.endswith("h")
            self.rows = [[" "] * self.width for _ in range(self.height)]
        elif order.startswith("?25"):
            self.cursor = order.endswith("h")
        elif order == "H":
            self.row = self.column = 0
            self.wraps = False
        elif order == "2K":
            self.rows[self.row] = [" "] * self.width
        else:
            self.rows[self.row][self.column :] = [" "] * (self.width - self.column)
            for row in range(self.row + 1, self.height):
                self.rows[row] = [" "] * self.width

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.rows]


class Terminal:
    """A watch on a terminal of its own."""

    def __init__(self, url: str, *flags: str, width: int = 80, height: int = 24) -> None:
        self.width, self.height = width, height
        self._written = bytearray()
        self._ours, theirs = os.openpty()
        self._theirs = theirs
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", _ON_THE_TERMINAL),
                *(sys.executable, "-m", "cogworkerd", "status", "--watch", "--every", "0.2", *flags),
            ],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**clean, "COGWORKERD_REDIS_URL": url},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(self._ours, 65536):
                self._written += chunk

    @property
    def output(self) -> str:
        """Whole pictures only: what follows the last one is still to be written."""
        text = bytes(self._written).decode("utf-8", "replace")
        if self.process.poll() is None:
            text = text[: max(text.rfind("\x1b[H"), 0)]
        return text

    def screen(self) -> Screen:
        found = Screen(self.width, self.height)
        found.take(self.output)
        return found

    def shows(self, *words: str, within: float = 15) -> str:
        """Wait until all of these are on the screen; its text."""

        def look() -> str:
            text = "\n".join(self.screen().lines)
            assert self.process.poll() is None, text
            return text if all(word in text for word in words) else ""

        return eventually(look, within, f"{words} on the screen:\n{self.output[-3000:]!r}")

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def resize(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def ended(self) -> int:
        eventually(lambda: self.process.poll() is not None, 15, "the watch ends")
        self._let_go()
        return self.process.returncode

    def _let_go(self) -> None:
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1
            self._reader.join(10)
            os.close(self._ours)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._let_go()


# Ctrl-C reaches only those whose controlling terminal it is.
_ON_THE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture
def watch(server: Server) -> Iterator[Watch]:
    made: list[Terminal] = []

    def start(*flags: str, url: str = "", width: int = 80, height: int = 24) -> Terminal:
        made.append(Terminal(url or server.url, *flags, width=width, height=height))
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


def shop(daemon: Start, *flags: str, **options: str) -> Daemon:
    return daemon("-c", "2", "--tag", "shop", "-q", "default", *flags, target="shop_jobs:app", **options).ready()


def test_it_shows_a_daemon_its_job_at_its_progress_and_the_queues_and_refreshes_in_place(
    watch: Watch, daemon: Start, client: Client, witness: Client
) -> None:
    running = shop(daemon)
    for number in range(7):
        push_raw(client, "shop.mail.send_welcome", number, queue="mail")
    terminal = watch()
    text = terminal.shows("PROCESSES (1)", "RUNNING (0)", "QUEUES (2)", "shop", "0/2")
    assert re.search(r"^mail +7 ", text, re.MULTILINE)
    jid = push_raw(client, "shop.reports.build", 1, 40, "rows so far")
    text = terminal.shows("RUNNING (1)", "1/2")
    assert re.search(rf"^shop\.reports\.build +{jid[:12]} +\d.* s +\[####\.{{6}}\] 40 % rows so f", text, re.MULTILINE)
    push_raw(client, "shop.mail.send_welcome", 8, queue="mail")
    eventually(lambda: re.search(r"^mail +8 ", terminal.shows("QUEUES (2)"), re.MULTILINE))
    witness.set("t:gate", 1)
    text = terminal.shows("RUNNING (0)", "processed 1", within=20)
    assert "shop.reports.build" not in text
    screen = terminal.screen()
    assert (screen.alternate, screen.cursor, screen.scrolled) == (True, False, 0)
    assert terminal.output.count("\x1b[?1049h") == 1
    terminal.press(b"\x03")
    assert terminal.ended() == 0
    assert running.stop() == 0


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 10), (30, 5)])
def test_ctrl_c_gives_the_terminal_back_as_it_was(watch: Watch, client: Client, width: int, height: int) -> None:
    for number in range(60):
        client.sadd("cogworker:queues", f"a-queue-with-a-long-name-that-has-the-number-{number}")
    terminal = watch(width=width, height=height)
    eventually(lambda: terminal.output.count("\x1b[H") > 3, 15)
    assert terminal.screen().scrolled == 0
    terminal.press(b"\x03")
    assert terminal.ended() == 0
    screen = terminal.screen()
    assert (screen.alternate, screen.cursor) == (False, True)
    assert "Traceback" not in terminal.output


def test_the_last_character_of_a_line_that_fills_the_terminal_is_shown(watch: Watch, client: Client) -> None:
    client.zadd("cogworker:dead", {f"{n}": 1 for n in range(123)})
    terminal = watch()
    terminal.shows("QUEUES")
    first, second = terminal.screen().lines[:2]
    assert first.endswith("Z")
    assert second.endswith("dead 123")


def test_a_term_gives_the_terminal_back_too(watch: Watch) -> None:
    terminal = watch()
    terminal.shows("QUEUES")
    terminal.process.send_signal(signal.SIGTERM)
    terminal.ended()
    screen = terminal.screen()
    assert (screen.alternate, screen.cursor) == (False, True)


def test_a_terminal_that_changes_its_size_is_filled_anew(watch: Watch, client: Client) -> None:
    client.sadd("cogworker:queues", *(f"q{number:02d}" for number in range(60)))
    terminal = watch()
    assert "... and 4" in terminal.shows("QUEUES (60)", "... and ")
    terminal.resize(120, 50)
    eventually(lambda: "q39" in terminal.output, 15)
    terminal.press(b"\x03")
    assert terminal.ended() == 0


def test_a_server_that_dies_is_told_and_its_return_is_shown(watch: Watch, make_server: Callable[..., Server]) -> None:
    server = make_server()
    with server.client() as client:
        client.sadd("cogworker:queues", "before")
    terminal = watch(url=server.url)
    terminal.shows("before")
    server.stop()
    text = terminal.shows("the server is away", within=30)
    assert "before" not in text
    server.start()
    with server.client() as client:
        client.sadd("cogworker:queues", "afterwards")
    text = terminal.shows("afterwards", within=30)
    assert "away" not in text
    assert terminal.screen().scrolled == 0
    server.stop()
    terminal.shows("the server is away", within=30)
    terminal.press(b"\x03")
    assert terminal.ended() == 0
    assert terminal.screen().cursor


def test_a_daemon_with_a_password_in_its_address_is_watched_without_showing_it(
    watch: Watch, make_server: Callable[..., Server]
) -> None:
    server = make_server("--requirepass", "topsecret")
    terminal = watch(url=server.url.replace("redis://", "redis://:topsecret@"))
    terminal.shows("QUEUES")
    server.stop()
    terminal.shows("the server is away", within=30)
    terminal.press(b"\x03")
    assert terminal.ended() == 0
    assert "topsecret" not in terminal.output


def test_an_outage_on_a_narrow_terminal_scrolls_nothing(watch: Watch, make_server: Callable[..., Server]) -> None:
    server = make_server()
    terminal = watch(url=server.url, width=20, height=5)
    eventually(lambda: "\x1b[H" in terminal.output, 15)
    server.stop()
    eventually(lambda: "the server is away" in terminal.output, 30)
    screen = terminal.screen()
    assert screen.lines[2].startswith("the server is away")
    assert screen.scrolled == 0


def test_a_server_that_is_away_from_the_start_is_one_line_and_69(
    watch: Watch, make_server: Callable[..., Server]
) -> None:
    server = make_server()
    server.stop()
    terminal = watch(url=server.url)
    assert terminal.ended() == 69
    assert "\x1b" not in terminal.output
    assert "the server is away" in terminal.output


def test_names_that_are_escape_sequences_reach_no_terminal(watch: Watch, client: Client) -> None:
    client.sadd("cogworker:queues", "\x1b[2J\x1b]0;owned\x07", "\u202egnp", "a\r\nb")
    info = '{"hostname":"h","pid":1,"concurrency":1,"queues":[],"started_at":1,"tag":"\\u001b[31m"}'
    client.sadd("cogworker:processes", "h:1:\x1b[5m")
    client.hset("cogworker:process:h:1:\x1b[5m", mapping={"info": info, "busy": "0", "quiet": "false"})
    terminal = watch()
    terminal.shows("QUEUES (3)", "PROCESSES (1)", r"\x1b[2J", r"\u202egnp")
    terminal.press(b"\x03")
    assert terminal.ended() == 0


@pytest.mark.parametrize("flags", [(), ("--every", "0.2")])
def test_an_output_that_is_no_terminal_is_refused(server: Server, flags: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cogworkerd", "status", "--watch", *flags],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COGWORKERD_REDIS_URL": server.url},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "for scripts there is --json" in done.stderr


@pytest.mark.parametrize("every", ["0", "-1", "nan", "1e9", "often"])
def test_an_odd_pace_is_refused(server: Server, every: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cogworkerd", "status", "--watch", "--every", every],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COGWORKERD_REDIS_URL": server.url},
    )
    assert (done.returncode, "--every" in done.stderr) == (2, True)
