"""What squeue and sacct say of one user's jobs is understood, or is no answer; so is a body of slurmrestd."""

from __future__ import annotations

from typing import Any

import pytest
from forged_slurm import CUT, ForgedSlurm

from carme_hub.domain.cluster.own_jobs.details import JobDetails
from carme_hub.domain.cluster.own_jobs.resubmission import CannotSubmitAgain, Resubmission
from carme_hub.domain.cluster.own_jobs.targets import Target
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.command import Commands
from carme_hub.slurm.owner import accounting, details
from carme_hub.slurm.owner.jobs import OwnJobs
from carme_hub.slurm.owner.rest_body import body
from carme_hub.slurm.owner.ways import NoOwner

#: As 22.05 has it.
ROW = {
    "JobID": "130", "UserName": "alice", "Name": "train", "State": "PENDING", "ArrayJobID": "130", "ArrayTaskID": "N/A",
    "BatchFlag": "1", "Command": "/home/alice/train.sh fast", "WorkDir": "/home/alice",
    "STDOUT": "/home/alice/slurm-130.out", "STDERR": "/home/alice/slurm-130.out", "STDIN": "/dev/null",
    "Account": "physics", "Partition": "gpu", "QOS": "normal", "Reservation": "", "TimeLimit": "1:30:00",
    "NumNodes": "1", "NumTasks": "1", "cpus-per-task": "2", "NumCPUs": "2", "MinMemory": "3G", "Feature": "(null)",
    "Licenses": "(null)", "Nice": "0", "Requeue": "1", "OverSubscribe": "OK", "Dependency": "(null)", "NodeList": "",
    "tres-per-node": "gres:gpu:a100:2", "tres-per-job": "N/A", "tres-per-socket": "N/A", "tres-per-task": "N/A",
}  # fmt: skip
RECORD = {
    "JobID": "7", "JobIDRaw": "7", "User": "alice", "JobName": "past", "State": "COMPLETED", "Submit": "100",
    "Start": "200", "End": "3800", "TimelimitRaw": "120", "NNodes": "1", "NTasks": "", "AllocTRES":
    "billing=4,cpu=4,gres/gpu:a100=1,gres/gpu=1,mem=16G,node=1", "ReqTRES": "cpu=4,mem=16G,node=1",
    "TotalCPU": "01:00:00", "MaxRSS": "", "ExitCode": "0:0", "NodeList": "node1", "Account": "physics",
    "Partition": "gpu", "QOS": "normal", "Reservation": "", "Constraints": "", "WorkDir": "/home/alice",
    "SubmitLine": "sbatch past.sh",
}  # fmt: skip


def row(**changes: str) -> str:
    found = {**ROW, **changes}
    return CUT.join(found[field] for field in details.FIELDS) + CUT + "\n"


NEWER = (*accounting.FIELDS, *accounting.OUTPUT_FIELDS)


def record(**changes: str) -> str:
    found = {"StdOut": "", "StdErr": "", **RECORD, **changes}
    return CUT.join(found[field] for field in NEWER) + CUT + "\n"


HEADER = CUT.join(NEWER) + CUT + "\n"


@pytest.fixture
def jobs(commands: Commands) -> OwnJobs:
    return OwnJobs(commands, NoOwner())


async def test_details_of_a_job(forged: ForgedSlurm, jobs: OwnJobs) -> None:
    forged.say("squeue", row())
    found = await jobs.details("alice", Target(130))
    assert found == JobDetails(
        130, "alice", "train", "PENDING", command="/home/alice/train.sh fast", folder="/home/alice",
        output="/home/alice/slurm-130.out", error="/home/alice/slurm-130.out", input="/dev/null", account="physics",
        partition="gpu", qos="normal", minutes=90, nodes="1", tasks=1, cpus_per_task=2, cpus=2, memory="3G",
        requeue=True, tres=(("gres", "gpu:a100:2"),),
    )  # fmt: skip
    assert await jobs.details("bob", Target(130)) is None
    [call, _] = forged.calls("squeue")
    assert "--jobs=130" in call


