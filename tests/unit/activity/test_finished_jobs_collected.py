"""Finished jobs are stored with what their reporters measured; a job that only has the name of a session is not one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from carme_hub.activity.earlier_starts import EarlierStarts
from carme_hub.activity.finished_jobs import FIRST_LOOK, FinishedJobs, session_id
from carme_hub.domain.activity.advice import advice
from carme_hub.domain.activity.efficiency import Asked, Used
from carme_hub.domain.activity.finished import REPORTER, SACCT, FinishedJob
from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.finished_jobs import Accounted
from carme_hub.slurm.past_use import PastJob
from carme_hub.store.activity import ActivityStore, Report
from carme_hub.store.engine import CarmeStore
from carme_hub.store.finished_jobs import FinishedJobStore
from carme_hub.store.sessions import SessionStore

ID = "5f0d8f0e-0000-4000-8000-000000000001"
NOW, HOUR = 1_795_000_200.0, 3600
BEGAN = NOW // HOUR * HOUR - 2 * HOUR


class AccountingAsItIs:
    """Says what ended; ``silent``: it does not answer."""

    def __init__(self, *found: Accounted) -> None:
        self.found, self.silent = found, False
        self.asked: list[tuple[float, float]] = []

    async def ended(self, since: float, until: float) -> tuple[Accounted, ...]:
        self.asked.append((since, until))
        if self.silent:
            raise SlurmUnreachable("sacct: no answer")
        return tuple(each for each in self.found if since <= each.job.ended <= until)


class PastAsItWas:
    """What jobs had; ``silent``: sacctmgr does not answer."""

    def __init__(self, *jobs: PastJob) -> None:
        self.had, self.silent, self.asked = jobs, False, 0

    async def jobs(self, _since: float, _until: float) -> tuple[PastJob, ...]:
        self.asked += 1
        return self.had

    async def out_of_service(self, _since: float, _until: float) -> tuple[()]:
        if self.silent:
            raise SlurmUnreachable("sacctmgr: no answer")
        return ()


async def nodes() -> Sequence[Node]:
    return [
        Node("n1", "idle", True, ("gpu",), 16, memory_mib=128 * 1024, gpus={"a100": 4}),
        Node("n2", "idle", True, ("other",), 16, memory_mib=128 * 1024, gpus={"a100": 4}),
    ]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    found = CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()
    yield found
    found.dispose()


def accounted(job_id: int = 7, name: str = f"carme-{ID}", **changes: Any) -> Accounted:
    job = FinishedJob(
        *(job_id, "sam", "lab", "gpu", "COMPLETED", BEGAN - HOUR, BEGAN, BEGAN + HOUR),
        Asked(4, 16, 65_536, 240),
        Used(cpus=2.0, memory=9000, measured=1.0),
        cpu_seconds=2.0 * HOUR,
        memory=9000,
        gpu_type="a100",
        name=name,
    )
    return Accounted(replace(job, **changes), ("n1",), BEGAN - HOUR)


def collector(engine: Engine, accounting: AccountingAsItIs, past: PastAsItWas | None = None) -> FinishedJobs:
    anything: Any = accounting
    before: Any = past or PastAsItWas()
    return FinishedJobs(
        *(anything, SessionStore(engine), ActivityStore(engine, "lab"), FinishedJobStore(engine, "lab")),
        *(EarlierStarts(before, nodes), "lab", logging.getLogger("test")),
        clock=lambda: NOW,
    )


def with_session(engine: Engine, gpus: int = 4, minutes: int = 60, cpus: int = 4, **changes: Any) -> None:
    request = Request("gpu", "base", Gpus("a100", gpus), cpus, 32_768, 480, working_folder="work")
    row = Session(ID, "lab", "sam", "", request, SessionState.ENDED, BEGAN, job_id=7, started=BEGAN, ended=BEGAN + HOUR)
    SessionStore(engine).add(row.replace(**changes))
    busy = GpuMinute(utilisation=80.0, utilisation_most=90, memory=9000)
    idle = GpuMinute(utilisation=0.0, utilisation_most=0, memory=4)
    every = tuple(
        Minute(int(BEGAN) + 60 * number, 60, 300.0, 5000, gpus=(busy, *[idle] * (gpus - 1)))
        for number in range(minutes)
    )
    ActivityStore(engine, "lab").record([Report(ID, "n1", every, {"virtual": True})])


def stored(engine: Engine) -> list[FinishedJob]:
    return FinishedJobStore(engine, "lab").of_user("sam", 0)


async def test_a_session_has_what_its_reporter_measured_and_its_image_and_folder(engine: Engine) -> None:
    with_session(engine)
    assert await collector(engine, AccountingAsItIs(accounted())).collect() == 1
    [job] = stored(engine)
    assert (job.source, job.session, job.image, job.folder, job.interactive) == (REPORTER, ID, "base", "work", True)
    assert (job.used.gpus_used, job.asked.virtual, job.cpu_seconds) == (1, True, 3.0 * HOUR)
    assert job.gpu_busy == pytest.approx(0.8 * HOUR)
    assert advice(job).suggestion.startswith("Ask for 1 virtual GPU.")


@pytest.mark.parametrize("changes", [{"user": "kim"}, {"job_id": 8}, {"cluster": "other"}])
async def test_a_job_with_the_name_of_a_session_that_it_is_not_is_one_of_the_command_line(
    engine: Engine, changes: dict[str, Any]
) -> None:
    with_session(engine, **changes)
    await collector(engine, AccountingAsItIs(accounted())).collect()
    [job] = stored(engine)
    assert (job.source, job.session, job.used.gpus_used) == (SACCT, "", None)


async def test_where_the_reporter_measured_a_part_only_accounting_counts(engine: Engine) -> None:
    with_session(engine, minutes=20)
    await collector(engine, AccountingAsItIs(accounted())).collect()
    [job] = stored(engine)
    assert (job.source, job.session, job.used.memory) == (SACCT, ID, 9000)


async def test_one_node_says_nothing_of_what_another_has_used(engine: Engine) -> None:
    with_session(engine)
    await collector(engine, AccountingAsItIs(accounted(nodes=2))).collect()
    [job] = stored(engine)
    assert (job.source, job.used.memory, job.used.cpus, job.used.cpus_most) == (REPORTER, None, None, None)
    assert "GiB" not in advice(job).suggestion


async def test_each_look_begins_before_the_last_end_and_jobs_of_seconds_are_left_out(engine: Engine) -> None:
    tiny = {"started": BEGAN + HOUR - 5}
    died = accounted(10, "died", **tiny, state="OUT_OF_MEMORY")
    accounting = AccountingAsItIs(accounted(name="train"), accounted(9, "tiny", **tiny), died)
    found = collector(engine, accounting)
    await found.collect()
    assert accounting.asked[0][0] == NOW - FIRST_LOOK
    assert {job.job_id for job in stored(engine)} == {7, 10}
    accounting.asked.clear()
    await found.collect()
    assert accounting.asked == [(BEGAN + HOUR - 7200, NOW)]


async def test_what_was_read_before_accounting_fell_silent_stays(engine: Engine) -> None:
    accounting = AccountingAsItIs(accounted(name="train"))
    found = collector(engine, accounting)
    await found.collect()
    accounting.silent = True
    with pytest.raises(SlurmUnreachable):
        await found.collect()
    assert len(stored(engine)) == 1


def past(job_id: int, start: float, end: float, gpus: int) -> PastJob:
    return PastJob(job_id, BEGAN - HOUR, start, end, ("n1",), {"a100": gpus}, gpus, gpus * 1024)


@pytest.mark.parametrize(("cpus", "sooner"), [(4, HOUR), (16, None)])
async def test_a_smaller_job_could_have_started_where_all_that_it_needs_was_free(
    engine: Engine, cpus: int, sooner: int | None
) -> None:
    with_session(engine, cpus=cpus)
    # Another job had three of the four GPUs, and three CPUs, until this one began.
    had = PastAsItWas(past(7, BEGAN, BEGAN + HOUR, 4), past(5, BEGAN - 2 * HOUR, BEGAN, 3))
    await collector(engine, AccountingAsItIs(accounted()), had).collect()
    [job] = stored(engine)
    assert job.sooner == sooner
    assert ("It could have started 1 h sooner" in advice(job).suggestion) == bool(sooner)
    await collector(engine, AccountingAsItIs(accounted()), had).collect()
    assert had.asked == 1, "what was found is kept"
    assert stored(engine) == [job]


@pytest.mark.parametrize("why", ["limit", "features", "short wait", "silent"])
async def test_where_it_is_not_known_nothing_is_said(engine: Engine, why: str) -> None:
    with_session(engine)
    had, one = PastAsItWas(), accounted()
    had.silent = why == "silent"
    changes: dict[str, dict[str, Any]] = {
        "limit": {"held_back": True},
        "features": {"constrained": True},
        "short wait": {"eligible": BEGAN - 60},
        "silent": {},
    }
    await collector(engine, AccountingAsItIs(replace(one, **changes[why])), had).collect()
    [job] = stored(engine)
    assert job.sooner is None


@pytest.mark.parametrize(("name", "id"), [(f"carme-{ID}", ID), (f"carme-{ID}x", ""), ("train", ""), ("carme-", "")])
def test_names_of_jobs(name: str, id: str) -> None:
    assert session_id(name) == id
