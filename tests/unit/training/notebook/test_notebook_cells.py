"""What people type, from the line to what comes back: real ranks on this machine, an IPython that is forged."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conducted_here import launched_here

from carme_hub.cli.app import CarmeHubApp
from carme_hub.training import command, distributed, load_ipython_extension, magic
from carme_hub.training.launch import start
from carme_hub.training.notebook import live
from carme_hub.training.run import run_folder
from carme_hub.training.run.failures import CannotRun, Interrupted, RankFailed, RunFailed, raise_for
from carme_hub.training.run.run_folder import Run


@pytest.fixture(autouse=True)
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A session of one node without GPUs, in which ranks are processes of this machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    for name in ("SLURM_GPUS_ON_NODE", "CARME_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with launched_here(monkeypatch):
        yield


class ShellThatIsForged:
    """As much of an IPython in a notebook as the magic needs."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        self.magics: dict[str, Callable[[str, str], None]] = {}
        self.sent: list[dict[str, Any]] = []
        self.kernel = SimpleNamespace()
        self.display_pub = self

    def register_magic_function(self, function: Any, *, magic_kind: str, magic_name: str) -> None:
        assert magic_kind == "cell"
        self.magics[magic_name] = function

    def push(self, names: dict[str, Any], interactive: bool = True) -> None:
        self.user_ns.update(names)

    def publish(self, data: dict[str, Any], metadata: Any, *, transient: Any, update: bool) -> None:
        self.sent.append(data)

    def cell(self, line: str, code: str) -> None:
        self.magics["distributed"](line, code)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> ShellThatIsForged:
    forged = ShellThatIsForged()
    monkeypatch.setattr(start, "_shell", lambda: forged)
    load_ipython_extension(forged)
    return forged


def test_a_cell_runs_on_all_ranks_with_variables_in_and_out(shell: ShellThatIsForged) -> None:
    shell.user_ns["factor"] = 7
    shell.cell(
        "-n 2 --push factor --pull found --name mine",
        "from carme_hub.training import here\nfound = factor * here.size\nprint('rank', here.rank)\n",
    )
    assert shell.user_ns["found"] == 14
    assert "Finished</span> mine: 2 ranks on n1" in shell.sent[-1]["text/html"]
    assert "rank 0" in shell.sent[-1]["text/plain"]
    assert "rank 1</pre>" in shell.sent[-1]["text/html"]


def test_the_name_distributed_is_there_unless_somebody_has_it(shell: ShellThatIsForged) -> None:
    assert shell.user_ns["distributed"] is distributed
    other = ShellThatIsForged()
    other.user_ns["distributed"] = "Dask's"
    load_ipython_extension(other)
    assert other.user_ns["distributed"] == "Dask's"
    assert "--gpus-per-task" in str(other.magics["distributed"].__doc__)


def test_the_first_error_is_raised_with_its_own_traceback(
    shell: ShellThatIsForged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "price_of", lambda _: "")  # there are two nodes for nothing
    code = "from carme_hub.training import here\nimport time\nif here.rank == 1:\n    {}['lr']\ntime.sleep(30)\n"
    with pytest.raises(RankFailed) as caught:
        shell.cell("-n 2 --nodes 2", code)
    error = caught.value
    assert (error.rank, error.node, error.type, error.message) == (1, "n2", "KeyError", "'lr'")
    assert str(error) == "Rank 1 on n2: KeyError: 'lr'"
    lines = error._render_traceback_()
    assert lines[1].startswith("KeyError ")
    assert lines[1].endswith(f"rank 1 on n2 of {error.run}")
    assert "line 4" in lines[2]
    assert "{}['lr']" in lines[2]
    assert lines[-1].endswith(error.folder)
    assert "Rank 1 on n2: KeyError" in shell.sent[-1]["text/html"]


