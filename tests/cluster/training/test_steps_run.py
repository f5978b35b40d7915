"""Ranks by the step broker on a real Slurm: nodes, user and environment of the ranks; and that none is left."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Iterator

import pytest
from steps_parts import STUBBORN, USER, Job

from carme_hub.sandbox import Cluster

LOOK = (
    "import json, os\n"
    "e = os.environ\n"
    "names = sorted(n for n in e if 'TOKEN' in n or 'HUB' in n or n in ('CARME_SLOT', 'CARME_GPUS', 'CARME_DATA'))\n"
    "keys = ('SLURM_PROCID', 'SLURM_LOCALID', 'SLURMD_NODENAME', 'SLURM_STEP_TASKS_PER_NODE', 'CUDA_VISIBLE_DEVICES')\n"
    "pids = len([p for p in os.listdir('/proc') if p.isdigit()])\n"
    "print(json.dumps([[e.get(k) for k in keys], os.getuid(), os.getcwd(), __import__('sys').prefix, pids, names]))"
)


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> Iterator[Job]:
    """A session of two nodes, two CPUs and two GPUs on each."""
    cluster.cancel_all()
    job = Job(cluster, nodes=2, gpus=2).wait()
    yield job
    job.end()


def gone(job: Job, within: float) -> float:
    """Wait until neither a step nor a rank's process is left; return the seconds."""
    began = time.monotonic()
    while job.steps() or job.ranks():
        assert time.monotonic() < began + within, (job.steps(), job.ranks())
        time.sleep(0.1)
    return time.monotonic() - began


def test_the_broker_reports_the_jobs_allocation(job: Job) -> None:
    has = job.run_client("from dataclasses import asdict\nreturn asdict(the.allocation())")
    ends = has.pop("ends")
    assert abs(ends - time.time() - 600) < 60
    output = {"job": job.job, "nodes": ["node1", "node2"], "cpus": 2, "gpus": 2, "gpu_type": "a100"}
    assert has == {**output, "address": "127.0.0.1"}


def test_ranks_are_the_user_in_the_sessions_container_on_each_node_with_its_gpus_and_no_secret(job: Job) -> None:
    status, lines = job.run_client(
        f"status, lines, _ = all_of(3, {LOOK!r}, gpus_per_node=2, slot='w7')\nreturn status, lines"
    )
    assert status == 0
    assert [line.split(": ")[0] for line in lines] == ["0", "1", "2"]
    gpus = set()
    for line, place in zip(lines, (["0", "0", "node1"], ["1", "1", "node1"], ["2", "0", "node2"]), strict=True):
        (*where, tasks, devices), uid, folder, prefix, pids, names = json.loads(line.split(": ", 1)[1])
        assert (where, tasks) == (place, "2,1")
        assert (uid, folder, prefix) == (job.user.pw_uid, job.user.pw_dir, "/opt/venv")
        assert pids < 5  # its own pid namespace
        assert names == ["CARME_SLOT"]
        gpus.add(devices)
    assert len(gpus) == 1
    assert len(gpus.pop().split(",")) == 2


def test_more_ranks_than_cpus_all_run_and_without_gpus_they_see_none(job: Job) -> None:
    code = "import os; print(os.environ['SLURM_STEP_TASKS_PER_NODE'], repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    status, lines = job.run_client(f"status, lines, _ = all_of(10, {code!r})\nreturn status, lines")
    assert (status, lines) == (0, [f"{rank}: 5(x2) ''" for rank in range(10)])


def test_ranks_are_on_the_nodes_that_are_named(job: Job) -> None:
    code = "import os; print(os.environ['SLURMD_NODENAME'])"
    asked = f"return all_of(2, {code!r}, nodes=('node2',))[:2]"
    assert job.run_client(asked) == [0, ["0: node2", "1: node2"]]


def test_two_runs_at_a_time_have_different_gpus(job: Job) -> None:
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); __import__('time').sleep(60)"
    both = job.run_client(
        f"runs = [ranks(1, {code!r}, gpus_per_node=1) for _ in range(2)]\n"
        "for run in runs: run.until('0: ', 1)\n"
        "for run in runs: run.step.close(); [t.join() for t in run.threads]\n"
        "return [run.lines[0] for run in runs]"
    )
    assert len(set(both)) == 2
    gone(job, 5)


def test_the_first_rank_that_fails_ends_all_and_is_named(job: Job) -> None:
    code = "import os, sys, time\nif os.environ['SLURM_PROCID'] == '2': sys.exit(5)\ntime.sleep(60)"
    began = time.monotonic()
    status, output = job.run_client(f"status, _, run = all_of(4, {code!r})\nreturn status, run.step.messages")
    assert status in (5, 137, 143)  # the highest of all: of those that were ended, 128 and the signal
    assert "srun: error: node2: task 2: Exited with exit code 5" in output
    assert time.monotonic() - began < 15
    gone(job, 5)


