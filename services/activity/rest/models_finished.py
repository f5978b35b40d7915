"""What REST answers of jobs that have ended, and of what accounts did not use; null is unknown."""

from __future__ import annotations

from pydantic import BaseModel


class AskedOut(BaseModel):
    """What a job asked for: GPUs and nodes in all, CPUs and MiB on each node, minutes (0 = no limit)."""

    gpus: int
    gpu_type: str
    nodes: int
    cpus: int
    memory_mib: int
    minutes: int


class UsedOut(BaseModel):
    """What it used, named as in ``AskedOut``: of memory the most, of CPUs on average and in the busiest minute."""

    gpus: int | None
    gpu_utilisation: float | None
    gpu_memory_mib: int | None
    nodes: int | None
    cpus: float | None
    cpus_most: float | None
    memory_mib: int | None
    seconds: int


class FinishedJobOut(BaseModel):
    """A job that has ended: in one line what it asked for and used, and one suggestion, "" = none.

    ``source``: "reporter" (measured in the job) or "sacct" (Slurm's accounting, which knows no use of GPUs).
    ``note``: why there is no suggestion. ``sooner``: seconds by which the suggested size could have started sooner.
    """

    job_id: int
    shown_id: str
    session: str
    name: str
    image: str
    working_folder: str
    account: str
    partition: str
    state: str
    submitted: int
    started: int
    ended: int
    source: str
    virtual: bool
    asked: AskedOut
    used: UsedOut
    line: str
    suggestion: str
    note: str
    sooner: int | None


class FinishedJobsOut(BaseModel):
    """Jobs of a user that have ended, the newest first."""

    user: str
    jobs: list[FinishedJobOut]


class UnusedOut(BaseModel):
    """Hours of GPUs, CPUs and GiB: in all, unused, and those whose use is not known, which are in neither of both.

    ``gpu_busy``: mean utilisation in percent of the GPUs whose use is known.
    """

    jobs: int
    gpu_hours: float
    gpu_hours_unused: float
    gpu_hours_unknown: float
    gpu_busy: float | None
    cpu_hours: float
    cpu_hours_unused: float
    cpu_hours_unknown: float
    memory_gib_hours: float
    memory_gib_hours_unused: float
    memory_gib_hours_unknown: float


class WeekOut(UnusedOut):
    """A week, which began at ``week``, Monday 00:00 UTC."""

    week: int


class AccountUnusedOut(BaseModel):
    """An account in all these weeks, and in each of them, the oldest first."""

    account: str
    total: UnusedOut
    weeks: list[WeekOut]


class AccountsUnusedOut(BaseModel):
    """Accounts, those with most unused GPU time first."""

    accounts: list[AccountUnusedOut]
