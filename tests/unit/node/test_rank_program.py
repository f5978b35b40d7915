"""carme-rank becomes one rank in the container on its node, hands on what it may, and leaves nothing."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carme_hub.node import rank
from carme_hub.spawners.job_script import LAUNCH, MEMORY, SUPERVISE
from carme_hub.training.run.output import TaskEnd, split_task_end

RANK = Path(rank.__file__).resolve()
TOKEN = "0123456789ab"
#: Seconds of a rank, in which what is beside it starts.
WAIT = 4
#: Notes how it was started, and that it was ended.
FORGED_REPORT = """
import os, signal, sys
notes = open(sys.argv[1] + "/reported", "w")
print(*sys.argv[1:], os.environ["CARME_JOB_DEVICES"], file=notes, flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
signal.sigwait({signal.SIGTERM})
print("TERM", file=notes, flush=True)
"""


class Node:
    """A node of a step, which starts carme-rank as slurmstepd does; the container is the machine itself."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.shm = folder, folder / "shm" / f"carme-{TOKEN}"
        self.shm.parent.mkdir()
        self.plan: dict[str, Any] = {
            "argv": ["/usr/bin/env", "SHM=/x@CARME_STEP@", "NAME=@CARME_RANK@", "@CARME_ARGV@"],
            "environ": {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "all"},
            "pass_env": ["SLURM_PROCID", "CUDA_VISIBLE_DEVICES", "NOT_SET"],
            "supervise": "exec",
            "preflight": [],
            "grace": 10,
        }
        self.document: dict[str, Any] = {
            "singleuser": {"environ": {"JUPYTERHUB_API_TOKEN": "SECRET"}},
            "rank": {"plan": self.plan, "shm": str(self.shm.parent / "carme-@CARME_STEP@")},
        }
        (folder / "carme-launch").write_text(LAUNCH)
        (folder / "carme-supervise").write_text(SUPERVISE)
        (folder / "carme-memory").write_text(MEMORY)
        (folder / "carme-rank").write_text(RANK.read_text())
        self.mark = folder / f"step-{TOKEN}"
        self.mark.touch()

    def start(self, *argv: str, number: int = 3, **environ: str) -> subprocess.Popen[str]:
        (self.folder / "data.json").write_text(json.dumps(self.document))
        words = ["/usr/bin/python3", "-IS", str(self.folder / "carme-rank"), str(self.folder), TOKEN, "--", *argv]
        own = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": str(number), "HUB": "x", "CARME_REPORT_ENDS": "1", **environ}
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        return subprocess.Popen(words, env=own, stdin=null, stdout=pipe, stderr=pipe, text=True, cwd="/")

    def run(self, *argv: str, **environ: str) -> tuple[int, str, str]:
        """Run a rank; return its status, its output and its errors, without the report of its end."""
        process = self.start(*argv, **environ)
        out, err = process.communicate(timeout=30)
        return process.returncode, out, err.partition(rank.END_MARK)[0]

    @property
    def left(self) -> list[Path]:
        return [*self.folder.glob("rank-*"), *self.shm.parent.iterdir()]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_the_command_runs_with_the_plans_environment_and_what_a_rank_may_know(node: Node) -> None:
    status, out, err = node.run(
        *python("import os, json; print(json.dumps(dict(os.environ)))"),
        CARME_SLOT="7",
        PMIX_RANK="3",
        PMI_FD="5",
        CARME_DATA="secret",
        CUDA_VISIBLE_DEVICES="4,5,6,7",
        CARME_GPUS="1,3",
    )
    seen = json.loads(out)
    seen.pop("LC_CTYPE", None)  # Python sets it by itself
    assert (status, err) == (0, "")
    own = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": "3", "CUDA_VISIBLE_DEVICES": "5,7"}
    given = {"CARME_SLOT": "7", "PMIX_RANK": "3", "PMI_FD": "5", "SHM": f"/x{TOKEN}", "NAME": f"{TOKEN}-3"}
    mpi = {"PMIX_MCA_gds": "hash", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    assert seen == own | given | mpi
    assert node.left == []


@pytest.mark.parametrize(
    ("environ", "offset"),
    [
        ({"PMIX_RANK": "9", "SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, 3),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 0),
        ({"SLURM_PROCID": "700", "SLURM_LOCALID": "1", "SLURM_NTASKS": "1000"}, 1),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "CARME_SLOT": "w2-0-0"}, 2),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "3", "CARME_SLOT": "r2"}, 3),
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "3", "CARME_SLOT": "r62"}, 0),
    ],
)
@pytest.mark.parametrize(("code", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_ranks_have_pids_of_their_own_in_containers_that_count_anew(
    node: Node, environ: dict[str, str], offset: int, code: str, status: int
) -> None:
    """TensorBoard names files by them, and Open MPI would take another's memory for its own."""
    node.plan["argv"] = ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--", *node.plan["argv"]]
    node.plan["pass_env"] += ["SLURM_LOCALID", "SLURM_NTASKS"]
    code = f"import os, sys; print(os.getpid(), flush=True); {code}"
    found, out, _ = node.run(*python(code), **environ)
    assert (found, int(out)) == (status, 2 + offset)


def test_a_step_without_gpus_sees_none_also_where_devices_are_not_confined(node: Node) -> None:
    assert node.run(*python("import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"))[1] == "''\n"


def test_words_of_the_command_are_handed_on_as_they_are(node: Node) -> None:
    words = ["", "a b", "--", "$(touch x)", "@CARME_RANK@", "é\n"]
    status, out, _ = node.run(*python("import sys, json; print(json.dumps(sys.argv[1:]))"), *words)
    assert (status, json.loads(out)) == (0, words)


@pytest.mark.parametrize(
    ("code", "status"), [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("1/0", 1)]
)
def test_the_status_is_the_ranks(node: Node, code: str, status: int) -> None:
    assert node.run(*python(code))[0] == status
    assert node.left == []


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("import os; os._exit(7)", 7),
        ("import os; os.write(2, b'no end of line'); os.kill(os.getpid(), 9)", 137),
    ],
)
def test_the_last_line_of_its_errors_says_how_the_command_ended(node: Node, code: str, status: int) -> None:
    process = node.start(*python(code))
    err = process.communicate(timeout=30)[1]
    text, end = split_task_end(3, err.rstrip("\n").encode())
    assert end == TaskEnd(3, status, False, end.memory_mib if end else 0)
    assert text == (b"no end of line" if status == 137 else b"")


