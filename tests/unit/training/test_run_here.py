"""A run from its folder to its end, with real ranks, on a machine that says that it is two nodes."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from carme_hub.training.run import control, description, environment, results
from carme_hub.training.run.new_run import create, launch
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import ENDED, NoRun, Run, State, all_runs
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session import companions

CONDUCTOR = Path(__file__).parent / "started_here.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def conducted(
    run: Run, nodes: int = 2, gpus: int = 0, broker: str = "BrokerThatStartsHere"
) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, str(CONDUCTOR), str(run.folder), str(nodes), str(gpus), broker]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.terminate()
            process.wait(15)


def end_of(run: Run, **options: object) -> State:
    """Conduct a run, look on, and return how it ended."""
    told: list[State] = []
    may_have_ended = suppress(control.NoConductor)  # before anybody looked on
    with conducted(run, **options), may_have_ended, run.follow() as states:  # type: ignore[arg-type]
        told.extend(states)
    last = run.state()
    assert last["state"] in ENDED
    assert told[-1:] in ([], [last])
    assert not (run.folder / "run.json").exists()  # the secret
    return last


#: What runs in a rank.
RANKS = ("carme_hub.training.rank.program", "carme_hub.training.elastic.worker")


def wait(run: Run, until: Callable[[State], object], limit: float = 15) -> State:
    end = time.monotonic() + limit
    while not until(state := run.state()):
        assert time.monotonic() < end, state
        time.sleep(0.02)
    return state


def alive(run: Run) -> list[str]:
    """Return the processes whose command line has the run's folder: its ranks."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if str(run.folder) in line and any(each in line for each in RANKS)]


def test_a_cell_with_variables_in_and_out() -> None:
    cell = "from carme_hub.training import here\nprint('I am', here.rank, 'of', here.size, 'on', here.node, factor)\n"
    cell += "found = [factor * here.size, __name__]\n"
    run = create(RunOptions(3, nodes=2, pull=("found",)), cell=cell, push={"factor": 7})
    state = end_of(run)
    assert (state["state"], state["message"], state["nodes"]) == ("finished", "", ["n1", "n2"])
    assert [(each["rank"], each["node"], each["state"]) for each in state["ranks"]] == [
        (0, "n1", "done"),
        (1, "n1", "done"),
        (2, "n2", "done"),
    ]
    assert [run.log(rank) for rank in range(3)] == [
        f"I am {rank} of 3 on {node} 7\n" for rank, node in enumerate(("n1", "n1", "n2"))
    ]
    assert run.result() == {"found": [21, "__main__"]}
    assert all_runs() == [run]
    assert oct(run.folder.stat().st_mode & 0o777) == "0o700"


def test_a_function_returns_what_each_rank_returned() -> None:
    def train(base: int, *, times: int) -> tuple[int, str]:
        from carme_hub.training import here

        return base + times * here.rank, os.environ["WORLD_SIZE"]

    run = create(RunOptions(2), call=(train, (10,), {"times": 5}))
    assert end_of(run, nodes=1)["state"] == "finished"
    assert [run.result(rank) for rank in range(2)] == [(10, "2"), (15, "2")]


def test_a_script_with_words_and_modules_beside_it(home: Path) -> None:
    (home / "beside.py").write_text("value = 5\n")
    (home / "train.py").write_text("import sys, beside\nif __name__ == '__main__': print(sys.argv[1:], beside.value)\n")
    run = create(RunOptions(1), script="train.py", args=["--lr", "0.1"])
    assert end_of(run)["state"] == "finished"
    assert run.log() == "['--lr', '0.1'] 5\n"


def test_a_module_runs_as_python_runs_it(home: Path) -> None:
    (home / "package").mkdir()
    (home / "package" / "__init__.py").touch()
    (home / "package" / "beside.py").write_text("value = 5\n")
    code = "import sys\nfrom .beside import value\nprint(__name__, sys.argv[1:], value)\n"
    (home / "package" / "train.py").write_text(code)
    run = create(RunOptions(2), module="package.train", args=["--lr", "1"])
    assert end_of(run)["state"] == "finished"
    assert [run.log(rank) for rank in range(2)] == ["__main__ ['--lr', '1'] 5\n"] * 2


