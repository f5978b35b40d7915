# ruff: noqa: UP006, UP035, UP045, PTH123
"""carme-usage: what a job uses of its node: CPUs, memory, disk; and what the node's network carries.

carme-report loads it from the session folder, beside carme-memory, which finds the processes of the job. Where Slurm
has a control group for the job, the kernel's own sums are read. Otherwise the processes are added up: processor time
and disk traffic with those of children that have ended, memory by proportional set size, in which shared memory counts
once. Other jobs of the node are never counted, except in the network, which the kernel does not divide: its numbers are
the node's. Standard library only, Python 3.6 or later. Sources: proc(5), cgroups(7), cgroup-v2.
"""

import os
import re

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

CGROUPS = "/sys/fs/cgroup"
#: The exact memory of processes is read at each of so many samples: it takes the kernel a second for 100 GiB.
EXACT_EVERY = 6
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


class Usage:
    """What one job uses of this node.

    Args:
        memory: carme-memory, as a module. processes: finds the job's processes (``memory.JobProcesses``).
        job: its number. tmp: folder whose free space is read.
    """

    def __init__(
        self,
        memory: "Any",
        processes: "Any",
        job: str,
        tmp: str = "/tmp",  # noqa: S108
        proc: str = "/proc",
        cgroups: str = CGROUPS,
    ) -> None:
        self._memory, self._processes, self._tmp, self._proc = memory, processes, tmp, proc
        self._group = job_cgroup(memory.read(proc + "/self/cgroup"), job, cgroups)
        self._cpu, self._read, self._written = Sum(), Sum(), Sum()
        self._samples, self._share = 0, 1.0
        self._last = {}  # type: Dict[str, float]

    def sample(self, now: float) -> "Dict[str, Optional[int]]":
        """Return what was used since the last sample, or is used now; None = unknown.

        Args:
            now: seconds of a clock that never goes back.

        Returns:
            ``cpu`` in percent of one CPU; ``memory`` and ``tmp_free`` in MiB; ``read`` and ``written`` in KiB since the
            last sample, of disks and not of the page cache; ``received`` and ``sent`` in KiB, of the node.
        """
        pids = self._processes.pids()
        seconds = self._group_cpu()
        if seconds is None:
            seconds = self._cpu.total(cpu_seconds(self._proc, pids))
        traffic = disk_traffic(self._proc, pids)
        received, sent = network_traffic(self._memory.read(self._proc + "/net/dev"))
        totals = {
            "cpu": seconds,
            "read": self._read.total({key: (each[0], above) for key, (each, above) in traffic.items()}),
            "written": self._written.total({key: (each[1], above) for key, (each, above) in traffic.items()}),
            "received": received,
            "sent": sent,
        }  # type: Dict[str, float]
        found = dict.fromkeys(totals)  # type: Dict[str, Optional[int]]
        passed = now - self._last.get("now", now)
        if passed > 0:
            for name, total in totals.items():
                change = max(0.0, total - self._last[name])
                found[name] = round(100 * change / passed) if name == "cpu" else round(change / 1024)
        self._last = {**totals, "now": now}
        memory = self._group_memory()
        found["memory"] = (self._added_memory(pids) if memory is None else memory) // MIB
        found["tmp_free"] = free_space(self._tmp)
        self._samples += 1
        return found

    def _added_memory(self, pids: "Sequence[int]") -> int:
        """Return the bytes of processes; between two exact samples in proportion to what is resident."""
        resident = sum(self._memory.resident_bytes(self._proc, pid) for pid in pids)
        if self._samples % EXACT_EVERY == 0 and resident:
            exact = sum(self._memory.proportional_bytes(self._proc, pid) for pid in pids)
            self._share = min(1.0, exact / resident)
        return int(resident * self._share)

    def _group_cpu(self) -> "Optional[float]":
        first, second = self._group
        found = re.search(r"^usage_usec (\d+)", self._memory.read(second + "/cpu.stat"), re.M) if second else None
        if found:
            return int(found.group(1)) / 1e6
        nanoseconds = self._memory.read(first.format("cpuacct") + "/cpuacct.usage").strip() if first else ""
        return int(nanoseconds) / 1e9 if nanoseconds.isdigit() else None

    def _group_memory(self) -> "Optional[int]":
        """Return the bytes of the job's control group, without pages of files that the kernel may drop at once."""
        first, second = self._group
        folder = second or (first.format("memory") if first else "")
        names = ("/memory.current", "inactive_file") if second else ("/memory.usage_in_bytes", "total_inactive_file")
        used = self._memory.read(folder + names[0]).strip() if folder else ""
        if not used.isdigit():
            return None
        found = re.search(rf"^{names[1]} (\d+)", self._memory.read(folder + "/memory.stat"), re.M)
        return max(0, int(used) - (int(found.group(1)) if found else 0))


