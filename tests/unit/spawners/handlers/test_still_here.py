"""Who is still there says so by the page or by REST, for their own session alone, or is told why that is no use."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from forged_hub import Browser, ForgedHub
from test_home_sessions import ID, Part, alice, hub, part, session

from carme_hub.activity.idle_watch import IdleSession, NoClicksLeft, NotIdle
from carme_hub.domain.activity.idle import IdleState
from carme_hub.domain.quotas.idle.rules import Action, IdleRule
from carme_hub.errors import StoreError
from carme_hub.spawners.handlers import companions, own_session

__all__ = ["alice", "hub", "part"]
API = f"/hub/api/carme/sessions/{ID}"


class Watch:
    """The hub's watch, whose decisions are forged."""

    def __init__(self) -> None:
        found = IdleSession(IdleRule(Action.STOP), IdleState("warn", 1000.0, 4600.0, 300), 2)
        self.states: dict[str, IdleSession] = {ID: found}
        self.clicks: list[str] = []
        self.error: Exception | None = None

    async def still_here(self, id: str) -> None:
        if self.error is not None:
            raise self.error
        self.clicks.append(id)
        self.states[id] = IdleSession(IdleRule(Action.STOP), IdleState("idle", 2000.0, 5600.0), 1)


@pytest.fixture
def watch(part: Part, monkeypatch: pytest.MonkeyPatch) -> Watch:
    found = Watch()
    part.idle = found  # type: ignore[assignment]
    part.log = SimpleNamespace(warning=lambda *_: None)  # type: ignore[attr-defined]
    for module in (companions, own_session):
        monkeypatch.setattr(module, "started_hub", lambda: part)
    return found


async def ask(browser: Browser, method: str, path: str, **more: Any) -> tuple[int, Any]:
    headers = {"X-XSRFToken": browser.xsrf, "Sec-Fetch-Mode": "cors", "Content-Type": "application/json"}
    status, text, _ = await browser.ask(method, f"{API}/{path}".rstrip("/"), headers=headers, **more)
    return status, json.loads(text)


async def test_the_page_says_it_and_its_button_begins_the_time_anew(alice: Browser, watch: Watch) -> None:
    _, text, _ = await alice.get("/hub/home")
    assert "It has been idle since" in text
    assert "I am still here (2 times left)" in " ".join(text.split())
    status, _, headers = await alice.post(f"/hub/carme/sessions/{ID}/still-here", {})
    assert (status, headers["Location"], watch.clicks) == (303, "/hub/home", [ID])


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (NotIdle("This session is not idle, so nothing ends it."), 409, "This session is not idle"),
        (NoClicksLeft("You have said so once."), 409, "You have said so once."),
        (StoreError("away"), 503, "The database does not answer, so nothing was changed."),
    ],
)
async def test_where_it_changes_nothing_the_page_says_why(
    alice: Browser, watch: Watch, error: Exception, status: int, said: str
) -> None:
    watch.error = error
    found, text, _ = await alice.post(f"/hub/carme/sessions/{ID}/still-here", {})
    assert found == status
    assert said in text


async def test_a_get_or_a_form_without_its_token_is_no_click(alice: Browser, watch: Watch) -> None:
    assert (await alice.get(f"/hub/carme/sessions/{ID}/still-here"))[0] == 302
    alice.xsrf = "wrong"
    assert (await alice.post(f"/hub/carme/sessions/{ID}/still-here", {}))[0] == 403
    assert watch.clicks == []


async def test_programs_read_the_state_and_click(alice: Browser, watch: Watch) -> None:
    status, found = await ask(alice, "GET", "")
    assert status == 200
    assert found["idle"] == {
        **{"state": "warn", "since": 1000, "deadline": 4600, "because": "", "action": "stop"},
        **{"after": 3600, "clicks_left": 2},
    }
    assert (found["session"], found["ends"], found["gpus"], found["virtual"]) == (ID, 0, 1, False)
    assert found["more"][0] == {"minutes": 30, "said": "30 min", "costs": "0.5 GPU-hours"}
    status, found = await ask(alice, "POST", "still-here")
    assert (status, found["state"], found["clicks_left"]) == (200, "idle", 1)
    watch.states = {}
    assert (await ask(alice, "GET", ""))[1]["idle"] == {"state": "off"}


async def test_a_click_with_a_body_or_on_a_hub_that_ends_nothing_is_refused(
    alice: Browser, watch: Watch, part: Part
) -> None:
    assert (await ask(alice, "POST", "still-here", data="[]"))[0] == 400
    part.idle = None
    status, found = await ask(alice, "POST", "still-here")
    assert (status, found["error"]) == (409, "not-idle")
    assert (await ask(alice, "GET", ""))[1]["idle"] == {"state": "off"}


async def test_nobody_clicks_for_others(hub: ForgedHub, alice: Browser, watch: Watch, part: Part) -> None:
    part.open = [session()]
    bob = await hub.browser("bob")
    status, _, _ = await bob.post(f"/hub/carme/sessions/{ID}/still-here", {})
    assert status == 404
    status, _ = await ask(bob, "GET", "")
    assert status == 404
    assert watch.clicks == []
