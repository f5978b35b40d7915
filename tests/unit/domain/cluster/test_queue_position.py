"""The position in the queue counts who competes for the same GPUs, and nobody else."""

from __future__ import annotations

from dataclasses import replace

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.queue_position import ahead_of
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus

MINE = Job(
    10, "carme-x", "alice", "PENDING", Phase.WAITING, "Priority", (), "main", "", 100, 1000.0, gpus=Gpus("a100", 1)
)


def ahead(*others: Job) -> int | None:
    return ahead_of(MINE, Snapshot(0.0, 1.0, {job.id: job for job in (MINE, *others)}))


def other(**changes: object) -> Job:
    return replace(MINE, **{"id": 11, "user": "bob", "priority": 200, **changes})  # type: ignore[arg-type]


def test_a_higher_priority_comes_first_and_a_lower_one_does_not() -> None:
    assert ahead() == 0
    assert ahead(other(), other(id=12, priority=50)) == 1


def test_of_equal_priorities_the_older_comes_first() -> None:
    assert ahead(other(priority=100, submitted=900.0)) == 1
    assert ahead(other(priority=100, submitted=1100.0)) == 0


def test_other_gpu_types_and_other_partitions_do_not_compete() -> None:
    assert ahead(other(gpus=Gpus("h100", 1)), other(id=12, partition="big"), other(id=13, gpus=NO_GPUS)) == 0
    assert ahead(other(partition="big,main")) == 1


def test_an_untyped_request_competes_with_every_type() -> None:
    assert ahead(other(gpus=Gpus("gpu", 1))) == 1


def test_jobs_that_run_are_held_or_over_a_limit_are_in_nobodys_way() -> None:
    running = other(state="RUNNING", phase=Phase.ACTIVE)
    held = other(id=12, reason="JobHeldUser")
    limited = other(id=13, reason="QOSMaxGRESPerUser")
    assert ahead(running, held, limited) == 0


def test_a_job_that_does_not_wait_has_no_position() -> None:
    running = replace(MINE, state="RUNNING", phase=Phase.ACTIVE)
    assert ahead_of(running, Snapshot(0.0, 1.0, {10: running})) is None
