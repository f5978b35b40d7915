"""What one user writes into a job of theirs keeps nobody else's jobs from being seen."""

from __future__ import annotations

import sqlite3

import pytest
from forged_slurm import QUEUE_HEADER, RECORD_HEADER, ForgedSlurm, queue_row, record_row

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.cli.client import SlurmCli

NAME, USER = "carme-0f9a", "alice"

ODD = {
    "brackets that do not match": {"TRES_PER_NODE": "gres:gpu:(:1"},
    "a digit that is no number": {"TRES_PER_NODE": "gres:gpu:²"},
    "a number without end": {"TRES_PER_JOB": "gres:gpu:" + "9" * 5000},
    "a count that is none": {"TRES_ALLOC": "cpu=1,gres/gpu=many"},
    "a negative count": {"TRES_ALLOC": "cpu=1,gres/gpu=-1"},
    "odd nodes": {"NODELIST": "node[1-"},
    "an odd number of nodes": {"NODES": "²"},
    "an odd time limit": {"TIME_LIMIT": "soon"},
    "an odd start": {"START_TIME": "99999999-01-01"},
}


@pytest.mark.parametrize("kind", ODD)
async def test_an_odd_request_of_one_hides_no_job(kind: str, client: SlurmCli, forged: ForgedSlurm) -> None:
    odd = queue_row(JOBID="8", USER="mallory", NAME="x", **{"TRES_ALLOC": "N/A", **ODD[kind]})
    forged.say("squeue", QUEUE_HEADER + odd + queue_row())
    snapshot = await client.snapshot()
    assert sorted(snapshot.jobs) == [7, 8]
    assert snapshot.jobs[8].user == "mallory"
    assert snapshot.jobs[7].gpus == Gpus("a100", 2)


async def test_an_odd_request_counts_as_no_gpus(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("squeue", QUEUE_HEADER + queue_row(TRES_ALLOC="N/A", TRES_PER_NODE="gres:gpu:(:1"))
    assert (await client.snapshot()).jobs[7].gpus == NO_GPUS


@pytest.mark.parametrize("bad", [b"x\xff", b"\xc3", b"\xf0\x9f\x98", b"\xed\xb3\xbf", b"\xe2\x82"])
async def test_a_name_that_is_not_utf8_spoils_only_itself(bad: bytes, client: SlurmCli, forged: ForgedSlurm) -> None:
    odd = queue_row(JOBID="8", USER="mallory", NAME="carme-NAME").encode().replace(b"NAME", bad)
    forged.say("squeue", QUEUE_HEADER.encode() + odd + queue_row().encode())
    snapshot = await client.snapshot()
    assert [job.state for job in snapshot.named(NAME, USER)] == ["RUNNING"]
    name = snapshot.jobs[8].name
    assert name.startswith("carme-")
    assert name != NAME
    # The keeper asks its database about every name like ours, and writes it into the log.
    assert sqlite3.connect(":memory:").execute("SELECT ?", (name,)).fetchone() == (name,)
    assert name.encode("utf-8")


async def test_a_job_renamed_to_such_a_name_is_cancelled_by_id_and_user(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("scancel")
    await client.cancel(Job(7, "x\N{REPLACEMENT CHARACTER}", "alice", "RUNNING", Phase.ACTIVE))
    assert forged.calls("scancel") == ["--user=alice 7"]


async def test_an_odd_record_of_another_hides_no_record(client: SlurmCli, forged: ForgedSlurm) -> None:
    odd = record_row(User="mallory", Submit="yesterday", AllocTRES="gres/gpu=many", ExitCode="-")
    forged.say("sacct", RECORD_HEADER + odd + record_row())
    assert [record.user for record in await client.records(NAME, USER, 0.0)] == ["alice"]


async def test_an_odd_record_of_ours_is_no_answer(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("sacct", RECORD_HEADER + record_row(Submit="yesterday"))
    with pytest.raises(SlurmUnreachable):
        await client.records(NAME, USER, 0.0)


async def test_an_odd_association_hides_no_other(client: SlurmCli, forged: ForgedSlurm) -> None:
    header = b"User|Account|Partition|QOS|Def Acct|Coord Accounts\n"
    odd = b"bob|a|b\nma\xffl|science||normal|science|\nma\xc2\x85l|science||normal|science|\n"
    forged.say("sacctmgr", header + odd + b"alice|science||normal|science|\n")
    assert [found.user for found in await client.associations()][-1] == "alice"


async def test_a_log_tail_cut_inside_a_letter_is_shown(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("tail", "ü: it broke\n".encode()[1:])
    client._tail = (str(forged.prefix / "bin/tail"),)
    assert (await client.log_tail("alice", "0f9a")).endswith(": it broke\n")