@pytest.mark.parametrize(
    ("code", "said", "status"),
    [
        ("exit 0", "", 0),
        ("exit 7", "/bin/sh ended with exit status 7", 7),
        ("kill -SEGV $$", "/bin/sh was killed by SIGSEGV", 139),
    ],
)
def test_any_command_runs_with_the_environment_of_a_rank(code: str, said: str, status: int) -> None:
    run = create(RunOptions(2), command="/bin/sh", args=["-c", f'echo "$RANK of $WORLD_SIZE"; {code}'])
    state = end_of(run)
    if not status:
        assert state["state"] == "finished"
        assert [run.log(rank) for rank in range(2)] == ["0 of 2\n", "1 of 2\n"]
        return
    assert run.log(state["error"]["rank"]).startswith(f"{state['error']['rank']} of 2\n")
    assert state["error"]["type"].endswith("CommandFailed")
    assert state["error"]["message"] == said
    assert state["ranks"][state["error"]["rank"]]["exit"] == status


def test_a_command_that_is_told_to_stop_leaves_nothing() -> None:
    run = create(RunOptions(2, detach=True), command="/bin/sh", args=["-c", "echo on; sleep 60"])
    with conducted(run):
        wait(run, lambda _: run.log(0) and run.log(1))
        began = time.monotonic()
        assert run.stop()["state"] == "interrupted"
        assert time.monotonic() - began < 5
        assert not alive(run)


def test_the_first_error_comes_first_and_ends_all_ranks() -> None:
    cell = "import time\nfrom carme_hub.training import here\nif here.rank == 2:\n    {}['lr']\ntime.sleep(60)\n"
    run = create(RunOptions(3, nodes=2), cell=cell)
    began = time.monotonic()
    state = end_of(run)
    assert time.monotonic() - began < 6
    assert state["state"] == "failed"
    error = state["error"]
    assert (error["rank"], error["node"], error["type"], error["message"]) == (2, "n2", "KeyError", "'lr'")
    assert error["traceback"].splitlines()[1:3] == [
        f'  File "{run.folder}/cell.py", line 4, in <module>',
        "    {}['lr']",
    ]
    assert state["message"] == "KeyError in rank 2 on n2: 'lr'"
    assert run.error(2) == error
    assert [(each["state"], each["exit"]) for each in state["ranks"]] == [
        ("stopped", 143),
        ("stopped", 143),
        ("failed", 1),
    ]
    assert run.error(0) is None
    assert not alive(run)


def test_a_rank_that_dies_without_a_word_is_named_before_those_that_miss_it() -> None:
    cell = "import os, time\nfrom carme_hub.training import here\nif here.rank == 1: print('bye'); os._exit(7)\n"
    cell += "time.sleep(0.2)\nraise RuntimeError('Connection closed by peer')\n"
    state = end_of(create(RunOptions(2), cell=cell))
    assert (state["error"]["rank"], state["error"]["type"]) == (1, "Ended")
    assert "ended with exit status 7 without an error message" in state["message"]
    assert state["error"]["traceback"] == "bye"


#: Rank 1 ends while all others wait for it, as in an all-reduce over TCP; they learn of its end from the kernel.
IN_A_COLLECTIVE = """
import os, pathlib, socket, time
from carme_hub.training import here

port = pathlib.Path(os.environ["CARME_RUN_FOLDER"]) / "port"
if here.rank == 1:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port.with_suffix(".new").write_text(str(server.getsockname()[1]))
        port.with_suffix(".new").rename(port)
        links = [server.accept()[0] for _ in range(here.size - 1)]
        END
while not port.exists():
    time.sleep(0.01)
link = socket.create_connection(("127.0.0.1", int(port.read_text())))
try:
    if not link.recv(1):
        raise RuntimeError("Connection closed by peer")
except RuntimeError as error:
    if here.rank == 2:
        raise ValueError("training failed") from error
    raise
"""


@pytest.mark.parametrize("broker", ["BrokerThatStartsHere", "BrokerThatHearsLate"])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL without an error message"),
        ("os._exit(3)", "ended with exit status 3 without an error message"),
        ("os._exit(0)", "ended before its code did, without an error: os._exit() was called"),
    ],
)
def test_a_rank_that_dies_in_a_collective_is_named_and_the_others_are_its_echoes(
    end: str, how: str, ranks: int, broker: str
) -> None:
    run = create(RunOptions(ranks), cell=IN_A_COLLECTIVE.replace("END", end))
    state = end_of(run, broker=broker)
    assert (state["error"]["rank"], state["error"]["type"]) == (1, "Ended"), state
    assert state["message"].startswith(f"Rank 1 on n1 {how}"), state["message"]
    others = [rank for rank in range(ranks) if rank != 1]
    assert sorted(each["rank"] for each in state["error"]["echoes"]) == others
    assert [each["state"] for each in state["ranks"]] == ["failed" if rank == 1 else "stopped" for rank in range(ranks)]
    text = description.as_text(description.View(state, 0))
    assert "only lost rank 1: " in text
    assert not alive(run)