def test_a_rank_that_needs_more_memory_than_its_cgroup_has_says_so(node: Node, memory_cgroup: Path) -> None:
    (memory_cgroup / "memory.limit_in_bytes").write_text(str(96 << 20))
    enter = f"open({str(memory_cgroup / 'cgroup.procs')!r}, 'w').write('0')"
    code = f"import os, sys; {enter}; os.execv(sys.argv[1], sys.argv[1:])"
    node.document["rank"]["plan"]["argv"] = ["/usr/bin/env", "@CARME_ARGV@"]
    (node.folder / "data.json").write_text(json.dumps(node.document))
    words = ["/usr/bin/python3", "-IS", str(node.folder / "carme-rank"), str(node.folder), TOKEN, "--"]
    own = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": "0", "CARME_REPORT_ENDS": "1"}
    done = subprocess.run(
        [*python(code), *words, *python("bytearray(200 << 20)")], env=own, capture_output=True, timeout=30, check=False
    )
    assert split_task_end(0, done.stderr.splitlines()[-1])[1] == TaskEnd(0, 137, out_of_memory=True, memory_mib=96)


def test_an_end_is_reported_only_to_a_conductor_that_has_asked_for_it(node: Node) -> None:
    """An image of an older release would show the line among the output of the rank."""
    words = ["/usr/bin/python3", "-IS", str(node.folder / "carme-rank"), str(node.folder), TOKEN, "--"]
    (node.folder / "data.json").write_text(json.dumps(node.document))
    for environ, count in (({}, 0), ({"CARME_REPORT_ENDS": "1"}, 1)):
        own = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": "0", **environ}
        done = subprocess.run(
            [*words, *python("pass")], env=own, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.stderr.count(rank.END_MARK) == count


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A memory cgroup (v1) below that of this process."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if "memory" in line.split(":")[1].split(",")), None)
    folder = Path(f"/sys/fs/cgroup/memory{own}/carme-test-{os.getpid()}")
    if own is None or os.geteuid() or not os.access(folder.parent, os.W_OK):
        pytest.skip("this machine lets no memory cgroup (v1) be made")
    folder.mkdir()
    yield folder
    folder.rmdir()


def test_a_command_that_is_not_there_is_said(node: Node) -> None:
    status, _, err = node.run("/nowhere/python")
    assert (status, err) == (
        127,
        "[carme] /nowhere/python cannot be run in this container: No such file or directory\n",
    )


def test_an_image_that_is_missing_on_the_node_is_said(node: Node) -> None:
    node.plan["preflight"] = ["/nowhere/image"]
    process = node.start(*python("pass"))
    err, _, report = process.communicate(timeout=30)[1].partition(rank.END_MARK)
    assert (process.returncode, err) == (71, "[carme] the image is missing: /nowhere/image is not on this node\n")
    end = split_task_end(3, rank.END_MARK.encode() + report.encode())[1]
    assert end is not None
    assert (end.status, end.started) == (71, False)
    assert node.left == []


@pytest.mark.parametrize("broken", ["", "{}", '{"singleuser": "SECRET", "rank": 1}', '{"SECRET'])
def test_a_document_that_cannot_be_used_is_said_without_a_word_of_it(node: Node, broken: str) -> None:
    process = node.start(*python("pass"))
    process.communicate()
    (node.folder / "data.json").write_text(broken)
    own = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": "0"}
    words = ["/usr/bin/python3", "-IS", str(node.folder / "carme-rank"), str(node.folder), TOKEN, "--", "true"]
    done = subprocess.run(words, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert done.stderr.startswith("[carme-rank] the session's plan for ranks cannot be used (")
    assert "SECRET" not in done.stderr


def test_the_command_begins_with_signals_as_they_are_by_default(node: Node) -> None:
    code = "import signal; print([n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN])"
    out = node.run(*python(code + "; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"))[1]
    ignored = [int(signal.SIGPIPE), int(signal.SIGXFSZ)]  # by Python, at its start
    assert [int(word) for word in out.splitlines()[0].replace("<", "").strip("[]").split(", ") if word.isdigit()] in (
        [],
        ignored,
    )
    assert out.splitlines()[1] == "set()"


def test_term_gives_the_rank_its_grace_and_then_kills_all_below(node: Node) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0: os.setsid()\n"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    process = node.start(*python(code))
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=10)
    assert 1.2 < time.monotonic() - began < 3.5
    assert process.returncode == 137
    said, _, report = err.partition(rank.END_MARK)
    assert said == "[carme] the grace time is over\n"
    assert json.loads(report)["status"] == 137
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert node.left == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGTERM])
def test_no_signal_is_handed_on_since_slurm_told_the_rank_too(node: Node, number: signal.Signals) -> None:
    code = (
        "import signal, sys, time\n"
        "for n in (2, 10, 15): signal.signal(n, lambda n, _: print('got', n, flush=True))\n"
        "print('up', flush=True); time.sleep(0.5)"
    )
    process = node.start(*python(code))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert process.communicate(timeout=10)[0] == ""
    assert process.returncode == 0


