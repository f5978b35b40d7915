"""The client on a real Slurm: three methods to submit, ends that are found and explained, no forged job."""

from __future__ import annotations

import asyncio
import base64
import json
import pwd
import re
import stat
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from slurm_parts import (
    SECRET,
    WAYS,
    CommandsOfTheHub,
    hub_client,
    observe,
    observe_until_gone,
    recorded,
    spec,
    submitter,
    until,
)

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.reasons import end_sentence, refusal_sentence
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.liveness import History, Liveness, judge
from carme_hub.errors import SlurmRejected
from carme_hub.sandbox import Cluster
from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.submit.slurmrestd import RestSubmitter


@pytest_asyncio.fixture(loop_scope="module")
async def client(quiet: Cluster) -> AsyncIterator[SlurmCli]:
    client = hub_client(quiet)
    yield client
    await client.close()


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_submitted_with_each_submit_via_is_the_users_own_and_keeps_its_secret(
    way: str, quiet: Cluster, client: SlurmCli
) -> None:
    commands = CommandsOfTheHub(quiet)
    how = submitter(quiet, way, commands)
    job = spec(gpus=Gpus("a100", 2), cpus=2, time_limit=7, node="node2")
    number = await how.submit(job)
    await how.close()
    found = await until(client, job, "RUNNING")
    assert (found.id, found.user, found.gpus, found.time_limit) == (number, "alice", Gpus("a100", 2), 7)
    assert found.nodes == ("node2",)
    folder = Path(job.session_folder)
    output = folder / "environment.txt"
    quiet.wait_for(lambda: output.exists() and "SLURM_JOB_ID" in output.read_text())
    seen = dict(line.split("=", 1) for line in output.read_text().splitlines() if "=" in line)
    assert seen["CARME_SESSION"] == job.environment["CARME_SESSION"]
    assert (seen["HOME"], seen["USER"]) == (pwd.getpwnam("alice").pw_dir, "alice")
    assert len(seen["CUDA_VISIBLE_DEVICES"].split(",")) == 2
    assert seen["PATH"] == "/usr/local/bin:/usr/bin:/bin"
    if way == "rest":
        assert zlib.decompress(base64.b64decode(seen["CARME_DATA"])) == SECRET
    else:
        data = folder / "data.json"
        assert data.read_bytes() == SECRET
        assert (stat.S_IMODE(data.stat().st_mode), data.owner()) == (0o600, "alice")
        assert (stat.S_IMODE(folder.stat().st_mode), folder.owner()) == (0o700, "alice")
        assert "CARME_DATA" not in seen
    details = quiet.run("scontrol", "show", "job", str(number)).stdout
    assert "Requeue=0" in details
    assert "StdOut=/dev/null" in details
    line = quiet.run("sacct", "-n", "-X", "-a", "-o", "submitline%500,comment", "-j", str(number)).stdout
    for text in (details, line):
        assert "c2VjcmV0" not in text
        assert base64.b64encode(zlib.compress(SECRET)).decode() not in text


@pytest.mark.parametrize("way", WAYS)
async def test_a_refusal_has_a_reason_with_each_submit_via(way: str, quiet: Cluster) -> None:
    how = submitter(quiet, way, CommandsOfTheHub(quiet))
    for changes, words in (
        ({"account": "nobodys"}, "account may not be used"),
        ({"partition": "nowhere"}, "partition does not exist"),
        ({"gpus": Gpus("nosuch", 1)}, "type of GPU|no node has"),
        ({"gpus": Gpus("a100", 64)}, "no node has"),
        ({"gpus": Gpus("a100", 3), "qos": "typed"}, "limit"),
    ):
        job = spec(**changes)  # type: ignore[arg-type]
        with pytest.raises(SlurmRejected) as caught:
            await how.submit(job)
        assert re.search(words, refusal_sentence(caught.value.message)), caught.value.message
    await how.close()


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_whose_nodes_are_all_down_waits_for_them_with_each_submit_via(
    way: str, quiet: Cluster, client: SlurmCli
) -> None:
    how = submitter(quiet, way, CommandsOfTheHub(quiet))
    quiet.run("scontrol", "update", "nodename=node1,node2", "state=down", "reason=test")
    try:
        job = spec(gpus=Gpus("a100", 1))
        number = await how.submit(job)
        found = await until(client, job, "PENDING")
        assert (found.id, found.phase) == (number, Phase.WAITING)
    finally:
        quiet.run("scontrol", "update", "nodename=node1,node2", "state=resume")
        await how.close()
    await until(client, job, "RUNNING", within=60)


