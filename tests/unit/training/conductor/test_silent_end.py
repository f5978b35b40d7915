"""A rank that ended without a word is the cause, also where it becomes known as the last of all ends."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from carme_hub.training.conductor import fixed_size
from carme_hub.training.conductor.cause import SilentEnd
from carme_hub.training.conductor.conductor import Failed
from carme_hub.training.conductor.fixed_size import FixedSizeRun

LOST = {"rank": 0, "node": "n1", "type": "RuntimeError", "message": "Connection closed by peer", "traceback": ""}


def test_the_end_that_becomes_known_last_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    run: Any = FixedSizeRun.__new__(FixedSizeRun)

    class HandleThatCompletes:
        """A step that is complete a moment after somebody has looked for silent ends."""

        @property
        def complete(self) -> bool:
            return bool(looked)

        def wait(self, _seconds: float) -> None:
            return None

    def silent_ends(_handle: object) -> list[SilentEnd]:
        looked.append(1)
        return [SilentEnd(1, "was killed by SIGKILL")] if len(looked) > 1 else []

    monkeypatch.setattr(run, "_silent_ends", silent_ends)
    monkeypatch.setattr(run, "_errors", lambda: [LOST])
    monkeypatch.setattr(run, "check", lambda: None)
    monkeypatch.setattr(run, "_silent_failure", lambda end: Failed(f"rank {end.rank}"))
    run.state = SimpleNamespace(update_rank=lambda *_a, **_k: None, get=dict)
    run.output = SimpleNamespace(tail=lambda _rank: [])
    with pytest.raises(Failed, match="rank 1"):
        run._look_for_error(HandleThatCompletes())


def test_the_others_have_a_moment_to_say_that_they_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = FixedSizeRun.__new__(FixedSizeRun)
    reported: list[int] = []

    class HandleThatGoesOn:
        """A step whose other ranks report one after the other, whenever somebody waits; the last one never does."""

        complete = False

        def wait(self, _seconds: float) -> None:
            if len(reported) < 2:
                reported.append(len(reported))

    monkeypatch.setattr(run, "_silent_ends", lambda _handle: [SilentEnd(3, "was killed by SIGKILL")])
    monkeypatch.setattr(run, "_errors", lambda: [LOST][: len(reported)])
    monkeypatch.setattr(run, "check", lambda: None)
    monkeypatch.setattr(run, "_silent_failure", lambda end: Failed(f"rank {end.rank}"))
    run.rendezvous = SimpleNamespace(arrivals=lambda _kind: list(reported))
    for ranks, seconds in ((3, 0.0), (4, fixed_size.ECHO_SECONDS)):
        run._placement = SimpleNamespace(size=ranks)
        reported.clear()
        began = time.monotonic()
        with pytest.raises(Failed, match="rank 3"):
            run._look_for_error(HandleThatGoesOn())
        assert len(reported) == 2
        assert time.monotonic() - began >= seconds
