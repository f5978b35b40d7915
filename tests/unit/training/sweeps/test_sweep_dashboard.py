"""Optuna's own dashboard works below the prefix of a session, on a socket that only its owner can open."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import optuna_dashboard
import pytest

from carme_hub.training import sweeps
from carme_hub.training.sweeps import dashboard, study

PREFIX, DECODED = "/user/al%20ice/optuna", "/user/al ice/optuna"


class Connection(http.client.HTTPConnection):
    """Connects to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


@pytest.fixture
def page(home: Path, short_path: Path) -> Iterator[Path]:
    where = short_path / "s"
    server = dashboard.serve(str(where), dashboard.make_application(home / study.JOURNAL, PREFIX))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield where
    server.shutdown()
    server.server_close()


def get(page: Path, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = Connection(page)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_its_addresses_are_below_the_prefix(page: Path) -> None:
    assert stat.S_IMODE(page.stat().st_mode) & 0o077 == 0
    status, headers, _ = get(page, "/")
    assert (status, headers["Location"]) == (302, "dashboard")
    for path in ("/dashboard", "/dashboard/studies/0"):
        status, headers, body = get(page, path, If_Modified_Since="Thu, 26 Nov 2099 16:00:00 GMT", Range="bytes=0-9")
        assert status == 200
        assert f'src="{PREFIX}/static/bundle.js"'.encode() in body
        assert "script-src 'self'" in headers["Content-Security-Policy"]
    status, headers, body = get(page, "/static/bundle.js", Accept_Encoding="gzip, br")
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    script = gzip.decompress(body)
    assert f'url_prefix:"{DECODED}/dashboard"'.encode() in script
    assert f':"{PREFIX}")}}handleResponse'.encode() in script
    assert f"`{PREFIX}/csv/${{".encode() in script
    assert b"`/csv/${" not in script
    assert get(page, "/static/bundle.js")[2] == script
    assert get(page, "/static/bundle.js", If_None_Match=headers["ETag"])[0] == 304


def test_it_shows_trials_as_they_come(page: Path) -> None:
    assert json.loads(get(page, "/api/studies")[2]) == {"study_summaries": []}
    opened = sweeps.open_study("digits")
    sweeps.optimize(opened, lambda trial: trial.suggest_float("x", 0, 1), trials=2)
    [found] = json.loads(get(page, "/api/studies")[2])["study_summaries"]
    assert found["study_name"] == "digits"
    trials = json.loads(get(page, f"/api/studies/{found['study_id']}?after=0")[2])["trials"]
    assert [trial["state"] for trial in trials] == ["Complete", "Complete"]
    assert get(page, f"/csv/{found['study_id']}")[2].startswith(b"Number,State")
    assert get(page, "/nowhere")[0] == 404


def test_a_release_with_other_addresses_is_refused_with_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (Path(optuna_dashboard.__file__).parent / "public/bundle.js").read_bytes()
    for pattern in (b'url_prefix:"/dashboard"', b"`/csv/${"):
        with pytest.raises(dashboard.CannotServe):
            dashboard.with_prefix(script.replace(pattern, b"changed"), PREFIX)
    monkeypatch.setattr(dashboard, "ADDRESSES", (rb"(never)(there)",))
    with pytest.raises(SystemExit, match=r"optuna-dashboard [\d.]+ cannot be served .* has no \(never\)"):
        dashboard.main(["--socket", str(home / "s"), "--journal", str(home / "j"), "--prefix", PREFIX])
