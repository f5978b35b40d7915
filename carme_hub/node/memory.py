# ruff: noqa: UP006, UP035, UP045, PTH116, PTH118, PTH123, PTH208
"""carme-memory: keeps a job within its memory on a node where Slurm does not confine it.

With task/cgroup and ConstrainRAMSpace the kernel does that, and this program does nothing. Without, one process of a
job could take all memory of the node. Every supervisor of the job looks at all processes of the job on its node, which
have its id in their environment, and counts them by proportional set size (proc(5), smaps_rollup), in which shared
memory counts once. Where they have more than the job asked for, the supervisor of the largest process kills that one.

The supervisor loads its text from the session folder, after the start. Standard library only, Python 3.6 or later.
"""

import os

TYPE_CHECKING = False  # as typing.TYPE_CHECKING: importing typing takes 4 ms of each start
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Sequence, Tuple

CGROUPS = "/sys/fs/cgroup"
#: Seconds between two looks: of a job that has much of its memory, and of all others.
CLOSE, FAR = 0.5, 2.0
#: The part of the memory that is much, and the looks after which all pids are looked at anew: a pid is used again.
MUCH, FORGET_AFTER = 0.5, 60
#: Slurm's limit may be wider than what the job asked for (cgroup.conf, AllowedRAMSpace).
WIDEST = 2


def watch(
    memory_mib: int, environ: "Mapping[str, str]" = os.environ, proc: str = "/proc", cgroups: str = CGROUPS
) -> "Optional[Watch]":
    """Return what keeps this job within its memory on this node; None where the kernel does, or no limit is known.

    Args:
        memory_mib: what the job asked for on each node. Slurm's own variable is 0 in the steps that ranks are.
    """
    limit, confined = memory_mib << 20, memory_of_task(proc + "/self/cgroup", cgroups)[1]
    # A limit that is much wider is that of the machine, or of what slurmd runs in.
    if not limit or "SLURM_JOB_ID" not in environ or 0 < confined <= WIDEST * limit:
        return None
    return Watch(environ["SLURM_JOB_ID"], limit, proc, environ.get("SLURMD_NODENAME", ""))


class Watch:
    """The memory of a job on this node.

    Attributes:
        limit: bytes. interval: seconds until the next look. killed: whether a process was found that has to end.
    """

    def __init__(self, job: str, limit: int, proc: str = "/proc", node: str = "") -> None:
        self.limit, self.interval, self.killed, self._proc = limit, FAR, False, proc
        self._processes = JobProcesses(job, proc, node)

    def look(self, own: "Sequence[int]") -> "Optional[Tuple[int, str]]":
        """Return a process that has to be killed, and a message; None where there is none, or it is not one of ``own``.

        Args:
            own: the processes below the supervisor that asks.
        """
        pids = {*self._processes.pids(), *own}  # a program may have removed its environment
        resident = sum(resident_bytes(self._proc, pid) for pid in pids)
        self.interval = CLOSE if resident > MUCH * self.limit else FAR
        if resident <= self.limit:  # shared memory counts several times in it, so the exact sum is no larger
            return None
        exact = sorted((proportional_bytes(self._proc, pid), pid) for pid in pids)
        used = sum(size for size, _ in exact)
        self.interval = CLOSE if used > MUCH * self.limit else FAR
        if used <= self.limit or exact[-1][1] not in own:
            return None
        size, pid = exact[-1]
        self.killed = True
        name = read(self._proc + f"/{pid}/comm").strip()
        return pid, (
            f"the job used {gib(used)} of its {gib(self.limit)} GiB of memory on this node, so its largest process was "
            f"killed: {name} ({pid}, {gib(size)} GiB). Ask for more memory next time."
        )


class JobProcesses:
    """The processes of a job on this node, which have its id in their environment."""

    def __init__(self, job: str, proc: str = "/proc", node: str = "") -> None:
        self._name, self._proc, self._uid = b"SLURM_JOB_ID=" + job.encode(), proc, os.getuid()
        self._node = b"SLURMD_NODENAME=" + node.encode()  # a sandbox has several nodes on one machine
        self._known: Dict[str, bool] = {}
        self._looks = 0

    def pids(self) -> "List[int]":
        """Return them. The environment of a process is read once."""
        self._looks += 1
        names = [name for name in os.listdir(self._proc) if name.isdigit()]
        known = self._known if self._looks % FORGET_AFTER else {}
        self._known = {name: known[name] if name in known else self._is_of_job(name) for name in names}
        return [int(name) for name, ours in self._known.items() if ours]

    def _is_of_job(self, name: str) -> bool:
        try:
            if os.stat(self._proc + "/" + name).st_uid != self._uid:
                return False
            with open(self._proc + "/" + name + "/environ", "rb") as file:
                words = file.read().split(b"\0")
            elsewhere = any(word.startswith(b"SLURMD_NODENAME=") and word != self._node for word in words)
            return self._name in words and not elsewhere
        except OSError:  # it has ended, or is not ours
            return False


def resident_bytes(proc: str, pid: int) -> int:
    """Return the resident set size of a process, 0 where it has ended."""
    fields = read(f"{proc}/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def proportional_bytes(proc: str, pid: int) -> int:
    """Return the proportional set size of a process; the resident one before Linux 4.14, 0 where it has ended."""
    for line in read(f"{proc}/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return resident_bytes(proc, pid)


def memory_of_task(cgroup_file: str = "/proc/self/cgroup", top: str = CGROUPS) -> "Tuple[int, int]":
    """Return how many processes of this task the kernel has killed for lack of memory, and its limit in bytes.

    Both are 0 where the node does not confine memory. Sources: cgroup v2 memory.events and memory.max, v1
    memory.oom_control and memory.limit_in_bytes.
    """
    killed, limits = 0, []  # type: int, List[int]
    for line in read(cgroup_file).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, events, limit = top, "memory.events", "memory.max"
        if controllers:
            mount, events, limit = top + "/memory", "memory.oom_control", "memory.limit_in_bytes"
        parts = [part for part in path.split("/") if part]
        counted = (each.split() for each in read(os.path.join(mount, *parts, events)).splitlines())
        killed += sum(int(each[1]) for each in counted if each[:1] == ["oom_kill"] and each[1:] and each[1].isdigit())
        for depth in range(len(parts), 0, -1):  # the narrowest limit of all levels holds
            text = read(os.path.join(mount, *parts[:depth], limit)).strip()
            limits += [int(text)] if text.isdigit() and int(text) < 1 << 60 else []  # v1: no limit is 2**63
    return killed, min(limits) if limits else 0


def gib(size: int) -> str:
    """Return bytes as GiB with two digits after the point."""
    return f"{size / (1 << 30):.2f}"


def read(path: str) -> str:
    """Return the text of a file, "" where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
