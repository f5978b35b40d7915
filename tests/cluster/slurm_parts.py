"""A client of the hub's own user on the sandbox, one session's job, and its liveness, for the tests of this folder.

``CARME_TEST_ASK_VIA=pyslurm`` makes it one that asks through pyslurm, on a Slurm 25.11 (``CARME_TEST_SLURM=PREFIX``)
and with an interpreter that has a pyslurm built for it. The same tests hold for both:
``python -m pytest tests/cluster/test_slurm_client.py tests/cluster/test_reservations_in_slurm.py``.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import time
import uuid
from collections.abc import Mapping, Sequence

from carme_hub.domain.cluster.jobs import Job, JobSpec
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.liveness import Accounting, History, Liveness, Observation, Verdict, judge
from carme_hub.errors import SandboxError, SlurmUnreachable
from carme_hub.sandbox import Cluster
from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.command import Answer, Commands
from carme_hub.slurm.pyslurm.client import ReservationsNative, SlurmNative
from carme_hub.slurm.pyslurm.process import NativeProcess
from carme_hub.slurm.reservations import ReservationsCli
from carme_hub.slurm.submit.slurmrestd import RestSubmitter
from carme_hub.slurm.submit.submitters import DirectSubmitter, Submitter, SudoSubmitter

WAYS = ("rest", "sudo", "direct")
SECRET = b'{"token": "c2VjcmV0LXRva2Vu"}'
#: What a session's script does first: keep the data, and say what it was started with.
SCRIPT = """#!/bin/sh
cd "$CARME_SESSION_FOLDER" 2>/dev/null || { mkdir -p "$CARME_SESSION_FOLDER"; cd "$CARME_SESSION_FOLDER"; }
env > environment.txt
exec sleep 300
"""


class CommandsOfTheHub(Commands):
    """Runs every command as the hub's own user, who is only an Operator."""

    def __init__(self, cluster: Cluster, timeout: float = 10.0) -> None:
        super().__init__(prefix=str(cluster.bin.parent), conf=str(cluster.hub_slurm_conf), timeout=timeout)
        self._hub = cluster.hub_user

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environ: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str = "",
        raw: bool = False,
    ) -> Answer:
        return await super().run(argv, stdin=stdin, environ=environ, timeout=timeout, user=user or self._hub, raw=raw)


def submitter(cluster: Cluster, way: str, commands: Commands) -> Submitter:
    if way == "rest":
        return RestSubmitter(
            f"unix://{cluster.rest_socket}", token_command=cluster.token_argv, token_lifetime=300, commands=commands
        )
    if way == "sudo":
        return SudoSubmitter((str(cluster.submit_helper),), commands)
    return DirectSubmitter(commands)


def hub_client(cluster: Cluster, timeout: float = 10.0) -> SlurmCli:
    commands = CommandsOfTheHub(cluster, timeout)
    submits = submitter(cluster, "direct", commands)
    if os.environ.get("CARME_TEST_ASK_VIA") != "pyslurm":
        return SlurmCli(cluster=cluster.name, commands=commands, submitter=submits)
    return SlurmNative(
        cluster=cluster.name,
        commands=commands,
        submitter=submits,
        controller=NativeProcess(commands, user=cluster.hub_user),
        accounting=NativeProcess(commands, user=cluster.hub_user),
    )


def hub_reservations(cluster: Cluster) -> ReservationsCli:
    commands = CommandsOfTheHub(cluster)
    if os.environ.get("CARME_TEST_ASK_VIA") != "pyslurm":
        return ReservationsCli(commands)
    return ReservationsNative(commands, NativeProcess(commands, user=cluster.hub_user))


def spec(user: str = "alice", **changes: object) -> JobSpec:
    session = str(uuid.uuid4())
    folder = f"{pwd.getpwnam(user).pw_dir}/.carme/sessions/{session}"
    plain: dict[str, object] = {
        "name": f"carme-{session}",
        "user": user,
        "script": SCRIPT,
        "data": SECRET,
        "session_folder": folder,
        "gpus": Gpus("a100", 1),
        "memory_mib": 100,
        "environment": {"CARME_SESSION": session, "CARME_SESSION_FOLDER": folder},
    }
    return JobSpec(**{**plain, **changes})  # type: ignore[arg-type]


async def until(client: SlurmCli, job: JobSpec, *states: str, within: float = 20.0) -> Job:
    end = time.monotonic() + within
    while True:
        found = await client.find(job.name, job.user)
        if found and found[-1].state in states:
            return found[-1]
        assert time.monotonic() < end, found
        await asyncio.sleep(0.1)


async def recorded(client: SlurmCli, job: JobSpec, within: float = 30.0) -> None:
    """Wait until accounting has the start of the job."""
    end = time.monotonic() + within
    while not any(record.start for record in await client.records(job.name, job.user, time.time() - 600)):
        assert time.monotonic() < end, "accounting does not know the job"
        await asyncio.sleep(0.2)


async def observe(client: SlurmCli, job: JobSpec) -> Observation:
    asked = time.monotonic()
    try:
        return Observation.of(await client.snapshot(), job.name, job.user)
    except SlurmUnreachable as error:
        return Observation.failed(asked, time.monotonic(), str(error))


async def observe_until_gone(client: SlurmCli, job: JobSpec, number: int, within: float = 20.0) -> Verdict:
    """Query and evaluate until the job is gone."""
    history, end = History(), time.monotonic() + within
    while True:
        history = history.add(await observe(client, job))
        asked = time.monotonic()
        accounting = Accounting(asked, await client.records(job.name, job.user, time.time() - 600))
        verdict = judge(history, now=time.monotonic(), job_id=number, accounting=accounting)
        if verdict.liveness is Liveness.GONE:
            return verdict
        assert time.monotonic() < end, verdict
        await asyncio.sleep(0.2)


def starts(cluster: Cluster, job: int) -> int:
    """Return how many started incarnations of a job accounting has."""
    lines = cluster.run("sacct", "-nDXP", "-j", str(job), "-o", "Start").stdout.split()
    return sum(line not in ("Unknown", "None") for line in lines)


class StartLost(AssertionError):
    """Accounting does not get to know of the start of a job any more."""


def requeue(cluster: Cluster, job: int, user: str, incarnation: int) -> None:
    """Put a running job back into the queue, and wait until it runs again; ``incarnation`` counts from 1.

    On a busy machine a start that accounting has not heard of yet can be lost with the requeue, and what slurmctld sent
    while the job waited can still come after it and take the start away again.

    Raises:
        StartLost: it was.
    """
    for _ in range(2):
        try:
            cluster.wait_for(lambda: starts(cluster, job) == incarnation, within=60)
        except SandboxError as error:
            known = cluster.run("sacct", "-nDXP", "-j", str(job), "-o", "State,Submit,Start,End,NodeList").stdout
            raise StartLost(f"{error}: incarnation {incarnation} of\n{known}{cluster.squeue('-t', 'all')}") from None
        time.sleep(1.2)
    cluster.run("scontrol", "requeue", str(job), user=user)
    cluster.wait_job(job, "PENDING")
    time.sleep(1.2)  # in the same second slurmd would take it for the one that was ended: "Job credential revoked"
    cluster.run("scontrol", "update", f"jobid={job}", "starttime=now")
    cluster.wait_job(job, "RUNNING")
