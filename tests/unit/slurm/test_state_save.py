"""Each start is secured once, however often it is looked at; what fails is tried again, not for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.state_save import StartSaver

NAME = "carme-0f9a0000-1111-2222-3333-444455556666"
JOB = Job(7, NAME, "alice", "RUNNING", Phase.ACTIVE, start=100.0)


class SlurmThatForgets:
    def __init__(self, failures: int = 0) -> None:
        self.secured: list[tuple[int, float]] = []
        self.failures = failures
        self.asked = 0

    async def secure(self, jobs: Sequence[Job]) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.asked <= self.failures:
            raise SlurmUnreachable("down")
        self.secured.extend((job.id, job.start) for job in jobs)


async def looks(slurm: SlurmThatForgets, *rows: tuple[Job, ...]) -> None:
    saver = StartSaver(slurm, logging.getLogger("test"))  # type: ignore[arg-type]
    for row in rows:
        saver.note_starts(Snapshot(0.0, 1.0, {job.id: job for job in row}))
        for _ in range(20):
            await asyncio.sleep(0)
    await saver.stop()


async def test_a_start_is_secured_once() -> None:
    slurm = SlurmThatForgets()
    await looks(slurm, (JOB,), (JOB,), (JOB, replace(JOB, id=8)), (JOB, replace(JOB, id=8)))
    assert slurm.secured == [(7, 100.0), (8, 100.0)]


async def test_starts_of_one_look_are_secured_together() -> None:
    slurm = SlurmThatForgets()
    await looks(slurm, tuple(replace(JOB, id=number) for number in range(150)))
    assert len(slurm.secured) == 150
    assert slurm.asked == 1


async def test_a_new_start_of_the_same_job_is_secured_again() -> None:
    slurm = SlurmThatForgets()
    await looks(slurm, (JOB,), (replace(JOB, state="PENDING"),), (replace(JOB, start=200.0),))
    assert slurm.secured == [(7, 100.0), (7, 200.0)]


async def test_waiting_jobs_and_other_peoples_names_are_left_alone() -> None:
    slurm = SlurmThatForgets()
    await looks(
        slurm, (replace(JOB, state="PENDING"), replace(JOB, id=8, name="carme-mine"), replace(JOB, id=9, name="x"))
    )
    assert slurm.asked == 0


async def test_a_failure_is_tried_again_but_not_for_ever() -> None:
    slurm = SlurmThatForgets(failures=2)
    await looks(slurm, *[(JOB,)] * 6)
    assert slurm.secured == [(7, 100.0)]
    slurm = SlurmThatForgets(failures=1000)
    await looks(slurm, *[(JOB,)] * 30)
    assert slurm.asked == 5
