"""A Slurm whose answers a test sets."""

from __future__ import annotations

import time
from dataclasses import replace

from carme_hub.domain.cluster.jobs import Job, JobRecord, JobSpec, Phase, Snapshot
from carme_hub.errors import SlurmRejected, SlurmUnreachable


class Clock:
    """The monotonic clock, which a test can put forward: no test waits for what the keeper waits for."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead

    def wall(self) -> float:
        """Return the wall-clock time that goes with it."""
        return time.time() + self.ahead


class ForgedSlurm:
    """A cluster whose answers are set by the test; cancels are obeyed only when it is told to."""

    cluster = "lab"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.looks = 0
        self.questions = 0
        self.jobs: dict[int, Job] = {}
        self.accounting: list[JobRecord] = []
        self.down = False
        self.accounting_down = False
        self.log = ""
        self.obeys = True
        self.lose_answers = 0
        self.refuses = ""
        self.cancelled: list[int] = []
        self.submitted: list[str] = []

    def run(self, id: int, name: str, state: str = "RUNNING", phase: Phase = Phase.ACTIVE, **more: object) -> None:
        job = Job(id, name, "alice", state, phase, nodes=("node1",), submitted=1000.0)
        self.jobs[id] = replace(job, **more)

    def end(self, id: int, state: str = "COMPLETED", status: int = 0) -> None:
        code = (status, 0)
        job = self.jobs[id] = replace(self.jobs[id], state=state, phase=Phase.TERMINAL, exit_code=code)
        self.accounting.append(
            JobRecord(id, job.name, job.user, state, Phase.TERMINAL, job.submitted, 1000.0, 1100.0, exit_code=code)
        )

    def keep_running(self, id: int, name: str) -> None:
        """Let accounting say that a job runs, and never that it ended."""
        self.accounting.append(JobRecord(id, name, "alice", "RUNNING", Phase.ACTIVE, 1000.0, 1000.0))

    def _answer(self) -> None:
        if self.down:
            raise SlurmUnreachable("connection refused")

    async def snapshot(self) -> Snapshot:
        self.looks += 1
        self._answer()
        now = self.clock()
        return Snapshot(now, now, dict(self.jobs))

    async def find(self, name: str, user: str) -> tuple[Job, ...]:
        self._answer()
        return tuple(j for j in self.jobs.values() if (j.name, j.user) == (name, user))

    async def records(self, name: str, user: str, since: float) -> tuple[JobRecord, ...]:
        self.questions += 1
        self._answer()
        if self.accounting_down:
            raise SlurmUnreachable("sacct: error: slurmdbd")
        return tuple(r for r in self.accounting if r.name == name)

    async def log_tail(self, user: str, session: str) -> str:
        return self.log

    async def cancel(self, job: Job) -> None:
        self._answer()
        self.cancelled.append(job.id)
        if self.obeys:
            self.end(job.id, "CANCELLED")

    async def submit(self, spec: JobSpec) -> int:
        if self.refuses:
            raise SlurmRejected(self.refuses)
        self.submitted.append(spec.name)
        if self.lose_answers:
            self.lose_answers -= 1
            if self.lose_answers % 2 == 0:
                self.run(7, spec.name)
            raise SlurmUnreachable("Socket timed out")
        self._answer()
        self.run(7, spec.name)
        return 7
