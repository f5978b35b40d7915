"""What a job uses is counted whole, and nobody else's use with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carme_hub.node import memory, usage

#: A job of this test process alone: another suite may run on this machine.
JOB, OTHER = f"usage-{os.getpid()}", f"usage-other-{os.getpid()}"
#: Computes for so many seconds of processor time, in a child where told so, says so, and waits.
BURN = """
import os, sys, time
child = sys.argv[2] == "child" and os.fork()
if not child or sys.argv[2] != "child":
    while time.process_time() < float(sys.argv[1]): pass
    if sys.argv[2] == "child": os._exit(0)
else:
    os.waitpid(child, 0)
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    found: list[subprocess.Popen[str]] = []
    yield found
    for each in found:
        each.kill()
        each.communicate()


def start(started: list[subprocess.Popen[str]], code: str, *words: str, job: str = JOB) -> subprocess.Popen[str]:
    """Start a process of a job, and wait until it says something."""
    argv = [sys.executable, "-c", code, *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(argv, env={"SLURM_JOB_ID": job}, text=True, **pipes)  # type: ignore[call-overload]
    started.append(process)
    assert process.stdout.readline()
    return process  # type: ignore[no-any-return]


def of_job(job: str = JOB) -> usage.Usage:
    return usage.Usage(memory, memory.JobProcesses(job), job)


@pytest.mark.parametrize("where", ["itself", "child"])
def test_processor_time_counts_also_that_of_children_that_have_ended(
    started: list[subprocess.Popen[str]], where: str
) -> None:
    measured = of_job()
    start(started, BURN, "0", "itself")
    measured.sample(0.0)
    start(started, BURN, "0.5", where)
    start(started, BURN, "0.5", where, job=OTHER)
    found = measured.sample(10.0)["cpu"]
    assert found is not None
    assert 5 <= found <= 8, "0.5 s in ten are 5 %, and the other job's are not counted"


def test_processor_time_of_a_process_that_nobody_waited_for_is_not_lost(
    started: list[subprocess.Popen[str]],
) -> None:
    measured = of_job()
    measured.sample(0.0)
    process = start(started, BURN, "0.5", "itself")
    assert (measured.sample(10.0)["cpu"] or 0) >= 5
    process.kill()  # the task of a step: its parent is slurmstepd
    process.wait()
    assert measured.sample(20.0)["cpu"] == 0
    start(started, BURN, "0.3", "itself")
    assert (measured.sample(30.0)["cpu"] or 0) >= 3, "what came after it counts"


def test_shared_memory_counts_once_and_between_exact_samples_in_proportion(
    started: list[subprocess.Popen[str]],
) -> None:
    code = (
        "import os, sys, time\nkept = b'x' * (60 << 20)\nfor _ in range(3):\n    if not os.fork(): time.sleep(60)\n"
        "print('has it', flush=True)\nsys.stdin.readline()"
    )
    process = start(started, code)
    measured = of_job()
    try:
        for _ in range(usage.EXACT_EVERY):
            found = measured.sample(time.monotonic())["memory"]
            assert found is not None
            assert 60 <= found < 120, "four processes have it, and it is there once"
    finally:
        subprocess.run(["pkill", "-P", str(process.pid)], check=True)


def test_disk_traffic_is_the_jobs_own(started: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    measured = of_job()
    start(started, BURN, "0", "itself")
    measured.sample(0.0)
    code = f"import os\nfile = open({str(tmp_path / 'file')!r}, 'wb')\nfile.write(b'x' * (8 << 20))\nfile.flush()\n"
    start(started, f"{code}os.fsync(file.fileno())\nprint('wrote', flush=True)\ninput()")
    found = measured.sample(10.0)
    assert found["read"] is not None
    if found["written"] == 0:
        pytest.fail(f"the file system of {tmp_path} counts no writes")
    assert 8 << 10 <= (found["written"] or 0) < 9 << 10


def test_the_first_sample_knows_no_change_yet() -> None:
    found = of_job("no such job").sample(0.0)
    assert [found[name] for name in ("cpu", "read", "written", "received", "sent")] == [None] * 5
    assert found["memory"] == 0
    free = os.statvfs("/tmp")
    assert abs((found["tmp_free"] or 0) - free.f_bavail * free.f_frsize // 2**20) < 1024


@pytest.mark.parametrize("version", [1, 2])
def test_the_kernels_own_sums_are_taken_where_slurm_has_a_control_group(tmp_path: Path, version: int) -> None:
    path = "/slurm/uid_1/job_77"
    if version == 2:
        line, group, memory_folder = f"0::{path}/step_batch/user/task_0\n", tmp_path / path[1:], tmp_path / path[1:]
        files = {"cpu.stat": "usage_usec 2000000\nuser_usec 1\n", "memory.current": str(300 << 20)}
        stat = f"anon 1\ninactive_file {100 << 20}\n"
    else:
        line = f"9:cpuacct,cpu:{path}/step_0\n8:memory:{path}/step_0\n"
        group, memory_folder = tmp_path / "cpuacct" / path[1:], tmp_path / "memory" / path[1:]
        files = {"cpuacct.usage": "2000000000"}
        stat = f"inactive_file 5\ntotal_inactive_file {100 << 20}\n"
    group.mkdir(parents=True)
    memory_folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (group / name).write_text(text)
    if version == 1:
        (memory_folder / "memory.usage_in_bytes").write_text(str(300 << 20))
    (memory_folder / "memory.stat").write_text(stat)
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(line)
    measured = usage.Usage(memory, memory.JobProcesses("77", str(proc)), "77", proc=str(proc), cgroups=str(tmp_path))
    assert measured.sample(0.0)["memory"] == 200, "without pages of files that the kernel may drop"
    name = "cpu.stat" if version == 2 else "cpuacct.usage"
    (group / name).write_text(files[name].replace("2000000", "7000000", 1))
    assert measured.sample(10.0)["cpu"] == 50


def test_the_network_is_the_nodes_without_its_loopback() -> None:
    table = (
        "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n"
        "    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n  eth0: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n"
        "   ib0:1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0\n"
    )
    assert usage.network_traffic(table) == (1100, 2200)
    assert usage.network_traffic("") == (0, 0)
