"""What is said of an elastic run: the newest news stays, and what is known later is added to it."""

from __future__ import annotations

import pytest
from test_elastic_run import place, running

from carme_hub.training.elastic import horovod

__all__ = ["place"]  # the fixture that gives each test a home of its own


def test_what_happened_since_a_companion_was_lost_is_not_forgotten_when_the_hub_explains_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(horovod, "POLL_INTERVAL", 0.1)
    with running() as story:
        companion = story.grown()
        story.hub.away = story.broker.suspended = True
        story.broker.steps["w2-0-0"].signal("TERM")
        story.until(lambda state: "Its companion has ended." in state["message"])
        story.broker.steps["w1-0-0"].signal("TERM")
        story.until(lambda state: state["message"].startswith("Rank 1 on"))
        story.hub.ended.add(companion)
        story.hub.away = False
        state = story.until(lambda state: "A companion has ended: a job with a higher priority" in state["message"])
        assert state["message"].startswith("Rank 1 on")
