"""JupyterLab reads what the session uses from its folder, and asks the hub at most once a minute what is left of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carme_hub.node.report import Ring
from carme_hub.training.server import activity
from carme_hub.training.server.activity import HUB_AGE, LOOK_AGE, SessionActivity, kernel_pids
from carme_hub.training.server.usage_files import curve, newest_sample
from carme_hub.training.session.companions import Hub, NoHub, Refused

NOW = 1_800_000_000
ENVIRON = {
    **{"JUPYTERHUB_API_URL": "http://hub/hub/api", "JUPYTERHUB_API_TOKEN": "t", "CARME_SESSION": "one"},
}


def gpu(**values: Any) -> dict[str, Any]:
    every = ("utilisation", "temperature", "power", "memory", "throttled", "new_ecc", "xids")
    return {**dict.fromkeys(every), **values}


def write_ring(folder: Path, *rows: dict[str, Any], gpus: int = 1) -> None:
    """Write a ring as the reporter does."""
    ring = Ring(str(folder / "usage.ring"), {"gpus": [{"name": f"A100 {number}"} for number in range(gpus)]}, gpus)
    for row in rows:
        ring.append({"gpus": [gpu()] * gpus, **row})


def test_the_curve_has_means_and_the_most_and_nothing_where_nothing_is_known(tmp_path: Path) -> None:
    rows = [
        {
            "at": NOW + 10 * number,
            "cpu": 100 * number,
            "memory": 50 - number,
            "gpus": [gpu(utilisation=10 * number, memory=number)],
        }
        for number in range(4)
    ]
    write_ring(tmp_path, {"at": NOW - 9999, "cpu": 9}, *rows, {"at": NOW + 40}, {"at": NOW + 50})
    assert curve(tmp_path, NOW, 3) == {
        "at": [NOW + 10, NOW + 30, NOW + 50],
        "cpu": [50.0, 250.0, None],
        "memory": [50, 48, None],
        "gpus": [{"name": "A100 0", "utilisation": [5.0, 25.0, None], "memory": [1, 3, None]}],
    }


@pytest.mark.parametrize("content", [b"", b"{}", b"x" * 5000, b'{"version": 2}'.ljust(4096), b"\xff" * 4096])
def test_a_ring_that_is_none_gives_no_curve(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "usage.ring").write_bytes(content)
    assert curve(tmp_path, 0, 10) == {"at": [], "cpu": [], "memory": [], "gpus": []}
    assert curve(tmp_path / "nowhere", 0, 10)["at"] == []


def test_a_ring_that_is_being_written_gives_what_is_whole(tmp_path: Path) -> None:
    write_ring(tmp_path, {"at": NOW, "cpu": 1, "memory": 2})
    with (tmp_path / "usage.ring").open("ab") as file:
        file.write(b"\x01\x02\x03")
    assert curve(tmp_path, 0, 10)["at"] == [NOW]


@pytest.mark.parametrize(
    ("text", "there"),
    [
        (json.dumps({"at": NOW}), True),
        (json.dumps({"at": NOW - 600}), False),
        ('{"at": "x"}', False),
        ("[1]", False),
        ("{", False),
    ],
)
def test_an_old_sample_or_none_is_not_known(tmp_path: Path, text: str, there: bool) -> None:
    (tmp_path / "usage.json").write_text(text)
    assert (newest_sample(tmp_path, NOW) is not None) == there
    assert newest_sample(tmp_path / "nowhere", NOW) is None


class Session:
    """A session whose hub answers as it is told to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asked = float(NOW), []  # type: ignore[var-annotated]
        self.answer: Any = {"ends": NOW + 600, "idle": {"state": "off"}}

        def ask(hub: Hub, method: str, path: str, body: Any = None, _key: str = "") -> Any:
            self.asked.append((method, hub.url + path, body))
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        monkeypatch.setattr(Hub, "ask", ask)
        environ = {**ENVIRON, "CARME_SESSION_FOLDER": str(folder)}
        self.activity = SessionActivity(lambda: {"kernel-a": 42}, environ, clock=lambda: self.now)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(tmp_path, monkeypatch)


