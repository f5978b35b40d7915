"""What a job used is said as far as accounting knows it, and unknown is not 0."""

from __future__ import annotations

from dataclasses import replace

from carme_hub.domain.activity.accounted import efficiency_of
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.own_jobs.ended import Asked, EndedJob, details_of, folded
from carme_hub.domain.cluster.resources import Gpus

JOB = EndedJob(
    7, "train.sh", "alice", "COMPLETED", Phase.TERMINAL, 100.0, 200.0, 3800.0, node_count=2, gpus=Gpus("a100", 2),
    cpus=8, memory_mib=65536, minutes=120, cpu_seconds=7200.0, peak_mib=2048, folder="/home/alice", nodes=("n1", "n2"),
)  # fmt: skip


def test_cpus_and_memory_are_of_a_node_and_gpus_are_not_known() -> None:
    found = efficiency_of(JOB)
    assert found is not None
    assert (found.cpus, found.memory, found.gpus_used) == (1.0, 2048, None)
    assert "How busy its 2 GPUs were is not known." in found.sentence
    assert "Memory: 2 GiB of 32 GiB at most." in found.sentence
    assert found.suggestion == "Ask for 3 GiB of memory: what it used at most, and a quarter more."


def test_of_a_job_that_never_ran_nothing_is_said() -> None:
    assert efficiency_of(replace(JOB, start=0.0)) is None
    assert efficiency_of(replace(JOB, cpu_seconds=None, peak_mib=None)) is None
    only = efficiency_of(replace(JOB, peak_mib=None))
    assert only is not None
    assert only.memory is None
    assert only.suggestion == ""


def test_a_short_job_gets_no_suggestion() -> None:
    found = efficiency_of(replace(JOB, end=260.0, cpu_seconds=1.0))
    assert found is not None
    assert found.suggestion == ""


def test_tasks_of_an_array_are_together_and_the_newest_come_first() -> None:
    tasks = [replace(JOB, id=20 + n, array=20, task=str(n), end=5000.0 + n) for n in range(3)]
    groups, left = folded([JOB, *tasks, replace(JOB, id=30, phase=Phase.ACTIVE)], most=1)
    assert [[job.key for job in some] for some in groups] == [["20_0", "20_1", "20_2"]]
    assert left == 1


def test_what_accounting_keeps_stands_for_what_the_controller_has_forgotten() -> None:
    found = details_of(replace(JOB, submit_line="/usr/bin/sbatch train.sh"))
    assert (found.nodes, found.tasks, found.cpus_per_task, found.memory) == ("2", 2, 4, "32768M")
    assert found.tres == (("gres", "gpu:a100:1"),)
    assert found.batch
    whole_node = replace(JOB, asked=Asked(4, 2048, Gpus("a100", 2)), gpus=Gpus("a100", 16), cpus=64)
    assert (details_of(whole_node).cpus_per_task, details_of(whole_node).memory) == (2, "1024M")
    assert details_of(whole_node).tres == (("gres", "gpu:a100:1"),)
    assert not details_of(replace(JOB, submit_line="srun hostname")).batch
