"""Users act on jobs of their own on a real Slurm, in each of the three ways, and on nobody else's."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from slurm_parts import WAYS, CommandsOfTheHub, hub_client, submitter

from carme_hub.domain.activity.accounted import efficiency_of
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.own_jobs.acts import Act
from carme_hub.domain.cluster.own_jobs.ended import EndedJob
from carme_hub.domain.cluster.own_jobs.targets import Target, target_of
from carme_hub.sandbox import Cluster
from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.owner.jobs import OwnJobs
from carme_hub.slurm.owner.ways import FileNotRead, HelperOwner, Owner, TokenOwner
from carme_hub.slurm.submit.slurmrestd import RestSubmitter
from carme_hub.spawners.jobs.acts import Result, perform
from carme_hub.spawners.jobs.again import Submissions
from carme_hub.spawners.jobs.output import NoOutput, Outputs

#: A folder of alice's for this file.
FOLDER = Path("/home/alice/own-jobs")
SCRIPT = """#!/bin/bash
#SBATCH --mem=100M
echo "begun $1 task ${SLURM_ARRAY_TASK_ID:-none}"
echo "trouble" >&2
sleep ${2:-300}
"""


class HubOfOneWay:
    """What acts on jobs needs of a hub, on the sandbox's Slurm; every look is a new query."""

    def __init__(self, client: SlurmCli, own_jobs: OwnJobs) -> None:
        self.client, self.own_jobs = client, own_jobs
        self.log = logging.getLogger("test")
        self.settings = SimpleNamespace(submit_again=True)
        self.watcher = SimpleNamespace(fresh=client.snapshot, latest=None)
        self.registry = SimpleNamespace(open_sessions=lambda: ())

    async def act(self, user: str, act: Act, *jobs: str, minutes: int = 0) -> list[Result]:
        targets = [target for job in jobs if (target := target_of(job)) is not None]
        assert len(targets) == len(jobs)
        return await perform(self, user, act, targets, minutes=minutes, stop=nobody)  # type: ignore[arg-type]

    async def tasks(self, number: int) -> dict[str, Job]:
        snapshot: Snapshot = await self.client.snapshot()
        return {
            job.tasks: job
            for job in snapshot.of_user("alice")
            if (job.array or job.id) == number and job.phase is not Phase.TERMINAL
        }

    async def until(self, number: int, tasks: str, state: str, within: float = 30.0) -> Job:
        end = time.monotonic() + within
        while True:
            found = await self.tasks(number)
            if tasks in found and found[tasks].state == state:
                return found[tasks]
            assert time.monotonic() < end, found
            await asyncio.sleep(0.2)


async def nobody(_session: Any) -> str:
    raise AssertionError("there is no session")


def owner(cluster: Cluster, way: str, commands: CommandsOfTheHub) -> Owner:
    helper = HelperOwner((str(cluster.jobs_helper),), commands)
    if way == "rest":
        rest = submitter(cluster, "rest", commands)
        assert isinstance(rest, RestSubmitter)
        return TokenOwner(rest, commands, helper)
    return helper if way == "sudo" else HelperOwner((), commands)


@pytest.fixture(scope="module", autouse=True)
def folder(cluster: Cluster) -> Iterator[None]:
    """Make the folder, and remove it with what jobs have written."""
    FOLDER.mkdir(mode=0o755, exist_ok=True)
    user = pwd.getpwnam("alice")
    os.chown(FOLDER, user.pw_uid, user.pw_gid)
    yield
    cluster.cancel_all()
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest_asyncio.fixture(loop_scope="module", params=WAYS)
async def hub(request: pytest.FixtureRequest, quiet: Cluster) -> AsyncIterator[HubOfOneWay]:
    client, commands = hub_client(quiet), CommandsOfTheHub(quiet)
    how = owner(quiet, request.param, commands)
    yield HubOfOneWay(client, OwnJobs(commands, how))
    if isinstance(how, TokenOwner):
        await how._submitter.close()
    await client.close()


def script(cluster: Cluster, *options: str, arguments: tuple[str, ...] = ("fast", "300")) -> int:
    """Submit the script as alice from the command line."""
    file = FOLDER / "own-jobs.sh"
    file.write_text(SCRIPT)
    done = cluster.run("sbatch", "--parsable", f"--chdir={FOLDER}", *options, str(file), *arguments, user="alice")
    return int(done.stdout.strip())


