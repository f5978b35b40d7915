"""A run from its folder to its end, with real ranks, on a machine that says that it is two nodes."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from conducted_here import conducted, end_of, wait

from carme_hub.training.launch.new_run import create
from carme_hub.training.run import description, environment, results
from carme_hub.training.run.run_folder import ENDED, all_runs
from carme_hub.training.run.run_options import RunOptions

pytestmark = pytest.mark.usefixtures("home")


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
    # What it prints and what it says of its end come by two pipes, in no order.
    assert f"{state['error']['rank']} of 2\n" in run.log(state["error"]["rank"])
    assert state["error"]["type"].endswith("CommandFailed")
    assert state["error"]["message"] == said
    assert state["ranks"][state["error"]["rank"]]["exit"] == status


def test_a_command_is_told_its_deadline_and_a_python_of_it_the_time_that_is_left() -> None:
    code = "import os\nfrom carme_hub.training import here\nprint(os.environ['CARME_DEADLINE'], here.time_left())\n"
    run = create(RunOptions(1, seconds=600), command=sys.executable, args=["-c", code])
    assert end_of(run)["state"] == "finished"
    deadline, left = run.log(0).split()
    assert int(deadline) - run.state()["began"] == pytest.approx(600, abs=20)
    assert float(left) == pytest.approx(600, abs=20)


def test_the_time_that_is_left_is_known_from_the_first_line_on_and_the_same_for_all_ranks() -> None:
    # A rank may be stopped between the two clocks, which only makes the sum smaller: the largest of some is right.
    sums = "max(time.time() + here.time_left() for _ in range(50))"
    cell = f"from carme_hub.training import here\nimport time\nprint({sums})\n"
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
