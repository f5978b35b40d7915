"""The cause of a run's failure: which rank failed by itself, and which ranks only lost their connection to it.

A rank that is killed, runs out of memory or calls ``os._exit`` reports nothing, and the others report that they have
lost it, often before anybody says that it has ended. So where every reported error is one that follows from the loss of
a rank, a rank that ended without a report is the cause. Its node reports its end within a moment (``TaskEnd``), Slurm
later.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from carme_hub.training.run.output import TaskEnd
from carme_hub.training.run.run_folder import State

#: Errors that a rank raises because another rank is gone; seldom the cause.
_CONSEQUENCES = re.compile(
    r"connection (closed|reset|refused)|broken pipe|HorovodInternalError|DistBackendError|DistNetworkError|"
    r"DistStoreError|socket (error|timeout)|timed out|NCCL|gloo",
    re.IGNORECASE,
)
#: What Slurm prints about a step that ran out of memory, and about such a task.
_OUT_OF_MEMORY = re.compile(r"oom.?kill|out.of.memory", re.IGNORECASE)
OUT_OF_MEMORY = "OutOfMemory"
#: What CUDA and NVML say of a GPU that is broken. That there is none, or that it is busy, may be the code's own fault.
_BROKEN_GPU = re.compile(
    r"uncorrectable (ECC|NVLink) error|hardware stack error|fallen off the bus|GPU is lost", re.IGNORECASE
)
#: What torch's watchdog says of a collective that does not end, C++ of an exception, and CUDA of a kernel.
_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+),.*?Timeout\(ms\)=(\d+)"
)
_WHAT = re.compile(r"^\s*what\(\):\s+(.+)")
_ASSERTION = re.compile(r"Assertion `(.{1,200})` failed")
#: The most characters of an echo's message, and of last words.
_MAX_ECHO, _MAX_WORDS = 160, 200


def is_consequence(error: State) -> bool:
    """Return whether an error follows from the loss of another rank, or was raised while such an error was handled."""
    # Python puts the type and message of every chained error at the beginning of a line.
    chain = [line for line in str(error.get("traceback") or "").splitlines() if line[:1].strip()]
    return any(_CONSEQUENCES.search(text) for text in (f"{error['type']}: {error['message']}", *chain))


@dataclass(frozen=True, slots=True)
class SilentEnd:
    """The end of a rank that reported no error.

    Attributes:
        how: for users, after the rank's name. type: of the error in the run's state.
    """

    rank: int
    how: str
    type: str = "Ended"


def silent_ends(
    task_ends: Iterable[TaskEnd],
    failed_tasks: Iterable[tuple[int, str]],
    reported: Container[int],
    succeeded: Container[int],
) -> list[SilentEnd]:
    """Return the ranks that ended without a report, in the order in which their ends became known.

    Args:
        task_ends, failed_tasks: from their nodes, and from Slurm.
        reported: ranks that reported an error. succeeded: ranks that reported success; their container may still fail.
    """
    found: dict[int, SilentEnd] = {}
    for end in task_ends:
        if end.task not in reported and (end.status or end.task not in succeeded):
            kind = OUT_OF_MEMORY if end.out_of_memory else "Ended" if end.started else "NotStarted"
            found.setdefault(end.task, SilentEnd(end.task, end_text(end), kind))
    for rank, text in failed_tasks:
        if rank not in reported:
            kind = OUT_OF_MEMORY if _OUT_OF_MEMORY.search(text) else "Ended"
            found.setdefault(rank, SilentEnd(rank, slurm_text(text), kind))
    return list(found.values())


def end_text(end: TaskEnd) -> str:
    """Describe the end of a rank that reported nothing, from its node's report."""
    if not end.started:
        return f"could not be started (exit status {end.status}); its log says why"
    if end.out_of_memory:
        return out_of_memory_text(end.memory_mib)
    if not end.status:
        return "ended before its code did, without an error: os._exit() was called"
    return status_text(end.status)


def slurm_text(text: str) -> str:
    """Describe the same from Slurm's line, such as ``Exited with exit code 137`` or ``Out Of Memory``."""
    if _OUT_OF_MEMORY.search(text):
        return out_of_memory_text(0)
    status = exit_status(text)
    return status_text(status) if status else f"ended: {text}"


def out_of_memory_text(memory_mib: int) -> str:
    """Describe the end of a rank that needed more memory than its job has."""
    limit = f" (limit {memory_mib / 1024:.3g} GiB)" if memory_mib else ""
    return (
        f"was killed because the memory of its job was used up{limit}. Use smaller batches or fewer loader workers, or "
        "a profile with more memory"
    )


def status_text(status: int) -> str:
    """Describe an exit status: 128 + n for signal n."""
    if status <= 128:
        return f"ended with exit status {status} without an error message"
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        name = f"signal {status - 128}"
    memory = "; a frequent cause is too little memory" if name == "SIGKILL" else ""
    return f"was killed by {name} without an error message{memory}"


def is_fault_of_node(error: State) -> bool:
    """Return whether another node may be of help: a rank did not start on this one, or its GPU is broken."""
    return error.get("type") == "NotStarted" or bool(_BROKEN_GPU.search(str(error.get("message", ""))))


def exit_status(text: str) -> int:
    """Return the exit status in Slurm's line, 0 where it has none."""
    match = re.fullmatch(r"Exited with exit code (\d+)", text)
    return int(match[1]) if match else 0


def last_words(lines: Iterable[str]) -> str:
    """Return what torch's watchdog or C++ said in a rank's output before the rank was killed by SIGABRT; "" = nothing.

    The watchdog of torch ends a process so whose collective takes longer than its group's ``timeout``, and C++ one
    whose exception nobody catches, such as an error of CUDA in another thread.
    """
    found = ""
    for line in lines:
        if match := _WATCHDOG.search(line):
            return (
                f"Collective {match[1]} ({match[2].lower()}) did not end within {int(match[3]) / 1000:g} s, says "
                "torch's watchdog: another rank did not take part in it, or the network between them failed"
            )
        if match := _WHAT.search(line):
            found = match[1][:_MAX_WORDS].strip()
    return found


def assertion_text(error: State, lines: Iterable[str]) -> str:
    """Return the assertion that failed in a kernel of CUDA, from a rank's output, and how its line is found; or ""."""
    if "device-side assert" not in str(error["message"]):
        return ""
    found = next((match[1] for line in lines if (match := _ASSERTION.search(line))), "")
    return f"{f'Failed: {found}. ' if found else ''}To see in which line: --env CUDA_LAUNCH_BLOCKING=1"


def says_out_of_memory(lines: Iterable[str]) -> bool:
    """Return whether lines of Slurm say that the step ran out of memory."""
    return any(_OUT_OF_MEMORY.search(line) for line in lines)


def echoes(errors: Sequence[State], cause: int | None) -> list[State]:
    """Return the errors of ranks that only lost their connection to the rank that failed first.

    Args:
        errors: of all ranks. cause: number of the rank that failed first, None = no rank did.
    """
    return [
        {**{name: each[name] for name in ("rank", "node", "type")}, "message": str(each["message"])[:_MAX_ECHO]}
        for each in errors
        if cause is not None and each["rank"] != cause and is_consequence(each)
    ]