def test_on_request_the_others_continue_when_one_fails(job: Job) -> None:
    code = "import os, sys, time\nif os.environ['SLURM_PROCID'] == '1': sys.exit(5)\ntime.sleep(2); print('done')"
    status, lines = job.run_client(f"return all_of(2, {code!r}, kill_on_bad_exit=False)[:2]")
    assert (status, lines) == (5, ["0: done"])


@pytest.mark.parametrize(
    ("name", "prints"),
    [("INT", "interrupted"), ("USR1", "warned"), ("TERM", "asked to end")],
)
def test_a_signal_reaches_the_ranks_once(job: Job, name: str, prints: str) -> None:
    code = (
        "import os, signal, time\n"
        "end, up = time.monotonic() + 60, 0\n"
        "def warned(*_):\n    global end; end = time.monotonic() + 1; print('warned', flush=True)\n"
        "signal.signal(signal.SIGUSR1, warned)\n"
        "def asked(*_):\n    print('asked to end', flush=True); raise SystemExit\n"
        "if NAME == 'TERM': signal.signal(signal.SIGTERM, asked)\n"
        "while time.monotonic() < end:\n"
        "    try:\n        up = up or os.write(1, b'up\\n'); time.sleep(0.1)\n"
        "    except KeyboardInterrupt:\n        end = time.monotonic() + 1; print('interrupted', flush=True)\n"
    ).replace("NAME", repr(name))
    status, lines = job.run_client(
        f"run = ranks(2, {code!r})\nrun.until('up', 2)\nrun.step.signal({name!r})\nreturn run.end(), sorted(run.lines)"
    )
    assert lines == sorted(["0: up", "1: up", f"0: {prints}", f"1: {prints}"])
    assert status == 0


@pytest.mark.parametrize("how", ["step.signal('KILL')", "step.close()"])
def test_ranks_that_ignore_everything_are_gone_within_five_seconds(job: Job, how: str) -> None:
    took = job.run_client(
        f"run = ranks(4, {STUBBORN!r})\nrun.until('up', 8)\nbegan = time.monotonic()\nrun.{how}\n"
        "for each in run.threads: each.join()\nreturn time.monotonic() - began"
    )
    assert took < 5
    gone(job, 5 - took)
    assert job.leftovers() == []