async def test_submit_by_rest_serves_no_one_outside_its_group(quiet: Cluster) -> None:
    how = submitter(quiet, "rest", CommandsOfTheHub(quiet))
    for user in ("root", "daemon", quiet.hub_user):
        with pytest.raises(SlurmRejected):
            await how.submit(spec(user=user))
    await how.close()


async def test_an_expired_token_causes_a_short_delay_and_no_second_job(
    quiet: Cluster, client: SlurmCli, open_path: Path
) -> None:
    open_path.chmod(0o777)
    tokens = open_path / "token"
    bad = quiet.token("alice")[:-4] + "AAAA"
    tokens.write_text(
        f"#!/bin/sh\nif [ -e {open_path}/once ]; then exec sudo -n {quiet.token_argv[2]} token $1; fi\n"
        f"touch {open_path}/once; echo {bad}\n"
    )
    tokens.chmod(0o755)
    how = RestSubmitter(
        f"unix://{quiet.rest_socket}",
        token_command=(str(tokens),),
        token_lifetime=300,
        commands=CommandsOfTheHub(quiet),
    )
    await how.submit(spec())  # finds the version with the good token after the bad one
    how._tokens._tokens["alice"] = type(how._tokens._tokens["alice"])(bad, time.time() + 300)
    job = spec()
    number = await how.submit(job)
    await how.close()
    assert [j.id for j in await client.find(job.name, "alice")] == [number]


async def test_cancel_ends_its_job_and_no_other(quiet: Cluster, client: SlurmCli) -> None:
    job = spec()
    number = await client.submit(job)
    found = await until(client, job, "RUNNING")
    await client.cancel(replace(found, name="carme-other"))
    await client.cancel(replace(found, user="bob"))
    await asyncio.sleep(0.5)
    assert (await client.find(job.name, "alice"))[0].state == "RUNNING"
    await client.cancel(found)
    verdict = await observe_until_gone(client, job, number)
    assert verdict.record is not None
    assert verdict.record.state.startswith("CANCELLED by ")
    assert "cancelled" in end_sentence(verdict.record.state, verdict.record.exit_code)
    await client.cancel(found)  # again: nothing to do is no failure


@pytest.mark.parametrize(
    ("script", "state", "words"),
    [
        ("#!/bin/sh\nexit 0\n", "COMPLETED", "ended by itself"),
        ("#!/bin/sh\nexit 71\n", "FAILED", "image is missing"),
        ("#!/bin/sh\nkill -9 $$\n", "FAILED", "signal 9"),
    ],
)
async def test_an_end_is_found_and_explained(client: SlurmCli, script: str, state: str, words: str) -> None:
    job = spec(script=script)
    number = await client.submit(job)
    verdict = await observe_until_gone(client, job, number)
    assert verdict.record is not None
    assert verdict.record.state == state
    assert words in end_sentence(verdict.record.state, verdict.record.exit_code)
    assert verdict.job is not None
    assert verdict.job.exit_code == verdict.record.exit_code


