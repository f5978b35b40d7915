"""A job is shown before it is submitted again, is submitted once for a key, and says why where it cannot be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from forged_jobs import ARRAY, BOBS, RUNS, SCRIPT, TASK, WAITS, HubWithJobs, SlurmThatActs

from carme_hub.domain.cluster.own_jobs.resubmission import CannotSubmitAgain
from carme_hub.domain.cluster.own_jobs.targets import Target
from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.spawners.jobs.again import Submissions


@pytest.fixture
def slurm() -> SlurmThatActs:
    return SlurmThatActs(RUNS, WAITS, TASK, ARRAY, BOBS)


@pytest.fixture
def hub(slurm: SlurmThatActs) -> Any:
    return HubWithJobs(slurm)


async def test_it_is_shown_and_then_submitted_as_the_user(hub: Any, slurm: SlurmThatActs) -> None:
    submissions = Submissions()
    shown = await submissions.show(hub, "alice", Target(5))
    assert shown.script == SCRIPT
    assert slurm.submitted == []
    assert await submissions.submit(hub, "alice", Target(5)) == 101
    assert [(job.user, job.script, job.options) for job in slurm.submitted] == [("alice", SCRIPT, shown.options)]


async def test_the_same_form_sent_twice_submits_once(hub: Any, slurm: SlurmThatActs) -> None:
    submissions = Submissions()
    found = await asyncio.gather(*(submissions.submit(hub, "alice", Target(5), key="k") for _ in range(3)))
    assert (found, len(slurm.submitted)) == ([101, 101, 101], 1)
    assert await submissions.submit(hub, "alice", Target(5), key="another") == 102
    with pytest.raises(CannotSubmitAgain, match="another job") as caught:
        await submissions.submit(hub, "alice", Target(6), key="k")
    assert caught.value.reason == "key-used"


async def test_after_a_refusal_the_same_form_may_be_sent_again(hub: Any, slurm: SlurmThatActs) -> None:
    submissions = Submissions()
    slurm.errors["submit"] = SlurmRejected("Batch job submission failed: Invalid partition name specified")
    with pytest.raises(CannotSubmitAgain, match="the partition does not exist"):
        await submissions.submit(hub, "alice", Target(5), key="k")
    del slurm.errors["submit"]
    assert await submissions.submit(hub, "alice", Target(5), key="k") == 101


async def test_what_may_be_submitted_already_is_not_submitted_again(hub: Any, slurm: SlurmThatActs) -> None:
    submissions = Submissions()
    slurm.errors["submit"] = SlurmUnreachable("timed out")
    with pytest.raises(SlurmUnreachable):
        await submissions.submit(hub, "alice", Target(5), key="k")
    del slurm.errors["submit"]
    with pytest.raises(CannotSubmitAgain, match="Look at your jobs first") as caught:
        await submissions.submit(hub, "alice", Target(5), key="k")
    assert (caught.value.reason, slurm.submitted) == ("not-known", [])
    assert await submissions.submit(hub, "alice", Target(5), key="another") == 101


async def test_tasks_of_an_array_may_be_chosen(hub: Any, slurm: SlurmThatActs) -> None:
    await Submissions().submit(hub, "alice", Target(7), tasks="0-3%2")
    assert slurm.submitted[0].options["array"] == "0-3%2"
    with pytest.raises(CannotSubmitAgain, match="numbers and ranges"):
        await Submissions().submit(hub, "alice", Target(7), tasks="0 --uid=0")


async def test_nobody_submits_or_sees_the_script_of_somebody_elses_job(hub: Any, slurm: SlurmThatActs) -> None:
    slurm.scripts[9] = "#!/bin/sh\necho secret\n"
    for call in (Submissions().show, Submissions().submit):
        with pytest.raises(CannotSubmitAgain, match="no such job of yours") as caught:
            await call(hub, "alice", Target(9))  # type: ignore[operator]
        assert caught.value.reason == "unknown"
    assert slurm.submitted == []


async def test_of_a_forgotten_job_accounting_may_have_the_script(hub: Any, slurm: SlurmThatActs) -> None:
    with pytest.raises(CannotSubmitAgain, match="AccountingStoreFlags=job_script"):
        await Submissions().show(hub, "alice", Target(20))
    slurm.stored[20] = SCRIPT
    shown = await Submissions().show(hub, "alice", Target(20))
    assert shown.options["gres"] == "gpu:a100:1"
    assert any("what accounting keeps" in note for note in shown.notes)


async def test_a_site_can_switch_it_off_and_slurmrestd_reads_no_options_of_scripts(
    hub: Any, slurm: SlurmThatActs
) -> None:
    slurm.reads_script_options = False
    assert any("#SBATCH" in note for note in (await Submissions().show(hub, "alice", Target(5))).notes)
    hub.settings.submit_again = False
    with pytest.raises(CannotSubmitAgain, match="Use sbatch in a terminal"):
        await Submissions().submit(hub, "alice", Target(5))
    assert slurm.submitted == []
