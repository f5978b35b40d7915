"""JupyterLab's panel keeps what a session has installed as an image: what it would be, how it goes on, and why not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forged_hub_api import ForgedHub
from rig.forged_http import serving

from carme_hub.training.images.hub_builds import log_part
from carme_hub.training.server.image_builds import SessionImages

ID = "11111111-1111-4111-8111-111111111111"
BUILD: dict[str, Any] = {"id": ID, "name": "tools", "state": "building", "base": "torch", "job": 7, "problem": ""}
TERMS = {"problem": "", "base": "torch", "base_digest": "sha256:1", "below": "", "days": 90, "have": 0, "builds": 5}
KEY = "0123456789abcdef"
ASKED = {"name": "tools", "description": "Colours", "key": KEY}


@pytest.fixture
def hub() -> Iterator[ForgedHub]:
    with serving(ForgedHub()) as server:
        yield server


@pytest.fixture
def environ(hub: ForgedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A session, in whose packages pip has put one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    info = tmp_path / f"p/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/rich-14.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rich\nVersion: 14.0\n")
    api = f"http://127.0.0.1:{hub.server_address[1]}/hub/api"
    hub_of = {"JUPYTERHUB_API_URL": api, "JUPYTERHUB_API_TOKEN": "secret", "JUPYTERHUB_USER": "alice"}
    return {**hub_of, "CARME_SESSION": "s1", "CARME_PACKAGES": str(tmp_path / "p")}


def test_it_says_what_would_be_in_the_image_and_below_it(hub: ForgedHub, environ: dict[str, str]) -> None:
    hub.answers = [(200, TERMS)]
    found = SessionImages(environ).view()
    assert (found["packages"], found["base"], found["problem"], found["last"]) == (["rich==14.0"], "torch", "", "")
    assert hub.asked[0][:2] == ("GET", "/hub/api/carme/sessions/s1/image-builds")
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("answer", "installed", "said"),
    [
        ((200, TERMS), False, "pip has installed nothing in this session"),
        ((200, {**TERMS, "problem": "You may have 1 images"}), True, "You may have 1 images"),
        (
            (409, {"error": "image-build", "message": "This hub keeps no catalogue"}),
            True,
            "This hub keeps no catalogue",
        ),
        ((503, {"message": "down"}), True, "The hub does not answer. Try again in a minute."),
        ((0, None), True, "The hub does not answer. Try again in a minute."),
    ],
)
def test_why_nothing_can_be_built_is_said_before(
    hub: ForgedHub, environ: dict[str, str], tmp_path: Path, answer: Any, installed: bool, said: str
) -> None:
    hub.answers = [answer]
    if not installed:
        environ["CARME_PACKAGES"] = str(tmp_path / "nothing")
    assert said in SessionImages(environ).view()["problem"]


def test_it_is_built_once_and_shown_in_all_tabs(hub: ForgedHub, environ: dict[str, str]) -> None:
    images = SessionImages(environ)
    hub.answers = [(0, None), (201, {**BUILD, "warnings": ["That is much."]}), (200, TERMS)]
    answer = images.build(ASKED)
    assert (answer["done"], answer["message"], answer["build"]["job"]) == (True, "That is much.", 7)
    first, second = hub.asked
    body = {"kind": "packages", "text": "rich==14.0\n", "name": "tools", "description": "Colours"}
    assert first[2] == second[2] == body
    assert first[3]["Idempotency-Key"] == second[3]["Idempotency-Key"] == KEY
    assert images.view()["last"] == ID


def test_a_refusal_is_the_hubs_own_sentence(hub: ForgedHub, environ: dict[str, str]) -> None:
    images = SessionImages(environ)
    hub.answers = [(409, {"error": "image-build", "message": "Another image is called tools."})]
    assert images.build(ASKED) == {"done": False, "message": "Another image is called tools."}
    hub.answers = [(0, None), (0, None)]
    assert "It is not known whether" in images.build(ASKED)["message"]


@pytest.mark.parametrize("wrong", [{"name": 1}, {"key": "short"}, {"key": "../../../x"}, {"description": None}])
def test_a_request_that_is_none_is_refused(environ: dict[str, str], wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Send"):
        SessionImages(environ).build({**ASKED, **wrong})


def test_its_log_is_followed_and_its_end_has_the_way_to_a_form(
    hub: ForgedHub, environ: dict[str, str], tmp_path: Path
) -> None:
    images = SessionImages(environ)
    ready = {**BUILD, "state": "ready", "start": "spawn?opt-image=tools"}
    hub.answers = [(200, BUILD), (404, {"message": "none"}), (200, ready)]
    assert images.progress(ID, 0)["text"] == ""
    log = tmp_path / ".carme/sessions" / ID / "job.log"
    log.parent.mkdir(parents=True)
    log.write_text("Collecting rich\n")
    found = images.progress(ID, 11)
    assert (found["text"], found["end"], found["build"]["start"]) == ("rich\n", 16, "spawn?opt-image=tools")
    hub.answers = [(404, {"error": "unknown", "message": "You have no such image."}), (0, None)]
    assert (images.progress(ID, 16)["build"], images.progress(ID, 16)["build"]) == (None, {})
    with pytest.raises(ValueError, match="no id"):
        images.progress("../batch-jobs", 0)


def test_a_long_log_comes_in_whole_lines(environ: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / ".carme/sessions" / ID / "job.log"
    log.parent.mkdir(parents=True)
    log.write_bytes("äöü\n".encode() * 10)
    hub: Any = None
    text, end = log_part(hub, ID, 0, most=10)
    assert (text, end) == ("äöü\n", 7)
    assert log_part(hub, ID, 63, most=100) == ("äöü\n", 70)
