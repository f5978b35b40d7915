"""How a server's last session ended is said; who made way for maintenance learns what comes back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from affected_parts import session

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.sessions.session import MAINTENANCE_STOP, Session
from carme_hub.spawners import session_state
from carme_hub.spawners.session_state import STOPPED, SessionStatus

WHY = f"{MAINTENANCE_STOP}n1."
REFUND = " The GPU time that it used is refunded."


def said(
    monkeypatch: pytest.MonkeyPatch, *open_: Session, last: Session | None = None, refunds: tuple[str, ...] | None = ()
) -> str:
    """Return what the home page says. ``refunds``: of the policy, None where GPU time is not kept."""
    admission = SimpleNamespace(policy=lambda: Policy(refunds=refunds)) if refunds is not None else None
    registry = SimpleNamespace(open_of=lambda *_: open_, last_end=lambda *_: last)
    monkeypatch.setattr(session_state, "started_hub", lambda: SimpleNamespace(registry=registry, admission=admission))
    server: Any = SessionStatus()
    server.user, server.name = SimpleNamespace(name="sam"), ""
    return str(server.last_end)


def test_a_session_that_makes_way_is_said_at_once_and_after_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = session(cancel_wanted=1.0, cancel_reason=WHY)
    ended = session(ended=1.0, end_reason=WHY)
    given = ("maintenance",)
    assert said(monkeypatch, leaving, refunds=given) == f"Your last session was stopped for maintenance of n1.{REFUND}"
    assert said(monkeypatch, last=ended, refunds=given).endswith(f": {WHY}{REFUND}")


@pytest.mark.parametrize("refunds", [(), None])
def test_where_nothing_is_refunded_nothing_is_promised(
    monkeypatch: pytest.MonkeyPatch, refunds: tuple[str, ...] | None
) -> None:
    assert said(monkeypatch, last=session(ended=1.0, end_reason=WHY), refunds=refunds).endswith(f": {WHY}")


def test_of_a_session_without_gpus_no_gpu_time_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    without = replace(session().request, gpus=Gpus())
    ended = session(ended=1.0, end_reason=WHY, request=without)
    assert said(monkeypatch, last=ended, refunds=("maintenance",)).endswith(WHY)


def test_a_session_that_was_stopped_needs_no_words_and_any_other_end_promises_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert said(monkeypatch, session(cancel_wanted=1.0, cancel_reason=STOPPED)) == ""
    assert said(monkeypatch, last=session(ended=1.0, end_reason=STOPPED)) == ""
    failed = session(ended=1.0, end_reason="A node failed.")
    assert said(monkeypatch, last=failed, refunds=("maintenance",)).endswith(": A node failed.")


def test_a_start_whose_cause_its_own_script_told_is_explained_before_slurm_says_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = replace(session().request, working_folder="a100")
    told = session(server_ended=1.0, server_exit=77, request=request)
    assert "The working folder a100 does not exist." in said(monkeypatch, told)
    killed = session(server_ended=1.0, server_exit=137)  # accounting may know of memory that ran out
    assert said(monkeypatch, killed) == "Your server has ended. The hub is looking up how."


def test_a_start_that_took_too_long_ends_for_that_reason_and_the_home_page_says_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server: Any = SessionStatus()
    server.start_timeout, server._progress = 300, SimpleNamespace(last="Waiting in the queue.")
    why = server.ends_too_late()
    assert why.startswith("The server did not start within 5 min, and its job is cancelled. Last state: Waiting")
    assert (server.stop_reason, SessionStatus.stop_reason) == (why, STOPPED)
    assert said(monkeypatch, last=session(ended=1.0, end_reason=why)).endswith(why)
