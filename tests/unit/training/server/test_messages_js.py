"""Messages of administrators in JupyterLab: what is shown of them, once; and the click that says they are seen."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from test_activity_js import run, view

from carme_hub.training.server.activity import SessionActivity

ID = "5f0d8f0e-0000-4000-8000-000000000001"


def with_messages(**more: Any) -> dict[str, Any]:
    state = {"session": "one", "ends": 0, "idle": {"state": "off"}, "messages": [], "announcements": [], **more}
    return view(state=state)


def shown(seen: dict[str, Any]) -> list[dict[str, Any]]:
    return list(run(f"out = m.warnings({json.dumps(seen)})"))


def test_a_message_is_shown_with_its_sender_and_can_be_seen() -> None:
    [found] = shown(with_messages(messages=[{"id": ID, "from": "ada", "at": 1, "text": "Save your work\nnow"}]))
    assert (found["id"], found["text"]) == (f"message-{ID}", "Message from ada: Save your work now")
    assert (found["actions"], found["message"]) == (["seen"], ID)


def test_a_long_one_is_cut_before_jupyterlab_cuts_it_and_can_be_read() -> None:
    [found] = shown(with_messages(messages=[{"id": ID, "from": "ada", "at": 1, "text": "word " * 60}]))
    assert len(found["text"]) <= 135
    assert found["actions"] == ["read", "seen"]
    assert found["whole"] == "word " * 60


def test_an_announcement_is_shown_with_what_it_is() -> None:
    one = {"id": ID, "kind": "maintenance", "heading": "Maintenance 18:00 to 20:00", "text": "Cooling"}
    [found] = shown(with_messages(announcements=[one]))
    assert (found["text"], found["actions"]) == ("Maintenance 18:00 to 20:00: Cooling", [])


def test_an_older_hub_sends_none() -> None:
    assert shown(view()) == []


class HubThatNotes:
    """Takes what the session's server asks."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def ask(self, method: str, path: str, _body: Any = None) -> dict[str, Any]:
        self.asked.append((method, path))
        return {}


def test_the_click_goes_to_the_hub_for_that_message(monkeypatch: pytest.MonkeyPatch) -> None:
    found, hub = SessionActivity(lambda: {}, {}), HubThatNotes()
    monkeypatch.setattr(found, "_hub", lambda: hub)
    assert found.do({"do": "seen", "message": ID})["done"] is True
    assert hub.asked == [("POST", f"/messages/{ID}/seen")]


@pytest.mark.parametrize(
    "body", [{"do": "seen"}, {"do": "seen", "message": "../x"}, {"do": ["seen"]}, {"do": "seen", "message": 1}]
)
def test_a_click_that_names_no_message_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match='"do": "seen"'):
        SessionActivity(lambda: {}, {}).do(body)


def test_a_text_is_given_to_a_dialog_as_text() -> None:
    code = (
        "const shown = []; const messages = await import(new URL('messages.js', MODULE));"
        "await messages.readMessage(async given => shown.push(given), {okButton: () => 'ok'}, 'From ada', '<b>x</b>');"
        "out = shown"
    )
    from test_activity_js import MODULE

    [given] = run(f"const MODULE = {json.dumps(MODULE.as_uri())}; {code}")
    assert SimpleNamespace(**given) == SimpleNamespace(title="From ada", body="<b>x</b>", buttons=["ok"])
