"""A run that fails says why: the first error, the rank that died, what did not start, what hangs."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from conducted_here import alive, conducted, end_of, wait

from carme_hub.training.launch.new_run import create
from carme_hub.training.run import control, description
from carme_hub.training.run.run_options import RunOptions

pytestmark = pytest.mark.usefixtures("home")


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
    says = re.compile(
        r"No rank goes on: rank 1 in load_batch \(cell.py, line 12\) for \d+ s; "
        r"ranks 0 and 2 in all_reduce \(cell.py, line 15\) for \d+ s\."
    )
    run = create(RunOptions(3, detach=True), cell=HANGING)
    with conducted(run):
        # On a busy machine a rank may be silent for a second too, which is said until it is heard again.
        state = wait(run, lambda state: says.fullmatch(state["stalled"]), 30)
        assert state["stalled"] in description.as_text(description.View(state, 0))
        assert "in load_batch" in (run.folder / "stack-1.txt").read_text()
        stacks = run.stacks(20)
        assert sorted(stacks) == [0, 1, 2]
        assert ["in load_batch" in stacks[rank] for rank in range(3)] == [False, True, False]
        assert run.stop()["stalled"] == ""
    with pytest.raises(control.NoConductor):
        run.stacks()


#: What torch and CUDA print, with the stacks that follow it.
ASSERTION = """
import sys
print("IndexKernel.cu:111: operator(): thread: [0,0,0] Assertion `index out of bounds` failed.", file=sys.stderr)
for _ in range(200):
    print("frame #0: c10::Error::Error()", file=sys.stderr)
raise RuntimeError("CUDA error: device-side assert triggered\\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1")
"""
WATCHDOG = """
import os, sys
print("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, "
      "Timeout(ms)=10000) ran for 10054 milliseconds before timing out.", file=sys.stderr)
for _ in range(200):
    print("frame #0: c10::Error::Error()", file=sys.stderr)
sys.stderr.flush()
os.abort()
"""


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (
            ASSERTION,
            "CUDA error: device-side assert triggered. Failed: index out of bounds. To see in which line: --env "
            "CUDA_LAUNCH_BLOCKING=1.",
        ),
        (
            WATCHDOG,
            "Rank 0 on n1 was killed by SIGABRT. Collective 4 (allreduce) did not end within 10 s, says torch's "
            "watchdog: another rank did not take part in it, or the network between them failed.",
        ),
    ],
    ids=["assertion", "watchdog"],
)
def test_what_cuda_and_torchs_watchdog_said_is_the_error_that_is_shown(cell: str, said: str) -> None:
    run = create(RunOptions(1), cell=cell)
    state = end_of(run, nodes=1)
    assert state["error"]["message"] == said
    assert said in description.as_text(description.View(state, 0))
