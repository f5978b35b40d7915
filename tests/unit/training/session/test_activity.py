"""A run that goes on is work of its session, whoever looks on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forged_hub_api import ForgedHub
from rig.forged_http import serving

from carme_hub.training.session import activity
from carme_hub.training.session.activity import Activity


@pytest.fixture
def there() -> Iterator[ForgedHub]:
    with serving(ForgedHub()) as server:
        yield server


def of(there: ForgedHub) -> Activity:
    url = f"http://127.0.0.1:{there.server_address[1]}/hub/api"
    environ = {"JUPYTERHUB_API_URL": url, "JUPYTERHUB_API_TOKEN": "secret", "CARME_SESSION": "s1"}
    return Activity({**environ, "JUPYTERHUB_ACTIVITY_URL": f"{url}/users/a/activity", "JUPYTERHUB_SERVER_NAME": "two"})


def test_it_is_said_of_its_own_server_and_not_again_at_once(there: ForgedHub) -> None:
    there.answers = [(200, b"")]
    said = of(there)
    said.say()
    said.say()
    [(method, path, body, headers)] = there.asked
    assert (method, path, headers["Authorization"]) == ("POST", "/hub/api/users/a/activity", "token secret")
    assert body["servers"] == {"two": {"last_activity": body["last_activity"]}}
    assert body["last_activity"].endswith("+00:00")


def test_a_hub_that_does_not_answer_is_told_the_next_time(there: ForgedHub) -> None:
    there.answers = [(0, None), (503, {"message": "in a moment"}), (200, b"")]
    said = of(there)
    for _ in range(5):
        said.say()
    assert len(there.asked) == 3


def test_where_it_is_not_wanted_it_is_not_said_again(there: ForgedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "REPORT_INTERVAL", 0.0)
    there.answers = [(403, {"message": "no"})]
    said = of(there)
    for _ in range(3):
        said.say()
    assert len(there.asked) == 1


def test_outside_of_a_session_nobody_is_asked() -> None:
    Activity({"JUPYTERHUB_ACTIVITY_URL": "http://127.0.0.1:9/activity"}).say()
    Activity({}).say()