def test_a_rank_that_ends_the_process_in_the_middle_has_not_ended_well() -> None:
    state = end_of(create(RunOptions(2), cell="import os\nos._exit(0)"))
    assert (state["state"], state["error"]["type"]) == ("failed", "Ended")
    assert "os._exit() was called" in state["message"]


@pytest.mark.parametrize(("how", "said"), [("stop", "The run was stopped."), ("interrupt", "The run was interrupted.")])
def test_whoever_stops_a_run_leaves_no_rank(how: str, said: str) -> None:
    cell = "import time\nprint('on', flush=True)\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('off')\n"
    run = create(RunOptions(2, detach=True), cell=cell)
    with conducted(run):
        wait(run, lambda _: run.log(0) and run.log(1))
        began = time.monotonic()
        state = getattr(run, how)()
        assert time.monotonic() - began < 5
        assert (state["state"], state["message"], state["error"]) == ("interrupted", said, None)
        assert run.log(1) == ("on\noff\n" if how == "interrupt" else "on\n")
        assert not alive(run)


def test_ranks_that_want_to_stay_are_killed() -> None:
    cell = "import signal, time\nfor each in (signal.SIGTERM, signal.SIGINT): signal.signal(each, signal.SIG_IGN)\n"
    cell += "print('on')\ntime.sleep(60)\n"
    run = create(RunOptions(2, detach=True), cell=cell)
    with conducted(run):
        wait(run, lambda _: run.log(0) and run.log(1))
        began = time.monotonic()
        assert run.stop()["state"] == "interrupted"
        assert time.monotonic() - began < 5
        assert not alive(run)


def test_a_run_ends_when_nobody_looks_on_any_more_unless_it_is_detached() -> None:
    cell = "import time\ntime.sleep(60)\n"
    run, other = create(RunOptions(1), cell=cell), create(RunOptions(1, detach=True), cell=cell)
    with conducted(run), conducted(other):
        wait(other, lambda state: state["state"] == "running")  # so that it is seen below whether it still does
        for each in (run, other):
            with each.follow() as states:
                next(iter(states))
        state = wait(run, lambda state: state["state"] in ENDED)
        assert "--detach" in state["message"]
        assert other.state()["state"] == "running"
        other.stop()


def test_a_conductor_that_is_killed_leaves_a_lost_run_and_one_that_is_told_to_end_ends_its_ranks() -> None:
    run = create(RunOptions(1, detach=True), cell="import time\nprint('on')\ntime.sleep(60)\n")
    with conducted(run) as conductor:
        wait(run, lambda _: run.log(0))
        conductor.send_signal(signal.SIGTERM)
        wait(run, lambda state: state["state"] == "interrupted", 5)
    other = create(RunOptions(1, detach=True), cell="print('on')\nimport time; time.sleep(3)\n")
    with conducted(other) as conductor:
        wait(other, lambda _: other.log(0))
        conductor.kill()
        conductor.wait()
        assert other.state()["state"] == "lost"
        assert other.stop()["state"] == "lost"
        with pytest.raises(control.NoConductor):
            other.resize(1)


def test_a_run_of_another_container_is_stopped_by_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(RunOptions(1, detach=True), cell="import time\ntime.sleep(60)\n")
    with conducted(run):
        monkeypatch.setattr(control, "folder", lambda: home)  # there is no socket here
        assert run.stop()["message"] == "The run was stopped from another session."


def test_a_conductor_that_begins_when_nobody_waits_for_it_any_more_ends(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = home / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o700)
    run = create(RunOptions(1, detach=True), cell="import time\ntime.sleep(60)\n")
    with monkeypatch.context() as only:
        only.setattr(sys, "executable", str(slow))
        with pytest.raises(NoRun, match="did not start within"):
            launch(run, 0.2)
    assert run.state()["state"] == "failed"
    with conducted(run):
        wait(run, lambda state: state["state"] == "interrupted", 30)


