"""A deleted run can be restored for a week, and old runs go by the user's limits."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from carme_hub.training import command, distributed
from carme_hub.training.launch.new_run import create
from carme_hub.training.run import keep
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import Run, all_runs
from carme_hub.training.run.run_options import RunOptions


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CARME_KEEP_RUNS", raising=False)
    return tmp_path


def ended(name: str, days: float = 0, kib: int = 0) -> Run:
    """Return a run that ended so many days ago, with a log of this size."""
    run = create(RunOptions(1, name=name), cell="print(1)")
    at = time.time() - days * 86400
    write_json(
        run.folder / "state.json", run.state() | {"state": "finished", "began": at, "ended": at, "conductor": {}}
    )
    (run.folder / "rank-0.log").write_bytes(bytes(kib << 10))
    os.utime(run.folder / "asked.json", (at, at))
    return run


def names() -> list[str]:
    return [run.id for run in all_runs()]


def test_a_deleted_run_is_gone_and_comes_back_with_all_it_had() -> None:
    run = ended("mine", kib=1)
    distributed.delete("mine")
    assert names() == []
    assert keep.deleted() == ["mine"]
    assert distributed.restore("mine").folder == run.folder
    assert (run.folder / "rank-0.log").stat().st_size == 1024
    assert names() == ["mine"]


def test_a_run_is_removed_once_its_conductor_has_written_its_last_file() -> None:
    run = ended("mine")
    lock = (run.folder / "lock").open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def write_the_record() -> None:
        for number in range(200):
            (run.folder / f"record-{number}.json").write_text("{}")
            time.sleep(0.001)
        lock.close()

    conductor = threading.Thread(target=write_the_record)
    conductor.start()
    keep.remove(run)
    conductor.join()
    assert not run.folder.exists()
    stuck = ended("stuck")
    with (stuck.folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keep.remove(stuck, patience=0.05)
    assert not stuck.folder.exists()


def test_a_name_that_was_used_again_is_not_overwritten() -> None:
    ended("mine")
    distributed.delete("mine")
    ended("mine")
    with pytest.raises(CannotRun, match="another run mine now"):
        distributed.restore("mine")
    distributed.delete("mine")
    assert sorted(keep.deleted()) == ["mine", "mine~2"]
    assert distributed.restore("mine~2").id == "mine"


@pytest.mark.parametrize("name", ["", "nobody", "../mine", ".keep.json"])
def test_what_is_not_deleted_cannot_be_restored(name: str) -> None:
    with pytest.raises(CannotRun, match="no deleted run"):
        distributed.restore(name)


def test_a_run_that_has_not_ended_or_has_companions_is_not_deleted() -> None:
    run = create(RunOptions(1, name="live"), cell="")
    with pytest.raises(CannotRun, match="live has not ended"):
        distributed.delete("live")
    # The conductor of a run that has ended has given its companions back; that of a lost one may not have.
    write_json(run.folder / "state.json", run.state() | {"state": "lost", "companions": ["c"]})
    with pytest.raises(CannotRun, match="still has companions"):
        distributed.delete("live")
    write_json(run.folder / "state.json", run.state() | {"state": "failed", "companions": ["c"]})
    assert distributed.delete("live") == ["live"]


def test_a_name_means_the_run_and_nothing_means_none() -> None:
    """`train` is also the name of `train-2`, which is newer."""
    ended("train", 60)
    ended("train", 1)
    assert sorted(names()) == ["train", "train-2"]
    with pytest.raises(CannotRun, match="Name each of them"):
        distributed.delete("")
    assert command.main(["runs", "rm", "--older-than", "30d"]) == 0
    assert names() == ["train-2"]


def test_deleted_runs_are_removed_after_a_week() -> None:
    for name in ("old", "young"):
        ended(name)
        distributed.delete(name)
    then = time.time() - keep.RESTORE_SECONDS - 60
    os.utime(keep.root() / ".deleted" / "old", (then, then))
    keep.apply()
    assert keep.deleted() == ["young"]


def test_limits_delete_the_old_and_the_large_and_nothing_that_lives() -> None:
    for name, days in (("new", 1), ("old", 40), ("older", 50)):
        ended(name, days, kib=400)
    live = create(RunOptions(1, name="live"), cell="")
    os.utime(live.folder / "asked.json", (0, 0))
    assert keep.apply() == []
    assert keep.apply(keep.Limits(days=45)) == ["older"]
    keep._GIB = 1 << 20  # type: ignore[misc]
    try:
        assert keep.apply(keep.Limits(gib=1)) == []
        ended("newest", kib=900)
        assert keep.apply(keep.Limits(gib=1)) == ["new", "old"]
    finally:
        keep._GIB = 1 << 30  # type: ignore[misc]
    assert sorted(names()) == ["live", "newest"]


def test_the_commands_say_what_they_did_and_how_to_undo_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name, days in (("a", 1), ("b", 40)):
        ended(name, days)
    assert command.main(["runs", "rm", "--older-than", "30d"]) == 0
    assert command.main(["runs", "deleted"]) == 0
    assert command.main(["runs", "restore", "b"]) == 0
    assert command.main(["runs", "keep"]) == 0
    assert command.main(["runs", "keep", "--days", "30", "--gib", "50"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "b deleted. Undo within 7 days: carme-hub runs restore b",
        "b",
        "b restored",
        "Runs are kept without a limit of time, whatever their size.",
        "Runs are kept 30 days after their end, at most 50 GiB of them.",
    ]
    assert sorted(names()) == ["a", "b"]
    assert keep.apply() == ["b"]  # when the next run starts
    assert command.main(["runs", "rm"]) == 2
    assert command.main(["runs", "keep", "--days", "-1"]) == 2
    assert "Which runs?" in capsys.readouterr().err


def test_a_site_may_set_the_limits_and_the_user_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARME_KEEP_RUNS", "90:200")
    assert keep.limits() == keep.Limits(90, 200)
    keep.set_limits(keep.Limits(0, 10))
    assert keep.limits() == keep.Limits(0, 10)