async def test_details_of_tasks(forged: ForgedSlurm, jobs: OwnJobs) -> None:
    one = {"ArrayJobID": "130", "STDOUT": "/home/alice/slurm-130_1.out"}
    forged.say(
        "squeue", row(ArrayTaskID="3-9%2", ArrayJobID="130") + row(JobID="131", ArrayTaskID="1", State="RUNNING", **one)
    )
    whole = await jobs.details("alice", Target(130))
    assert whole is not None
    assert (whole.array, whole.task, whole.id) == (130, "1,3-9%2", 130)
    task = await jobs.details("alice", Target(130, "1"))
    assert task is not None
    assert (task.id, task.task, task.state) == (131, "1", "RUNNING")
    assert await jobs.details("alice", Target(130, "2")) is None


async def test_what_newer_releases_say_of_gpus_and_memory_is_understood(forged: ForgedSlurm, jobs: OwnJobs) -> None:
    said = {"tres-per-node": "gres/gpu:a100:2,gres/shard=1", "tres-per-job": "gres/gpu:4", "MinMemory": "2Gc"}
    said |= {"tres-per-task": "cpu=2", "STDERR": "(null)"}
    forged.say("squeue", row(**said))
    found = await jobs.details("alice", Target(130))
    assert found is not None
    assert found.tres == (("gres", "gpu:a100:2,shard:1"), ("gpus", "4"))
    assert (found.memory, found.memory_per_cpu) == ("2G", True)


async def test_a_job_that_is_not_known_is_told_apart_from_no_answer(forged: ForgedSlurm, jobs: OwnJobs) -> None:
    forged.say("squeue", err="slurm_load_jobs error: Invalid job id specified", code=1)
    assert await jobs.details("alice", Target(9)) is None
    forged.say("squeue", err="slurm_load_jobs error: Unable to contact slurm controller", code=1)
    with pytest.raises(SlurmUnreachable):
        await jobs.details("alice", Target(9))
    forged.say("squeue", "half a row")
    with pytest.raises(SlurmUnreachable):
        await jobs.details("alice", Target(9))


async def test_records_have_what_their_steps_used(forged: ForgedSlurm, jobs: OwnJobs) -> None:
    batch = record(JobID="7.batch", JobIDRaw="7.batch", User="", MaxRSS="1024000K", NTasks="1")
    many = record(JobID="7.0", JobIDRaw="7.0", User="", MaxRSS="9G", NTasks="4")
    other = record(JobID="8", JobIDRaw="8", User="bob")
    forged.say("sacct", HEADER + record() + batch + many + other)
    [found] = await jobs.ended("alice", 0)
    assert (found.id, found.cpus, found.memory_mib, found.gpus, found.seconds) == (7, 4, 16384, Gpus("a100", 1), 3600)
    assert (found.cpu_seconds, found.peak_mib) == (3600.0, 1000), "four tasks on one node tell only the largest"
    assert await jobs.record("carol", Target(7)) is None


async def test_tasks_of_an_array_in_accounting(forged: ForgedSlurm, jobs: OwnJobs) -> None:
    tasks = [record(JobID=f"20_{n}", JobIDRaw=str(30 + n)) for n in range(3)] + [
        record(JobID="20_[3-9%2]", JobIDRaw="20", Start="Unknown", End="Unknown", State="PENDING")
    ]
    forged.say("sacct", HEADER + "".join(tasks))
    whole = await jobs.record("alice", Target(20))
    assert whole is not None
    assert (whole.array, whole.task) == (20, "0-9%2")
    one = await jobs.record("alice", Target(20, "1"))
    assert one is not None
    assert (one.id, one.key) == (31, "20_1")


async def test_names_of_files_are_read_where_sacct_has_them(forged: ForgedSlurm, jobs: OwnJobs) -> None:
    forged.say("sacct", HEADER + record(StdOut="/home/alice/%j.txt"))
    [found] = await jobs.ended("alice", 0)
    assert found.output == "/home/alice/%j.txt"
    older = record().removesuffix(f"{CUT}{CUT}{CUT}\n") + CUT + "\n"
    refuse = 'case "$*" in *StdOut*) echo "sacct: fatal: Invalid field requested: \\"StdOut\\"" >&2; exit 1;; esac'
    forged.say("sacct", CUT.join(accounting.FIELDS) + CUT + "\n" + older, before=refuse)
    for _ in range(2):
        [found] = await jobs.ended("alice", 0)
        assert found.output == ""
    assert len(forged.calls("sacct")) == 4, "it is asked for them once"