def test_a_detached_cell_ends_at_once_and_is_found_again(
    shell: ShellThatIsForged, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.cell("-n 1 --detach --name long", "import time\nprint('on', flush=True)\ntime.sleep(60)\n")
    assert "distributed.stop('long')" in capsys.readouterr().out
    (run,) = distributed.runs(live=True)
    assert run.id == "long"
    assert "long" in distributed.runs()._repr_html_()
    stopped = distributed.stop()
    assert stopped["state"] == "interrupted"
    assert re.fullmatch(r"long: stopped, 0:\d\d in all\. The run was stopped\.", repr(stopped))
    assert repr(distributed.RunStatus(message="2 ranks more.")) == "2 ranks more."
    assert list(distributed.runs(live=True)) == []
    assert repr(distributed.runs()).splitlines()[1].startswith("long  Stopped")
    with pytest.raises(CannotRun, match="No run is live"):
        distributed.stop()


def test_who_stops_looking_on_at_a_detached_run_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    (Path.cwd() / "train.py").write_text("import time\ntime.sleep(60)\n")
    assert command.main(["train", "-n", "1", "--detach", "--name", "long", "train.py"]) == 0
    with monkeypatch.context() as pressing:
        pressing.setattr(live.Terminal, "show", interrupt)  # Ctrl-C, and the interrupt before a kernel's restart
        assert command.main(["runs", "watch", "long"]) == command.STOPPED
        assert "carme-hub runs stop long" in capsys.readouterr().err
        with pytest.raises(Interrupted, match="the run continues"):
            distributed.watch("long")
    time.sleep(1)  # somebody who looked on has gone, which its conductor hears of
    assert Run.load("long").state()["state"] in run_folder.LIVE
    assert distributed.stop("long")["state"] == "interrupted"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "required: -n"),
        ("-n 2 --push nothing", "this notebook has no variable nothing"),
        ("-n 2 --name '", "quotation mark"),
        ("-n 2 --backend mpi", "no mpi4py here"),
        ("-n {RANKS} --pull history", r"\{RANKS\}: this notebook has no such variable yet"),
        ("-n {RANKS} --name {NAME}", r"\{RANKS\}, \{NAME\}: this notebook has not all of these variables yet"),
        ("-n 2 --detach --pull history", "leave one of them out"),
    ],
)
def test_what_cannot_run_says_what_to_do_and_leaves_nothing(shell: ShellThatIsForged, line: str, said: str) -> None:
    with pytest.raises(CannotRun, match=said) as caught:
        shell.cell(line, "pass")
    assert caught.value._render_traceback_() == [f"CannotRun: {caught.value}"]
    assert len(distributed.runs()) == 0


def test_what_is_pushed_and_cannot_be_pickled_is_named(shell: ShellThatIsForged) -> None:
    shell.user_ns["stream"] = (each for each in ())
    with pytest.raises(CannotRun, match="The variable stream cannot be pickled"):
        shell.cell("-n 1 --push stream", "pass")


@pytest.mark.parametrize(
    ("line", "backend"), [("-n 2", "horovod"), ("-n 2 --backend torchrun", "torchrun"), ("--backend=mpi -n 2", "mpi")]
)
def test_the_kernel_has_a_backend_and_the_line_may_say_another(line: str, backend: str) -> None:
    assert magic.options_in_line(line, {"CARME_BACKEND": "horovod"}).backend == backend


def test_a_function_returns_what_each_rank_returned() -> None:
    def train(base: int, times: int = 1) -> int:
        from carme_hub.training import here

        return base + times * here.rank

    assert distributed.run(train, (10,), {"times": 5}, n=3) == [10, 15, 20]
    assert distributed.run(train, {"base": 1}, n=1, time="1m", gpus_per_task=0) == [1]
    run = distributed.start(train, {"base": 2}, n=1)
    assert distributed.watch(run)["state"] == "finished"
    assert run.result() == 2
    with pytest.raises(CannotRun) as caught:
        run.result(5)
    (said,) = caught.value._render_traceback_()  # what a notebook shows, in place of our own call stack
    assert said.startswith("NoResult: There is no result-5.pkl in ")


def test_a_result_that_cannot_be_unpickled_here_is_said_without_our_call_stack() -> None:
    def gives() -> object:
        class Odd:
            def __reduce__(self) -> tuple[object, ...]:
                return __import__, ("nowhere_at_all",)

        return Odd()

    with pytest.raises(CannotRun, match=r"What is in result-0\.pkl cannot be unpickled") as caught:
        distributed.run(gives, n=1)
    (said,) = caught.value._render_traceback_()
    assert said.startswith("Rejected: ")


