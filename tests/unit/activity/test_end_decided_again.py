"""After a session's server was asked it is decided again: minutes have passed, and more is known. The hub is forged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forged_idle import RULE, Lab

from carme_hub.domain.activity.minutes import GpuMinute
from carme_hub.store.idle import ENDING


def meanwhile(lab: Lab, minutes: int, **changes: Any) -> Callable[[], None]:
    """Return what happens while the server is asked: so many minutes pass, each with a report."""

    def pass_by() -> None:
        for _ in range(minutes):
            lab.now += 60
            lab.report(**changes)

    return pass_by


@pytest.mark.parametrize("changes", [{"gpus": (GpuMinute(50.0),)}, {"kernels": 1}, {"runs": None}])
async def test_what_is_reported_while_the_server_is_asked_keeps_the_session(lab: Lab, changes: dict[str, Any]) -> None:
    lab.on_order = meanwhile(lab, 2, **changes)
    await lab.run(30)
    assert len(lab.asked) == 1
    assert lab.cancelled == []
    assert lab.kinds()[-1] == (ENDING, 30)


async def test_the_cpus_that_commands_before_the_end_use_are_no_work(lab: Lab) -> None:
    lab.on_order = meanwhile(lab, 2, cpu=90.0)
    await lab.run(30)
    assert len(lab.cancelled) == 1


async def test_a_server_that_does_not_answer_may_use_its_cpus_for_work(lab: Lab) -> None:
    lab.order, lab.on_order = None, meanwhile(lab, 2, cpu=90.0)
    await lab.run(30)
    assert lab.cancelled == []


async def test_without_an_answer_only_a_minute_after_the_question_says_that_it_is_idle(lab: Lab) -> None:
    lab.order = None
    await lab.run(30)
    assert (lab.cancelled, len(lab.asked)) == ([], 1), "what was reported is from before the question"
    await lab.run(1)
    assert len(lab.cancelled) == 1
    assert len(set(lab.asked)) == 1


async def test_a_session_that_reports_nothing_any_more_is_not_ended_without_an_answer(lab: Lab) -> None:
    def silent() -> None:
        lab.now += 300

    lab.order, lab.on_order = None, silent
    await lab.run(30)
    assert (lab.cancelled, lab.kinds()[-1]) == ([], (ENDING, 30))


@pytest.mark.parametrize("policy", [{}, {"idle": [{**RULE, "after": "2h"}]}])
async def test_a_policy_that_changes_meanwhile_counts(lab: Lab, policy: dict[str, Any]) -> None:
    lab.on_order = lambda: setattr(lab, "policy", policy)
    await lab.run(30)
    assert lab.cancelled == []


async def test_a_session_that_gets_more_nodes_meanwhile_goes_on(lab: Lab) -> None:
    lab.on_order = lambda: setattr(lab, "companions", 1)
    await lab.run(30)
    assert lab.cancelled == []


async def test_a_session_that_its_user_stops_meanwhile_is_not_said_to_be_ended_as_idle(lab: Lab) -> None:
    lab.on_order = lambda: setattr(lab, "session", lab.session.replace(cancel_wanted=lab.now, cancel_reason="Stopped."))
    await lab.run(30)
    assert (lab.cancelled, lab.kinds()[-1]) == ([], (ENDING, 30))
