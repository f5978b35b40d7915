"""A session sends its user's runs to the hub when they have changed, and nothing that the hub's page does not show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from carme_hub.spawners.handlers.runs import MAX_RUNS as TAKEN
from carme_hub.spawners.handlers.runs import RunList, RunRow
from carme_hub.training.launch.new_run import create
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.server.runs_page import RunsPage
from carme_hub.training.server.upload import FIELDS, MAX_RUNS, REST_AFTER_REFUSAL, RunsUpload
from carme_hub.training.session import user_jobs
from carme_hub.training.session.companions import NoHub, Refused


class HubThatTakesLists:
    """Keeps what it is sent, or does what the test wants."""

    def __init__(self) -> None:
        self.sent: list[list[dict[str, Any]]] = []
        self.error: Exception | None = None

    def ask(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert (method, path) == ("PUT", "")
        if self.error is not None:
            raise self.error
        RunList.model_validate(body)  # as the hub does
        self.sent.append(body["runs"])
        return {}


@pytest.fixture
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> HubThatTakesLists:
    found = HubThatTakesLists()
    monkeypatch.setenv("JUPYTERHUB_API_URL", "http://hub/hub/api")
    monkeypatch.setattr(user_jobs, "hub_of_user", lambda **_how: found)
    monkeypatch.setattr(user_jobs, "runs_of", lambda given: given)
    return found


def upload() -> RunsUpload:
    page = RunsPage()
    return RunsUpload(lambda: page.rows()["runs"])


def test_runs_are_sent_once_and_again_when_they_change(hub: HubThatTakesLists, monkeypatch: pytest.MonkeyPatch) -> None:
    looking = upload()
    looking.look()
    assert hub.sent == [], "without a run nothing is read or sent"
    monkeypatch.setenv("CARME_SESSION", "s1")
    run = create(RunOptions(2, name="first"), cell="token = 'SECRET'")
    for _ in range(3):
        looking.look()
    assert [[row["id"] for row in rows] for rows in hub.sent] == [["first"]]
    assert set(hub.sent[0][0]) == set(FIELDS) == set(RunRow.model_fields)
    assert (hub.sent[0][0]["ranks"], hub.sent[0][0]["session"]) == (2, "s1")
    assert "SECRET" not in str(hub.sent)
    run.cancel()
    looking.look()
    assert hub.sent[-1][0]["state"] == "interrupted"
    upload().look()
    assert len(hub.sent) == 3, "another session does not know what this one has sent"


def test_a_hub_that_is_away_gets_them_later_and_one_that_refuses_after_a_while(hub: HubThatTakesLists) -> None:
    create(RunOptions(1, name="first"), cell="pass")
    looking = upload()
    hub.error = NoHub("The hub does not answer.")
    looking.look()
    hub.error = None
    looking.look()
    assert len(hub.sent) == 1
    create(RunOptions(1, name="second"), cell="pass")
    hub.error = Refused("Not Found", "404")  # it is starting, or older
    looking.look()
    hub.error = None
    for _ in range(REST_AFTER_REFUSAL - 1):
        looking.look()
    assert len(hub.sent) == 1
    looking.look()
    assert len(hub.sent) == 2


def test_a_run_with_a_long_story_is_cut_and_keeps_nobody_elses_away(hub: HubThatTakesLists) -> None:
    run = create(RunOptions(1, name="first"), cell="pass")
    [row] = RunsPage().rows()["runs"]
    long = {
        "reason": "x" * 10_000,
        "note": "y\n" * 5000,
        "label": "a\nb",
        "tags": ["t" * 500] * 80,
        "nodes": ["n"] * 2000,
    }
    rows = [{**row, **long, "id": f"r{number}"} for number in range(200)]
    RunsUpload(lambda: rows).look()
    [sent] = hub.sent
    assert 0 < len(sent) < MAX_RUNS
    assert (sent[0]["id"], len(sent[0]["reason"]), sent[0]["label"]) == ("r0", 500, "a b")
    assert run.id == "first"


def test_without_a_hub_nothing_is_looked_at(hub: HubThatTakesLists, monkeypatch: pytest.MonkeyPatch) -> None:
    create(RunOptions(1, name="first"), cell="pass")
    monkeypatch.delenv("JUPYTERHUB_API_URL")
    RunsUpload(lambda: pytest.fail("it was read")).look()
    assert hub.sent == []


def test_no_more_are_sent_than_are_taken() -> None:
    assert MAX_RUNS == TAKEN


def test_the_address_is_that_of_the_user() -> None:
    environ = {"JUPYTERHUB_API_URL": "http://h/hub/api", "JUPYTERHUB_API_TOKEN": "t", "CARME_SESSION": "s"}
    found = user_jobs.runs_of(user_jobs.hub_of_user({**environ, "JUPYTERHUB_USER": "ann"}))
    assert found.url == "http://h/hub/api/carme/users/ann/runs"