async def test_an_array_of_the_command_line_is_changed_by_its_owner_and_by_nobody_else(
    hub: HubOfOneWay, quiet: Cluster
) -> None:
    array = script(quiet, "--array=0-5%1", "--time=30", "--output=/dev/null")
    await hub.until(array, "0", "RUNNING")

    for act in Act:
        [refused] = await hub.act("bob", act, str(array), minutes=5)
        assert (refused.done, refused.text) == (False, "has ended already, or is not yours.")
    for act in Act:  # and if the hub were mistaken, Slurm would refuse it
        assert await hub.own_jobs.act("bob", Target(array), act, 5) != ""
    assert (await hub.tasks(array))["0"].state == "RUNNING"
    assert await hub.own_jobs.details("bob", Target(array)) is None
    assert await hub.own_jobs.script("bob", array) == ""

    [held] = await hub.act("alice", Act.HOLD, f"{array}_[3-4]")
    assert held.done, held
    tasks = {job.tasks: job.reason for job in await hub.own_jobs.tasks("alice", [array])}
    assert [task for task, reason in tasks.items() if reason == "JobHeldUser"] == ["3", "4"], tasks
    [free] = await hub.act("alice", Act.RELEASE, f"{array}_2")
    assert free.text == "is not held."
    [released] = await hub.act("alice", Act.RELEASE, f"{array}_[3-4]")
    assert released.done, released
    [one] = await hub.act("alice", Act.LIMIT, f"{array}_5", minutes=10)
    assert one.done, one
    assert {job.tasks: job.time_limit for job in await hub.own_jobs.tasks("alice", [array])}["5"] == 10
    [mixed] = await hub.act("alice", Act.LIMIT, str(array), minutes=20)
    assert (mixed.done, "would be raised" in mixed.text) == (False, True), mixed
    [lower] = await hub.act("alice", Act.LIMIT, str(array), minutes=9)
    assert lower.done, lower
    assert {job.time_limit for job in await hub.own_jobs.tasks("alice", [array])} == {9}
    assert await hub.own_jobs.tasks("bob", [array]) == []
    [higher] = await hub.act("alice", Act.LIMIT, str(array), minutes=40)
    assert not higher.done

    [back] = await hub.act("alice", Act.REQUEUE, f"{array}_0")
    assert back.done, back
    [some] = await hub.act("alice", Act.CANCEL, f"{array}_[4-5]")
    assert some.done, some
    [whole] = await hub.act("alice", Act.CANCEL, str(array))
    assert whole.done, whole
    end = time.monotonic() + 30
    while await hub.tasks(array):
        assert time.monotonic() < end
        await asyncio.sleep(0.2)
    [gone] = await hub.act("alice", Act.CANCEL, str(array))
    assert "has ended already" in gone.text


async def test_what_slurm_refuses_is_said_in_plain_words(hub: HubOfOneWay, quiet: Cluster) -> None:
    held = script(quiet, "--hold", "--output=/dev/null")
    quiet.run("scontrol", "hold", str(held))  # by root
    [found] = await hub.act("alice", Act.RELEASE, str(held))
    assert (found.done, "Only an administrator can release it" in found.text) == (False, True), found
    fixed = script(quiet, "--no-requeue", "--output=/dev/null")
    await hub.until(fixed, "", "RUNNING")
    [found] = await hub.act("alice", Act.REQUEUE, str(fixed))
    assert (found.done, "--no-requeue" in found.text) == (False, True), found


