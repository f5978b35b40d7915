"""The home page's list of companions: each button asks its own question, and what is leaving has none."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from jinja2 import Environment, FileSystemLoader
from test_companions_open import PARENT, TWO, Part, Spawner, book, part, session

from carme_hub.domain.sessions.session import Session
from carme_hub.spawners import session_state
from carme_hub.spawners.companions.companions import give_back, open_companion
from carme_hub.spawners.handlers.pages import templates_path
from carme_hub.spawners.session_state import Companion, SessionStatus

__all__ = ["book", "part", "session"]


def page(*spawners: object) -> str:
    environment = Environment(loader=FileSystemLoader(templates_path()), autoescape=True)
    user = SimpleNamespace(spawners=dict(enumerate(spawners)))
    template = environment.get_template("carme_companions.html")
    return " ".join(template.render(user=user, base_url="/hub/", xsrf="x<").split())


async def test_each_button_asks_its_own_question(part: Part, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_state, "started_hub", lambda: part)
    first, _ = await open_companion(part, Spawner(), session, TWO)  # type: ignore[arg-type]
    second, _ = await open_companion(part, Spawner(), session, TWO)  # type: ignore[arg-type]
    await give_back(part, session, first.id)  # type: ignore[arg-type]
    server = SessionStatus()
    server.user, server.name, server.virtual, server.active = SimpleNamespace(name="alice"), "", True, True  # type: ignore[attr-defined]
    shown = page(server)
    assert "2 nodes more for run1, 4 × virtual a100: it is being given back." in shown
    assert "2 nodes more for run1, 4 × virtual a100: it is being submitted to Slurm." in shown
    buttons, dialogs = re.findall(r'data-carme-dialog="([^"]+)"', shown), re.findall(r'<dialog .*? id="([^"]+)"', shown)
    assert buttons == dialogs == [f"carme-companion-{second.id}-give-back"]
    assert f'action="/hub/carme/sessions/{PARENT}/companions/{second.id}/give-back"' in shown
    assert first.id not in "".join(dialogs)
    assert "Cancel this request?" in shown  # it waits: there is nothing to give back
    assert "Give back" not in shown


def test_what_runs_is_given_back() -> None:
    one = Companion(PARENT, "c1", "2 nodes more", leaving=False, waiting=False)
    shown = page(SimpleNamespace(active=True, name="", companions=[one]))
    assert "Give these nodes back?" in shown
    assert "Cancel" not in shown


async def test_without_companions_nothing_is_shown(
    part: Part, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_state, "started_hub", lambda: part)
    server = SessionStatus()
    server.user, server.name, server.virtual, server.active = SimpleNamespace(name="alice"), "", True, True  # type: ignore[attr-defined]
    assert page(server) == page(SimpleNamespace(active=True)) == ""
    monkeypatch.setattr(session_state, "started_hub", lambda: None)
    assert page(server) == ""
