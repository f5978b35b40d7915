"""What a month was like, by the rows of its sessions."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.domain.cluster.reasons import end_sentence
from carme_hub.domain.sessions.end_cause import CONTROLLER_LOST, INTERRUPTED, NOT_IN_TIME, EndCause
from carme_hub.domain.sessions.service_levels import service_levels
from carme_hub.domain.sessions.session import Request, Session, SessionState

SINCE, UNTIL = 10_000.0, 20_000.0


def row(created: float = 12_000.0, took: float | None = 5.0, ended: float = 0.0, **more: Any) -> Session:
    started = created + took if took is not None else 0.0
    state = SessionState.ENDED if ended else SessionState.RUNNING if started else SessionState.SUBMITTED
    id = f"s{created}{took}{ended}{len(more)}"
    return Session(id, "lab", "alice", "", Request("gpu", "base"), state, created, started=started, ended=ended, **more)


def test_each_start_is_served_given_up_failed_or_open() -> None:
    rows = [
        row(),
        row(ended=13_000.0, end_reason=end_sentence("TIMEOUT")),
        row(took=None),
        row(took=None, ended=12_100.0, cancel_wanted=12_090.0, end_reason="Stopped."),
        row(took=None, ended=12_100.0, end_reason=INTERRUPTED),
        row(took=None, ended=12_900.0, cancel_wanted=12_890.0, cancel_reason=f"{NOT_IN_TIME}15 min."),
        row(took=None, ended=12_100.0, server_ended=12_050.0, cancel_wanted=12_081.0, end_reason="It outlived it."),
        row(parent="s1"),
    ]
    found = service_levels(rows, rows, SINCE, UNTIL)
    assert (found.starts, found.served, found.given_up, found.failed, found.open) == (7, 2, 1, 3, 1)
    assert found.served_share == 40.0


def test_times_to_the_lab_are_the_median_and_the_95th_percentile() -> None:
    rows = [row(took=float(seconds)) for seconds in range(1, 101)]
    found = service_levels(rows, rows, SINCE, UNTIL)
    assert (found.median, found.p95) == (50.0, 95.0)
    one = service_levels(rows[6:7], [], SINCE, UNTIL)
    assert (one.median, one.p95) == (7.0, 7.0)


def test_a_session_is_lost_in_the_month_in_which_it_ended() -> None:
    lost = row(created=9_000.0, ended=10_500.0, end_reason=CONTROLLER_LOST)
    strange = row(ended=15_000.0, end_reason="Nobody knows.")
    before = row(created=8_000.0, ended=9_999.0, end_reason=CONTROLLER_LOST)
    fine = row(ended=15_000.0, end_reason="Stopped.", cancel_wanted=14_990.0)
    found = service_levels([strange, fine], [strange, lost, before, fine], SINCE, UNTIL)
    assert found.lost == [lost, strange]
    assert found.ends == {EndCause.STOPPED: 1, EndCause.LOST: 1, EndCause.UNKNOWN: 1}


def test_a_month_without_starts_has_no_share_and_no_times() -> None:
    found = service_levels([], [], SINCE, UNTIL)
    assert (found.starts, found.served_share, found.median, found.p95) == (0, None, None, None)
    with pytest.raises(AttributeError):
        found.served = 1  # type: ignore[misc]