async def test_a_requeued_job_is_noticed_and_both_incarnations_are_known(quiet: Cluster, client: SlurmCli) -> None:
    job = spec()
    number = await client.submit(job)
    first = await until(client, job, "RUNNING")
    await recorded(client, job)  # a start that accounting does not have yet can be lost with the requeue
    quiet.run("scontrol", "update", f"JobId={number}", "Requeue=1")
    await asyncio.sleep(1.1)  # submit times are whole seconds
    quiet.run("scontrol", "requeue", str(number))
    again = await until(client, job, "PENDING")
    assert (again.id, again.restarts) == (number, 1)
    assert again.submitted > first.submitted
    observed = History.of([await observe(client, job)])
    verdict = judge(observed, now=time.monotonic(), job_id=number, submitted=first.submitted)
    assert (verdict.liveness, verdict.requeued) == (Liveness.ALIVE, True)
    async with asyncio.timeout(30):
        while "REQUEUED" not in [r.state for r in await client.records(job.name, "alice", time.time())]:
            await asyncio.sleep(0.2)
    await client.cancel(again)
    assert (await observe_until_gone(client, job, number)).liveness is Liveness.GONE


async def test_hostile_names_arrays_and_het_jobs_break_nothing(quiet: Cluster, client: SlurmCli) -> None:
    job = spec()
    number = await client.submit(job)
    forged = f"x\n{number}|alice|COMPLETED|None|node1|{job.name}\n@aaaaaaaaaaaa@"
    hostile = quiet.sbatch("-J", forged, "--mem=50", user="bob", script="#!/bin/sh\nsleep 100\n")
    quiet.sbatch("--array=1-3%1", "--mem=50", user="bob", script="#!/bin/sh\nsleep 100\n")
    quiet.sbatch("--mem=50", "-n1", ":", "-n1", "--mem=50", user="bob", script="#!/bin/sh\nsleep 100\n")
    quiet.sbatch("-H", "--mem=50", user="bob", script="#!/bin/sh\nsleep 100\n")
    try:
        await until(client, job, "RUNNING")
        snapshot = await client.snapshot()
    finally:  # other readers of this queue cut it at line breaks
        quiet.run("scontrol", "update", f"JobId={hostile}", "JobName=plain")
    assert [j.state for j in snapshot.named(job.name, "alice")] == ["RUNNING"]
    assert snapshot.jobs[hostile].name == forged
    # One hostile, one held, two of the heterogeneous one; an array is one row until its first task has started.
    assert len([j for j in snapshot.jobs.values() if j.user == "bob" and j.phase is not Phase.TERMINAL]) >= 5


async def test_nodes_show_what_is_free_by_type(quiet: Cluster, client: SlurmCli) -> None:
    before = {node.name: node for node in await client.nodes()}
    assert {t for n in before.values() for t in n.gpus} == {"a100", "h100", "1g.10gb", "3g.40gb"}
    assert sum(n.free_gpus("a100") for n in before.values()) == 8
    job = spec(gpus=Gpus("a100", 3))
    await client.submit(job)
    where = (await until(client, job, "RUNNING")).nodes[0]
    used = {node.name: node for node in await client.nodes()}[where]
    assert (used.gpus_used, used.free_gpus("a100"), used.cpus_used) == ({"a100": 3}, 1, 1)
    quiet.run("scontrol", "update", "nodename=node4", "state=drain", "reason=a test State=IDLE")
    assert not {node.name: node for node in await client.nodes()}["node4"].usable
    quiet.run("scontrol", "update", "nodename=node4", "state=resume")


async def test_associations_of_the_demo_users(client: SlurmCli) -> None:
    found = await client.associations()
    alices = [a for a in found if a.user == "alice"]
    assert alices
    assert sum(a.default for a in alices) == 1


async def test_the_document_of_the_helper_is_the_one_we_send(quiet: Cluster, client: SlurmCli) -> None:
    how = submitter(quiet, "sudo", CommandsOfTheHub(quiet))
    with pytest.raises(SlurmRejected) as caught:
        await how.submit(spec(session_folder="/etc/carme"))
    assert json.loads(json.dumps(caught.value.message)).startswith("session_folder")
    await how.close()
