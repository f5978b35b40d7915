"""The client asks with fixed words, reads whole answers, and cancels only who it means."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from forged_slurm import QUEUE_HEADER, RECORD_HEADER, ForgedSlurm, queue_row, record_row

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus
from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.client import Association

JOB = Job(7, "carme-0f9a", "alice", "RUNNING", Phase.ACTIVE)

#: As Slurm 22.05 prints them (first three) and 24.11 (last).
NODES = """\
NodeName=node1 Arch=x86_64 CoresPerSocket=16  CPUAlloc=3 CPUEfctv=32 CPUTot=32 CPULoad=0.02 AvailableFeatures=(null) \
ActiveFeatures=(null) Gres=gpu:a100:4,shard:a100:16 GresDrain=N/A GresUsed=gpu:a100:1(IDX:0),shard:a100:1(IDX:1) \
NodeAddr=10.0.0.1 NodeHostName=localhost Port=47001 Version=22.05.8 OS=Linux 6.18 #1 SMP  RealMemory=64000 \
AllocMem=2048 FreeMem=23467 Sockets=2 Boards=1 State=MIXED ThreadsPerCore=1 Partitions=main,one  BootTime=1795228267 \
CfgTRES=cpu=32,mem=62.50G,billing=32,gres/gpu=4 AllocTRES=cpu=3 CapWatts=n/a
NodeName=node2 CPUAlloc=0 CPUEfctv=32 CPUTot=32 Gres=(null) NodeAddr=node2 RealMemory=64000 AllocMem=0 \
State=IDLE+DRAIN Partitions=main Reason=looks like State=IDLE [root@2026-11-21T03:02:16] Comment=no Reason=here
NodeName=node3 CPUAlloc=0 CPUTot=8 Gres=gpu:1g.10gb:7 GresUsed=gpu:1g.10gb:0(IDX:N/A) RealMemory=100 AllocMem=0 \
State=DOWN*+NOT_RESPONDING Partitions=main
NodeName=node4 CPUAlloc=8 CPUEfctv=8 CPUTot=8 Gres=gpu:h100:2(S:0-1) GresUsed=gpu:h100:2(IDX:0-1) NodeAddr=n4 \
RealMemory=100 AllocMem=100 State=ALLOCATED Partitions=main
"""


async def test_a_snapshot_has_everything_of_a_job(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("squeue", QUEUE_HEADER + queue_row())
    before = time.monotonic()
    snapshot = await client.snapshot()
    assert before <= snapshot.asked <= snapshot.answered <= time.monotonic()
    assert snapshot.jobs[7] == Job(
        id=7,
        name="carme-0f9a",
        user="alice",
        state="RUNNING",
        phase=Phase.ACTIVE,
        nodes=("node1",),
        partition="main",
        account="science",
        priority=4294901756,
        submitted=1795229612.0,
        start=1795229614.0,
        end=1795233214.0,
        time_limit=60,
        gpus=Gpus("a100", 2),
    )


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("carme-0f9a-0", ("carme-0f9a-0",)),
        ("carme-0f9a-0,carme-0f9a-1", ("carme-0f9a-0", "carme-0f9a-1")),
        ("", ()),
        ("(null)", ()),
        ("N/A", ()),
    ],
)
async def test_the_reservations_of_a_job_are_read(
    client: SlurmCli, forged: ForgedSlurm, said: str, names: tuple[str, ...]
) -> None:
    forged.say("squeue", QUEUE_HEADER + queue_row(RESERVATION=said))
    assert (await client.snapshot()).jobs[7].reservations == names
    assert "Reservation:" in forged.calls("squeue")[0]


async def test_an_empty_queue_is_understood(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("squeue", QUEUE_HEADER)
    assert (await client.snapshot()).jobs == {}


async def test_a_waiting_an_ended_and_other_peoples_odd_jobs_are_read(client: SlurmCli, forged: ForgedSlurm) -> None:
    rows = [
        queue_row(
            STATE="PENDING",
            REASON="ReqNodeNotAvail, UnavailableNodes:node[1-2]",
            NODELIST="",
            START_TIME="N/A",
            END_TIME="NONE",
            TIME_LIMIT="UNLIMITED",
            PARTITION="main,one",
            NODES="1-4",
        ),
        queue_row(JOBID="8", STATE="FAILED", REASON="NonZeroExitCode", EXIT_CODE="18688"),
        queue_row(JOBID="9", NAME="täglich | \t,\n\r'\"", NODELIST="node[1-3],gpu07"),
        queue_row(JOBID="10", NAME="", TRES_ALLOC="cpu=1", TRES_PER_NODE="gres:gpu:2"),
    ]
    forged.say("squeue", QUEUE_HEADER + "".join(rows))
    jobs = (await client.snapshot()).jobs
    assert (jobs[7].phase, jobs[7].start, jobs[7].time_limit) == (Phase.WAITING, 0.0, 0)
    assert jobs[8].exit_code == (73, 0)
    assert jobs[9].nodes == ("node1", "node2", "node3", "gpu07")
    assert jobs[9].name == "täglich | \t,\n\r'\""
    assert jobs[10].gpus == Gpus("gpu", 2)


async def test_find_asks_for_ended_jobs_too_and_believes_no_filter(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("squeue", QUEUE_HEADER + queue_row() + queue_row(JOBID="6", USER="bob") + queue_row(JOBID="5", NAME="x"))
    assert [job.id for job in await client.find("carme-0f9a", "alice")] == [7]
    assert "--states=all" in forged.calls("squeue")[0]
    assert "--name=carme-0f9a --user=alice" in forged.calls("squeue")[0]


async def test_cancel_names_the_job_its_name_and_its_user(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("scancel")
    await client.cancel(JOB)
    assert forged.calls("scancel") == ["--name=carme-0f9a --user=alice 7"]


async def test_cancel_without_an_answer_and_without_permission(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("scancel", err="scancel: error: Kill job error on job id 7: Unable to contact slurm controller", code=8)
    with pytest.raises(SlurmUnreachable):
        await client.cancel(JOB)
    forged.say("scancel", err="scancel: error: Kill job error on job id 7: Access/permission denied", code=210)
    with pytest.raises(SlurmRejected):
        await client.cancel(JOB)


async def test_every_incarnation_is_in_the_records(client: SlurmCli, forged: ForgedSlurm) -> None:
    rows = [
        record_row(State="REQUEUED", End="1795229650"),
        record_row(State="CANCELLED by 0", Submit="1795229650", Start="None", NodeList="None assigned", AllocTRES=""),
        record_row(User="mallory"),
        record_row(State="OUT_OF_MEMORY", ExitCode="0:125", End="Unknown"),
    ]
    forged.say("sacct", RECORD_HEADER + "".join(rows))
    records = await client.records("carme-0f9a", "alice", time.time())
    assert [r.phase for r in records] == [Phase.WAITING, Phase.TERMINAL, Phase.TERMINAL]
    assert records[0].gpus == Gpus("a100", 2)
    assert (records[1].start, records[1].nodes, records[1].gpus) == (0.0, (), NO_GPUS)
    assert (records[2].exit_code, records[2].end) == ((0, 125), 0.0)
    assert "--duplicates" in forged.calls("sacct")[0]


async def test_no_record_is_an_answer(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("sacct", RECORD_HEADER)
    assert await client.records("carme-0f9a", "alice", 0.0) == ()


async def test_nodes_with_their_free_gpus(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("scontrol", NODES)
    one, two, three, four = await client.nodes()
    assert (one.state, one.usable, one.partitions, one.cpus, one.cpus_used) == ("mixed", True, ("main", "one"), 32, 3)
    assert (one.gpus, one.gpus_used, one.free_gpus("a100")) == ({"a100": 4}, {"a100": 2}, 2)
    assert (one.memory_mib, one.memory_used_mib, one.address) == (64000, 2048, "10.0.0.1")
    assert (two.state, two.usable, two.gpus) == ("idle", False, {})
    assert (three.state, three.usable, three.cpus, three.address) == ("down", False, 8, "node3")
    assert (four.usable, four.free_gpus("h100")) == (True, 0)
    assert three.flags == {"not_responding"}
    assert (two.reason, three.reason) == ("looks like State=IDLE", "")
    forged.say("scontrol", NODES.replace("DOWN*+NOT_RESPONDING", "IDLE*"))
    assert (await client.nodes())[2].flags == {"not_responding"}, "its mark alone says so too"


async def test_a_thousand_nodes_are_read_in_no_time(client: SlurmCli, forged: ForgedSlurm) -> None:
    line = NODES.splitlines()[0]
    forged.say("scontrol", "".join(line.replace("node1", f"node{n}") + "\n" for n in range(1000)))
    began = time.process_time()
    assert len(await client.nodes()) == 1000
    assert time.process_time() - began < 5


async def test_associations(client: SlurmCli, forged: ForgedSlurm) -> None:
    header = "User|Account|Partition|QOS|Def Acct|Coord Accounts\n"
    forged.say("sacctmgr", header + "alice|art|gpu|normal,long|science|art,music\nalice|science||normal|science|\n")
    assert await client.associations() == (
        Association("alice", "art", "gpu", ("normal", "long"), default=False, coordinator=True),
        Association("alice", "science", "", ("normal",), default=True, coordinator=False),
    )
    forged.say("sacctmgr", header + "alice|art|gpu\n")
    with pytest.raises(SlurmUnreachable):
        await client.associations()


async def test_ping_says_up_down_or_nothing(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("scontrol", "Slurmctld(primary) at vm is UP\n")
    assert await client.ping()
    forged.say("scontrol", "Slurmctld(primary) at vm is DOWN\n", code=1)
    assert not await client.ping()
    forged.say("scontrol", "Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n")
    assert await client.ping()


async def test_a_log_tail_only_where_there_is_a_way(client: SlurmCli, forged: ForgedSlurm) -> None:
    assert await client.log_tail("alice", "0f9a") == ""
    forged.say("tail", "image missing\n")
    client._tail = (str(forged.prefix / "bin/tail"), "tail")
    assert await client.log_tail("alice", "0f9a") == "image missing\n"
    assert forged.calls("tail") == ["tail alice 0f9a"]
    forged.say("tail", "no", code=1)
    assert await client.log_tail("alice", "0f9a") == ""


async def test_starts_are_secured_by_one_command_and_an_ended_one_is_no_failure(
    client: SlurmCli, forged: ForgedSlurm
) -> None:
    forged.say("scontrol")
    await client.secure((JOB, replace(JOB, id=8)))
    assert forged.calls("scontrol") == [f"update JobId={JOB.id},8 Requeue=0"]
    ended = "Job has already finished for job 7\nInvalid job id specified for job 8\n"
    forged.say("scontrol", err=ended, code=1)
    await client.secure((JOB,))
    forged.say("scontrol", err=ended + "slurm_load_jobs error: Unable to contact slurm controller", code=1)
    with pytest.raises(SlurmUnreachable):
        await client.secure((JOB,))
