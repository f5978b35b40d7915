"""A run that is submitted from a login node or a laptop: how the hub is reached, what it is sent, and what is shown."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from rig.forged_http import ForgedHandler, ForgedServer, serving

from carme_hub.training import command, conduct_batch, distributed
from carme_hub.training.launch import new_run
from carme_hub.training.records.batch_jobs import Refresher
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import Run, all_runs
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session import user_jobs
from carme_hub.training.session.companions import Refused
from carme_hub.training.session.outside import Access, api_address

TOKEN, ID = "of-alice", "11111111-2222-4333-8444-555555555555"
JOBS = "/hub/api/carme/users/alice/batch-jobs"


class ForgedHub(ForgedServer):
    """Takes batch jobs of alice, whose profile has up to four GPUs on a node; what it was asked is kept."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.quoted: list[dict[str, str]] = []
        self.opened: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.refuses = ""
        self.job: dict[str, Any] = {}

    def says(self, state: str, said: str, **more: Any) -> None:
        self.job |= {"state": state, "said": said, **more}


class _Handler(ForgedHandler):
    server: ForgedHub

    def do_GET(self) -> None:
        parts, hub = urlsplit(self.path), self.server
        if self.headers["Authorization"] != f"token {TOKEN}":
            return self.say(403, {"message": "Missing or invalid credentials."})
        if parts.path == "/hub/api/user":
            return self.say(200, {"kind": "user", "name": "alice"})
        if parts.path == JOBS:
            return self.say(200, {"batch_jobs": [hub.job] if hub.job else []})
        assert parts.path == f"{JOBS}/quote"
        hub.quoted.append(dict(parse_qsl(parts.query)))
        allowed = {"allowed": not hub.refuses, "message": hub.refuses or "Costs up to 6 GPU-hours"}
        rest = {"said": "starts now", "gpus_of_one_node": [1, 2, 3, 4], "batch_jobs": True, "virtual": True}
        return self.say(200, {**allowed, **rest})

    def do_POST(self) -> None:
        hub, body = self.server, self.body()
        assert (self.path, self.headers["Authorization"]) == (JOBS, f"token {TOKEN}")
        hub.opened.append(body)
        hub.job = {"id": ID, "run": body["run"], "job": 7, "created": time.time(), "cancelled": False}
        hub.says("waiting", "Waiting for GPUs.")
        self.say(201, hub.job)

    def do_DELETE(self) -> None:
        self.server.cancelled.append(self.path)
        self.say(200, {})