def test_a_rank_whose_step_has_lost_its_mark_ends_by_itself(node: Node) -> None:
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(15, lambda *_: sys.exit(print('asked to end', flush=True)))\n"
        "os.write(1, b'up\\n'); time.sleep(60)"
    )
    process = node.start(*python(code))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(1.5)
    assert process.poll() is None  # while the mark is there it lives
    node.mark.unlink()
    assert process.communicate(timeout=10)[0] == "asked to end\n"
    assert node.left == []


def test_a_rank_whose_step_has_lost_its_mark_already_starts_nothing(node: Node) -> None:
    node.mark.unlink()
    assert node.run(*python("print('here')")) == (128 + signal.SIGTERM, "", "")
    assert node.left == []


# -- the memory that ranks of a node share ----------------------------------------------------------------------------


def test_the_folder_of_shared_memory_stays_until_the_last_rank_of_the_node_has_ended(node: Node) -> None:
    long = node.start(*python("import time; print('up', flush=True); time.sleep(60)"), number=0)
    assert long.stdout is not None
    assert long.stdout.readline() == "up\n"
    (node.shm / "segment").write_text("x")
    assert node.run(*python("pass"))[0] == 0
    assert (node.shm / "segment").exists()
    long.send_signal(signal.SIGTERM)
    long.communicate(timeout=10)
    assert node.left == []


