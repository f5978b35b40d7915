"""A session's own programs ask the hub with its token, understand every answer, and never wait for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forged_hub_api import ForgedHub
from rig.forged_http import serving

from carme_hub.training.session.companions import Companion, Hub, NoHub, Refused

ID = "66666666-7777-8888-9999-000000000000"
ONE = {"id": ID, "state": "waiting", "said": "You are next.", "nodes": [], "gpus": 4, "news": "of a later hub"}


@pytest.fixture
def there() -> Iterator[ForgedHub]:
    with serving(ForgedHub()) as server:
        yield server


@pytest.fixture
def hub(there: ForgedHub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a proxy for the internet is no way to the hub
    url = f"http://127.0.0.1:{there.server_address[1]}/hub/api"
    return Hub.from_environ({"JUPYTERHUB_API_URL": url, "JUPYTERHUB_API_TOKEN": "secret", "CARME_SESSION": "s1"})


def test_it_asks_with_the_session_s_own_token(hub: Hub, there: ForgedHub) -> None:
    there.answers = [(200, {"allowed": True, "message": "Costs 2.", "gpu_seconds": 7200, "expected_start": 5})]
    quote = hub.quote(nodes=2, gpus=4, minutes=30)
    assert (quote.allowed, quote.gpu_seconds, quote.expected_start) == (True, 7200, 5)
    [(method, path, _, headers)] = there.asked
    asked = "/hub/api/carme/sessions/s1/companions/quote?nodes=2&gpus=4&cpus=0&memory_mib=0&minutes=30"
    assert (method, path) == ("GET", asked)
    assert headers["Authorization"] == "token secret"
    assert "secret" not in repr(hub)


def test_it_opens_lists_and_closes(hub: Hub, there: ForgedHub) -> None:
    there.answers = [(201, {**ONE, "warnings": ["Much."]}), (200, {"companions": [ONE]}), (200, ONE)]
    opened = hub.open(nodes=2, gpus=4, name="run1")
    assert opened == Companion(ID, "waiting", "You are next.", gpus=4, warnings=("Much.",))
    assert [each.id for each in hub.list()] == [ID]
    assert hub.close(ID).state == "waiting"
    (_, _, body, headers), _, (method, path, _, _) = there.asked
    assert body == {"nodes": 2, "gpus": 4, "cpus": 0, "memory_mib": 0, "minutes": 0, "name": "run1"}
    assert len(headers["Idempotency-Key"]) == 32
    assert (method, path) == ("DELETE", f"/hub/api/carme/sessions/s1/companions/{ID}")
    there.answers = [(200, {"allowed": True, "message": ""}), (201, ONE)]
    hub.quote(gpus=1, exclude=("n2", "n1"))
    hub.open(gpus=1, exclude={"n1"})
    (_, path, _, _), (_, _, body, _) = there.asked[-2:]
    assert (path.rpartition("&")[2], body["exclude"]) == ("exclude=n1%2Cn2", "n1")
    with pytest.raises(ValueError, match="UUID"):
        hub.close("../other")


def test_an_answer_that_was_lost_is_asked_for_again_with_the_same_key(hub: Hub, there: ForgedHub) -> None:
    there.answers = [(0, None), (201, ONE)]
    assert hub.open(gpus=1).id == ID
    keys = [headers["Idempotency-Key"] for *_, headers in there.asked]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    there.answers = [(503, {"message": "busy"}), (503, {"message": "busy"})]
    with pytest.raises(NoHub, match="busy"):
        hub.open(gpus=1)


def test_an_answer_of_no_is_the_hub_s_own_words(hub: Hub, there: ForgedHub) -> None:
    there.answers = [(409, {"error": "gpu-time", "message": "You may use 2 h more."}), (404, {"message": "No such."})]
    with pytest.raises(Refused, match="2 h more") as refused:
        hub.open(gpus=1)
    assert refused.value.reason == "gpu-time"
    with pytest.raises(Refused, match="No such"):
        hub.list()
    assert len(there.asked) == 2


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"companions": 3}', b'{"companions": [{"state": "x"}]}', b""])
def test_what_cannot_be_understood_proves_nothing(hub: Hub, there: ForgedHub, answer: bytes) -> None:
    there.answers = [(200, answer)]
    with pytest.raises(NoHub):
        hub.list()


def test_outside_of_a_session_there_is_no_hub() -> None:
    with pytest.raises(NoHub, match="no session of Carme Hub"):
        Hub.from_environ({"JUPYTERHUB_API_URL": "http://hub"})


def test_the_session_s_certificates_are_for_its_hub_alone() -> None:
    files = {f"JUPYTERHUB_SSL_{name}": f"/nowhere/{name}" for name in ("KEYFILE", "CERTFILE", "CLIENT_CA")}
    environ = {"JUPYTERHUB_API_TOKEN": "t", "CARME_SESSION": "s", **files}
    assert not Hub.from_environ({**environ, "JUPYTERHUB_API_URL": "http://hub"}).tls
    inside = Hub.from_environ({**environ, "JUPYTERHUB_API_URL": "https://hub"})
    assert inside.tls == tuple(files.values())
    with pytest.raises(NoHub, match="certificates"):
        inside.list()
