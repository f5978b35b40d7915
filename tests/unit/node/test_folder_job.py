"""The batch script of jobs that look at folders: what it says when it is stopped, and when nobody listens."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rig.hub import wait_for

from carme_hub.folders.jobs import MEASURE, SCRIPT
from carme_hub.node import folder_job, program
from carme_hub.node.folder_job import line_of, place_of, shown

SUM = hashlib.sha256(b"x").hexdigest()


class Listener:
    """A service that takes reports, after some answers with other statuses."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.first: list[int] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.headers["Authorization"] == "carme-nonce secret"
                status = listener.first.pop(0) if listener.first and body["state"] != "running" else 204
                if status == 204:
                    listener.reports.append(body)
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/report"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.server.shutdown()
    found.thread.join()
    found.server.server_close()


def started(place: Path, url: str, **more: Any) -> subprocess.Popen[bytes]:
    """Start the script on the folder ``data``, as Slurm does."""
    session = place / "session"
    session.mkdir(mode=0o700)
    report = {"url": url, "nonce": "secret", "ca_file": ""}
    data = {"kind": "verify", "path": str(place / "data"), "checksums": "SUMS", "measure": "", "report": report}
    (session / "data.json").write_text(json.dumps({**data, **more}))
    environ = {"CARME_SESSION_FOLDER": str(session), "PATH": os.environ["PATH"]}
    started = subprocess.Popen([sys.executable, "-IS", "-"], stdin=subprocess.PIPE, env=environ)
    assert started.stdin is not None
    started.stdin.write(program("folder_job").replace("= 5.0, 20, 600.0", "= 0.1, 20, 600.0").encode())
    started.stdin.close()
    return started


def test_a_job_that_is_stopped_says_what_it_has_found_so_far(listener: Listener, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "small").write_text("x")
    with (tmp_path / "data" / "large").open("wb") as file:
        file.truncate(1 << 40)  # a hole, which takes an hour
    (tmp_path / "data" / "SUMS").write_text(f"{SUM}  small\n{SUM}  large\n")
    with started(tmp_path, listener.url) as job:
        wait_for(lambda: any(each.get("files") == 1 for each in listener.reports), 20, "the small file")
        job.send_signal(signal.SIGTERM)
        assert job.wait(20) == 0
    last = listener.reports[-1]
    assert last["state"] == "done"
    found = last["result"]
    assert (found["complete"], found["files"], found["verified"], found["differs"]) == (False, 2, 1, 0)
    assert found["unlisted"] is None
    assert not (tmp_path / "session").exists()


def test_what_a_job_runs_is_python_3_6() -> None:
    for text in (SCRIPT, MEASURE):
        tree = ast.parse(text, feature_version=(3, 6))
        imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
        assert "__future__" not in imported
    assert SCRIPT.startswith("#!/usr/bin/python3 -IS\n")


@pytest.mark.parametrize(("statuses", "code"), [([503, 502, 429], 0), ([403], 75), ([422], 75)])
def test_the_last_report_is_sent_until_it_is_taken_or_refused(
    listener: Listener, tmp_path: Path, statuses: list[int], code: int
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "SUMS").write_text("")
    listener.first = statuses
    with started(tmp_path, listener.url) as job:
        assert job.wait(30) == code


def test_a_job_that_reaches_nobody_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_job, "LAST", 0.0)
    reporter = folder_job.Reporter({"url": "http://127.0.0.1:9/x", "nonce": "n"})
    assert reporter.last({"state": "done"}) == 74


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (f"{SUM}  a b\n", (SUM, b"a b")),
        (f"{SUM} *a\r\n", (SUM, b"a")),
        (f"{SUM.upper()}  a\n", (SUM, b"a")),
        (f"\\{SUM}  a\\\\b\\nc\n", (SUM, b"a\\b\nc")),
        (f"SHA256 (a (1)) = {SUM}\n", (SUM, b"a (1)")),
        (f"{SUM} a\n", None),
        (f"{SUM[1:]}  a\n", None),
        ("d41d8cd98f00b204e9800998ecf8427e  md5\n", None),
    ],
)
def test_lines_are_read_as_sha256sum_writes_them(raw: str, found: tuple[str, bytes] | None) -> None:
    assert line_of(raw.encode()) == (None if found is None else (found[0].encode(), found[1]))


def test_sha256sum_itself_writes_what_is_read(tmp_path: Path) -> None:
    names = ("a", "with space", "new\nline", "back\\slash", "-dash", "ä", "cr\r")
    for name in names:
        (tmp_path / name).write_text("x")
    for words in ((), ("--tag",), ("--binary",)):
        said = subprocess.run(["sha256sum", *words, "--", *names], cwd=tmp_path, capture_output=True, check=True)
        found = [line_of(raw) for raw in said.stdout.splitlines(keepends=True) if raw.endswith(b"\n")]
        assert [each and each[1] for each in found] == [name.encode() for name in names], words


def test_a_name_leads_to_no_place_outside(tmp_path: Path) -> None:
    (tmp_path / "root" / "inner").mkdir(parents=True)
    (tmp_path / "root" / "out").symlink_to(tmp_path)
    root = os.fsencode(tmp_path / "root")
    for name in (b"../x", b"/etc/passwd", b"out/x", b"inner/../../x", b".", b"a\0b"):
        assert place_of(root, root, name) is None
    assert place_of(root, root + b"/inner", b"../x") == root + b"/x"


def test_names_are_shown_without_signs_that_steer_a_terminal() -> None:
    assert shown(b"\x1b[31m\xff\n" + "ä\u202e".encode()) == "\\x1b[31m\\xff\\nä\\u202e"
