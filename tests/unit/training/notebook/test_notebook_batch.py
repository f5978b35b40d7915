"""What ``--dry-run`` prints is a batch script that a shell runs, and what runs it outside of the hub is srun itself."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from carme_hub.node import srun
from carme_hub.training.launch.batch_script import batch_script
from carme_hub.training.run import results
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.run_options import parse_line
from carme_hub.training.session import batch_job
from carme_hub.training.session.step_broker import Allocation, Broker, NoBroker, NotReady, Step

HAVE = Allocation(7, ("n1",), 8, 2, "a100", 0.0, "10.0.0.1")
ENVIRON = {"SLURM_JOB_ACCOUNT": "vision", "SLURM_JOB_PARTITION": "gpu", "SLURM_MEM_PER_NODE": "4096"}
CELL = 'print("it\'s $HOME `x` \\\\n")\nCARME_END\n'


def test_the_job_has_what_the_run_needs_and_is_charged_as_the_session() -> None:
    text = batch_script(
        parse_line("-n 4 --time 30m --name run1 --detach"), cell="pass", allocation=HAVE, environ=ENVIRON
    )
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")] == [
        "job-name=run1",
        "nodes=2",
        "ntasks=4",
        "cpus-per-task=4",
        "ntasks-per-node=2",
        "gres=gpu:a100:2",
        "mem=4096M",
        "time=30",
        "account=vision",
        "partition=gpu",
        "output=%x-%j.log",
    ]
    assert '-n 4 --nodes 2 --gpus-per-task 1 --backend torchrun --time 1800s --name run1 --cell "$work/cell.py"' in text
    assert max(map(len, lines)) <= 200
    small = batch_script(parse_line("-n 2 --gpus-per-task 0"), cell="pass", allocation=HAVE, environ={})
    assert "gres" not in small
    assert "nodes=1\n" in small


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, and a Python there that keeps what it is given."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/bash\npwd > "$HOME/where"\nprintf "%s\\n" "$@" > "$HOME/words"\n'
        'for file in "$@"; do [ -f "$file" ] && cp "$file" "$HOME/"; done; true\n'
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def run(text: str, home: Path) -> None:
    done = subprocess.run(
        ["bash", "-s"],
        input=text,
        text=True,
        capture_output=True,
        env={**os.environ, "CARME_PYTHON": str(home / "python"), "HOME": str(home)},
        cwd="/",
        timeout=30,
    )
    assert done.returncode == 0, done.stderr


def test_the_script_brings_cell_and_variables_as_they_are_and_leaves_no_file(ran: Path) -> None:
    text = batch_script(
        parse_line("-n 2 --push cfg --pull found"),
        cell=CELL,
        push={"cfg": {"lr": 0.1}},
        allocation=HAVE,
        environ=ENVIRON,
    )
    run(text, ran)
    words = (ran / "words").read_text().splitlines()
    assert words[:4] == ["-m", "carme_hub.training.command", "train", "-n"]
    assert (ran / "cell.py").read_text() == CELL
    assert results.load_variables(base64.decodebytes((ran / "push.base64").read_bytes())) == {"cfg": {"lr": 0.1}}
    assert words[words.index("--pull") + 1] == "found"
    assert (ran / "where").read_text().strip() == str(ran)
    assert list((ran / ".carme/scripts").iterdir()) == []


def test_a_program_keeps_its_words(ran: Path) -> None:
    program = ran / "my script.py"
    program.write_text("pass")
    run(
        batch_script(parse_line("-n 2"), program=["my script.py", "--lr", "a b", "$x"], allocation=HAVE, environ={}),
        ran,
    )
    assert (ran / "words").read_text().splitlines()[-4:] == [str(program), "--lr", "a b", "$x"]


def test_variables_that_are_too_large_for_a_script_are_named() -> None:
    with pytest.raises(CannotRun, match=r"The variable big has 2\.0 MiB; the limit is 1\.0 MiB"):
        batch_script(
            parse_line("-n 2 --push big"), cell="pass", push={"big": bytes(2 << 20)}, allocation=HAVE, environ={}
        )


def test_a_job_that_may_be_requeued_says_so_to_slurm_and_keeps_what_it_printed() -> None:
    text = batch_script(parse_line("-n 2 --requeue"), cell="pass", allocation=HAVE, environ=ENVIRON)
    assert {"#SBATCH --requeue", "#SBATCH --open-mode=append"} <= set(text.splitlines())
    assert " --requeue --cell " in text
    assert "requeue" not in batch_script(parse_line("-n 2"), cell="pass", allocation=HAVE, environ=ENVIRON)


# -- outside of the hub -----------------------------------------------------------------------------------------------


def test_srun_is_asked_for_the_same_as_by_the_broker_of_a_session() -> None:
    step = Step("run1", 4, ("true",), nodes=("n1", "n2"), gpus_per_node=2, mpi="pmix", kill_on_bad_exit=False)
    asked_for = {name: getattr(step, name) for name in Step.__dataclass_fields__}
    have = Allocation(7, ("n1", "n2"), 1, 2, "", 0.0, "")
    theirs = srun.srun_argv(asked_for, {"job": 7, "gpus": 2}, list(step.nodes), 5)
    of_the_broker = {"-v", "--error=/proc/self/fd/5", "--open-mode=append"}  # how it hears srun itself
    assert set(theirs) - of_the_broker == set(batch_job.srun_options(step, have))


def programs(folder: Path, **texts: str) -> dict[str, str]:
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o700)
    return {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


def test_a_batch_job_has_no_broker_and_needs_none(tmp_path: Path) -> None:
    environ = programs(
        tmp_path,
        scontrol='if [ "$1" = show ]; then printf "n1\\nn2\\n"; else echo "NodeName=n2 NodeAddr=127.0.0.9 x"; fi',
        srun='echo "0: $SLURM_NTASKS ${@: -3}"; exit 3',
    )
    environ |= {
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
        "SLURM_NTASKS": "9",
        "SLURMD_NODENAME": "n1",
    }
    environ |= {"CARME_CONTAINER": "apptainer exec"}
    broker = batch_job.broker_here(environ)
    have = broker.allocation()
    assert (have.job, have.nodes, have.cpus, have.gpus) == (7, ("n1", "n2"), 4, 2)
    assert have.address.startswith("127.")
    with pytest.raises(NotReady, match="no companions"):
        broker.allocation("some-companion")
    with pytest.raises(NoBroker, match="leave --elastic out"):
        broker.start(Step("r", 1, ("rank",), slot="w3"), 1, 2)
    out = tmp_path / "out"
    with out.open("wb") as file:
        step = broker.start(Step("r", 2, ("rank",)), file.fileno(), file.fileno())
        assert step.wait(10) == 3
        assert step.wait() == 3
        step.close()
    assert out.read_text() == "0:  apptainer exec rank\n"  # no option of srun comes from the job's environment


def test_the_ranks_of_an_array_s_task_know_which_it_is(tmp_path: Path) -> None:
    environ = programs(
        tmp_path, scontrol='echo "n1"; echo "$@" >> "$(dirname "$0")/asked"', srun='echo "$SLURM_ARRAY_TASK_ID"'
    )
    broker = batch_job.DirectBroker(environ | {"SLURM_ARRAY_TASK_ID": "5"})
    with (tmp_path / "out").open("wb") as file:
        broker.start(Step("r", 1, ("rank",)), file.fileno(), file.fileno()).wait(10)
    assert (tmp_path / "out").read_text() == "5\n"
    broker.requeue()
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "requeue 7"


def test_a_step_that_wants_to_stay_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_job, "KILL_AFTER", 0.2)
    environ = programs(tmp_path, scontrol="echo n1", srun="trap '' TERM; echo on; while :; do sleep 0.1; done")
    out = tmp_path / "out"
    with out.open("wb") as file:
        step = batch_job.broker_here(environ).start(Step("r", 1, ("rank",)), file.fileno(), file.fileno())
    end = time.monotonic() + 20
    while out.read_text() != "on\n":  # before, it is not deaf
        assert time.monotonic() < end
        time.sleep(0.01)
    assert step.wait(0.3) is None
    step.signal("KILL")
    assert step.wait(5) == 137


def test_a_session_has_its_broker_and_elsewhere_it_is_said_what_is_missing(tmp_path: Path) -> None:
    session = {"CARME_SESSION_FOLDER": str(tmp_path), "SLURM_JOB_ID": "7"}
    assert type(batch_job.broker_here(session)) is Broker
    assert type(batch_job.broker_here({})) is Broker
    environ = programs(tmp_path, scontrol="echo no such job >&2; exit 1")
    with pytest.raises(NoBroker, match="no such job"):
        batch_job.broker_here(environ).allocation()
    with pytest.raises(NoBroker, match="scontrol is not on"):
        batch_job.broker_here({"SLURM_JOB_ID": "7", "PATH": "/nonexistent"}).allocation()
