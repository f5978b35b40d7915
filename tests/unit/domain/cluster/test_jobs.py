"""A snapshot finds the jobs of one session without looking at all the others."""

from __future__ import annotations

import time
from dataclasses import replace

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot

JOB = Job(7, "carme-x", "alice", "RUNNING", Phase.ACTIVE, submitted=20.0)


def test_jobs_are_found_by_name_and_user_oldest_first() -> None:
    again, bobs = replace(JOB, id=5, submitted=30.0), replace(JOB, id=6, user="bob")
    snapshot = Snapshot(0.0, 1.0, {j.id: j for j in (again, bobs, JOB)})
    assert snapshot.named("carme-x", "alice") == (JOB, again)
    assert snapshot.named("carme-y", "alice") == ()


def test_each_of_many_sessions_in_20000_jobs_is_found_at_once() -> None:
    jobs = {n: replace(JOB, id=n, name="same") for n in range(20_000)}
    snapshot = Snapshot(0.0, 1.0, jobs)
    began = time.process_time()
    for number in range(5000):
        snapshot.named(f"carme-{number}", "alice")
    assert time.process_time() - began < 1
