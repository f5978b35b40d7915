"""What carme-srun takes for small words, what it makes of them for srun, and what it reads in Slurm's answers."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from step_request import ASKED

from carme_hub.node import srun

HAVE = {"job": 7, "nodes": ["n1", "n2", "n3"], "gpus": 4}
COMPANION = "0f9a3c52-5f0b-4c1e-9d8e-0a1b2c3d4e5f"
#: What scontrol of Slurm 22.05 says, and what 24.11 says otherwise.
OLD = (
    "JobId=7 UserId=alice(2001) JobState=RUNNING Reason=None TimeLimit={limit} SubmitTime=2026-11-22T12:35:03 "
    "EndTime={ends} NodeList=n[1-3] BatchHost=n1 NumNodes=3 NumCPUs=24 TRES=cpu=24,mem=4000M,node=3,gres/gpu=9 "
    "JOB_GRES=gpu:a100:9   Nodes=n[1-2] CPU_IDs=0-7,16 Mem=2000 GRES=gpu:a100:4(IDX:0-3)   "
    "Nodes=n3 CPU_IDs=0-3 Mem=2000 GRES=gpu:a100:1(IDX:0),shard:0 MinCPUsNode=2 TresPerNode=gres:gpu:a100:2 "
)
NEW = OLD.replace("TRES=cpu", "ReqTRES=cpu=1 AllocTRES=cpu").replace("gres:gpu", "gres/gpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run", ""),
        ("run", "--uid=0"),
        ("run", "a b"),
        ("run", "x" * 65),
        ("run", 3),
        ("ranks", 0),
        ("ranks", True),
        ("ranks", "4"),
        ("ranks", 100_000),
        ("argv", []),
        ("argv", "python3"),
        ("argv", ["python3", "a\0b"]),
        ("argv", ["python3", 3]),
        ("nodes", ["n1,n2"]),
        ("nodes", ["-n1"]),
        ("nodes", ["n[1-9]"]),
        ("nodes", ["n1", "n1"]),
        ("nodes", None),
        ("companion", "7"),
        ("companion", COMPANION + "\n"),
        ("companion", COMPANION.upper()),
        ("gpus_per_node", -1),
        ("gpus_per_node", "2"),
        ("gpus_per_node", 1.5),
        ("mpi", ""),
        ("mpi", "none --uid=0"),
        ("mpi", "../x"),
        ("slot", "a=b"),
        ("slot", "-"),
        ("kill_on_bad_exit", 1),
        ("kill_on_bad_exit", None),
        ("report_ends", 1),
    ],
)
def test_a_word_that_srun_could_take_otherwise_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(srun.Refused, match=f"^The step's {name} cannot be ") as refused:
        srun.validated({**ASKED, name: value})
    assert refused.value.kind == "bad"


@pytest.mark.parametrize("name", ASKED)
def test_a_word_that_is_missing_is_refused(name: str) -> None:
    with pytest.raises(srun.Refused):
        srun.validated({key: value for key, value in ASKED.items() if key != name})


def test_every_word_of_the_options_is_ours_and_none_is_of_the_command() -> None:
    asked = {**ASKED, "argv": ["python3", "--uid=root", "--jobid=1"], "slot": "w3", "nodes": ["n2"], "gpus_per_node": 2}
    words = srun.srun_argv(srun.validated(asked), HAVE, ["n2"], 9)
    assert all(word.startswith("-") for word in words)
    assert not {"--uid=root", "--jobid=1"} & set(words)
    wanted = {
        "--jobid=7",
        "--nodelist=n2",
        "--nodes=1",
        "--ntasks=4",
        "--overlap",
        "--overcommit",
        "--label",
        "--mem=0",
    }
    assert wanted | {"--gres=gpu:4", "--job-name=carme-run-test", "--kill-on-bad-exit=1", "--mpi=none"} <= set(words)
    assert "--gres=none" in srun.srun_argv(srun.validated(ASKED), HAVE, ["n1"], 9)


@pytest.mark.parametrize(
    ("ranks", "nodes", "found"),
    [
        (4, [], ["n1", "n2", "n3"]),
        (2, [], ["n1", "n2"]),
        (1, [], ["n1"]),
        (2, ["n3"], ["n3"]),
        (2, ["n3", "n1"], ["n3", "n1"]),
    ],
)
def test_ranks_are_on_all_nodes_that_they_are_enough_for_or_on_those_named(
    ranks: int, nodes: list[str], found: list[str]
) -> None:
    assert srun.step_nodes({**ASKED, "ranks": ranks, "nodes": nodes}, HAVE) == found


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"nodes": ["n9"]}, "n9 is no node of job 7; those are n1, n2, n3."),
        ({"nodes": ["n1", "n2"], "ranks": 1}, "1 ranks cannot be on 2 nodes."),
        ({"gpus_per_node": 5}, "The job has 4 GPUs on each node, and not 5."),
    ],
)
def test_what_the_job_has_not_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(srun.Refused) as refused:
        srun.step_nodes({**ASKED, **more}, HAVE)
    assert str(refused.value) == said


# -- what Slurm says --------------------------------------------------------------------------------------------------


def slurm_says(monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> None:
    """Let Slurm's commands say this, by the last words or the last but one after ``scontrol``, or by their name."""

    def ask(*argv: str) -> str:
        found = [argv[0], " ".join(argv[-2:]), argv[-2]]
        return next(answers[each] for each in found if each in answers)

    monkeypatch.setattr(srun, "run_command", ask)