def test_all_tabs_together_ask_the_hub_once_a_minute(session: Session) -> None:
    for _ in range(50):
        assert session.activity.view(with_curve=False)["state"]["ends"] == NOW + 600
        session.now += 1
    assert session.asked == [("GET", "http://hub/hub/api/carme/sessions/one", None)]
    session.now += HUB_AGE
    session.activity.view(with_curve=False)
    assert len(session.asked) == 2


def test_a_hub_that_is_away_leaves_what_it_said_last_and_it_is_said(session: Session) -> None:
    session.activity.view(with_curve=False)
    session.answer = NoHub("away")
    session.now += HUB_AGE
    found = session.activity.view(with_curve=False)
    assert found["state"]["ends"] == NOW + 600
    assert found["problem"] == "The hub does not answer, so this may be out of date."
    session.answer = Refused("There is no such session, or it has ended.")
    session.now += HUB_AGE
    found = session.activity.view(with_curve=False)
    assert (found["state"], found["problem"]) == (None, "There is no such session, or it has ended.")


def test_the_processes_of_a_gpu_have_their_kernels(session: Session, tmp_path: Path) -> None:
    processes = [{"pid": 9042, "inside": 42, "memory": 100}, {"pid": 9043, "inside": 43, "memory": 5}]
    (tmp_path / "usage.json").write_text(
        json.dumps({"at": NOW, "gpus": [{"processes": processes}, {"processes": None}]})
    )
    found = session.activity.view(with_curve=True)
    assert [each["kernel"] for each in found["used"]["gpus"][0]["processes"]] == ["kernel-a", ""]
    assert found["curve"]["at"] == []


def test_buttons_ask_the_hub_and_the_next_view_is_new(session: Session) -> None:
    session.activity.view(with_curve=False)
    session.answer = {"said": "14:53", "warnings": ["Little is left."]}
    done = session.activity.do({"do": "extend", "minutes": 30})
    assert done == {"done": True, "message": "It has time until 14:53. Little is left."}
    assert session.asked[-1] == ("POST", "http://hub/hub/api/carme/sessions/one/time-limit", {"minutes": 30})
    assert session.activity.do({"do": "here"})["done"]
    assert session.asked[-1][:2] == ("POST", "http://hub/hub/api/carme/sessions/one/still-here")
    count = len(session.asked)
    session.activity.view(with_curve=False)
    assert len(session.asked) == count + 1


def test_more_time_is_shown_at_once_although_the_hub_has_not_seen_it_in_slurm_yet(session: Session) -> None:
    before = session.activity.view(with_curve=False)["state"]
    session.answer = {"ends": NOW + 2400, "said": "14:53"}
    session.activity.do({"do": "extend", "minutes": 30})
    session.answer = before
    session.now += LOOK_AGE - 1
    found = session.activity.view(with_curve=False)["state"]
    assert (found["ends"], found["said"], found["idle"]) == (NOW + 2400, "14:53", before["idle"])
    session.answer = {**before, "ends": NOW + 2401}
    session.now += 2
    assert session.activity.view(with_curve=False)["state"]["ends"] == NOW + 2401


@pytest.mark.parametrize(
    ("error", "said"),
    [(Refused("The profile runs at most 240 minutes."), "at most 240 minutes"), (NoHub("x"), "not known whether")],
)
def test_what_was_not_done_is_said_as_such(session: Session, error: Exception, said: str) -> None:
    session.answer = error
    found = session.activity.do({"do": "extend", "minutes": 30})
    assert not found["done"]
    assert said in found["message"]


@pytest.mark.parametrize(
    "body", [{}, {"do": "stop"}, {"do": "extend"}, {"do": "extend", "minutes": "30"}, {"do": "extend", "minutes": True}]
)
def test_other_requests_are_refused(session: Session, body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Send"):
        session.activity.do(body)
    assert session.asked == []


def test_outside_of_a_session_nothing_is_known_and_nothing_fails() -> None:
    found = SessionActivity(dict, {}).view(with_curve=True)
    assert (found["used"], found["state"]) == (None, None)
    assert found["problem"]


def test_kernels_without_a_process_are_left_out() -> None:
    kernels = {"a": SimpleNamespace(provisioner=SimpleNamespace(pid=7)), "b": SimpleNamespace(provisioner=None)}
    manager = SimpleNamespace(list_kernel_ids=lambda: list(kernels), get_kernel=kernels.__getitem__)
    assert kernel_pids(manager) == {"a": 7}
    assert activity.HERE == "here"
