"""Code that trains asks the same alone and as a rank; what it says is kept."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from carme_hub.training import here
from carme_hub.training.rank import deadline, progress
from carme_hub.training.rank.deadline import Deadline
from carme_hub.training.rank.progress import Progress


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith(("CARME_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(here, "DEADLINE", Deadline())


def test_alone_there_is_one_rank_without_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert (here.rank, here.size, here.local_rank, here.local_size, here.run) == (0, 1, 0, 1, "")
    assert (here.node, here.logdir, here.device()) == (os.uname().nodename, str(tmp_path / "tb"), "cpu")
    assert here.time_left() == math.inf
    here.step(1, loss=1)
    with pytest.raises(AttributeError, match="has no other"):
        here.other  # noqa: B018


def test_a_rank_asks_each_time_since_an_elastic_run_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("4", "6"):
        monkeypatch.setenv("CARME_SIZE", size)
        assert here.size == int(size)


def test_the_end_of_the_job_is_what_the_conductor_said_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 100))
    assert 95 < here.time_left() <= 100
    here.DEADLINE.set(time.time() + 50)
    assert 45 < here.time_left() <= 50
    here.DEADLINE.set(0)
    assert here.time_left() == math.inf


def test_before_the_end_the_main_thread_is_asked_to_save_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CARME_RUN_FOLDER", str(tmp_path))
    called: list[str] = []
    here.DEADLINE.set(time.time() + 100)
    old = signal.getsignal(signal.SIGUSR1)
    try:
        here.on_time_limit(lambda: called.append(threading.current_thread().name), before=60)
        time.sleep(0.05)
        assert called == []
        assert not (tmp_path / here.OUT_OF_TIME).exists()
        here.DEADLINE.set(time.time() + 60.1)  # the end was moved
        end = time.monotonic() + 5
        while not called and time.monotonic() < end:
            time.sleep(0.01)
        assert called == ["MainThread"]
        assert (tmp_path / here.OUT_OF_TIME).exists()  # for `carme-hub train --requeue`
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.05)
        assert called == ["MainThread"]
    finally:
        signal.signal(signal.SIGUSR1, old)


ENDS = """
import os, signal
from carme_hub.training import here

class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR1):
        kill(pid, number)

last = Last()
here.on_time_limit(lambda: None, before=60)
"""


def test_slurms_signal_does_not_end_what_has_stopped_in_time_and_is_just_leaving() -> None:
    assert subprocess.run([sys.executable, "-c", ENDS], timeout=60, check=False).returncode == 0


def test_scratch_is_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CARME_SCRATCH", str(tmp_path))
    path = here.scratch()
    assert path == here.scratch()
    assert (path.parent, path.stat().st_mode & 0o777) == (tmp_path, 0o700)
    path.rmdir()
    path.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        here.scratch()


class Tensor:
    """A number that warns where its gradient would be lost."""

    def __init__(self, value: float, *, detached: bool = False) -> None:
        self.value, self.detached = value, detached

    def detach(self) -> Tensor:
        return Tensor(self.value, detached=True)

    def __float__(self) -> float:
        assert self.detached
        return self.value


def test_scalars_of_rank_0_are_in_one_file_and_the_rate_is_of_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 1.0, 2.0])
    clocks = SimpleNamespace(monotonic=lambda: next(now), time=time.time)  # TensorBoard has a thread that asks too
    monkeypatch.setattr(progress, "time", clocks)
    said = Progress()
    for step in range(1, 4):
        said.step(step, 3, 10, {"loss": Tensor(1 / step)})
    found = said.snapshot()
    assert (found["step"], found["total"], found["samples"]) == (3, 3, 30)
    assert found["rate"] == 10.0
    said.flush(str(tmp_path), 0)
    said.flush(str(tmp_path), 0)
    lines = [json.loads(line) for line in (tmp_path / "scalars.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]


def test_the_rate_is_of_steps_where_no_samples_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 2.0, 50.0, 51.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now), time=time.time))
    said = Progress()
    for step in (1, 2, 3):
        said.step(step, None, 0, {})
    assert (said.snapshot()["rate"], said.snapshot()["samples"], said.snapshot()["total"]) == (1.0, None, None)
    for step in (103, 203):
        said.step(step, None, 0, {})
    assert said.snapshot()["rate"] == 100.0  # what was long ago is forgotten


def test_of_code_without_scalars_rank_0_writes_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    said, other, with_loss = Progress(), Progress(), Progress()
    for second in range(31):  # it reports no step after 24 s: then nothing is written either
        now[0] = float(second)
        if second < 25:
            said.step(second, None, 4, {})
            other.step(second, None, 0, {})
            with_loss.step(second, None, 4, {"loss": 1.0} if second == 12 else {})
        said.flush(str(tmp_path), 0)
        other.flush(str(tmp_path), 1)
        (tmp_path / "with_loss").mkdir(exist_ok=True)
        with_loss.flush(str(tmp_path / "with_loss"), 0)
    lines = [json.loads(line) for line in (tmp_path / "scalars.jsonl").read_text().splitlines()]
    assert [(line["step"], line["samples_per_second"]) for line in lines] == [(10, 4.0), (20, 4.0), (24, 4.0)]
    assert not (tmp_path / "scalars-1.jsonl").exists()
    lines = [json.loads(line) for line in (tmp_path / "with_loss/scalars.jsonl").read_text().splitlines()]
    assert [sorted(line) for line in lines] == [["at", "samples_per_second", "step"], ["at", "loss", "step"]]


def test_the_module_is_one_for_all() -> None:
    assert deadline.DEADLINE is not here.DEADLINE  # changed by the fixture above
    assert progress.PROGRESS is here.PROGRESS