@pytest.mark.parametrize("text", [OLD, NEW])
def test_an_allocation_is_what_every_node_has_at_least(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    said = text.format(limit="01:00:00", ends="2026-11-22T14:00:00")
    slurm_says(monkeypatch, {"job": said, "hostnames": "n1\nn2\nn3\n"})
    ends = time.mktime((2026, 11, 22, 14, 0, 0, 0, 0, -1))
    found = {"job": 7, "nodes": ["n1", "n2", "n3"], "cpus": 4, "gpus": 1, "gpu_type": "a100", "ends": ends}
    assert srun.allocation(7) == found


def test_a_job_without_gpus_and_without_an_end_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    said = OLD.format(limit="UNLIMITED", ends="2027-11-22T14:00:00").replace("gpu:a100:4", "").replace("gpu:a100:1", "")
    slurm_says(monkeypatch, {"job": said, "hostnames": "n1\n"})
    found = srun.allocation(7)
    assert (found["gpus"], found["gpu_type"], found["ends"]) == (0, "", 0.0)


def test_a_job_that_ends_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    said = OLD.format(limit="1", ends="Unknown").replace("RUNNING", "COMPLETING")
    slurm_says(monkeypatch, {"job": said, "hostnames": ""})
    with pytest.raises(srun.Refused, match="Job 7 is completing, and not running") as refused:
        srun.allocation(7)
    assert refused.value.kind == "notready"


@pytest.mark.parametrize(
    ("queue", "found"),
    [
        ("12 RUNNING\n", 12),
        ("12 COMPLETING\n13 RUNNING\n", 13),  # requeued
        ("", "has ended, or was never submitted to Slurm"),
        ("12 PENDING\n", "is pending, and not running"),
    ],
)
def test_the_job_of_a_companion_is_the_one_that_runs(
    monkeypatch: pytest.MonkeyPatch, queue: str, found: int | str
) -> None:
    slurm_says(monkeypatch, {"squeue": queue})
    if isinstance(found, int):
        assert srun.job_of(COMPANION) == found
    else:
        with pytest.raises(srun.Refused, match=found):
            srun.job_of(COMPANION)


@pytest.mark.parametrize(
    ("own", "cluster", "found"),
    [
        ("127.0.1.1", "n1\nn2\n", "127.0.0.1"),  # as Debian's installer writes it: other nodes cannot reach that
        ("127.0.1.1", "n1\n", "127.0.1.1"),  # there is nobody else
        ("127.0.1.1", "n1\nn9\nn9\nn9\nn2\n", "127.0.0.1"),  # n9 has no address, and is in three partitions
        ("192.0.2.7", "n1\nn2\n", "192.0.2.7"),
    ],
)
def test_a_lone_node_is_found_by_its_companions(
    monkeypatch: pytest.MonkeyPatch, own: str, cluster: str, found: str
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    nodes = {"node n1": f" NodeAddr={own} ", "node n2": " NodeAddr=127.0.0.1 ", "node n9": " NodeAddr=n9.invalid "}
    slurm_says(monkeypatch, {"sinfo": cluster, **nodes})
    assert srun.address(["n1"]) == found


@pytest.mark.parametrize(("ids", "count"), [("0-7,16", 9), ("3", 1), ("", 0), ("0,2,4-5", 4)])
def test_cpu_ids_are_counted(ids: str, count: int) -> None:
    assert srun.count_ids(ids) == count


def test_only_what_slurms_commands_need_is_in_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "JUPYTERHUB_API_TOKEN",
        "SLURM_JWT",
        "CARME_DATA",
        "SLURM_NTASKS",
        "SLURM_JOB_ID",
        "SRUN_X",
        "LD_PRELOAD",
    ):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert set(srun.command_environ()) <= {"PATH", "LANG", "HOME", "USER", "LOGNAME", "SLURM_CONF", "TZ"}
    assert srun.command_environ()["SLURM_CONF"] == "/etc/slurm.conf"


def test_a_command_of_slurm_that_fails_or_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(srun, "SLURM_FOLDERS", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(srun.Refused, match="squeue is not on this node"):
        srun.run_command("squeue")
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'first' >&2\necho 'slurm_load_jobs error: no' >&2\nexit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    with pytest.raises(srun.Refused, match=r"Slurm does not say what the job has: slurm_load_jobs error: no$"):
        srun.run_command("squeue")


# -- which GPUs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[Callable[..., list[int]]]:
    """Take GPUs as another process of carme-steps would, which lives until the end of the test."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    pids = iter([os.getppid(), 1, os.getpid()])  # such as live

    def take(nodes: list[str], wanted: int, job: int = 7, have: int = 4, *, dead: bool = False) -> list[int]:
        chosen = srun.choose_gpus(file.fileno(), job, nodes, wanted, have)
        said = json.loads(os.pread(file.fileno(), 1 << 20, 0))
        said[-1]["pid"] = 2**22 if dead else next(pids)
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), json.dumps(said).encode(), 0)
        return chosen

    yield take
    file.close()


def test_steps_take_the_gpus_that_the_fewest_use(taken: Callable[..., list[int]]) -> None:
    assert taken(["n1"], 2) == [0, 1]
    assert taken(["n1", "n2"], 2) == [2, 3]
    assert taken(["n1"], 3) == [0, 1, 2]  # all are in use once


def test_steps_on_other_nodes_of_other_jobs_or_of_processes_that_ended_are_not_in_the_way(
    taken: Callable[..., list[int]],
) -> None:
    assert taken(["n2"], 4) == [0, 1, 2, 3]
    assert taken(["n1"], 2, job=8) == [0, 1]
    assert taken(["n1"], 2, dead=True) == [0, 1]
    assert taken(["n1"], 2) == [0, 1]
