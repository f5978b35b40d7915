"""The gallery copies what is chosen for its own page, and nothing for anybody else."""

from __future__ import annotations

import http.client
import re
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from carme_hub.training import templates
from carme_hub.training.templates import kernels
from carme_hub.training.templates.gallery import POLICY, Gallery, is_cross_site, serve

PREFIX = "/user/alice/templates"
OURS = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(str(self.path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    return work


@pytest.fixture
def at(tmp_path: Path, folder: Path) -> Iterator[Path]:
    place = tmp_path / "s"
    with serve(str(place), Gallery(PREFIX, folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield place
        server.shutdown()
        thread.join()


def ask(at: Path, method: str, path: str, fields: dict[str, str] | None = None, **headers: str) -> tuple[int, str, str]:
    connection = UnixConnection(at)
    connection.request(method, path, urlencode(fields) if fields is not None else None, headers)
    answer = connection.getresponse()
    said = answer.status, answer.headers.get("Location", ""), answer.read().decode()
    connection.close()
    return said


def word(at: Path) -> str:
    found = re.search(r'name="word" value="([^"]+)"', ask(at, "GET", f"{PREFIX}/")[2])
    assert found
    return found[1]


def test_the_page_has_every_template_and_says_what_there_is_none_for(at: Path) -> None:
    status, _, page = ask(at, "GET", f"{PREFIX}/")
    assert status == 200
    for template in templates.templates():
        assert f'<h2 id="{template.name}">' in page
    assert "Horovod with Keras" in page
    assert '<a href="/user/alice/lab">Back to JupyterLab</a>' in page
    assert page.count("<h1>") == 1
    assert '<html lang="en">' in page
    assert "width=device-width" in page
    assert "@" not in re.sub(r"@media", "", page), "a place of the page was not filled"


def test_a_card_that_cannot_run_here_leads_to_an_image_that_can(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda module: None if module == "horovod" else object())
    monkeypatch.setenv("CARME_IMAGES", '{"horovod": ["big <1>"], "torchrun": ["small"]}')
    monkeypatch.setenv("JUPYTERHUB_BASE_URL", "/at/")
    page = ask(at, "GET", f"{PREFIX}/")[2]
    link = '<a href="/at/hub/spawn?opt-image=big+%3C1%3E" target="_top">start one with the image “big &lt;1&gt;”</a>'
    assert f"<p>When this server has been stopped: {link}</p>" in page
    assert "opt-image=small" not in page, "what runs here needs no other image"
    monkeypatch.delenv("CARME_IMAGES")
    page = ask(at, "GET", f"{PREFIX}/")[2]
    assert "There is no Horovod here." in page
    assert "opt-image" not in page


def test_an_installation_without_templates_is_said_on_a_whole_page(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise templates.TemplateError("The templates were not found.")

    monkeypatch.setattr(templates, "folder", missing)
    status, _, page = ask(at, "GET", f"{PREFIX}/")
    assert status == 200
    assert '<p class="note" role="alert">The templates were not found.</p>' in page
    assert "<h1>" in page
    assert "<ul>" not in page


def test_a_button_copies_a_template_and_opens_it(at: Path, folder: Path) -> None:
    ours = word(at)
    for number in ("", "-2"):
        fields = {"word": ours, "name": "ddp", "kind": "notebook"}
        status, place, _ = ask(at, "POST", f"{PREFIX}/", fields, **OURS)
        assert (status, place) == (303, f"/user/alice/templates/open/ddp{number}.ipynb")
    status, place, _ = ask(at, "POST", f"{PREFIX}/", {"word": ours, "name": "fsdp", "kind": "script"}, **OURS)
    assert (status, place) == (303, "/user/alice/templates/open/fsdp.py")
    assert sorted(path.name for path in folder.iterdir()) == ["ddp-2.ipynb", "ddp.ipynb", "fsdp.py"]


def test_a_page_has_a_copy_opened_by_jupyterlab_or_becomes_it(at: Path) -> None:
    connection = UnixConnection(at)
    connection.request("GET", f"{PREFIX}/open/a%20%22b%22/%3Cddp%3E.ipynb")
    answer = connection.getresponse()
    page, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    connection.close()
    assert answer.status == 200
    assert 'data-file="a &quot;b&quot;/&lt;ddp&gt;.ipynb"' in page
    assert 'data-place="/user/alice/lab/tree/a%20%22b%22/%3Cddp%3E.ipynb"' in page
    assert 'data-server="/user/alice/"' in page
    (nonce,) = re.findall(r'<script nonce="([^"]+)">', page)
    assert f"script-src 'nonce-{nonce}'" in policy
    assert nonce not in ask(at, "GET", f"{PREFIX}/open/x")[2]
    assert "script-src" not in POLICY


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}])
def test_a_page_of_another_site_copies_nothing(at: Path, folder: Path, headers: dict[str, str]) -> None:
    status, _, page = ask(at, "POST", f"{PREFIX}/", {"word": word(at), "name": "ddp"}, **{**OURS, **headers})
    assert status == 403
    assert 'role="alert"' in page
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("fields", [{"name": "ddp"}, {"name": "ddp", "word": "guessed"}, {"name": "ddp", "word": "é"}])
def test_a_form_without_our_word_copies_nothing(at: Path, folder: Path, fields: dict[str, str]) -> None:
    assert ask(at, "POST", f"{PREFIX}/", fields, **OURS)[0] == 403
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "<b>x</b>"])
def test_a_name_that_is_no_template_is_told_so(at: Path, folder: Path, name: str) -> None:
    status, _, page = ask(at, "POST", f"{PREFIX}/", {"word": word(at), "name": name}, **OURS)
    assert status == 409
    assert "There is no template" in page
    assert "<b>x</b>" not in page
    assert list(folder.iterdir()) == []


def test_a_form_that_is_too_long_is_not_read(at: Path) -> None:
    assert ask(at, "POST", f"{PREFIX}/", {"word": "x" * 10_000}, **OURS)[0] == 413


def test_there_is_no_other_page(at: Path) -> None:
    assert ask(at, "GET", "/")[0] == 404
    assert ask(at, "GET", f"{PREFIX}/../../etc/passwd")[0] == 404


def test_nobody_else_can_open_the_socket(at: Path) -> None:
    assert stat.S_IMODE(at.stat().st_mode) & 0o077 == 0


def test_the_page_can_load_nothing(at: Path) -> None:
    connection = UnixConnection(at)
    connection.request("GET", PREFIX)
    answer = connection.getresponse()
    assert answer.headers["Content-Security-Policy"] == POLICY
    answer.read()
    connection.close()


@pytest.mark.parametrize(
    ("headers", "elsewhere"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "https://hub.example", "Host": "hub.example"}, False),
        ({"Origin": "https://evil.example", "Host": "hub.example"}, True),
        ({"Origin": "null", "Host": "hub.example"}, True),
        ({}, False),
    ],
)
def test_where_a_request_comes_from(headers: dict[str, str], elsewhere: bool) -> None:
    assert is_cross_site(headers) is elsewhere
