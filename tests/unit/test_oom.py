"""What counters of control groups and of the machine say about deaths, on files of the test's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from cogworkerd.supervisor.oom import OomWatch

IN_THE_GROUP = "killed by the kernel for lack of memory in its control group"
ON_THE_MACHINE = "probably killed by the kernel for lack of memory on the machine"
V2_LINE = "0::/system.slice/cogworkerd.service\n"
V1_LINES = "9:name=systemd:/\n4:cpu,memory:/system.slice/cogworkerd.service\n3:cpuset:/\n0::/\n"
INSIDE = "system.slice/cogworkerd.service"


@dataclass(frozen=True)
class Machine:
    """Files as the kernel has them."""

    root: Path

    @property
    def membership(self) -> Path:
        return self.root / "cgroup"

    @property
    def vmstat(self) -> Path:
        return self.root / "vmstat"

    def events(self, group: str = INSIDE) -> Path:
        """Of a group of version 2."""
        return self.root / "v2" / group / "memory.events"

    def control(self, group: str = INSIDE) -> Path:
        """Of a group of version 1."""
        return self.root / "v1" / group / "memory.oom_control"

    def watch(self) -> OomWatch:
        return OomWatch(self.membership, self.root / "v2", self.root / "v1", self.vmstat)


def v2_text(kills: int) -> str:
    return f"low 0\nhigh 7\nmax 31\noom 12\noom_kill {kills}\noom_group_kill 0\n"


def v1_text(kills: int) -> str:
    return f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"


def vmstat_text(kills: int) -> str:
    return f"nr_free_pages 100\npgfault 12\noom_kill {kills}\nnuma_hit 5\n"


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """No process was ever killed on it, and it has no groups."""
    made = Machine(tmp_path)
    write(made.vmstat, vmstat_text(0))
    return made


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("container", [False, True], ids=["", "container"])
def test_a_counter_of_the_own_group_that_has_grown_is_proof_once(
    container: bool, version: int, machine: Machine
) -> None:
    """In a container the files of its group stand at the top, whatever its path is called outside."""
    write(machine.membership, V2_LINE if version == 2 else V1_LINES)
    group = "" if container else INSIDE
    path, text = (machine.events(group), v2_text) if version == 2 else (machine.control(group), v1_text)
    write(path, text(3))
    watch = machine.watch()
    assert watch.evidence() == ""
    write(path, text(4))
    assert watch.evidence() == IN_THE_GROUP
    assert watch.evidence() == ""
    write(path, text(5))
    write(machine.vmstat, vmstat_text(1))
    assert watch.evidence() == IN_THE_GROUP
    assert watch.evidence() == ""


def test_the_own_group_counts_before_the_one_at_the_top(machine: Machine) -> None:
    write(machine.membership, V2_LINE)
    write(machine.events(), v2_text(0))
    write(machine.events(""), v2_text(0))
    watch = machine.watch()
    write(machine.events(""), v2_text(1))
    assert watch.evidence() == ""
    write(machine.events(), v2_text(1))
    assert watch.evidence() == IN_THE_GROUP


def test_where_both_versions_are_mounted_the_one_that_counts_memory_is_asked(machine: Machine) -> None:
    write(machine.membership, V1_LINES)
    write(machine.root / "v2" / "cgroup.procs", "1\n")
    write(machine.control(), v1_text(0))
    watch = machine.watch()
    write(machine.control(), v1_text(1))
    assert watch.evidence() == IN_THE_GROUP


@pytest.mark.parametrize("membership", [V2_LINE, V1_LINES, "", "0::/../../elsewhere\n", None])
def test_without_a_counter_of_the_own_group_the_one_of_the_machine_is_a_hint(
    membership: str | None, machine: Machine
) -> None:
    if membership is not None:
        write(machine.membership, membership)
    watch = machine.watch()
    assert watch.evidence() == ""
    write(machine.vmstat, vmstat_text(1))
    assert watch.evidence() == ON_THE_MACHINE
    assert watch.evidence() == ""


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff\xfe oom_kill 5",
        b"oom_kill\n",
        b"oom_kill many\n",
        b"oom_kill -1\n",
        b"oom_kill_disable 5\n",
        b"total_oom_kill 5\n",
        b"0" * 100_000,
        None,
    ],
)
def test_a_counter_that_is_missing_or_garbage_says_nothing(garbage: bytes | None, machine: Machine) -> None:
    """Before a watch, and in the middle of one."""
    write(machine.membership, V2_LINE)
    write(machine.events(), v2_text(1))
    watches = [machine.watch()]
    for path in (machine.events(), machine.vmstat):
        if garbage is None:
            path.unlink()
        else:
            write(path, garbage)
    watches.append(machine.watch())
    assert [watch.evidence() for watch in watches] == ["", ""]
    write(machine.events(), v2_text(2))
    write(machine.vmstat, vmstat_text(2))
    # What was not seen before cannot be seen to have grown.
    assert [watch.evidence() for watch in watches] == ["", ""]


@pytest.mark.parametrize("line", [b"nonsense\n", b"\n0::/\n", b"4:memory\n"])
def test_a_membership_that_is_garbage_says_nothing(line: bytes, machine: Machine) -> None:
    write(machine.membership, line)
    assert machine.watch().evidence() == ""


def test_a_membership_that_is_no_text_says_nothing(machine: Machine) -> None:
    write(machine.membership, b"0::/\xff\n")
    assert machine.watch().evidence() == ""


def test_a_folder_in_the_place_of_each_file_says_nothing(machine: Machine) -> None:
    machine.vmstat.unlink()
    for path in (machine.membership, machine.vmstat, machine.events(), machine.control()):
        path.mkdir(parents=True)
    assert machine.watch().evidence() == ""


@pytest.mark.parametrize("version", [1, 2])
def test_a_counter_that_goes_back_says_nothing_and_counts_from_there(version: int, machine: Machine) -> None:
    """As one does whose group was made anew."""
    write(machine.membership, V2_LINE if version == 2 else V1_LINES)
    path, text = (machine.events(), v2_text) if version == 2 else (machine.control(), v1_text)
    write(path, text(5))
    write(machine.vmstat, vmstat_text(5))
    watch = machine.watch()
    write(path, text(0))
    write(machine.vmstat, vmstat_text(0))
    assert watch.evidence() == ""
    write(path, text(1))
    assert watch.evidence() == IN_THE_GROUP
    write(machine.vmstat, vmstat_text(1))
    assert watch.evidence() == ON_THE_MACHINE


def test_two_processes_that_were_killed_between_two_looks_are_two_deaths(machine: Machine) -> None:
    write(machine.membership, V2_LINE)
    write(machine.events(), v2_text(0))
    watch = machine.watch()
    write(machine.events(), v2_text(2))
    assert [watch.evidence() for _ in range(3)] == [IN_THE_GROUP, IN_THE_GROUP, ""]


def test_the_real_files_of_this_machine_can_be_asked() -> None:
    assert OomWatch().evidence() in ("", IN_THE_GROUP, ON_THE_MACHINE)