@pytest.fixture
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgedHub]:
    for name in (
        "CARME_SESSION",
        "CARME_SESSION_FOLDER",
        "CARME_BACKEND",
        "JUPYTERHUB_API_URL",
        "JUPYTERHUB_API_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(home)
    monkeypatch.setattr(distributed, "_refresher", Refresher(0))
    with serving(ForgedHub()) as hub:
        yield hub


@pytest.fixture
def token(home: Path) -> Path:
    path = home / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def script(home: Path) -> Path:
    path = home / "train.py"
    path.write_text("print('trains')\n")
    return path


def train(hub: ForgedHub, *words: str) -> int:
    options = ("--option", "profile=gpu", "--option", "image=training")
    return command.main(["train", "-n", "6", "--submit", "--time", "1h", "--hub", hub.address, *options, *words])


def test_the_hub_is_sent_the_options_the_size_and_the_script(
    hub: ForgedHub, token: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(hub, "--token-file", "token", "--name", "long", "train.py", "--lr", "1") == 0
    printed = capsys.readouterr()
    assert "A batch job of 2 nodes with 6 virtual GPUs is requested. Costs up to 6 GPU-hours." in printed.err
    assert printed.out == "long\n"
    assert "runs watch|stop long. It writes into ~/.carme/runs/long there." in printed.err
    asked = {"opt-profile": "gpu", "opt-image": "training", "nodes": "2", "gpus": "6", "minutes": "60", "run": "long"}
    assert hub.quoted[-1].items() >= asked.items()
    [body] = hub.opened
    assert body["options"] == {"profile": "gpu", "image": "training"}
    assert "python" not in body, "that of this machine is not that of the image"
    assert body["files"]["script.py"] == "print('trains')\n"
    request = json.loads(body["files"]["asked.json"])
    assert (request["args"], request["path"], request["packages"]) == (["--lr", "1"], [], "")
    assert TOKEN not in json.dumps(body)
    run = Run.load("long")
    for path in run.folder.rglob("*"):
        assert not path.is_file() or TOKEN not in path.read_text(), f"{path} has the token"
    assert run.batch_job()["access"] == {
        "address": hub.address,
        "user": "alice",
        "token_file": str(token),
        "ca": "",
        "host": socket.gethostname(),
    }


def test_its_state_is_what_the_hub_says_wherever_one_asks(
    hub: ForgedHub, token: Path, script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert train(hub, "--token-file", "token", "--name", "long", "train.py") == 0
    monkeypatch.chdir(tmp_path)
    run = Run.load("long")
    seen = []
    for state, said, more in (
        ("waiting", "You are next.", {}),
        ("running", "", {}),
        ("ended", "Its program ended by itself.", {"succeeded": True}),
    ):
        hub.says(state, said, **more)
        found = distributed.runs().states()[0]
        seen.append((found["state"], found["message"]))
    assert seen == [
        ("waiting", "You are next."),
        ("running", "Its job runs. What it writes is in ~/.carme/runs/long on the cluster."),
        ("finished", "Its job ended well. What it writes is in ~/.carme/runs/long on the cluster."),
    ]
    assert run.state()["ended"] > 0


def test_one_that_failed_is_not_said_to_have_never_begun(hub: ForgedHub, token: Path, script: Path) -> None:
    assert train(hub, "--token-file", "token", "--name", "long", "train.py") == 0
    hub.says("ended", "Its program ended with exit code 1.", succeeded=False)
    found = distributed.runs().states()[0]
    assert (found["state"], found["message"]) == (
        "failed",
        "The batch job ended. Its program ended with exit code 1.",
    )


def test_where_the_home_is_shared_its_conductor_has_the_word(hub: ForgedHub, token: Path, script: Path) -> None:
    assert train(hub, "--token-file", "token", "--name", "long", "train.py") == 0
    run = Run.load("long")
    hub.says("running", "")
    write_json(run.folder / "state.json", run.state() | {"state": "failed", "message": "rank 1", "conductor": {}})
    assert distributed.runs().states()[0]["message"] == "rank 1"


def test_it_is_cancelled_with_the_token_of_then(hub: ForgedHub, token: Path, script: Path) -> None:
    assert train(hub, "--token-file", "token", "--name", "long", "train.py") == 0
    assert command.main(["runs", "stop", "long"]) == 0
    assert hub.cancelled == [f"{JOBS}/{ID}"]
    assert Run.load("long").state()["state"] == "interrupted"


def test_hub_and_token_may_be_in_the_environment(hub: ForgedHub, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_URL", f"{hub.address}/hub/api")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", TOKEN)
    assert command.main(["train", "-n", "1", "--batch", "--time", "1h", "--name", "a", "train.py"]) == 0
    assert hub.opened[0]["gpus"] == 1, "a rank has a GPU where the profile has any"
    assert "options" not in hub.opened[0], "the defaults are the hub's"
    assert command.main(["runs", "stop", "a"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a token of its page /hub/token by --token-file"),
        (("--token-file", "nowhere"), "The token cannot be read from nowhere"),
        (("--token-file", "open"), "Others can read the token in open. Make it yours alone: chmod 600 open"),
        (("--token-file", "empty"), "empty has no token"),
        (("--token-file", "wrong"), "Missing or invalid credentials."),
        (("--token-file", "token", "--option", "gpu"), "--option gpu: write NAME=VALUE"),
        (("--token-file", "token", "--hub", "hub.example.org"), "is not a hub's address"),
        (("--token-file", "token", "--hub", "http://hub.example.org"), "others on the network could read the token"),
        (
            ("--token-file", "token", "--ca", "nowhere.pem", "--hub", "https://127.0.0.1:1"),
            "nowhere.pem cannot be used",
        ),
        (("--token-file", "token", "--hub", "http://127.0.0.1:1"), "The hub does not answer"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_left(
    hub: ForgedHub, token: Path, script: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text, mode in (("open", TOKEN, 0o644), ("empty", "", 0o600), ("wrong", "x", 0o600)):
        Path(name).write_text(text)
        Path(name).chmod(mode)
    assert train(hub, *words, "train.py") == command.CANNOT
    assert said in capsys.readouterr().err
    assert all_runs() == []
    assert hub.opened == []


def test_what_the_hub_refuses_is_said_in_its_words(
    hub: ForgedHub, token: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refuses = "Your account has 1 GPU-hour left."
    assert train(hub, "--token-file", "token", "train.py") == command.CANNOT
    assert "1 GPU-hour left" in capsys.readouterr().err
    assert hub.opened == []


def test_without_submit_or_in_a_session_these_options_mean_nothing(
    hub: ForgedHub, script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["train", "-n", "1", "--hub", hub.address, "train.py"]) == command.CANNOT
    assert "--hub is for --submit outside of a session" in capsys.readouterr().err
    monkeypatch.setenv("CARME_SESSION", ID)
    assert train(hub, "train.py") == command.CANNOT
    assert "--hub is for --submit outside of a session" in capsys.readouterr().err


def test_a_script_that_is_too_large_to_be_kept_is_not_sent(
    hub: ForgedHub, token: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(f"x = '{'x' * (2 << 20)}'")
    assert train(hub, "--token-file", "token", "--name", "big", "train.py") == command.CANNOT
    assert "The script cannot be sent: it is very large" in capsys.readouterr().err
    assert (hub.opened, Run.load("big").state()["state"]) == ([], "failed")


def test_an_address_is_the_hub_or_its_api() -> None:
    for address in ("https://h.org", "https://h.org/", "https://h.org/hub", "https://h.org/hub/api/"):
        assert api_address(address) == "https://h.org/hub/api"
    with pytest.raises(Refused):
        Access("ftp://h.org").connect({"JUPYTERHUB_API_TOKEN": "t"})


# -- in the job -------------------------------------------------------------------------------------------------------


def sent(hub: ForgedHub, folder: Path) -> Path:
    path = folder / conduct_batch.RUN_FILES
    path.write_text(json.dumps(hub.opened[-1]["files"]))
    return path


def test_in_another_home_its_folder_is_made_and_names_no_place_of_the_laptop(
    hub: ForgedHub, token: Path, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    script.rename(tmp_path / "project/train.py")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("COLOUR", "green")
    assert train(hub, "--token-file", str(token), "--name", "long", "--env", "COLOUR", "train.py") == 0
    files, there = sent(hub, tmp_path), tmp_path / "cluster"
    monkeypatch.setenv("HOME", str(there))
    there.mkdir()
    (tmp_path / "project/train.py").write_text("print('another one of this path')")
    run = Run(there / ".carme/runs/long")
    sent_files = files.read_text()
    assert conduct_batch.place(run, files, {"CARME_SESSION": ID}) == run
    assert not files.exists(), "it may have secrets"
    request = run.request()
    assert request["script"] == str(run.folder / "script.py")
    assert Path(request["script"]).read_text() == "print('trains')\n"
    assert (request["python"], request["path"]) == (sys.executable, [])
    assert json.loads((run.folder / "submitted-environ.json").read_text()) == {"COLOUR": "green"}
    assert (run.state()["state"], run.batch_job()["id"]) == ("running", ID)
    assert run.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in run.folder.iterdir()} == {0}
    files.write_text(sent_files)
    assert conduct_batch.place(run, files) == run, "the next job that continues it"


def test_a_run_of_the_same_name_is_left_alone(hub: ForgedHub, token: Path, script: Path, tmp_path: Path) -> None:
    assert train(hub, "--token-file", "token", "--name", "long", "train.py") == 0
    there = tmp_path / "cluster/long"
    for number, expected in enumerate(("long", "long-2", "long-3")):
        files, other = sent(hub, tmp_path), json.loads(json.dumps(hub.opened[-1]["files"]))
        other["asked.json"] = json.dumps(json.loads(other["asked.json"]) | {"key": str(number)})
        files.write_text(json.dumps(other))
        placed = conduct_batch.place(Run(there), files)
        assert (placed.id, placed.request()["key"], placed.state()["id"]) == (expected, str(number), expected)
    asked = json.loads(other["asked.json"])
    asked |= {"key": "other", "asked": asked["asked"] | {"requeue": True}}
    files.write_text(json.dumps({**other, "asked.json": json.dumps(asked)}))
    with pytest.raises(SystemExit, match="There is another run long in this home"):
        conduct_batch.place(Run(there), files)  # the job that continues it would conduct the other one


def test_what_this_machine_may_not_read_is_replaced(
    hub: ForgedHub, token: Path, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(hub, "--token-file", "token", "--name", "long", "train.py") == 0
    read = Path.read_bytes

    def refuses(path: Path) -> bytes:
        if path == script:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuses)
    monkeypatch.setattr(os, "access", lambda *_asked: False)
    run = conduct_batch.place(Run(tmp_path / "cluster/long"), sent(hub, tmp_path))
    assert run.request()["script"] == str(run.folder / "script.py")
    assert run.request()["cwd"] == str(Path.home())


def test_a_session_asks_its_own_hub_and_a_tunnel_of_another_machine_gets_no_token(
    hub: ForgedHub, token: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(hub, "--token-file", "token", "--name", "long", "train.py") == 0
    job = Run.load("long").batch_job()
    assert user_jobs.hub_of_run(job).token == TOKEN
    with pytest.raises(Refused, match=r"was the hub for elsewhere; here it may be anybody's program"):
        user_jobs.hub_of_run({**job, "access": {**job["access"], "host": "elsewhere"}})
    for name, value in (
        ("CARME_SESSION", ID),
        ("JUPYTERHUB_API_URL", "http://own/hub/api"),
        ("JUPYTERHUB_USER", "alice"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "of-the-session")
    found = user_jobs.hub_of_run(job)
    assert (found.url, found.token) == ("http://own/hub/api/carme/users/alice/batch-jobs", "of-the-session")


def test_a_redirect_does_not_get_the_token(token: Path) -> None:
    asked: list[str] = []

    class Redirects(ForgedHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.say(302, "", {"Location": "/elsewhere"})

    with serving(ForgedServer(Redirects)) as server, pytest.raises(Refused, match="The hub answered 302"):
        Access(server.address, str(token)).connect()
    assert asked == ["/hub/api/user"]


def test_in_a_shared_home_the_script_runs_where_it_is(hub: ForgedHub, token: Path, script: Path, home: Path) -> None:
    assert train(hub, "--token-file", "token", "--name", "long", "train.py") == 0
    run = Run.load("long")
    conduct_batch.place(run, sent(hub, home))
    assert (run.request()["script"], run.request()["cwd"]) == (str(script), str(home))
    assert run.request()["python"] == sys.executable


def test_a_folder_that_was_half_written_is_written_whole(
    hub: ForgedHub, token: Path, script: Path, tmp_path: Path
) -> None:
    assert train(hub, "--token-file", "token", "--name", "long", "train.py") == 0
    run = Run(tmp_path / "cluster/long")
    run.folder.mkdir(parents=True)
    (run.folder / "script.py").write_text("pri")
    conduct_batch.place(run, sent(hub, tmp_path))
    assert (run.folder / "script.py").read_text() == "print('trains')\n"
    assert run.request()["script_digest"]


def test_without_files_nothing_changes(home: Path) -> None:
    run = new_run.create(RunOptions(1, name="own"), cell="print(1)")
    before = run.request()
    conduct_batch.place(run, home / conduct_batch.RUN_FILES)
    assert run.request() == before


def test_it_needs_nothing_of_the_hub_to_be_imported() -> None:
    code = "import sys, carme_hub.training.command; print([m for m in sys.modules if m.startswith('jupyterhub')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout == "[]\n"