def test_what_a_lost_run_had_beside_the_session_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class HubThatTakesBack:
        """Is asked for two companions, one of which is not this session's."""

        @staticmethod
        def from_environ() -> HubThatTakesBack:
            return HubThatTakesBack()

        def close(self, id: str) -> None:
            closed.append(id)
            if id == "theirs":
                raise companions.Refused("no")

    monkeypatch.setattr(companions, "Hub", HubThatTakesBack)
    run = create(RunOptions(1), cell="")
    write_json(run.folder / "state.json", run.state() | {"conductor": {"pid": 1}, "companions": ["theirs", "ours"]})
    assert "stop the run to give back" in run.state()["message"]
    assert run.stop()["state"] == "lost"
    assert closed == ["theirs", "ours"]
    assert run.state()["companions"] == []
    assert "give back" not in run.state()["message"]


def test_a_rank_that_does_not_come_is_named() -> None:
    run = create(RunOptions(3, nodes=2), cell="import time\ntime.sleep(60)\n", start_limit=10)
    state = end_of(run, broker="BrokerThatLosesARank")
    assert state["message"].startswith("Rank 2 (on n2) did not come within 10 s.")
    assert (state["error"]["rank"], state["error"]["node"], state["error"]["type"]) == (2, "n2", "NotStarted")
    assert not alive(run)


#: As mpi4py, where rank 1 waits in MPI_Init for as long as a file says.
MPI_THAT_WAITS = """
import os, pathlib, time
if os.environ["CARME_RANK"] == "1": time.sleep(float(pathlib.Path(__file__).with_name("seconds").read_text()))
class COMM_WORLD:
    Get_size = staticmethod(lambda: 2)
Is_initialized, Is_finalized = (lambda: True), (lambda: False)
"""


