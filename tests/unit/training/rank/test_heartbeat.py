"""What a rank says of itself at its end is what it had reached."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from carme_hub.training.rank import heartbeat
from carme_hub.training.rank.heartbeat import Heartbeat
from carme_hub.training.rank.progress import Progress
from carme_hub.training.run.messages import BEAT


class Heard:
    """What a conductor is told."""

    def __init__(self, **wants: Any) -> None:
        self.steps: list[int | None] = []
        self.wants = wants

    def put(self, scope: str, key: object, said: dict[str, Any]) -> dict[str, Any]:
        assert (scope, key) == (BEAT, 3)
        self.steps.append(said["step"])
        return self.wants

    def get(self, scope: str, key: object) -> None:
        return None


class ProgressWithASlowFlush(Progress):
    """Its first flush takes as long as importing TensorBoard on a busy machine."""

    def __init__(self, takes: float) -> None:
        super().__init__()
        self._takes, self.begun, self.kept = takes, threading.Event(), 0

    def flush(self, folder: str, rank: int) -> None:
        first = not self.begun.is_set()
        self.begun.set()
        if first:
            threading.Event().wait(self._takes)
        self.kept = self.snapshot()["step"] or 0


def test_the_last_step_is_said_and_its_scalars_are_kept_though_the_first_flush_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress, heard = ProgressWithASlowFlush(3.0), Heard()
    monkeypatch.setattr(heartbeat, "PROGRESS", progress)
    beats = Heartbeat(heard, 3, 4)  # type: ignore[arg-type]
    progress.step(1, 40, 1, {"loss": 1.0})
    beats.start()
    assert progress.begun.wait(30)
    progress.step(40, 40, 1, {"loss": 0.1})
    beats.stop(60)
    assert (heard.steps[-1], progress.kept) == (40, 40)


def test_whoever_has_failed_waits_no_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = ProgressWithASlowFlush(60.0)
    monkeypatch.setattr(heartbeat, "PROGRESS", progress)
    beats = Heartbeat(Heard(), 3, 4)  # type: ignore[arg-type]
    beats.start()
    assert progress.begun.wait(30)
    beats.stop(0.1)
    assert beats._thread.is_alive()


def test_a_shell_that_cannot_be_started_stops_no_report(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(wanted: dict[str, Any]) -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(heartbeat.spawn, "start", full)
    monkeypatch.setattr(heartbeat, "heartbeat_interval", lambda ranks: 0.01)
    wanted = {"id": 1, "rank": 3, "until": time.time() + 60}
    heard = Heard(shells=[wanted, {**wanted, "id": 2, "rank": 4}, {**wanted, "id": 3, "until": 0.0}])
    beats = Heartbeat(heard, 3, 4)  # type: ignore[arg-type]
    beats.start()
    end = time.monotonic() + 20
    while len(heard.steps) < 4:
        assert time.monotonic() < end
        time.sleep(0.01)
    beats.stop(60)
    assert capfd.readouterr().err.count("no shell can be started: Resource temporarily unavailable") == 1