async def test_an_answer_of_sacct_that_is_none(forged: ForgedSlurm, jobs: OwnJobs) -> None:
    for out, err in (
        ("", ""),
        ("x", ""),
        (HEADER, "sacct: error: Problem talking to the database: Connection refused"),
    ):
        forged.say("sacct", out, err=err)
        with pytest.raises(SlurmUnreachable):
            await jobs.ended("alice", 0)


async def test_a_script_in_accounting(forged: ForgedSlurm, jobs: OwnJobs) -> None:
    forged.say("sacct", "Batch Script for 7\n" + "-" * 80 + "\n#!/bin/sh\necho\n")
    assert await jobs.stored_script("alice", 7) == "#!/bin/sh\necho\n"
    forged.say("sacct", "Batch Script for 7\n" + "-" * 80 + "\nNONE\n")
    assert await jobs.stored_script("alice", 7) == ""
    forged.say("sacct", err="sacct: unrecognized option '--batch-script'", code=1)
    assert await jobs.stored_script("alice", 7) == "", "an older release stores none"
    forged.say("sacct", err="sacct: error: Problem talking to the database: Connection refused", code=1)
    with pytest.raises(SlurmUnreachable):
        await jobs.stored_script("alice", 7)


JOB = Resubmission(
    "alice",
    "#!/bin/sh\n",
    {
        "job-name": "x", "time": "90", "nodes": "2", "ntasks": "4", "mem": "3G", "gres": "gpu:a100:2", "requeue": "",
        "chdir": "/home/alice", "array": "0-3%2",
    },
    ("a", "b"),
)  # fmt: skip


def test_the_body_without_types() -> None:
    found = body(JOB, "/home/alice", typed=False)
    job: dict[str, Any] = found["job"]
    assert found["script"] == "#!/bin/sh\nset -- a b\n"
    assert "argv" not in job, "slurmrestd 22.05 dies of it"
    assert (job["time_limit"], job["nodes"], job["memory_per_node"], job["gres"]) == (90, [2, 2], 3072, "gpu:a100:2")
    assert (job["requeue"], job["array"], job["environment"]["HOME"]) == (True, "0-3%2", "/home/alice")


def test_the_body_with_types() -> None:
    job: dict[str, Any] = body(JOB, "/home/alice", typed=True)["job"]
    assert job["time_limit"] == {"set": True, "infinite": False, "number": 90}
    assert (job["minimum_nodes"], job["maximum_nodes"], job["tres_per_node"]) == (2, 2, "gres/gpu:a100:2")
    assert job["argv"][1:] == ["a", "b"]
    assert "HOME=/home/alice" in job["environment"]


def test_arguments_of_other_than_shell_scripts_are_not_passed_on() -> None:
    for first in ("#!/bin/bash -l", "#! /usr/bin/env bash", "#!/bin/sh"):
        job = Resubmission("alice", f"{first}\necho\n", {}, ("it's", "b"))
        assert body(job, "/home/alice", typed=False)["script"] == f"{first}\nset -- 'it'\"'\"'s' b\necho\n"
    with pytest.raises(CannotSubmitAgain, match="not one of a shell"):
        body(Resubmission("alice", "#!/usr/bin/python3\n", {}, ("a",)), "/home/alice", typed=False)


@pytest.mark.parametrize("options", [{"exclusive": ""}, {"mem": "much"}])
def test_what_slurmrestd_does_not_take_is_refused_before(options: dict[str, str]) -> None:
    for typed in (False, True):
        with pytest.raises(CannotSubmitAgain, match="Use sbatch in a terminal"):
            body(Resubmission("alice", "#!/bin/sh\n", options), "/home/alice", typed=typed)
