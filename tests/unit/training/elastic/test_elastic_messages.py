"""What is said of an elastic run: the newest news stays, and what is known later is added to it."""

from __future__ import annotations

import re

import pytest
from test_elastic_run import place, running

from carme_hub.training.elastic import horovod
from carme_hub.training.elastic.notices import Notices

__all__ = ["place"]  # the fixture that gives each test a home of its own


def test_what_happened_since_a_companion_was_lost_is_not_forgotten_when_the_hub_explains_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(horovod, "POLL_INTERVAL", 0.1)
    with running() as story:
        companion = story.grown()
        story.hub.away = story.broker.suspended = True
        story.broker.steps["w2-0-0"].signal("TERM")
        story.until(lambda state: "The companion of rank 2 has ended." in state["message"])
        story.broker.steps["w1-0-0"].signal("TERM")
        story.until(
            lambda state: re.search(r"Rank (1|0 \(log 1\)) on \S+ was lost: it was killed by", state["message"])
        )
        story.hub.ended.add(companion)
        story.hub.away = False
        said = "The companion of rank 2 has ended: a job with a higher priority took the place."
        story.until(lambda state: said in state["message"])
        # The rank that was started again trains along, so that it was lost is news no more.
        story.until(lambda state: " on n2 was lost" not in state["message"])


def test_a_sentence_is_shown_as_long_as_it_is_true() -> None:
    now = [0.0]
    notices = Notices(lambda: now[0])
    notices.say("sharing", "It shares GPUs.")
    notices.say("sharing", "")
    notices.lost(1, "Rank 1 on n1 was lost: it was killed by SIGKILL", True, 4)
    notices.say(("rank", 2), "Rank 2 on n1 was given back.", 60)
    notices.companion_ended("c", "3")
    notices.explain_companion("c", "its time limit was reached")
    notices.explain_companion("another", "nobody knows it")
    assert notices.text() == (
        "Rank 1 on n1 was lost: it was killed by SIGKILL; it is started again, and the others continue. "
        "Rank 2 on n1 was given back. The companion of rank 3 has ended: its time limit was reached."
    )
    notices.drop(("rank", 1))
    now[0] = 61
    assert notices.text() == "The companion of rank 3 has ended: its time limit was reached."
    notices.lost(1, "Rank 1 on n1 was lost: it ended", False, 4)
    assert notices.text().endswith("the others continue; it was started 4 times, and is not again.")
