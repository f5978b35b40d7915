"""The home page lists the visitor's jobs, and cancels those they choose: their own alone, and never by a GET."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from forged_hub import Browser, ForgedHub
from test_home_sessions import Part, alice, hub, part, session

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.spawners.handlers.home import jobs as handler

__all__ = ["alice", "hub", "part"]
CANCEL = "/hub/carme/jobs/cancel"
RUNS = Job(5, "train.sh", "alice", "RUNNING", Phase.ACTIVE, nodes=("n1",), submitted=1.0, gpus=Gpus("a100", 2))
WAITS = Job(6, "later.sh", "alice", "PENDING", Phase.WAITING, reason="Priority", submitted=2.0)
TASK = Job(8, "sweep.sh", "alice", "RUNNING", Phase.ACTIVE, nodes=("n2",), submitted=3.0, array=7, tasks="1")
ARRAY = Job(7, "sweep.sh", "alice", "PENDING", Phase.WAITING, submitted=3.0, array=7, tasks="2-9")
BOBS = Job(9, "secret.sh", "bob", "RUNNING", Phase.ACTIVE, submitted=4.0)
ENDED = replace(RUNS, id=10, phase=Phase.TERMINAL, state="COMPLETED")


class SlurmThatNotes:
    """Notes what was to be cancelled; an error by the number of a job is raised instead."""

    def __init__(self) -> None:
        self.cancelled: list[tuple[int, str, str]] = []
        self.errors: dict[int, Exception] = {}
        self.silent = False

    async def cancel(self, job: Job) -> None:
        if job.id in self.errors:
            raise self.errors[job.id]
        self.cancelled.append((job.id, job.name, job.user))


@pytest.fixture
def slurm(part: Part, monkeypatch: pytest.MonkeyPatch) -> SlurmThatNotes:
    client = SlurmThatNotes()
    own = replace(RUNS, id=12, name=session().job_name)
    part.watcher.latest = Snapshot(0, 0, {job.id: job for job in (RUNS, WAITS, TASK, ARRAY, BOBS, ENDED, own)})

    async def fresh() -> Snapshot:
        if client.silent:
            raise SlurmUnreachable("no answer from Slurm in 30 s")
        return part.watcher.latest

    part.watcher.fresh = fresh
    part.client = client  # type: ignore[attr-defined]
    part.log = SimpleNamespace(warning=lambda *_: None, info=lambda *_: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(handler, "started_hub", lambda: part)
    return client


async def ask(browser: Browser, *ids: Any) -> tuple[int, str]:
    status, text, _ = await browser.get(f"{CANCEL}?{urlencode([('job', id) for id in ids])}")
    return status, " ".join(text.split())


async def cancel(browser: Browser, *ids: Any) -> tuple[int, str]:
    status, text, _ = await browser.post(CANCEL, {"job": [str(id) for id in ids]})
    return status, " ".join(text.split())


async def test_the_page_lists_the_jobs_of_the_visitor_and_offers_to_cancel_them(
    alice: Browser, slurm: SlurmThatNotes
) -> None:
    _, text, _ = await alice.get("/hub/home")
    assert "Your jobs" in text
    assert [id for id in (5, 6, 7, 8, 9, 10, 12) if f'name="job" value="{id}"' in " ".join(text.split())] == [5, 6, 7]
    assert "secret.sh" not in text


async def test_it_asks_first_and_a_get_cancels_nothing(alice: Browser, slurm: SlurmThatNotes) -> None:
    status, text = await ask(alice, 5, 7, 9)
    assert status == 200
    assert "train.sh" in text
    assert "sweep.sh</span>: running (8 waiting, 1 running)." in text
    assert "secret.sh" not in text
    assert "Cancel these 2 jobs" in text
    _, one = await ask(alice, 6)
    assert "Cancel this job" in one
    assert slurm.cancelled == []


async def test_the_chosen_ones_are_cancelled_an_array_with_all_its_tasks(alice: Browser, slurm: SlurmThatNotes) -> None:
    status, text = await cancel(alice, 5, 7)
    assert status == 200
    assert slurm.cancelled == [(5, "train.sh", "alice"), (7, "sweep.sh", "alice")]
    assert "5 train.sh is being cancelled." in text
    assert "7 sweep.sh is being cancelled." in text


async def test_jobs_of_others_sessions_and_ended_jobs_are_left_alone(alice: Browser, slurm: SlurmThatNotes) -> None:
    status, text = await cancel(alice, 9, 10, 12, 8, 99, "x", "5; rm")
    assert status == 200
    assert slurm.cancelled == []
    assert "These jobs have ended already, or are not yours." in text


async def test_a_form_without_its_token_or_a_stranger_cancels_nothing(
    alice: Browser, hub: ForgedHub, slurm: SlurmThatNotes
) -> None:
    alice.xsrf = "wrong"
    assert (await cancel(alice, 5))[0] == 403
    stranger = await hub.browser()
    status, _, _ = await stranger.post(CANCEL, {"job": ["5"]})
    assert status in (302, 403)
    assert slurm.cancelled == []


async def test_what_slurm_refuses_or_does_not_answer_is_said_for_each_job(
    alice: Browser, slurm: SlurmThatNotes
) -> None:
    slurm.errors = {5: SlurmRejected("Access/permission denied"), 6: SlurmUnreachable("timed out")}
    status, text = await cancel(alice, 5, 6, 7)
    assert status == 200
    assert "5 train.sh: Slurm refused it: Access/permission denied" in text
    assert "6 later.sh: Slurm does not answer; it may or may not be cancelled." in text
    assert slurm.cancelled == [(7, "sweep.sh", "alice")]


async def test_while_slurm_is_silent_nothing_is_cancelled_and_the_page_says_so(
    alice: Browser, slurm: SlurmThatNotes, part: Part
) -> None:
    slurm.silent = True
    status, text = await cancel(alice, 5)
    assert (status, slurm.cancelled) == (503, [])
    assert "nothing was cancelled" in text
    part.watcher.latest = None
    assert (await ask(alice, 5))[0] == 503


async def test_without_a_choice_or_with_too_many_it_says_what_to_do(alice: Browser, slurm: SlurmThatNotes) -> None:
    assert "Choose jobs on your page first." in (await ask(alice))[1]
    status, text = await cancel(alice, *range(1, handler.MOST_JOBS + 2))
    assert (status, slurm.cancelled) == (400, [])
    assert "at most 200 jobs" in text
