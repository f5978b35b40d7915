"""The page Files in a real browser: uploads that lose their connection, a folder as an archive, at two widths."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from windows import DESK, PHONE, SCREENSHOTS

from carme_hub.paths import share_folder

ROOT = Path(__file__).parents[2]
TOKEN = "of-the-visitor"
#: JupyterLab serves the script and the style sheet; here a Jupyter server without it does.
STATIC = """
from tornado.web import StaticFileHandler


def _jupyter_server_extension_points():
    return [{{"module": "serves_static"}}]


def _load_jupyter_server_extension(server):
    files = (r"/lab/extensions/carme-hub/static/(.*)", StaticFileHandler, {{"path": {path!r}}})
    server.web_app.add_handlers(".*$", [files])
"""


@dataclass
class Session:
    """A Jupyter server with the file page, and its home."""

    home: Path
    url: str


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    home, code = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("code")
    static = share_folder().parent / "jupyter/labextensions/carme-hub/static"
    (code / "serves_static.py").write_text(STATIC.format(path=str(static)))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environ = {**os.environ, "HOME": str(home), "PYTHONPATH": f"{ROOT}:{code}"}
    for name in ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "CARME_SESSION_FOLDER"):
        environ.pop(name, None)
    on = {"carme_hub.training.server.extension": True, "serves_static": True}
    argv = [sys.executable, "-m", "jupyter_server", "--no-browser", f"--port={port}", "--allow-root"]
    argv += [f"--ServerApp.jpserver_extensions={on}", f"--IdentityProvider.token={TOKEN}"]
    argv += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={home}"]
    with (code / "log").open("wb") as log, subprocess.Popen(argv, env=environ, stdout=log, stderr=log) as process:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/api/status?token={TOKEN}", timeout=2).close()
                break
            except OSError:
                assert time.monotonic() < end, (code / "log").read_text()
                time.sleep(0.2)
        try:
            yield Session(home, url)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@pytest.fixture
def folder(session: Session, request: pytest.FixtureRequest) -> Path:
    found = session.home / request.node.name.partition("[")[0]
    found.mkdir(exist_ok=True)
    return found


def opened(page: Page, session: Session, folder: Path) -> list[str]:
    """Open the page of a folder; return the list of what the browser complains about."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda text: complaints.append(text.text) if "Content Security" in text.text else None)
    page.goto(f"{session.url}/carme/files?path={folder}&token={TOKEN}")
    return complaints


def test_files_are_uploaded_and_are_there(browser: Browser, session: Session, folder: Path, tmp_path: Path) -> None:
    page = browser.new_page(viewport=DESK)
    complaints = opened(page, session, folder)
    content = os.urandom(40 << 20)
    (tmp_path / "größe <b>.bin").write_bytes(content)
    (tmp_path / "small.txt").write_text("small")
    page.get_by_label("Files", exact=True).set_input_files([tmp_path / "größe <b>.bin", tmp_path / "small.txt"])
    expect(page.locator("#said")).to_have_text("2 files are there.")
    assert (folder / "größe <b>.bin").read_bytes() == content
    assert (folder / "small.txt").read_text() == "small"
    page.reload()
    expect(page.get_by_role("link", name="größe <b>.bin")).to_be_visible()
    page.get_by_label("Files", exact=True).set_input_files([tmp_path / "small.txt"])
    expect(page.locator("#transfers")).to_contain_text("small.txt is there already")
    page.close()
    assert complaints == []


def test_an_upload_goes_on_after_a_lost_connection_and_after_the_page_was_closed(
    browser: Browser, session: Session, folder: Path, tmp_path: Path
) -> None:
    content = os.urandom(70 << 20)
    source = tmp_path / "large.bin"
    source.write_bytes(content)
    context = browser.new_context(viewport=DESK)
    page = context.new_page()
    opened(page, session, folder)
    lost = []

    def lose(route: Route) -> None:
        if route.request.method == "PATCH" and not lost:
            lost.append(route.request.url)
            route.abort()
        elif route.request.method == "PATCH" and len(lost) == 2:
            route.abort()
        else:
            if route.request.method == "PATCH":
                lost.append("sent")
            route.continue_()

    page.route("**/carme/uploads/**", lose)
    page.get_by_label("Files", exact=True).set_input_files([source])
    expect(page.locator("#transfers")).to_contain_text("The server does not answer. Trying again.")
    expect(page.locator("#transfers")).to_contain_text("32 MiB of 70 MiB")
    context.set_offline(True)  # a page that closes sends no more of it, either
    page.close(run_before_unload=False)
    context.set_offline(False)
    assert not (folder / "large.bin").exists()
    again = context.new_page()
    opened(again, session, folder)
    expect(again.get_by_role("heading", name="Uploads that are not complete")).to_be_visible()
    expect(again.locator("#unfinished-list")).to_contain_text("large.bin: 32 MiB of 70 MiB (45 %)")
    again.get_by_label("Files", exact=True).set_input_files([source])
    expect(again.locator("#said")).to_have_text("1 file is there.")
    assert (folder / "large.bin").read_bytes() == content
    context.close()


def test_an_unfinished_upload_is_cancelled_from_the_page(browser: Browser, session: Session, folder: Path) -> None:
    request = urllib.request.Request(
        f"{session.url}/carme/uploads",
        headers={
            **{"Authorization": f"token {TOKEN}", "Tus-Resumable": "1.0.0", "Upload-Length": "5"},
            "Upload-Metadata": f"filename YWJj,folder {_coded(str(folder))}",
        },
        method="POST",
        data=b"",
    )
    urllib.request.urlopen(request).close()
    page = browser.new_page(viewport=PHONE)
    opened(page, session, folder)
    page.get_by_role("button", name="Cancel the upload of abc").click()
    expect(page.locator("#unfinished-list li")).to_have_count(0)
    assert list(folder.iterdir()) == []
    page.close()


def test_a_choice_is_downloaded_as_an_archive_also_without_scripts(
    browser: Browser, session: Session, folder: Path, tmp_path: Path
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/one").write_text("one")
    (folder / "two").write_text("two")
    (folder / "three").write_text("three")
    for scripts in (True, False):
        context = browser.new_context(viewport=DESK, java_script_enabled=scripts)
        page = context.new_page()
        opened(page, session, folder)
        page.get_by_label("Choose sub").check()
        page.get_by_label("Choose two").check()
        with page.expect_download() as download:
            page.get_by_role("button", name="As tar").click()
        target = tmp_path / f"{scripts}.tar"
        download.value.save_as(target)
        with tarfile.open(target) as found:
            assert sorted(found.getnames()) == ["sub", "sub/one", "two"]
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_readable_on_a_phone_and_a_desk(
    browser: Browser, session: Session, folder: Path, scheme: str
) -> None:
    (folder / ("long-name-" * 20)).write_text("x")
    (folder / "data").mkdir(exist_ok=True)
    for name, size in (("phone", PHONE), ("desk", DESK)):
        context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        opened(page, session, folder)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "JupyterLab"
        SCREENSHOTS.mkdir(exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"files-{name}-{scheme}.png", full_page=True)
        context.close()


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
