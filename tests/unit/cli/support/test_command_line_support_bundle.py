"""``carme-hub support-bundle``: it has what helps, no secret of any kind, and no name where none is wanted."""

from __future__ import annotations

import gzip
import json
import lzma
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from canaries import ID, KINDS, Canaries, unpacked
from rig.command_line import CommandLine

from carme_hub.cli.base import UsageError
from carme_hub.cli.explain.command import ExplainApp
from carme_hub.cli.explain.subject import subject_of
from carme_hub.cli.support import site
from carme_hub.cli.support.archive import write_archive
from carme_hub.cli.support.command import SupportBundleApp
from carme_hub.cli.support.machine import TAIL, tail, without_variables


@pytest.fixture
def canaries(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Canaries:
    return Canaries(line, monkeypatch)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    return folder


def packed(canaries: Canaries, folder: Path, *argv: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Make a bundle; return what the command says of it, and its files."""
    words = ("--to", str(folder), "--log", str(canaries.log), "--unit", "carme-hub", *argv, "--json")
    code, out, err = canaries.line.run(SupportBundleApp, *words)
    assert code == 0, err
    said = dict(json.loads(out))
    return said, unpacked(Path(said["file"]))


def test_no_canary_of_any_kind_is_in_the_unpacked_bundle(canaries: Canaries, mine: Path) -> None:
    sources = [file.read_text("utf-8", "replace") for file in (canaries.log, canaries.line.file)]
    assert len(canaries.of) == len(KINDS) == len(set(canaries.of.values()))
    assert sum(canaries.text(kind) in "".join(sources) for kind in KINDS) > 20, "they are where the bundle is made of"
    said, files = packed(canaries, mine, ID)
    found = canaries.found_in(files)
    assert found == [], [line for _, name in found for line in files[name].splitlines() if "met" in line]
    assert canaries.found_in({"said": json.dumps(said)}) == []
    assert "secret would be in it" not in json.dumps(said), "no part was left out because of a canary"


def test_the_bundle_has_what_helps(canaries: Canaries, mine: Path) -> None:
    said, files = packed(canaries, mine, ID)
    assert {"README.txt", "versions.json", "doctor.json", "configuration.json", "database.json"} <= set(files)
    assert {"slurm/config.txt", "slurm/queue.json", "logs/hub.log", "systemd/carme-hub.txt"} <= set(files)
    settings = json.loads(files["configuration.json"])
    assert settings["CarmeSlurm"]["cluster"] == "lab"
    assert settings["GenericOAuthenticator"] == {"client_secret": "[removed]"}
    assert settings["SiteThing"] == {"phrase": "[text of 22 characters]"}
    assert settings["JupyterHub"]["db_url"] == "postgresql+psycopg://hub:[removed]@127.0.0.1:9/hub"
    assert settings["CarmeQuotas"]["policy"]["zone"] == "Europe/Berlin"
    database = json.loads(files["database.json"])
    assert database["schema"] == database["wanted_schema"]
    assert database["rows"]["session"] == 1
    assert json.loads(files["slurm/queue.json"])[0] == {
        **{"state": "RUNNING", "partition": "gpu", "reason": "None", "jobs": 2}
    }
    assert any(each["setting"] for each in json.loads(files["doctor.json"]))
    story = json.loads(files[f"sessions/{ID}.json"])
    assert story["session"]["job_id"] == 4711
    assert any(each["text"].endswith("here it ended") for each in story["lines"])
    assert "Session" in files["logs/hub.log"]
    assert "metrics.txt" in said["not_packed"], "no hub answers here"
    assert "metrics.txt" in files["README.txt"]


def test_the_bundle_is_the_callers_alone_and_replaces_nothing(canaries: Canaries, mine: Path) -> None:
    said, _ = packed(canaries, mine)
    file = Path(said["file"])
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in mine.iterdir()] == [file.name]
    before = file.read_bytes()
    with pytest.raises(UsageError, match="stays as it is"):
        write_archive(file, {"a": "b"}, time.time())
    assert file.read_bytes() == before
    assert [each.name for each in mine.iterdir()] == [file.name]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_folder_in_which_others_can_write_is_refused(canaries: Canaries, mine: Path, mode: int) -> None:
    mine.chmod(mode)
    code, _, err = canaries.line.run(SupportBundleApp, "--to", str(mine))
    assert code == 2
    assert "others can write" in err
    assert list(mine.iterdir()) == []
    assert canaries.calls() == []


def test_a_dry_run_lists_what_would_be_packed_and_asks_nothing(canaries: Canaries, mine: Path) -> None:
    words = ("--to", str(mine), "--log", str(canaries.log), "--unit", "carme-hub", "--dry-run", ID)
    listed = {each["name"]: each["source"] for each in canaries.line.json(SupportBundleApp, *words)}
    assert (list(mine.iterdir()), canaries.calls()) == ([], [])
    assert canaries.found_in({"listed": json.dumps(listed)}) == []
    said, files = packed(canaries, mine, ID)
    assert set(files) | set(said["not_packed"]) == {*listed, "README.txt"}
    code, out, err = canaries.line.run(SupportBundleApp, *words)
    assert code == 0
    assert "scontrol show config" in out
    assert "nothing was asked or written" in err


def test_names_of_users_are_replaced_everywhere_by_the_same_and_kept_beside_the_bundle(
    canaries: Canaries, mine: Path
) -> None:
    with canaries.log.open("a") as log:
        log.write("[I 2026-11-20 10:00:02.000 JupyterHub log:1] 200 GET /user/bob.smith/lab (Alice@10.0.0.1)\n")
    (canaries.line.folder / "of-alice.log").write_text("hello\n")
    named = ("--log", str(canaries.line.folder / "of-alice.log"))
    said, files = packed(canaries, mine, ID, "alice/train", "--pseudonyms", *named)
    everything = "\n".join([*files, *files.values()]).lower()
    assert "alice" not in everything
    assert "bob.smith" not in everything
    beside = Path(said["names"])
    assert beside.stat().st_mode & 0o777 == 0o600
    who = {name: word for word, name in (row.split() for row in beside.read_text().splitlines())}
    assert json.loads(files[f"sessions/{ID}.json"])["session"]["user"] == who["alice"]
    assert f"/user/{who['bob.smith']}/lab ({who['alice']}@10.0.0.1)" in files["logs/hub.log"]
    assert f"logs/1-of-{who['alice']}.log: the last 2 MiB of " in files["README.txt"]
    assert "JupyterHub's database" in said["names_not_read"], "it is said where names may be missing"
    assert canaries.found_in(files) == []


def test_a_slurm_and_a_database_that_are_silent_leave_a_bundle_that_says_so(canaries: Canaries, mine: Path) -> None:
    for name in ("scontrol", "squeue", "sacctmgr", "sinfo"):
        (canaries.line.folder / "bin" / name).write_text("#!/bin/sh\necho 'error: Unable to contact' >&2; exit 1\n")
    canaries.line.database.unlink()
    said, files = packed(canaries, mine, "alice/train")
    assert "slurm/config.txt" in said["not_packed"]
    assert "database.json" in said["not_packed"]
    assert "Unable to contact" in files["README.txt"]
    assert "configuration.json" in files
    assert not canaries.line.database.exists()


def test_a_unit_is_shown_without_the_values_of_its_variables() -> None:
    text = 'Environment="A=b c" LANG=C PATH=/bin\\\n  D=e\nUser=carme-hub\nPassEnvironment=X\n'
    assert without_variables(text) == (
        "Environment=A=[removed] LANG=C PATH=/bin D=[removed]\nUser=carme-hub\nPassEnvironment=X\n"
    )


def test_the_end_of_a_long_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(300_000)))
    found = tail(log)
    assert len(found) <= TAIL
    assert found.startswith("line ")
    assert found.endswith("line 299999\n")


def test_a_packed_log_is_unpacked_or_left_out_so_that_nothing_secret_hides_in_it(
    canaries: Canaries, mine: Path, tmp_path: Path
) -> None:
    packed_log = tmp_path / "hub.log.1.gz"
    packed_log.write_bytes(gzip.compress(canaries.log.read_bytes() * 3))
    other, half = tmp_path / "hub.log.2.xz", tmp_path / "hub.log.3.gz"
    other.write_bytes(lzma.compress(canaries.log.read_bytes()))
    half.write_bytes(packed_log.read_bytes()[:500])
    said, files = packed(canaries, mine, *(word for each in (packed_log, other, half) for word in ("--log", str(each))))
    assert canaries.found_in(files) == []
    assert f"Session {ID}" in files["logs/1-hub.log.1"]
    assert "is packed" in said["not_packed"]["logs/2-hub.log.2.xz"]
    assert "damaged" in said["not_packed"]["logs/3-hub.log.3"]
    log = tmp_path / "long.gz"
    log.write_bytes(gzip.compress("".join(f"line {number}\n" for number in range(400_000)).encode()))
    found = tail(log)
    assert TAIL - 20 < len(found) <= TAIL
    assert found.startswith("line ")
    assert found.endswith("line 399999\n")


def test_a_part_that_fails_in_a_way_that_nobody_thought_of_is_named(
    canaries: Canaries, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError(f"of {canaries.text('proxy token')}")

    monkeypatch.setattr(site, "overview", fail)
    (canaries.home / ".carme" / "sessions" / ID / "data.json").write_text("[" * 1_000_000)
    said, files = packed(canaries, mine, ID)
    assert said["not_packed"]["database.json"] == "of [removed]"
    assert f"sessions/{ID}.json" in files


class _Hub(BaseHTTPRequestHandler):
    """A hub that shows its metrics to whoever has the token."""

    token = ""

    def do_GET(self) -> None:
        allowed = self.path == "/hub/metrics" and self.headers["Authorization"] == f"token {self.token}"
        self.send_response(200 if allowed else 403)
        self.end_headers()
        self.wfile.write(b"jupyterhub_running_servers 3\n" if allowed else b"no")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def hub() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_the_metrics_of_a_hub_that_answers_are_packed(canaries: Canaries, mine: Path, hub: HTTPServer) -> None:
    with canaries.line.file.open("a") as file:
        file.write(f"c.JupyterHub.bind_url = 'http://127.0.0.1:{hub.server_port}'\n")
    _Hub.token = canaries.text("token of the caller")
    _, files = packed(canaries, mine)
    assert files["metrics.txt"] == "jupyterhub_running_servers 3\n"
    _Hub.token = "another"
    said, _ = packed(canaries, mine, "--token-file", str(canaries.line.folder / "mail-password"))
    assert "read:metrics" in said["not_packed"]["metrics.txt"]


def test_each_command_of_the_guide_can_be_typed() -> None:
    page = (Path(__file__).parents[4] / "docs/howto/when-something-is-wrong.md").read_text()
    lines = [line.split() for line in page.splitlines() if line.startswith("carme-hub ")]
    assert len(lines) >= 6
    for _, name, *words in lines:
        app = {"explain": ExplainApp, "support-bundle": SupportBundleApp}[name]()
        app.initialize(words)
        for word in app.extra_args:
            assert subject_of(word)