async def test_the_output_is_read_as_its_owner(hub: HubOfOneWay, quiet: Cluster) -> None:
    number = script(quiet, "--output=own-%j-%x.out", "--error=own-%j.err", "--job-name=out")
    await hub.until(number, "", "RUNNING")
    outputs = Outputs()
    place = await outputs.place(hub, "alice", Target(number), "output")  # type: ignore[arg-type]
    assert place.path == str(FOLDER / f"own-{number}-out.out")
    end = time.monotonic() + 20
    while not (Path(place.path).exists() and Path(place.path).stat().st_size):
        assert time.monotonic() < end
        await asyncio.sleep(0.2)
    Path(place.path).chmod(0o600)
    part = await outputs.part(hub, "alice", place, offset=0)  # type: ignore[arg-type]
    assert part.text == "begun fast task none\n"
    errors = await outputs.place(hub, "alice", Target(number), "error")  # type: ignore[arg-type]
    assert (await outputs.part(hub, "alice", errors, offset=-10)).text == "trouble\n"  # type: ignore[arg-type]
    assert (await outputs.find(hub, "alice", place, "BEGUN")).count == 1  # type: ignore[arg-type]

    with pytest.raises(NoOutput):
        await outputs.place(hub, "bob", Target(number), "output")  # type: ignore[arg-type]
    with pytest.raises(FileNotRead) as caught:  # and if the hub were mistaken, the kernel would refuse it
        await hub.own_jobs.file("bob", {"path": place.path, "offset": 0, "length": 10})
    assert caught.value.reason == "denied"
    secret = FOLDER / "link.out"
    secret.unlink(missing_ok=True)
    secret.symlink_to("/etc/shadow")
    with pytest.raises(FileNotRead) as caught:
        await hub.own_jobs.file("alice", {"path": str(secret), "offset": 0, "length": 10})
    assert caught.value.reason == "denied"


async def test_a_job_is_submitted_again_as_it_was(hub: HubOfOneWay, quiet: Cluster) -> None:
    options = ("--job-name=again", "--time=9", "--gres=gpu:a100:1", "--cpus-per-task=2", "--nice=5")
    first = script(quiet, *options, arguments=("x", "300"))
    await asyncio.sleep(2)  # accounting has heard of it
    submissions = Submissions()
    shown = await submissions.show(hub, "alice", Target(first))  # type: ignore[arg-type]
    assert shown.script == SCRIPT
    assert shown.options["gres"] == "gpu:a100:1"
    second = await submissions.submit(hub, "alice", Target(first), key="k")  # type: ignore[arg-type]
    assert await submissions.submit(hub, "alice", Target(first), key="k") == second  # type: ignore[arg-type]
    job = await hub.until(second, "", "RUNNING")
    assert (job.user, job.name, job.time_limit, job.gpus.count) == ("alice", "again", 9, 1)
    was = await hub.own_jobs.details("alice", Target(first))
    now = await hub.own_jobs.details("alice", Target(second))
    assert was is not None
    assert now is not None
    same = ("account", "partition", "qos", "minutes", "tasks", "cpus_per_task", "memory", "nice", "requeue", "folder")
    assert [(name, getattr(now, name)) for name in same] == [(name, getattr(was, name)) for name in same]
    assert now.tres == was.tres
    log = FOLDER / f"slurm-{second}.out"
    end = time.monotonic() + 20
    while not (log.exists() and log.stat().st_size):
        assert time.monotonic() < end, list(FOLDER.glob("slurm-*"))
        await asyncio.sleep(0.2)
    assert "task none" in log.read_text()
    assert log.read_text().startswith("begun x task none"), log.read_text()
    assert log.stat().st_uid == pwd.getpwnam("alice").pw_uid


async def test_accounting_tells_what_an_ended_job_used_to_its_owner(hub: HubOfOneWay, quiet: Cluster) -> None:
    burn = "#!/bin/sh\ntimeout 3 sh -c 'while :; do :; done'\nexit 3\n"
    number = quiet.sbatch("--mem=100M", "--time=5", "--job-name=burnt", user="alice", script=burn)
    since, found = time.time() - 600, None
    end = time.monotonic() + 60
    while found is None or found.phase is not Phase.TERMINAL or not found.cpu_seconds:
        assert time.monotonic() < end, found
        await asyncio.sleep(1)
        ended: tuple[EndedJob, ...] = await hub.own_jobs.ended("alice", since)
        found = next((job for job in ended if job.id == number), None)
    assert (found.name, found.state, found.exit_code, found.memory_mib) == ("burnt", "FAILED", (3, 0), 100)
    assert 0.1 < found.cpu_seconds < 10
    said = efficiency_of(found)
    assert said is not None
    assert "CPUs: " in said.sentence
    assert await hub.own_jobs.record("bob", Target(number)) is None
    assert number not in {job.id for job in await hub.own_jobs.ended("bob", since)}
