"""What a session tells the hub of the disk use of its user, and what it hears from it, for JupyterLab."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.training.server import disk_upload
from carme_hub.training.server.activity import SessionActivity
from carme_hub.training.server.disk_upload import DiskOfHub, send
from carme_hub.training.session.companions import NoHub


class HubThatAnswers:
    """Notes what it is asked, and gives one answer."""

    def __init__(self, answer: dict[str, Any] | NoHub) -> None:
        self.answer, self.asked = answer, list[tuple[str, Any]]()

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        self.asked.append((method, body))
        if isinstance(self.answer, NoHub):
            raise self.answer
        return self.answer


def answering(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | NoHub) -> HubThatAnswers:
    hub = HubThatAnswers(answer)
    monkeypatch.setenv("JUPYTERHUB_API_URL", "http://hub/api")
    monkeypatch.setattr(disk_upload, "_hub", lambda: hub)
    return hub


async def test_what_the_hub_warns_of_is_said_in_jupyterlab(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [{"path": "/home/a", "warning": "/home/a is 95 % full."}, {"path": "/data", "warning": ""}]
    answering(monkeypatch, {"places": places, "measured": None})
    disk = DiskOfHub()
    activity = SessionActivity(dict, {}, disk=lambda: disk.warnings)
    assert "disk" not in activity.view(with_curve=False)
    assert (await disk.age() or 0) > 1e9  # never measured
    assert activity.view(with_curve=False)["disk"] == [{"path": "/home/a", "text": "/home/a is 95 % full."}]
    answering(monkeypatch, {"places": None, "measured": 5.0})  # not known: no reason to go on warning
    await disk.age()
    assert disk.warnings == []


async def test_a_hub_that_does_not_answer_and_a_server_without_one_are_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, NoHub("silent"))
    assert await DiskOfHub().age() is None
    await send({"root": "/", "bytes": 1, "files": 1, "complete": True, "folders": []})
    hub = answering(monkeypatch, {})
    monkeypatch.delenv("JUPYTERHUB_API_URL")
    assert await DiskOfHub().age() is None
    await send({"folders": []})
    assert hub.asked == []
