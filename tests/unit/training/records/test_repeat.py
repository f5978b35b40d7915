"""Runs are recorded, compared and repeated; ranks are processes of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conducted_here import launched_here

from carme_hub.training import command, distributed
from carme_hub.training.records import record
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.run_folder import Run
from carme_hub.training.run.run_options import InvalidOptions, RunOptions, parse_changes


@pytest.fixture(autouse=True)
def session(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A session of one node without GPUs, in which ranks are processes of this machine."""
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setenv("CARME_IMAGE", "training")
    monkeypatch.setenv("CARME_IMAGE_PATH", "/images/training-0123")
    monkeypatch.setenv("CARME_IMAGE_DIGEST", "sha256:0123")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(home.parent))
    for name in ("SLURM_GPUS_ON_NODE", "CARME_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    with launched_here(monkeypatch):
        yield


SCRIPT = """
import sys
from carme_hub.training import here

here.log_params(seed=1, data={"set": "digits", "version": 3})
here.log_params(seed=int(sys.argv[1]))
for step in range(3):
    here.step(step, total=3, loss=1 / (step + int(sys.argv[1])))
print(here.rank, here.size, sys.argv[1:])
"""


def train(home: Path, name: str, *words: str, script: str = SCRIPT) -> Run:
    (home / "train.py").write_text(script)
    assert command.main(["train", "--name", name, *words]) == 0
    return Run.load(name)


def test_a_run_keeps_what_repeats_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = home / "project"
    subprocess.run(["git", "init", "-q", "-b", "work", str(project)], check=True)
    monkeypatch.chdir(project)
    run = train(project, "first", "-n", "2", "--time", "1h", "train.py", "5")
    end = time.monotonic() + 20
    while not (run.folder / record.RECORD).exists() and time.monotonic() < end:  # its conductor writes it at the end
        time.sleep(0.05)
    kept = record.read_record(run)
    assert kept["git"]["branch"] == "work"
    assert "train.py" in kept["git"]["changed"]
    assert kept["image"] == {"name": "training", "path": "/images/training-0123", "digest": "sha256:0123"}
    assert kept["packages"]["pytest"] == pytest.__version__
    assert record.read_params(run) == {"seed": 5, "data": {"set": "digits", "version": 3}}
    assert record.last_scalars(run) == {"loss": pytest.approx(1 / 7)}
    assert record.code_of(run) == SCRIPT
    for name in (record.RECORD, record.SCRIPT):
        assert (run.folder / name).stat().st_mode & 0o777 == 0o600


def test_runs_are_compared(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(home, "first", "-n", "2", "train.py", "5")
    train(
        home, "second", "-n", "1", "--max-restarts", "2", "train.py", "6", script=SCRIPT.replace("range(3)", "range(4)")
    )
    distributed.mark("second", star=True, note="<b>")
    capsys.readouterr()
    assert command.main(["runs", "compare", "first", "second"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "first second"
    for line in (
        "Result: loss 0.142857 0.111111",
        "Result: Marks ★ <b>",
        "Options: -n 2 1",
        "Options: --max-restarts 2",
        "Options: arguments 5 6",
        "Parameters: seed 5 6",
        "-for step in range(3):",
        "+for step in range(4):",
    ):
        assert line in lines
    assert not [line for line in lines if line.startswith(("Packages:", "Parameters: data", "Result: State"))]
    assert "Result: State" in repr(distributed.compare("first", "second", everything=True))
    page = distributed.compare("first", "second")._repr_html_()
    assert "★ &lt;b&gt;" in page
    assert "+for step in range(4):" in page
    # Of one run all is shown.
    assert command.main(["runs", "show", "first"]) == 0
    assert "Packages: pytest" in capsys.readouterr().out
    assert command.main(["runs", "show", "first", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["record"]["python"]
    assert command.main(["runs", "show", "first", "--code"]) == 0
    assert capsys.readouterr().out == SCRIPT
    assert command.main(["runs", "compare", "first"]) == command.CANNOT
    assert command.main(["runs", "mark", "first", "--star", "--tag", "a", "--note", "good"]) == 0
    assert "first: ★ #a good\n" in capsys.readouterr().out
    assert command.main(["runs", "--tag", "a"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_script_is_repeated_as_it_was_and_with_changes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(home, "first", "-n", "2", "train.py", "5", "--lr", "1")
    capsys.readouterr()
    assert command.main(["runs", "repeat", "first"]) == 0
    assert capsys.readouterr().out == "0 2 ['5', '--lr', '1']\n"
    again = Run.load("first")
    assert (again.id, again.request()["repeats"]) == ("first-2", "first-1".removesuffix("-1"))
    assert command.main(["runs", "repeat", "first-1", "-n", "3", "--all", "--", "7"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [f"[{rank}] {rank} 3 ['7']" for rank in range(3)]
    # A script that has changed since would be another run.
    (home / "train.py").write_text("print('new')")
    assert command.main(["runs", "repeat", "first-1"]) == command.CANNOT
    said = capsys.readouterr().err
    assert "train.py has changed since first. Run it as it is now with --changed-code. What ran then is " in said
    assert command.main(["runs", "repeat", "first-1", "--changed-code"]) == 0
    assert capsys.readouterr().out == "new\n"


def test_a_cell_and_a_function_are_repeated_with_their_variables(home: Path) -> None:
    from carme_hub.training.launch import start

    cell = start.begin(RunOptions(1, name="cell", push=("x",), pull=("y",)), cell="y = x * 2", push={"x": 21})
    start.follow(cell)
    (home / "elsewhere").mkdir()
    again = distributed.repeat(cell, n=2)
    assert again.result() == {"y": 42}
    assert len(again.state()["ranks"]) == 2
    called = distributed.start(pow, (2, 5), n=1, name="call")
    assert distributed.watch(called)["state"] == "finished"
    repeated = distributed.repeat("call")  # it was detached, so this is too
    assert distributed.watch(repeated)["state"] == "finished"
    assert repeated.result() == 32
    with pytest.raises(CannotRun, match="cell or a function of a notebook, which has no arguments"):
        distributed.repeat(cell, args=["1"])


def test_variables_of_then_are_set_again(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import os\nprint(os.environ['SEED'])"
    train(home, "first", "-n", "1", "--env", "SEED=1", "train.py", script=script)
    assert "SEED=1" not in (Run.load("first").folder / "asked.json").read_text()  # it may be a secret
    capsys.readouterr()
    assert command.main(["runs", "repeat", "first"]) == command.CANNOT
    assert "SEED is not set here" in capsys.readouterr().err
    assert command.main(["runs", "repeat", "first", "--env", "SEED=2"]) == 0
    assert capsys.readouterr().out == "2\n"
    monkeypatch.setenv("SEED", "3")
    assert command.main(["runs", "repeat", "first-1"]) == 0
    assert capsys.readouterr().out == "3\n"


def test_a_run_is_repeated_by_the_python_of_then(home: Path) -> None:
    run = train(home, "first", "-n", "1", "train.py", "1")
    asked = run.request()
    assert asked["python"] == sys.executable
    (run.folder / "asked.json").write_text(json.dumps(asked | {"python": "/gone/bin/python"}))
    with pytest.raises(CannotRun, match="ran with /gone/bin/python, which is not there any more"):
        distributed.repeat(run)


def test_an_option_can_be_switched_off(home: Path) -> None:
    (home / "train.py").write_text(SCRIPT)
    assert (
        command.main(["train", "-n", "1", "--name", "a", "--max-restarts", "3", "--time", "1h", "train.py", "1"]) == 0
    )
    given = distributed.repeat("a", max_restarts=0, time=None).request()["given"]
    assert (given["max_restarts"], given["seconds"], given["ranks"]) == (0, 0, 1)


def test_a_run_of_an_older_release_has_no_packages_that_differ(home: Path) -> None:
    train(home, "first", "-n", "1", "train.py", "1")
    train(home, "second", "-n", "2", "--gpus-per-task", "0", "train.py", "1")
    (Run.load("first").folder / record.RECORD).unlink()
    rows = {(row.group, row.name): row.values for row in distributed.compare("first", "second").rows}
    assert rows[("Options", "--gpus-per-task")] == ("", "0")
    assert not [key for key in rows if key[0] == "Packages"]


def test_what_cannot_be_repeated_says_why(home: Path) -> None:
    run = train(home, "first", "-n", "1", "train.py", "1")
    with pytest.raises(CannotRun, match="--max-restarts 101"):
        distributed.repeat(run, max_restarts=101)
    (home / "train.py").unlink()
    with pytest.raises(CannotRun, match=r"train\.py cannot be read"):
        distributed.repeat(run)
    request = run.request()
    del request["given"]
    (run.folder / "asked.json").write_text(json.dumps(request))
    with pytest.raises(CannotRun, match="of an older release"):
        distributed.repeat(run)


BEFORE = RunOptions(
    4,
    gpus_per_node=2,
    gpus_per_task=1,
    cpus_per_task=3,
    mem_per_gpu=2048,
    backend="horovod",
    elastic=(2, 8),
    seconds=5400,
    name="old",
    env=("SEED",),
    no_env=True,
    only_companion=True,
    push=("x",),
    pull=("y",),
)


def test_options_stay_unless_they_are_changed() -> None:
    assert parse_changes([], BEFORE, {})[0] == BEFORE
    changed = parse_changes(["-n", "6", "--time", "10m", "--name", "new", "--", "a", "-n"], BEFORE, {})
    assert (changed[0].ranks, changed[0].seconds, changed[0].name, changed[1]) == (6, 600, "new", ["a", "-n"])
    assert not parse_changes(["--no-only-companion"], BEFORE, {})[0].only_companion
    assert not parse_changes(["--no-detach"], RunOptions(2, detach=True), {})[0].detach
    with pytest.raises(InvalidOptions, match="--push and --pull cannot be changed"):
        parse_changes(["--push=z"], BEFORE, {})
    with pytest.raises(InvalidOptions, match="--nodes and --gpus-per-node both"):
        parse_changes(["--nodes", "2"], BEFORE, {})