class Sum:
    """A sum over processes that never falls when one of them ends.

    A process that ends leaves its number to the parent that waits for it. What began outside of the job has no parent
    in it, and its number would be lost.
    """

    def __init__(self) -> None:
        self._before = {}  # type: Dict[Tuple[int, int], Tuple[float, int]]
        self._gone = self._last = 0.0

    def total(self, now: "Dict[Tuple[int, int], Tuple[float, int]]") -> float:
        """Return the sum.

        Args:
            now: of each process, by pid and start time: its number with those of its ended children, and its parent.
        """
        members = {pid for pid, _ in self._before}
        self._gone += sum(
            number for key, (number, above) in self._before.items() if key not in now and above not in members
        )
        found = self._gone + sum(number for number, _ in now.values())
        if found < self._last:  # nobody waited for a child that has ended
            self._gone += self._last - found
            found = self._last
        self._before, self._last = now, found
        return found


def cpu_seconds(proc: str, pids: "Sequence[int]") -> "Dict[Tuple[int, int], Tuple[float, int]]":
    """Return the processor time of processes and of their ended children, and their parents."""
    found = {}
    for pid in pids:
        fields = stat_fields(proc, pid)
        if fields:
            spent = sum(int(each) for each in fields[11:15]) / TICKS
            found[pid, int(fields[19])] = spent, int(fields[1])
    return found


def disk_traffic(proc: str, pids: "Sequence[int]") -> "Dict[Tuple[int, int], Tuple[Tuple[int, int], int]]":
    """Return the bytes that processes read from disks and wrote to them, and their parents."""
    found = {}
    for pid in pids:
        fields = stat_fields(proc, pid)
        try:
            with open(f"{proc}/{pid}/io", encoding="ascii") as file:
                rows = dict(line.split(": ") for line in file.read().splitlines())
        except (OSError, ValueError):  # it has ended, or does not let itself be looked at
            continue
        if fields:
            both = int(rows.get("read_bytes", 0)), int(rows.get("write_bytes", 0))
            found[pid, int(fields[19])] = both, int(fields[1])
    return found


def stat_fields(proc: str, pid: int) -> "List[str]":
    """Return the fields of /proc/PID/stat from the third on; [] where the process has ended."""
    try:
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def network_traffic(table: str) -> "Tuple[int, int]":
    """Return the bytes that a node's interfaces received and sent, without the loopback; the table is /proc/net/dev."""
    received = sent = 0
    for line in table.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        if name.strip() != "lo" and len(fields) > 8:
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def free_space(folder: str) -> "Optional[int]":
    """Return the MiB that are free for this user on a folder's file system."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize // MIB


def job_cgroup(text: str, job: str, top: str = CGROUPS) -> "Tuple[str, str]":
    """Return the folder of a job's control group, of the first version and of the second; "" = there is none.

    Args:
        text: /proc/self/cgroup. In the first version's folder ``{}`` is the controller.
    """
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        parts = path.split("/")
        if f"job_{job}" not in parts:
            continue
        path = "/".join(parts[: parts.index(f"job_{job}") + 1])
        if not controllers:
            return "", top + path
        if "memory" in controllers.split(","):
            return top + "/{}" + path, ""
    return "", ""
