"""End all jobs: first through Slurm, so that its accounting is right; then kill the sandbox's remaining processes.

A slurmstepd belongs to the sandbox if it holds a log file open that is below the state folder; the processes of a job
belong to it by their parents up to the slurmstepd, or by the path of slurm.conf in their environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from carme_hub.sandbox.processes import is_alive, stat_of
from carme_hub.sandbox.slurm.cluster import Cluster


def end_jobs(cluster: Cluster, *, alive: bool, within: float = 12.0) -> int:
    """End every job, and every process of a job.

    Args:
        alive: whether slurmctld runs and answers.

    Returns:
        how many processes were killed because Slurm did not end them.
    """
    if alive:
        with contextlib.suppress(
            subprocess.TimeoutExpired
        ):  # slurmctld is frozen or munged has ended: go on without Slurm
            _cancel_all(cluster, within)
    return end_processes(cluster.state)


def end_processes(state: Path) -> int:
    """End the remaining processes of jobs, without Slurm, and return their number."""
    remaining = _job_processes(state)
    for number, seconds in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        for pid, ticks in remaining.items():
            if is_alive(pid, ticks):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(is_alive(pid, ticks) for pid, ticks in remaining.items()):
            time.sleep(0.05)
        remaining.update(_job_processes(state))
    return len(remaining)


def _cancel_all(cluster: Cluster, within: float) -> None:
    end = time.monotonic() + within
    cancelled = False
    while time.monotonic() < end:
        jobs = cluster.run("squeue", "-h", "-a", "-o", "%A", check=False, timeout=5).stdout.split()
        if not jobs:
            return
        if not cancelled:
            cluster.run("scancel", *jobs, check=False, timeout=5)
            cancelled = True
        time.sleep(0.1)


def _job_processes(state: Path) -> dict[int, int]:
    """Return pid and start time of all processes of jobs of this sandbox."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    found: set[int] = set()
    marks = (f"SLURM_CONF={state}/".encode(),)
    for pid in _pids():
        seen = stat_of(pid)
        if seen is None or seen[0] in "ZX":
            continue
        parents[pid], ticks[pid] = seen[1], seen[2]
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if name == "slurmstepd" and _holds_open(pid, state / "log"):
                found.add(pid)
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            in_job = name == "slurmstepd" or any(line.startswith(b"SLURM_JOB_ID=") for line in environment)
            if in_job and any(line.startswith(mark) for line in environment for mark in marks):
                found.add(pid)
    changed = True
    while changed:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= more
        changed = bool(more)
    found.discard(os.getpid())
    return {pid: ticks[pid] for pid in found}


def _pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _holds_open(pid: int, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(f"{folder}/"):
                    return True
    return False
