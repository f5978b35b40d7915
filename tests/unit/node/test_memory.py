"""Where the node does not confine a job's memory, its largest process is killed before it takes that of others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_batch_script import Node
from test_rank_program import Node as NodeOfRanks
from test_rank_program import python

from carme_hub.node import memory, rank
from carme_hub.spawners.job_script import MEMORY
from carme_hub.training.run.output import split_task_end

#: Jobs of this test process alone: another suite may run on this machine.
JOB, OTHER = f"memory-{os.getpid()}", f"memory-other-{os.getpid()}"
#: Takes so many MiB, says so, and waits.
TAKES = "import sys, time; kept = b'x' * (int(sys.argv[1]) << 20); print('has it', flush=True); time.sleep(60)"


@pytest.fixture
def taking() -> Iterator[list[subprocess.Popen[str]]]:
    found: list[subprocess.Popen[str]] = []
    yield found
    for each in found:
        each.kill()
        each.communicate()


def take(taking: list[subprocess.Popen[str]], mib: int, job: str = JOB, node: str = "") -> int:
    """Start a process of a job that takes so many MiB; return its pid."""
    environ = {"SLURM_JOB_ID": job, **({"SLURMD_NODENAME": node} if node else {})}
    words = [sys.executable, "-c", TAKES, str(mib)]
    taking.append(subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True))
    assert taking[-1].stdout is not None
    assert taking[-1].stdout.readline() == "has it\n"
    return taking[-1].pid


def watch(mib: int, job: str = JOB) -> memory.Watch:
    found = memory.watch(mib, {"SLURM_JOB_ID": job}, cgroups="/nowhere")
    assert found is not None
    return found


def test_the_largest_process_of_a_job_is_named_by_its_own_supervisor_alone(
    taking: list[subprocess.Popen[str]],
) -> None:
    small, large, other = take(taking, 20), take(taking, 80), take(taking, 200, OTHER)
    found = watch(100).look([large])
    assert found is not None
    assert found[0] == large
    assert f"({large}, 0.0" in found[1]
    assert "of its 0.10 GiB of memory on this node, so its largest process was killed: python" in found[1]
    assert watch(100).look([small]) is None, "another supervisor has it"
    assert watch(100, OTHER).look([other]) is not None
    assert watch(1000).look([large, other]) is None, "it has room"


def test_memory_that_processes_share_counts_once(taking: list[subprocess.Popen[str]]) -> None:
    code = (
        "import os, sys, time\nkept = b'x' * (80 << 20)\nfor _ in range(4):\n    if not os.fork(): time.sleep(60)\n"
        "print('has it', flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={"SLURM_JOB_ID": JOB},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    taking.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "has it\n"
    try:
        looking = watch(200)
        resident = sum(memory.resident_bytes("/proc", pid) for pid in looking._processes.pids())
        assert resident > 400 << 20
        assert looking.look([process.pid]) is None
        assert looking.interval == memory.FAR, "it has less than half of its memory"
    finally:
        os.killpg(process.pid, 9)


def test_nodes_of_one_machine_have_a_memory_each(taking: list[subprocess.Popen[str]]) -> None:
    pids = {node: take(taking, 80, node=node) for node in ("n1", "n2")}
    for node, pid in pids.items():
        looking = memory.watch(120, {"SLURM_JOB_ID": JOB, "SLURMD_NODENAME": node}, cgroups="/nowhere")
        assert looking is not None
        assert looking._processes.pids() == [pid]
        assert looking.look([pid]) is None, "the other node's does not count"


def test_it_looks_seldom_at_a_job_that_has_little(taking: list[subprocess.Popen[str]]) -> None:
    take(taking, 20)
    looking = watch(1000)
    assert looking.look([]) is None
    assert looking.interval == memory.FAR


def test_a_program_without_its_environment_counts_for_its_supervisor(taking: list[subprocess.Popen[str]]) -> None:
    pid = take(taking, 80, "")
    assert watch(50).look([]) is None
    found = watch(50).look([pid])
    assert found is not None
    assert found[0] == pid


@pytest.mark.parametrize(
    ("limit", "watched"),
    [("max", True), (str(1 << 30), False), (str((1 << 30) * 3 // 2), False), (str(24 << 30), True)],
)
def test_where_the_kernel_confines_the_job_nothing_is_watched(tmp_path: Path, limit: str, watched: bool) -> None:
    # 24 GiB are the machine's; half as much again is Slurm's AllowedRAMSpace.
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/slurm/job\n")
    (tmp_path / "slurm/job").mkdir(parents=True)
    (tmp_path / "slurm/job/memory.max").write_text(f"{limit}\n")
    found = memory.watch(1024, {"SLURM_JOB_ID": "7"}, str(tmp_path), str(tmp_path))
    assert (found is not None) == watched


def test_without_a_limit_or_a_job_nothing_is_watched() -> None:
    assert memory.watch(0, {"SLURM_JOB_ID": "7"}) is None
    assert memory.watch(1024, {}) is None


def test_a_session_loses_its_largest_process_and_goes_on(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.document["files"]["carme-memory"] = {"mode": 0o600, "text": MEMORY}
    code = (
        "import subprocess, sys\n"
        f"done = subprocess.run([sys.executable, '-c', {TAKES!r}, '300'])\n"
        "print('the kernel ended with', done.returncode, flush=True)"
    )
    began = time.monotonic()
    assert node.run(code, memory_mib=200, pass_env=["SLURM_JOB_ID"]) == 0
    assert time.monotonic() - began < 30
    assert "of its 0.20 GiB of memory on this node, so its largest process was killed: python" in node.log
    assert "the kernel ended with -9" in node.log
    assert "Ask for more memory next time." in node.log


def test_a_rank_that_takes_too_much_is_killed_and_said_to_have_run_out_of_memory(tmp_path: Path) -> None:
    node = NodeOfRanks(tmp_path)
    node.plan["memory_mib"] = 200
    process = node.start(*python(TAKES), "300", SLURM_JOB_ID=JOB)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (137, "has it\n")
    said, _, report = err.partition(rank.END_MARK)
    assert "[carme] the job used 0.3" in said
    end = split_task_end(3, rank.END_MARK.encode() + report.encode())[1]
    assert end is not None
    assert (end.out_of_memory, end.memory_mib, end.started) == (True, 200, True)
    assert node.left == []


@pytest.mark.parametrize(
    ("lines", "files", "found"),
    [
        (
            "0::/job/step/task\n",
            {
                "job/step/task/memory.events": "oom 3\noom_kill 2\n",
                "job/step/task/memory.max": "max\n",
                "job/step/memory.max": f"{4 << 30}\n",
                "job/memory.max": f"{8 << 30}\n",
            },
            (2, 4 << 30),
        ),
        (
            "4:cpu,memory:/job\n0::/\n",
            {"memory/job/memory.oom_control": "under_oom 0\noom_kill 1\n", "memory/job/memory.limit_in_bytes": "4096"},
            (1, 4096),
        ),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": "9223372036854771712"}, (0, 0)),
        ("", {}, (0, 0)),
    ],
)
def test_the_memory_of_a_task_is_read_from_its_cgroup(
    tmp_path: Path, lines: str, files: dict[str, str], found: tuple[int, int]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "self").write_text(lines)
    assert memory.memory_of_task(str(tmp_path / "self"), str(tmp_path)) == found