def test_what_killed_ranks_left_is_removed_by_the_next_and_what_is_in_use_is_not(node: Node) -> None:
    stale, used, other = (node.shm.parent / f"carme-{letter * 12}" for letter in "abc")
    strange = node.shm.parent / "nccl-abc"
    for folder in (stale, used, other, strange):
        folder.mkdir()
        (folder / "segment").write_text("x")
    opened = os.open(used, os.O_RDONLY)
    fcntl.flock(opened, fcntl.LOCK_SH)
    if os.geteuid() == 0:
        os.chown(other, 2001, 2001)
    assert node.run(*python("pass"))[0] == 0
    os.close(opened)
    left = {used, strange} | ({other} if os.geteuid() == 0 else set())
    assert set(node.left) == left


def test_a_shared_folder_that_is_somebody_elses_is_not_used(node: Node) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder of somebody else")
    node.shm.mkdir()
    os.chown(node.shm, 2001, 2001)
    status, _, err = node.run(*python("pass"))
    assert (status, err) == (70, f"[carme] {node.shm}: belongs to somebody else\n")


@pytest.mark.parametrize(
    ("nodes", "own", "local", "measured"),
    [
        ("node[03-05,7]", "node04", "0", True),
        ("node[03-05,7]", "node03", "0", False),
        ("node[03-05,7]", "node04", "1", False),
        ("a1,b[2-3]", "b2", "0", True),
        ("a1,b[2-3]", "a1", "0", False),
        ("n[1-2]x[3-4]", "n1x3", "0", False),
        ("n1", "n1", "0", False),
        ("", "n1", "0", True),
        ("n1", "", "0", False),
    ],
)
def test_each_node_but_the_jobs_first_is_measured_by_the_steps_first_rank_on_it(
    nodes: str, own: str, local: str, *, measured: bool
) -> None:
    environ = {"SLURM_JOB_NODELIST": nodes, "SLURMD_NODENAME": own, "SLURM_LOCALID": local}
    assert rank.measures(environ) == measured


def test_a_rank_has_its_node_measured_with_all_gpus_of_the_job_and_ends_that_with_itself(node: Node) -> None:
    (node.folder / "carme-rank").write_text(RANK.read_text().replace("REPORT_AFTER = 15.0", "REPORT_AFTER = 0.0"))
    (node.folder / "carme-report").write_text(FORGED_REPORT)
    node.document["activity"] = {"url": "http://127.0.0.1:9", "token": "t"}
    where = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n2", "SLURM_LOCALID": "0"}
    gpus = {"CUDA_VISIBLE_DEVICES": "0,1,2", "CARME_GPUS": "1"}
    status, _, errors = node.run(*python(f"import time; time.sleep({WAIT})"), **where, **gpus)
    assert (status, errors) == (0, "")
    begun, ended = (node.folder / "reported").read_text().splitlines()
    folder, own, devices = begun.split()
    assert (folder, devices) == (str(node.folder), "0,1,2")
    assert own.startswith(str(node.folder / f"rank-{TOKEN}-"))
    assert ended == "TERM"
    assert not Path(own).exists()


def test_a_rank_on_the_jobs_first_node_starts_no_second_measurement(node: Node) -> None:
    (node.folder / "carme-rank").write_text(RANK.read_text().replace("REPORT_AFTER = 15.0", "REPORT_AFTER = 0.0"))
    (node.folder / "carme-report").write_text(FORGED_REPORT)
    node.document["activity"] = {"url": "http://127.0.0.1:9", "token": "t"}
    where = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n1", "SLURM_LOCALID": "0"}
    assert node.run(*python(f"import time; time.sleep({WAIT})"), **where)[0] == 0
    assert not (node.folder / "reported").exists()
