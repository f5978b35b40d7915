"""Recorded answers of accounting, replayed: what is said of each job is asserted line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forged_slurm import CUT, ForgedSlurm

from carme_hub.domain.activity.advice import advice
from carme_hub.domain.activity.efficiency import Asked, used
from carme_hub.domain.activity.finished import REPORTER, FinishedJob, unused_of
from carme_hub.domain.activity.minutes import GpuTotal, Total
from carme_hub.domain.cluster.tres import minutes_of
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.cli.amounts import mib, seconds_of
from carme_hub.slurm.command import Commands
from carme_hub.slurm.finished_jobs import FIELDS, Accounted, FinishedJobsReader, read

PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parent / "golden/sacct-published.json").read_text())
BEGAN = 1_795_000_000


def answer(*rows: dict[str, str]) -> str:
    """Return rows as sacct prints them; what a row leaves out is empty."""
    lines = [FIELDS, *([row.get(name, "") for name in FIELDS] for row in rows)]
    return "".join(CUT.join(line) + CUT + "\n" for line in lines)


def published(id: str) -> Accounted | None:
    """Return a published job as our reader would have had it from sacct; its GPUs are those of the summary."""
    entry = PUBLISHED["jobs"][id]
    rows = [dict(zip(PUBLISHED["columns"], row, strict=True)) for row in entry["rows"]]
    cpus, nodes = int(rows[0]["AllocCPUS"]), int(rows[0]["NNodes"])
    each = mib(rows[0]["ReqMem"]) or 0.0
    memory = each * (cpus if rows[0]["ReqMem"].endswith("c") else nodes if rows[0]["ReqMem"].endswith("n") else 1)
    gpus = sum(len(node["gpus"]) for node in entry.get("jobstats", {"nodes": ()})["nodes"])
    found = []
    for row in rows:
        hosts = f"n[1-{row['NNodes']}]" if row["NNodes"] != "1" else "n1"
        times = {"Start": str(BEGAN), "End": str(BEGAN + int(seconds_of(row["Elapsed"]) or 0))}
        found.append({**row, **times, "NodeList": hosts})
    first = {
        **{"JobID": id, "User": "u", "Submit": str(BEGAN - 60), "Eligible": str(BEGAN - 60), "ExitCode": "0:0"},
        **{"AllocTRES": f"cpu={cpus},mem={memory:.0f}M,node={nodes}{f',gres/gpu={gpus}' if gpus else ''}"},
        **{"TimelimitRaw": str(minutes_of(rows[0]["Timelimit"]) or "UNLIMITED"), "JobName": "job"},
    }
    if rows[0]["Elapsed"] == "00:00:00":
        found[0] = {**found[0], "NodeList": "None assigned"}
    return next(iter(read(answer({**found[0], **first}, *found[1:]), CUT)), None)


def with_summary(job: FinishedJob, summary: dict[str, Any]) -> FinishedJob:
    """Return a job with what jobstats measured of it, as a reporter of ours would have."""
    seconds, totals = int(summary["total_time"]), []
    for node in summary["nodes"]:
        gpus = tuple(GpuTotal(round(p * seconds), seconds, round(p), int(held) >> 20) for p, held in node["gpus"])
        cpu = round(node["total_time"] * 100)
        totals.append(Total(seconds, cpu, seconds, None, int(node["used_memory"]) >> 20, gpus=gpus))
    values = {name: getattr(job, name) for name in FinishedJob.__dataclass_fields__}
    return FinishedJob(**{**values, "used": used(job.asked, totals, job.seconds), "source": REPORTER})


@pytest.mark.parametrize(
    ("id", "line", "suggestion", "note"),
    [
        (
            "39895850",
            "Memory: 3.3 GiB of 8 GiB at most. CPUs: 1.7 of 2 on average. Time: 2 h 14 min of 2 h 55 min.",
            "",
            "",
        ),
        (
            "8205048",
            "Memory: 1.7 GiB of 78 GiB at most, on one node. CPUs: 1.6 of 20 on each node. "
            "Slurm saw programs on 1 of 4 nodes. Time: 2 min 26 s of 1 h.",
            "",
            "It ran for less than 10 min, which is too short for advice.",
        ),
        (
            "8197399",
            "How busy its 1 GPU was is not known: Slurm's accounting does not say. "
            "Memory: 3.0 GiB of 32 GiB at most. CPUs: 1.0 of 1 on average. Time: 5 h 3 min of 23 h 59 min.",
            "Ask for 4 GiB of memory: what it used at most, and a quarter more.",
            "",
        ),
        (
            "8189521",
            "How busy its 4 GPUs were is not known: Slurm's accounting does not say. "
            "Memory: 28 GiB of 109 GiB at most. CPUs: 2.9 of 28 on average. Time: 19 h 5 min of 23 h.",
            "",
            "It was cancelled, so it may need more than it used.",
        ),
        (
            "8205464",
            "CPUs: 0.8 of 8 on average. Time: 2 s of 24 h.",
            "",
            "It failed, so it may need more than it used.",
        ),
        (
            "6196869",
            "Time: 12 d 14 h 17 min.",
            "",
            "Too little of its time was measured for advice.",
        ),
        (
            "25569410",
            "Memory: 62 MiB of 3.9 GiB at most. CPUs: 0.9 of 1 on average. Time: 21 h 15 min.",
            "Ask for 1 GiB of memory: what it used at most, and a quarter more.",
            "",
        ),
        (
            "24418435",
            "Memory: 0.5 GiB of 1 GiB at most. CPUs: 1.0 of 1 on average. Time: 1 h 28 min of 3 h.",
            "",
            "",
        ),
    ],
)
def test_published_jobs_are_advised_line_by_line(id: str, line: str, suggestion: str, note: str) -> None:
    found = published(id)
    assert found is not None
    said = advice(found.job)
    assert (said.line, said.suggestion, said.note) == (line, suggestion, note)


def test_a_job_that_never_ran_is_left_out() -> None:
    assert published("23000233") is None


def test_with_a_summary_of_its_gpus_the_same_jobs_say_how_busy_they_were() -> None:
    one, four = (published(id) for id in ("8197399", "8189521"))
    assert one is not None
    assert four is not None
    said = advice(with_summary(one.job, PUBLISHED["jobs"]["8197399"]["jobstats"]))
    assert said.line.startswith("1 of 1 GPU was used, at 29 % on average. Memory: 3.0 GiB of 32 GiB at most.")
    assert said.suggestion == "Ask for 4 GiB of memory: what it used at most, and a quarter more."
    job = with_summary(four.job, PUBLISHED["jobs"]["8189521"]["jobstats"])
    assert advice(job).line.startswith("4 of 4 GPUs were used, at 3 % on average.")
    assert unused_of(job).gpu_unused == 0
    assert unused_of(four.job).gpu_unknown == unused_of(four.job).gpu == 4 * 68_687


def test_the_answer_of_a_real_slurm_is_advised_line_by_line() -> None:
    """Recorded on the sandbox, Slurm 22.05.8: jobs that hold 300 MiB, sleep, compute, fail, and are ended."""
    found = read((Path(__file__).parent / "golden/sacct-finished-22.05.txt").read_text(), "@golden@")
    said = {each.job.shown_id: (each.job.name, advice(each.job)) for each in found}
    assert [(id, name, a.line, a.suggestion or a.note) for id, (name, a) in said.items()] == [
        (
            "1",
            "idle-cpus",
            "Memory: 0.3 GiB of 8 GiB at most. CPUs: 0.0 of 8 on average. Time: 11 min of 1 h.",
            "Ask for 1 GiB of memory: what it used at most, and a quarter more.",
        ),
        (
            "2",
            "four-gpus",
            "How busy its 4 GPUs were is not known: Slurm's accounting does not say. "
            "Memory: 0.3 GiB of 16 GiB at most. CPUs: 0.0 of 4 on average. Time: 11 min of 30 min.",
            "Ask for 1 GiB of memory: what it used at most, and a quarter more.",
        ),
        (
            "3",
            "two-nodes",
            "CPUs: 0.0 of 2 on each node. Time: 10 min of 30 min.",
            "Ask for 1 CPU on each node, unless a part of it needs more: what it used on average, and a quarter more.",
        ),
        (
            "4",
            "one-of-two-nodes",
            "Time: 10 min of 30 min.",  # what ssh may have started on the other one is not seen there
            "Too little of its time was measured for advice.",
        ),
        (
            "5",
            "steps",
            "Memory: 0.4 GiB of 4 GiB at most. CPUs: 0.0 of 2 on average. Time: 21 s of 15 min.",
            "It ran for less than 10 min, which is too short for advice.",
        ),
        (
            "6",
            "busy",
            "Memory: 8 MiB of 0.5 GiB at most. CPUs: 0.2 of 1 on average. Time: 2 min 27 s of 5 min.",
            "It ran for less than 10 min, which is too short for advice.",
        ),
        (
            "7",
            "failed",
            "Memory: 3 MiB of 0.5 GiB at most. CPUs: 0.0 of 1 on average. Time: 1 min 10 s of 5 min.",
            "It failed with exit status 3, so it may need more than it used.",
        ),
        (
            "8",
            "timeout",
            "Memory: 3 MiB of 0.5 GiB at most. CPUs: 0.0 of 1 on average. Time: 1 min 26 s of 1 min.",
            "Slurm ended it at its time limit of 1 min: ask for more time, or have it save its state and continue.",
        ),
        (
            "10",
            "cancelled",
            "Memory: 3 MiB of 0.5 GiB at most. CPUs: 0.0 of 1 on average. Time: 1 min 15 s of 5 min.",
            "It was cancelled, so it may need more than it used.",
        ),
        *(
            (
                f"9_{task}",
                "array",
                "Memory: 3 MiB of 0.2 GiB at most. CPUs: 0.0 of 1 on average. Time: 1 min 2 s of 5 min.",
                "It ran for less than 10 min, which is too short for advice.",
            )
            for task in (1, 2)
        ),
    ]


JOB = {
    **{"JobIDRaw": "7", "JobID": "7", "User": "u", "Account": "lab", "Partition": "gpu", "State": "COMPLETED"},
    **{"Submit": "1000", "Eligible": "1000", "Start": "2000", "End": "9200", "TimelimitRaw": "240", "NNodes": "1"},
    **{"NodeList": "n1", "AllocTRES": "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=32G,node=1"},
    **{"TotalCPU": "02:00:00", "ExitCode": "0:0", "JobName": "train", "WorkDir": "/home/u", "Reason": "None"},
}


def step(name: str, start: int, end: int, memory: str, cpu: str = "", **more: str) -> dict[str, str]:
    tres = ",".join([*([f"cpu={cpu}"] if cpu else []), *([f"mem={memory}"] if memory else [])])
    values = {"JobIDRaw": f"7.{name}", "JobName": name, "NodeList": "n1", "NTasks": "1", "TRESUsageInTot": tres}
    return {**values, "Start": str(start), "End": str(end), **more}


def job(*steps: dict[str, str], **changes: str) -> Accounted:
    [found] = read(answer({**JOB, **changes}, *steps), CUT)
    return found


def test_steps_at_the_same_time_add_up_and_others_do_not() -> None:
    found = job(step("batch", 2000, 9200, "1G"), step("0", 2100, 3000, "10G"), step("1", 3000, 4000, "12G"))
    assert found.job.used.memory == 13 * 1024
    found = job(step("batch", 2000, 9200, "1G"), step("0", 2100, 3001, "10G"), step("1", 3000, 4000, "12G"))
    assert found.job.used.memory == 23 * 1024


def test_the_larger_of_both_counts_of_cpu_time_is_taken() -> None:
    assert job(step("batch", 2000, 9200, "1G", "05:00:00")).job.cpu_seconds == 5 * 3600
    assert job(step("batch", 2000, 9200, "1G", "00:10:00")).job.cpu_seconds == 2 * 3600


def test_what_slurm_did_not_sample_is_not_known_and_nothing_is_suggested() -> None:
    found = job(step("batch", 2000, 9200, "0"), TotalCPU="00:00:00")
    assert (found.job.used.memory, found.job.used.cpus, found.job.cpu_seconds) == (None, None, None)
    assert advice(found.job).suggestion == ""
    sums = unused_of(found.job)
    assert (sums.cpu_unused, sums.memory_unused, sums.gpu_unused) == (0, 0, 0)
    assert (sums.cpu_unknown, sums.memory_unknown, sums.gpu_unknown) == (sums.cpu, sums.memory, sums.gpu)


def test_of_a_step_on_two_nodes_the_memory_of_each_is_not_known() -> None:
    nodes = {"NodeList": "n[1-2]"}
    found = job(step("0", 2000, 9200, "20G", **nodes), **nodes, AllocTRES="cpu=16,mem=64G")
    assert (found.job.used.memory, found.job.memory, found.job.nodes_used) == (None, 20 * 1024, 2)
    assert found.job.asked == Asked(0, 8, 32 * 1024, 240)


def test_somebody_who_logged_in_to_a_node_has_used_it() -> None:
    nodes, everywhere = {"NodeList": "n[1-2]"}, {"NodeList": "n[1-2]"}
    idle = job(step("batch", 2000, 9200, "1G"), step("extern", 2000, 9200, "4M", **everywhere), **nodes)
    assert idle.job.nodes_used == 1
    ssh = job(step("batch", 2000, 9200, "1G"), step("extern", 2000, 9200, "4G", **everywhere), **nodes)
    assert ssh.job.nodes_used == 2


def test_what_kept_it_waiting_is_known() -> None:
    assert not job().held_back
    assert not job(Reason="Priority").held_back
    assert job(Reason="QOSMaxGRESPerUser").held_back
    assert job(Constraints="nvlink").constrained


async def test_the_reader_asks_for_steps_of_jobs_that_ended_then(forged: ForgedSlurm, commands: Commands) -> None:
    forged.say("sacct", answer(JOB, step("batch", 2000, 9200, "1G"), {**JOB, "JobIDRaw": "8", "End": "9999"}))
    found = await FinishedJobsReader(commands).ended(9000, 9500)
    assert [(each.job.job_id, each.job.used.memory) for each in found] == [(7, 1024)]
    [call] = forged.calls("sacct")
    assert "--allocations" not in call
    assert "--starttime=1970-01-01T02:30:00 --endtime=1970-01-01T02:38:21" in call


@pytest.mark.parametrize("text", ["not an answer", answer({**JOB, "Submit": "soon"})])
async def test_half_an_answer_is_none(forged: ForgedSlurm, commands: Commands, text: str) -> None:
    forged.say("sacct", text)
    with pytest.raises(SlurmUnreachable, match="cannot be understood"):
        await FinishedJobsReader(commands).ended(1000, 2000)
