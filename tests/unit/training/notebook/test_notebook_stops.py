"""Runs that are stopped early, lost, of another session or without a package: what people type, and what they read."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from test_notebook_cells import ShellThatIsForged
from test_notebook_cells import session as session
from test_notebook_cells import shell as shell

from carme_hub.training import command, distributed
from carme_hub.training.launch import new_run
from carme_hub.training.run import run_folder
from carme_hub.training.run.failures import CannotRun, Interrupted, RankFailed
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import Run
from carme_hub.training.run.run_options import RunOptions

HUB_S = "00000000-0000-4000-8000-000000000000"


def test_a_stop_between_the_price_and_the_first_look_ends_the_run_too(
    shell: ShellThatIsForged, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = new_run.launch

    def stopped(run: Run) -> None:
        launch(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(new_run, "launch", stopped)
    with pytest.raises(Interrupted, match="soon was stopped before it started"):
        shell.cell("-n 1 --name soon", "import time\ntime.sleep(60)\n")
    until(lambda: Run.load("soon").state()["state"] == "interrupted")

    monkeypatch.setattr(new_run, "launch", lambda run: interrupt())  # its conductor never was
    with pytest.raises(Interrupted, match="never was stopped before it started"):
        shell.cell("-n 1 --name never", "pass")
    assert Run.load("never").state()["message"] == "The run was stopped before it started."


def interrupt() -> None:
    raise KeyboardInterrupt


def test_what_a_lost_run_has_beside_the_session_is_said_where_the_hub_is_away(
    shell: ShellThatIsForged, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run.create(RunOptions(1, name="gone"), cell="")
    write_json(run.folder / "state.json", run.state() | {"conductor": {"pid": 1}, "companions": [HUB_S]})
    with pytest.raises(CannotRun, match=r"gone still has companions\. Stop it in its session"):
        distributed.stop("gone")
    for name, value in {"API_URL": "http://127.0.0.1:1/hub/api", "API_TOKEN": "none"}.items():
        monkeypatch.setenv(f"JUPYTERHUB_{name}", value)
    monkeypatch.setenv("CARME_SESSION", HUB_S)
    with pytest.raises(CannotRun, match=r"gone still has companions\. The hub .* Stop the run again then"):
        distributed.stop("gone")
    assert command.main(["runs", "stop", "gone"]) == command.CANNOT
    assert "gone still has companions" in capsys.readouterr().err
    with pytest.raises(CannotRun, match=r"gone has ended \(lost\)"):
        distributed.resize(+1, "gone")


def test_without_a_name_a_run_of_this_session_is_meant(
    shell: ShellThatIsForged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARME_SESSION", "this")
    with pytest.raises(CannotRun, match=r"^No run is live\.$"):
        distributed.stop()
    shell.cell("-n 1 --detach --name mine", "print('mine')\nimport time\ntime.sleep(60)\n")
    monkeypatch.setenv("CARME_SESSION", "other")  # it began later, and its home is the same
    shell.cell("-n 1 --detach --name theirs", "print('theirs')\nimport time\ntime.sleep(60)\n")
    monkeypatch.setenv("CARME_SESSION", "this")
    until(lambda: distributed.log("theirs") == "theirs\n")
    until(lambda: distributed.log() == "mine\n")
    assert distributed.stop()["id"] == "mine"
    with pytest.raises(
        CannotRun, match=r"No run of this session is live\. To act on theirs of another session, name it"
    ):
        distributed.stop()
    assert Run.load("theirs").state()["state"] in run_folder.LIVE
    assert distributed.stop("theirs")["state"] == "interrupted"


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_package_that_a_backend_needs_is_named_with_what_to_do(shell: ShellThatIsForged) -> None:
    with pytest.raises(RankFailed, match="There is no mpi4py here") as caught:
        shell.cell("-n 1", "import mpi4py.MPI\n")
    assert "Use the image “training”" in "\n".join(caught.value.lines())
    with pytest.raises(RankFailed) as caught:  # the package is there
        shell.cell("-n 1", "raise ModuleNotFoundError(\"No module named 'torch.nope'\", name='torch.nope')\n")
    assert "Take the image" not in "\n".join(caught.value.lines())