def test_options_of_a_function_are_those_of_the_cell() -> None:
    asked = distributed._run_options(4, {"elastic": (2, 8), "time": "30m", "nodes": 2, "gpus_per_task": 0, "name": "x"})
    assert (asked.ranks, asked.elastic, asked.seconds, asked.nodes, asked.gpus_per_task) == (4, (2, 8), 1800, 2, 0)
    with pytest.raises(CannotRun, match="a function has arguments"):
        distributed._run_options(4, {"push": "x"})
    with pytest.raises(CannotRun, match="Unrecognized arguments: --bath"):
        distributed._run_options(4, {"bath": 3})
    with pytest.raises(CannotRun, match="is not a function"):
        distributed.run("train.py", n=2)  # type: ignore[arg-type]


def test_how_a_run_ended_is_what_is_raised() -> None:
    raise_for({"state": "finished"}, "/f")
    with pytest.raises(Interrupted, match="run1 was stopped"):
        raise_for({"state": "interrupted", "id": "run1"}, "/f")
    error = {"rank": None, "node": "", "type": "TimeLimit", "message": "The time limit of 60 s is over."}
    ended = {"state": "failed", "id": "run1", "message": error["message"], "error": error}
    with pytest.raises(RunFailed, match=r"^run1 failed\. The time limit of 60 s is over\.$") as caught:
        raise_for(ended, "/f")
    assert not isinstance(caught.value, RankFailed)  # it was the fault of none
    assert caught.value._render_traceback_() == [
        "RunFailed: run1 failed. The time limit of 60 s is over.",
        "The output of its ranks is in /f",
    ]
    with pytest.raises(RunFailed, match=r"run1 lost\. The session has ended"):
        raise_for({"state": "lost", "id": "run1", "message": "The session has ended"}, "/f")
    assert not issubclass(Interrupted, Exception)  # `except Exception` in a cell must not go on after it


# -- the command ------------------------------------------------------------------------------------------------------


def test_a_script_is_trained_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\nfrom carme_hub.training import here\nprint(here.rank, here.size, sys.argv[1:])\n"
    )
    assert command.main(["train", "-n", "2", "--name", "t", "train.py", "--all", "-n", "7"]) == 0
    out, said = capsys.readouterr()
    assert out == "0 2 ['--all', '-n', '7']\n"
    assert "t: 2 ranks on n1, torchrun: finished" in said
    assert command.main(["train", "-n", "2", "--all", "train.py"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0] 0 2 []", "[1] 1 2 []"]
    assert command.main(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("t ")
    assert command.main(["runs", "log", "t", "--rank", "1"]) == 0
    assert capsys.readouterr().out == "1 2 ['--all', '-n', '7']\n"
    assert command.main(["runs", "log", "t", "--follow"]) == 0
    assert capsys.readouterr().out == "0 2 ['--all', '-n', '7']\n"
    assert command.main(["runs", "watch", "t"]) == 0
    assert command.main(["runs", "stop", "t"]) == 0
    assert "t: finished" in capsys.readouterr().out
    assert command.main(["runs", "resize", "t", "+2"]) == command.CANNOT
    assert "t has ended (finished)" in capsys.readouterr().err


def test_a_script_that_fails_prints_the_ranks_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('no such data')\n")
    assert command.main(["train", "-n", "1", "train.py"]) == command.FAILED
    said = capsys.readouterr().err
    assert "Traceback (most recent call last):" in said
    assert "ValueError: no such data" in said
    assert "distributed.py" not in said  # nothing of ours


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "-n", "2"], "Which script?"),
        (["train", "-n", "2", "none.py"], "There is no script none.py"),
        (["train", "script.py"], "required: -n"),
        (["train", "-n", "2", "--pull", "x", __file__], "--push and --pull work on notebook variables"),
        (["runs", "log", "none"], "There is no run 'none'"),
        (["runs", "stop", "../x"], "There is no run '../x'"),
    ],
)
def test_a_command_that_makes_no_sense_says_what_to_write(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == command.CANNOT
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train", "runs", "scaling", "kernels"])
def test_on_the_hubs_machine_the_same_words_do_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(command, "main", lambda words: given.append(words) or 7)
    module, _, kind = CarmeHubApp.subcommands[name][0].rpartition(".")
    app = getattr(importlib.import_module(module), kind)()
    app.initialize(["-n", "4", "--help", "train.py"])
    with pytest.raises(SystemExit) as end:
        app.start()
    assert end.value.code == 7
    assert given == [[name, "-n", "4", "--help", "train.py"]]
