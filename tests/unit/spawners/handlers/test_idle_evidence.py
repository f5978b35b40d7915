"""Another culler asks what is at work in a server with the scope that it has, and nobody else learns it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from forged_hub import Browser, ForgedHub
from test_home_sessions import Part, alice, hub, part, session

from carme_hub.domain.sessions.session import Session
from carme_hub.errors import StoreError
from carme_hub.spawners.handlers import idle_evidence

__all__ = ["alice", "hub", "part"]
PATH = "/hub/api/carme/users/alice/idle?server="


class WatchThatKnows:
    """The hub's watch with a forged answer."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def evidence(self, session: Session) -> tuple[str, str]:
        if self.error is not None:
            raise self.error
        return "busy", f"a kernel of {session.user} was at work"


@pytest.fixture
def watch(part: Part, monkeypatch: pytest.MonkeyPatch) -> WatchThatKnows:
    found = WatchThatKnows()
    part.idle = found  # type: ignore[assignment]
    monkeypatch.setattr(idle_evidence, "started_hub", lambda: part)
    return found


async def ask(browser: Browser, path: str = PATH) -> tuple[int, Any]:
    headers = {"X-XSRFToken": browser.xsrf, "Sec-Fetch-Mode": "cors"}
    status, text, _ = await browser.ask("GET", path, headers=headers)
    return status, json.loads(text)


async def test_it_says_what_is_known_of_a_server(alice: Browser, watch: WatchThatKnows, part: Part) -> None:
    part.open = [session()]
    assert await ask(alice) == (200, {"state": "busy", "because": "a kernel of alice was at work"})
    part.open = []
    assert (await ask(alice))[1]["state"] == "unknown"
    assert (await ask(alice, PATH + "another"))[0] == 404
    part.open, watch.error = [session()], StoreError("away")
    assert (await ask(alice))[0] == 503


async def test_other_people_learn_nothing(hub: ForgedHub, alice: Browser, watch: WatchThatKnows, part: Part) -> None:
    part.open = [session()]
    assert (await ask(await hub.browser("bob")))[0] == 404
