"""Where an administrator has stopped new starts, the form says so with the reason, and refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forged_hub import NODES, PROFILES

from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import Refused
from carme_hub.spawners.form.form import Offer, live_answer, render_form

NOW = 1_800_000_000.0
WHY = "Nothing new of this profile can be started until 18:00: <New> driver. What runs already is not affected."


def stopped(request: Request) -> str:
    return WHY if request.profile == "gpu" else ""


OFFER = Offer(PROFILES[:2], ("physics",), {"base": "Python"}, cluster=Cluster(NODES, seen=NOW), stopped=stopped)


def test_the_form_says_why_at_the_profile() -> None:
    html = render_form(OFFER, now=NOW)
    assert "until 18:00: &lt;New&gt; driver." in html
    answer = live_answer(OFFER, {"profile": "gpu"}, NOW)
    profiles = answer["profiles"]
    assert isinstance(profiles, dict)
    assert (profiles["gpu"]["sentence"], profiles["gpu"]["state"]) == (WHY, "never")
    assert profiles["cpu"]["state"] == "now"
    assert answer["problems"] == [{"field": "profile", "message": WHY}]


def test_a_start_is_refused_with_the_reason_and_another_profile_starts() -> None:
    with pytest.raises(Refused) as refused:
        OFFER.choose({"profile": "gpu"})
    assert WHY in refused.value.message
    assert OFFER.choose({"profile": "cpu"}).profile == "cpu"


def test_where_nothing_is_stopped_everything_is_as_before() -> None:
    assert replace(OFFER, stopped=lambda _: "").choose({"profile": "gpu"}).profile == "gpu"
    assert replace(OFFER, stopped=None).choose({"profile": "gpu"}).profile == "gpu"