def test_a_killed_client_leaves_no_rank(job: Job) -> None:
    client = job.start_client(
        f"run = ranks(2, {STUBBORN!r})\nrun.until('up', 4)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "up\n"
    assert job.steps()
    client.send_signal(signal.SIGKILL)
    assert gone(job, 5) < 5
    client.communicate()


def test_a_step_that_is_ended_before_it_has_begun_leaves_nothing(job: Job) -> None:
    asked = (
        "def one(wait):\n"
        "    run = ranks(2, 'import time; time.sleep(60)')\n    time.sleep(wait)\n    run.step.close()\n"
        "threads = [threading.Thread(target=one, args=(number * 0.04,)) for number in range(12)]\n"
        "for each in threads: each.start()\nfor each in threads: each.join()\nreturn 1"
    )
    assert job.run_client(asked) == 1
    gone(job, 6)
    assert job.leftovers() == []


def test_a_killed_broker_ends_its_ranks_and_that_is_reported(cluster: Cluster) -> None:
    own = Job(cluster).wait()
    try:
        client = own.start_client(
            f"run = ranks(1, {STUBBORN!r})\nrun.until('up', 2)\nprint('up', flush=True)\nrun.end()\n"
            "print(run.step.messages)"
        )
        assert client.stdout is not None
        client.stdout.readline()

        def pids() -> list[int]:
            return [pid for pid, (line, _) in own.processes().items() if " carme-steps /" in line]

        cluster.wait_for(lambda: len(pids()) == 2, within=5)  # it and the process of the step, none about to be srun
        os.kill(min(pids()), signal.SIGKILL)
        gone(own, 6)
        assert client.communicate(timeout=10)[0].strip()
        client = own.start_client("the.allocation()")
        assert "stop your server and start it again" in client.communicate(timeout=10)[1]
    finally:
        own.end()


def test_twenty_runs_started_at_once_all_run(job: Job) -> None:
    code = "import os, time; print('up', flush=True); time.sleep(1)"
    ended = job.run_client(
        "found = []\n"
        f"def one(number): found.append(all_of(2, {code!r}, run=f'run{{number}}', gpus_per_node=number % 2)[:2])\n"
        "threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]\n"
        "for each in threads: each.start()\nfor each in threads: each.join()\nreturn found"
    )
    assert ended == [[0, ["0: up", "1: up"]]] * 20
    gone(job, 5)


def test_ranks_end_in_time_also_when_slurms_controller_does_not_answer(job: Job, cluster: Cluster) -> None:
    client = job.start_client(
        f"run = ranks(2, {STUBBORN!r})\nrun.until('up', 4)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    assert client.stdout is not None
    client.stdout.readline()
    cluster.freeze("slurmctld")
    try:
        began = time.monotonic()
        client.kill()
        client.communicate()
        while job.ranks():
            assert time.monotonic() < began + 5, job.ranks()
            time.sleep(0.1)
    finally:
        cluster.thaw("slurmctld")
    gone(job, 10)


# -- a second job -----------------------------------------------------------------------------------------------------


def test_ranks_of_a_companion_run_there_with_its_gpus_and_end_with_the_session(cluster: Cluster) -> None:
    parent = Job(cluster).wait()
    companion = Job(cluster, nodes=2, gpus=1).wait()
    try:
        has = parent.run_client(
            f"return the.allocation({companion.id!r}).gpus, list(the.allocation({companion.id!r}).nodes)"
        )
        assert has[0] == 1
        code = "import os; print(os.environ['SLURM_JOB_ID'], len(os.environ['CUDA_VISIBLE_DEVICES']))"
        asked = f"return all_of(2, {code!r}, companion={companion.id!r}, gpus_per_node=1)[:2]"
        assert parent.run_client(asked) == [0, [f"0: {companion.job} 1", f"1: {companion.job} 1"]]
        more = f"run = ranks(2, {STUBBORN!r}, companion={companion.id!r})\nrun.until('up', 4)\n"
        client = parent.start_client(more + "print('up', flush=True); run.end(); print(run.step.messages)")
        assert client.stdout is not None
        client.stdout.readline()
        assert companion.steps()
        cluster.run("scancel", str(parent.job), user=USER)
        gone(companion, 7)
        assert cluster.job_state(companion.job) == "RUNNING"
        client.communicate(timeout=10)
        # The folder of packages is removed after the end is marked.
        left = ["end.json", "job.log"]
        cluster.wait_for(lambda: sorted(path.name for path in parent.folder.iterdir()) == left, within=15)
        cluster.wait_for(lambda: not parent.processes(), within=5)
    finally:
        parent.end()
        companion.end()


def test_a_companion_that_waits_or_has_ended_is_not_ready(cluster: Cluster, job: Job) -> None:
    asked = "try: the.allocation({!r})\nexcept broker.NotReady as error: return str(error)"
    companion = Job(cluster, nodes=2, gpus=4)  # more than is free
    try:
        cluster.wait_job(companion.job, "PENDING")
        assert (
            job.run_client(asked.format(companion.id)) == f"The companion {companion.id} is pending, and not running."
        )
    finally:
        companion.end()
    assert "has ended" in job.run_client(asked.format("00000000-0000-4000-8000-000000000000"))


# -- who gets nothing -------------------------------------------------------------------------------------------------


def test_the_socket_is_the_owners_and_nobody_else_gets_an_answer(job: Job) -> None:
    path = job.folder / "steps.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    asked = "try: the.allocation()\nexcept broker.NoBroker as error: return str(error)"
    assert "Permission denied" in job.run_client(asked, user="bob")
    assert "closed the connection" in job.run_client(
        asked, user="root"
    )  # may open the folder, and is not asked for more


def test_no_secret_of_the_session_is_in_an_environment_or_a_command_line_of_a_step(job: Job) -> None:
    client = job.start_client(
        f"run = ranks(2, {STUBBORN!r})\nrun.until('up', 4)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    assert client.stdout is not None
    client.stdout.readline()
    seen = job.processes().values()
    assert len([line for line, _ in seen if "carme-rank" in line]) >= 3  # srun, and two on the nodes
    for line, environ in seen:
        assert "SECRET" not in line
        assert "NONCE" not in line
        assert b"SECRET" not in environ
        assert b"NONCE" not in environ
    client.kill()
    client.communicate()
    gone(job, 5)


def test_a_program_inside_the_container_can_use_the_broker(cluster: Cluster) -> None:
    code = (
        "import os, sys, time\n"
        "from carme_hub.training.session.step_broker import Broker, Step\n"
        "while not os.path.exists(os.environ['CARME_SESSION_FOLDER'] + '/steps.sock'): time.sleep(0.05)\n"
        "command = (sys.executable, '-c', 'print(6 * 7)')\n"
        "print('status', Broker().start(Step('inside', 2, command), 1, 2).wait(30))\n"
    )
    job = Job(cluster, argv=("/opt/venv/bin/python", "-u", "-c", code))
    try:
        cluster.wait_for(lambda: (job.folder / "end.json").exists(), within=40)
        assert {"0: 42", "1: 42", "status 0"} <= set(job.log.splitlines()), job.log
    finally:
        job.end()