@pytest.mark.parametrize("seconds", [0, 60])
def test_an_mpi_that_does_not_start_names_its_ranks(
    seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mpi4py").mkdir()
    for name, text in (("__init__.py", ""), ("MPI.py", MPI_THAT_WAITS), ("seconds", str(seconds))):
        (tmp_path / "mpi4py" / name).write_text(text)
    monkeypatch.setenv("PMIX_RANK", "0")
    # Code that goes on for longer than the limit after MPI has started is no fault.
    cell = f"import sys, time\nsys.path.insert(0, {str(tmp_path)!r})\nimport mpi4py.MPI\ntime.sleep(4)\n"
    state = end_of(create(RunOptions(2, nodes=2, backend="mpi"), cell=cell, start_limit=3))
    if not seconds:
        assert state["state"] == "finished", state
        return
    assert state["message"].startswith("Rank 1 (on n2) did not start MPI within 3 s. All ranks wait in MPI_Init.")
    assert (state["error"]["rank"], state["error"]["type"]) == (1, "NotStarted")


def test_the_time_that_is_left_is_known_from_the_first_line_on_and_the_same_for_all_ranks() -> None:
    cell = "from carme_hub.training import here\nimport time\nprint(time.time() + here.time_left())\n"
    run = create(RunOptions(3, seconds=600), cell=cell)
    assert end_of(run)["state"] == "finished"
    ends = [float(run.log(rank)) for rank in range(3)]
    assert max(ends) - min(ends) < 0.01
    assert ends[0] - run.state()["began"] == pytest.approx(600, abs=20)


def test_a_rank_is_told_what_torchrun_tells_its_workers_and_nothing_of_slurm() -> None:
    cell = "import json, os\nprint(json.dumps(dict(os.environ)))\n"
    run = create(RunOptions(3, nodes=2), cell=cell)
    assert end_of(run)["state"] == "finished"
    seen = [json.loads(run.log(rank)) for rank in range(3)]
    assert [each["GROUP_RANK"] for each in seen] == ["0", "0", "1"]
    assert {each["TORCHELASTIC_RUN_ID"] for each in seen} == {run.id}
    assert len({each["JAX_COORDINATOR_ADDRESS"] for each in seen}) == 1
    assert [name for each in seen for name in each if name.startswith("SLURM")] == []


def test_variables_that_go_along_are_set_before_python_begins_and_are_nowhere_on_a_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = dict(os.environ)
    monkeypatch.setattr(environment, "session_environ", lambda: before)
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    cell = "import os, subprocess, sys\nprint(os.environ['WANDB_API_KEY'], os.environ['OWN'], hash('carme'))\n"
    cell += "print(subprocess.run(['ps', '-eo', 'args'], capture_output=True, text=True).stdout, file=sys.stderr)\n"
    run = create(RunOptions(2, env=("OWN=1",)), cell=cell)
    assert (run.folder / environment.FILE).stat().st_mode & 0o777 == 0o600
    told = end_of(run)
    assert told["environ"] == {"forwarded": ["OWN", "PYTHONHASHSEED", "WANDB_API_KEY"], "left_out": ["LD_LIBRARY_PATH"]}
    expected = subprocess.run(
        [sys.executable, "-c", "print(hash('carme'))"], env={"PYTHONHASHSEED": "7"}, capture_output=True, check=True
    ).stdout.decode()
    for rank in range(2):
        first, *processes = run.log(rank).splitlines(keepends=True)
        assert first == f"s3cret 1 {expected}"
        assert not any("s3cret" in line for line in processes)
    assert not (run.folder / environment.FILE).exists()
    assert "s3cret" not in "".join(path.read_text() for path in run.folder.glob("*.json"))
    text = description.as_text(description.View(told, 0))
    assert "With OWN, PYTHONHASHSEED and WANDB_API_KEY from here. Not forwarded to the ranks: LD_LIBRARY_PATH." in text


#: Fails as often as ``FAILURES`` says, each time in another way, and counts its starts.
FAILING = """
import os, pathlib
from carme_hub.training import here

folder = pathlib.Path(os.environ["CARME_RUN_FOLDER"])
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
(folder / f"began-{count}-{here.rank}").touch()
if here.rank == 1 and count < FAILURES:
    if count % 2:
        os.kill(os.getpid(), 9)
    raise ValueError(f"failure {count}")
import time
time.sleep(0 if count == FAILURES else 60)
print("done", count, os.environ["TORCHELASTIC_MAX_RESTARTS"])
"""


def test_a_run_is_started_again_as_often_as_was_asked_with_the_reason_of_each_time() -> None:
    run = create(RunOptions(2, max_restarts=3), cell=FAILING.replace("FAILURES", "2"))
    state = end_of(run)
    assert (state["state"], state["error"], state["message"]) == ("finished", None, "")
    assert [(each["rank"], each["type"]) for each in state["restarts"]] == [(1, "ValueError"), (1, "Ended")]
    assert "SIGKILL" in state["restarts"][1]["message"]
    assert [each["state"] for each in state["ranks"]] == ["done", "done"]
    assert "[carme] Restart 1 of 3: ValueError in rank 1 on n1: failure 0" in run.log(0)
    assert run.log(0).endswith("done 2 3\n")
    assert len(list(run.folder.glob("began-*"))) == 6
    assert (run.folder / "error-1.1.json").exists()
    assert "Started again 2 times, after rank 1: Ended: Rank 1 on n1 was killed by SIGKILL" in description.as_text(
        description.View(state, 0)
    )


def test_a_run_that_fails_once_too_often_fails_with_its_last_error() -> None:
    run = create(RunOptions(2, max_restarts=1), cell=FAILING.replace("FAILURES", "9"))
    state = end_of(run)
    assert (state["state"], state["error"]["type"], len(state["restarts"])) == ("failed", "Ended", 1)


#: Rank 1 loads and the others wait for it; the module is torch's in as much as its path and a name matter.
HANGING = """
import time
from carme_hub.training import here
from carme_hub.training.rank import whereabouts

whereabouts.TELL_SECONDS = 0.2
names = {"time": time}
path = "/x/site-packages/torch/distributed/distributed_c10d.py"
exec(compile("def all_reduce():\\n    time.sleep(60)\\n", path, "exec"), names)

def load_batch():
    time.sleep(60)

here.step(1)
load_batch() if here.rank == 1 else names["all_reduce"]()
"""


def test_a_run_that_hangs_says_which_rank_is_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALL_SECONDS", "1")
    run = create(RunOptions(3, detach=True), cell=HANGING)
    with conducted(run):
        state = wait(run, lambda state: state["stalled"], 30)
        assert re.fullmatch(
            r"No rank goes on: rank 1 in load_batch \(cell.py, line 12\) for \d+ s; "
            r"ranks 0 and 2 in all_reduce \(cell.py, line 15\) for \d+ s\.",
            state["stalled"],
        ), state["stalled"]
        assert state["stalled"] in description.as_text(description.View(state, 0))
        assert "in load_batch" in (run.folder / "stack-1.txt").read_text()
        stacks = run.stacks(20)
        assert sorted(stacks) == [0, 1, 2]
        assert ["in load_batch" in stacks[rank] for rank in range(3)] == [False, True, False]
        assert run.stop()["stalled"] == ""
    with pytest.raises(control.NoConductor):
        run.stacks()


def test_the_time_limit_ends_a_run() -> None:
    state = end_of(create(RunOptions(1, seconds=1), cell="import time\ntime.sleep(60)\n"))
    assert (state["state"], state["error"]["type"]) == ("failed", "TimeLimit")


def test_steps_scalars_and_gpu_time_are_told_while_it_runs() -> None:
    cell = "import time\nfrom carme_hub.training import here\nfrom carme_hub.training.rank import progress\n"
    cell += "progress.WINDOW, before, after = 1e9, [], []\nfor n in range(30):\n"
    cell += "    before.append(time.monotonic())\n"
    cell += "    here.step(n + 1, total=30, samples=4, loss=1 / (n + 1))\n"
    cell += "    after.append(time.monotonic()); time.sleep(0.1)\n"
    # The first step and the last were taken between these times, however slow the machine is.
    cell += "print(4 * 29 / (after[-1] - before[0]), 4 * 29 / (before[-1] - after[0]))\n"
    run = create(RunOptions(2, gpus_per_task=2), cell=cell)
    with conducted(run, nodes=1, gpus=4), run.follow() as states:
        seen = list(states)
    steps = [state["ranks"][1]["step"] or 0 for state in seen if state["ranks"]]
    assert steps == sorted(steps)
    assert len(set(steps)) > 2
    last = seen[-1]["ranks"][0]
    assert (last["step"], last["total"], last["samples"]) == (30, 30, 120)
    slowest, fastest = map(float, run.log(0).split())
    assert slowest - 0.001 <= last["rate"] <= fastest + 0.001
    assert last["cpu"] is not None
    assert seen[-1]["gpu_seconds"] >= 4 * 3
    lines = (run.folder / "scalars.jsonl").read_text().splitlines()
    assert len(lines) == 30
    assert (run.folder / "scalars-1.jsonl").exists()


def test_each_rank_has_gpus_of_its_own() -> None:
    cell = "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CARME_DEVICES'])"
    for each, seen in ((1, ["0,1 0\n", "0,1 1\n"]), (2, ["0,1 0,1\n", "2,3 0,1\n"])):
        run = create(RunOptions(2, gpus_per_task=each), cell=cell)
        assert end_of(run, nodes=1, gpus=2 * each)["state"] == "finished"
        assert [run.log(0), run.log(1)] == seen


def test_variables_that_cannot_be_fetched_cost_nothing_but_themselves() -> None:
    cell = "import threading\nbig, fine, lock = bytes(2000), 7, threading.Lock()\n"
    run = create(RunOptions(1, pull=("big", "fine", "lock", "gone")), cell=cell, limit=1000)
    state = end_of(run)
    assert (state["state"], state["error"]) == ("finished", None)
    assert run.result(0) == {"fine": 7}
    assert pickle.loads((run.folder / "pulled-big.pkl").read_bytes()) == bytes(2000)
    assert f"The variable big has {len(pickle.dumps(bytes(2000))):,} bytes; --pull fetches" in state["message"]
    assert f"It is in {run.folder}/pulled-big.pkl" in state["message"]
    assert "The variable lock cannot be pickled" in state["message"]
    assert "The code has no variable gone" in state["message"]


def test_a_result_that_is_too_large_stays_in_the_folder_and_one_that_cannot_be_kept_is_said() -> None:
    def train() -> object:
        import threading

        from carme_hub.training import here

        return bytes(200_000) if here.rank == 0 else threading.Lock()

    run = create(RunOptions(2), call=(train, (), {}), limit=100_000)
    state = end_of(run)
    assert (state["state"], state["error"]) == ("finished", None)
    assert f"What rank 0 returned has {len(pickle.dumps(bytes(200_000))):,} bytes" in state["message"]
    assert "What rank 1 returned cannot be pickled" in state["message"]
    with pytest.raises(results.Rejected, match=r"result\(0, any_size=True\) reads it here"):
        run.result(0)
    assert run.result(0, any_size=True) == bytes(200_000)
    with pytest.raises(results.NoResult, match="What rank 1 returned cannot be pickled"):
        run.result(1)


def test_twenty_runs_at_once_do_not_collide() -> None:
    runs = [create(RunOptions(1, name="same"), cell=f"print({number})") for number in range(20)]
    assert len({run.id for run in runs}) == 20
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(conducted(run))
        assert [wait(run, lambda state: state["state"] in ENDED)["state"] for run in runs] == ["finished"] * 20
    assert [run.log() for run in runs] == [f"{number}\n" for number in range(20)]
