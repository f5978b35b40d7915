"""``carme-hub session``: what it asks of the hub, what it prints, and with which exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.forged_http import ForgedHandler, ForgedServer, run, serving

from carme_hub.cli.hub_client import api_address
from carme_hub.cli.session import ListApp, SessionApp, StartApp, StopApp
from carme_hub.domain.cluster.reasons import NO_FOLDER, end_sentence
from carme_hub.domain.staging.entries import ScratchOffer, stage_of
from carme_hub.errors import CarmeError

SECRET = "of-alice"
REFUSED = "You may use 2 GPU-hours a week; 1.5 are used or held, and this needs 1."


class ForgedHub(ForgedServer):
    """Answers as JupyterHub does, from a table of method and path; what it was asked is kept."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
            ("GET", "/user"): [(200, {"kind": "user", "name": "alice"})]
        }
        self.servers()

    def servers(self, *found: dict[str, Any]) -> None:
        """Let alice have these servers."""
        self.answers["GET", "/users/alice"] = [(200, {"servers": {each["name"]: each for each in found}})]


class _Handler(ForgedHandler):
    server: ForgedHub

    def _answer(self) -> None:
        body = self.body()
        path = self.path.removeprefix("/hub/api")
        self.server.asked.append((self.command, path, body))
        answers = self.server.answers.get((self.command, path), [(404, {"status": 404, "message": "Not Found"})])
        status, said = answers[0] if len(answers) == 1 else answers.pop(0)
        if self.headers["Authorization"] != f"token {SECRET}":
            status, said = 403, {"status": 403, "message": "Missing or invalid credentials."}
        self.say(status, said, {"Location": "/elsewhere"} if status == 302 else None)

    do_GET = do_POST = do_DELETE = _answer


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgedHub]:
    with serving(ForgedHub()) as hub:
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", SECRET)
        monkeypatch.setenv("JUPYTERHUB_API_URL", hub.address)
        yield hub


def server(name: str = "", **changes: Any) -> dict[str, Any]:
    url = f"/user/alice/{name}/".replace("//", "/")
    known = {"name": name, "ready": True, "pending": None, "started": "2026-11-21T10:00:00Z", "url": url}
    return {**known, "full_url": None, "user_options": {"profile": "a100"}, **changes}


@pytest.mark.parametrize("app", [StartApp, StopApp, ListApp], ids=lambda app: app.name)
def test_every_command_says_how_it_is_used(app: Any) -> None:
    assert app in [each[0] for each in SessionApp.subcommands.values()]
    assert app.examples.startswith(app.name)


def test_a_start_asks_for_what_was_said_and_no_more(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.answers["POST", "/users/alice/servers/train"] = [(201, "")]
    hub.servers(server("train"))
    options = ("--profile", "a100", "--gpus=2", "--gpu-type", "a100", "--time-minutes", "60", "--memory-gib", "many")
    assert run(StartApp, *options, "--name", "train", "framework=torch") == 0
    said = capsys.readouterr()
    assert said.out == f"alice/train is ready: {hub.address}/user/alice/train/\n"
    body = next(body for method, _, body in hub.asked if method == "POST")
    assert body["user_options"] == {
        **{"profile": "a100", "gpus": 2, "gpu_type": "a100", "time_minutes": 60},
        **{"memory_gib": "many", "framework": "torch"},  # the hub says what is wrong with it
    }


def test_data_results_and_folders_are_asked_for_as_the_form_has_them(hub: ForgedHub) -> None:
    hub.answers["POST", "/users/alice/server"] = [(201, "")]
    hub.servers(server())
    lines = {"stage_in": "s3:sets/a -> data; /shared/lab -> lab", "stage_out": "run -> s3:results/run7"}
    more = {"stage_mount": "s3:sets -> sets", "folders": "genomes:ro,results:rw"}
    words = [f"--{name.replace('_', '-')}={text}" for name, text in {**lines, **more}.items()]
    assert run(StartApp, *words, "--scratch-gib", "50") == 0
    body = next(body for method, _, body in hub.asked if method == "POST")
    assert body["user_options"] == {
        **{name: text.replace(";", "\n") for name, text in lines.items()},
        **{**more, "scratch_gib": 50},
    }
    entries, wrong = stage_of(body["user_options"], ScratchOffer(100, 10))
    assert not wrong
    assert [each["source"] for each in entries["in"]] == ["s3:sets/a", "/shared/lab"], "the hub understands it so"
    assert entries["out"] == [{"source": "run", "target": "s3:results/run7"}]
    assert entries["mount"] == [{"source": "s3:sets", "target": "sets"}]


def test_without_options_the_hub_decides_what_is_started(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.answers["POST", "/users/alice/server"] = [(202, "")]
    hub.servers(server(ready=False, pending="spawn"))
    assert run(StartApp, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"user": "alice", "name": "", "state": "starting", "url": f"{hub.address}/user/alice/"}
    assert ("POST", "/users/alice/server", {"user_options": {}}) in hub.asked


def test_a_refusal_is_said_as_the_hub_said_it(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.answers["POST", "/users/alice/server"] = [(400, {"status": 400, "message": REFUSED})]
    assert run(StartApp, "--gpus", "4") == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"carme-hub session start: {REFUSED}\n")
    assert run(StartApp, "--gpus", "4", "--json") == 1
    assert json.loads(capsys.readouterr().out) == {"error": "refused", "message": REFUSED}


def test_who_waits_reads_how_the_start_goes_until_it_is_ready(
    hub: ForgedHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.answers["POST", "/users/alice/server"] = [(202, "")]
    events = [{"message": "Waiting for 2 × a100", "progress": 10}] * 2
    events += [{"message": "The container starts", "progress": 50}, {"message": "Server ready", "ready": True}]
    hub.answers["GET", "/users/alice/server/progress"] = [(200, "\n\n".join(f"data: {json.dumps(e)}" for e in events))]
    states = [server(ready=False, pending="spawn"), server()]
    hub.answers["GET", "/users/alice"] = [(200, {"servers": {"": each}}) for each in states]
    assert run(StartApp, "--wait") == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == ["Waiting for 2 × a100", "The container starts"]
    assert "is ready" in said.out


def test_what_the_hub_has_done_is_looked_at(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.answers["POST", "/users/alice/server"] = [(201, "")]  # as JupyterHub says after a start that failed before
    hub.servers(server(ready=False, pending="spawn"))
    assert run(StartApp) == 0
    assert "is starting" in capsys.readouterr().out
    hub.servers()
    event = {"failed": True, "message": f"Spawn failed: {REFUSED}"}
    hub.answers["GET", "/users/alice/server/progress"] = [(200, f"data: {json.dumps(event)}\n\n")]
    assert run(StartApp) == 1
    assert capsys.readouterr().err == f"carme-hub session start: {REFUSED}\n"


def test_a_folder_that_is_missing_is_offered_to_be_made(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    said = end_sentence("FAILED", (NO_FOLDER, 0), folder="a100")
    event = {"failed": True, "message": f"Spawn failed: {said}"}
    hub.answers["POST", "/users/alice/server"] = [(202, "")]
    hub.answers["GET", "/users/alice/server/progress"] = [(200, f"data: {json.dumps(event)}\n\n")]
    assert run(StartApp, "--wait", "--working-folder", "a100") == 1
    assert capsys.readouterr().err.endswith(f"{said} --missing-folder make creates it.\n")
    hub.servers(server())
    assert run(StartApp, "--working-folder", "a100", "--missing-folder", "make") == 0
    assert hub.asked[-2][2] == {"user_options": {"working_folder": "a100", "missing_folder": "make"}}


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ('data: {"failed": true, "message": "Spawn failed: the node went away"}\n\n', "the node went away"),
        ('data: {"message": "The container starts"}\n\n', "no longer reports"),
    ],
)
def test_a_start_that_fails_while_somebody_waits_is_a_failure(
    hub: ForgedHub, capsys: pytest.CaptureFixture[str], stream: str, words: str
) -> None:
    hub.answers["POST", "/users/alice/server"] = [(202, "")]
    hub.answers["GET", "/users/alice/server/progress"] = [(200, stream)]
    assert run(StartApp, "--wait") == 1
    assert words in capsys.readouterr().err


def _stream(*events: dict[str, Any]) -> tuple[int, str]:
    return 200, "".join(f"data: {json.dumps(each)}\n\n" for each in events)


def test_a_hub_that_is_restarted_is_no_end_of_the_start_that_is_waited_for(
    hub: ForgedHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.cli.session.POLL_INTERVAL", 0.01)
    hub.answers["POST", "/users/alice/server"] = [(202, "")]
    waits, starts = {"message": "Waiting for 2 × a100"}, {"message": "The container starts"}
    away = (503, "<html>Service Unavailable</html>")  # as the proxy says
    not_yet = (400, {"status": 400, "message": "alice's server is not starting"})
    progress = [_stream(waits), away, not_yet, _stream(waits, starts)]
    hub.answers["GET", "/users/alice/server/progress"] = progress
    pending = [server(ready=False, pending=each) for each in ("spawn", "spawn", "check")]
    hub.answers["GET", "/users/alice"] = [(200, {"servers": {"": each}}) for each in (*pending, server())]
    assert run(StartApp, "--wait") == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == ["Waiting for 2 × a100", "The container starts"]
    assert "is ready" in said.out


@pytest.mark.parametrize(
    ("argv", "progress", "words"),
    [
        (["--wait-minutes", "0.002"], _stream(), "alice's default server is still starting; `carme-hub session list`"),
        ([], (503, "away"), "may be starting nevertheless: `carme-hub session list`"),
    ],
)
def test_a_start_of_which_nothing_is_known_is_not_said_to_have_failed(
    hub: ForgedHub,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    progress: tuple[int, str],
    words: str,
) -> None:
    monkeypatch.setattr("carme_hub.cli.session.POLL_INTERVAL", 0.01)
    monkeypatch.setattr("carme_hub.cli.session.SILENCE_TIMEOUT", 0.05)
    hub.answers["POST", "/users/alice/server"] = [(202, "")]
    hub.answers["GET", "/users/alice/server/progress"] = [progress]
    hub.servers(server(ready=False, pending="spawn"))
    assert run(StartApp, "--wait", *argv) == 2
    assert words in capsys.readouterr().err


def test_a_hub_that_fails_is_another_exit_status_than_a_refusal(
    hub: ForgedHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.answers["POST", "/users/alice/server"] = [(500, {"status": 500, "message": "Internal Server Error"})]
    assert run(StartApp) == 2
    assert "answers 500: Internal Server Error" in capsys.readouterr().err
    hub.answers["POST", "/users/alice/server"] = [(404, "<html>some other page</html>")]
    assert run(StartApp) == 2
    assert "is it the hub's address?" in capsys.readouterr().err
    hub.answers["POST", "/users/alice/server"] = [(302, "")]
    assert run(StartApp) == 2
    assert not [path for _, path, _ in hub.asked if "elsewhere" in path], "the token went where a redirect led"


def test_stop_says_what_became_of_it_and_waits_if_told_to(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(StopApp, "--name", "train") == 1
    assert "alice/train does not run" in capsys.readouterr().err
    hub.servers(server("train"))
    hub.answers["DELETE", "/users/alice/servers/train"] = [(202, "")]
    assert run(StopApp, "--name", "train") == 0
    assert capsys.readouterr().out == "alice/train is stopping\n"
    running = hub.answers["GET", "/users/alice"][0]
    hub.answers["GET", "/users/alice"] = [running, running, (200, {"servers": {}})]
    assert run(StopApp, "--name", "train", "--wait") == 0
    assert capsys.readouterr().out == "alice/train has stopped\n"


def test_the_list_names_each_session_and_its_state(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ListApp) == 0
    assert capsys.readouterr().out == "alice has no session.\n"
    hub.servers(server(), server("train", ready=False, pending="spawn", user_options=None))
    assert run(ListApp) == 0
    head, default, train = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "state", "profile", "since", "address"]
    assert default.split() == ["(default)", "ready", "a100", "2026-11-21T10:00:00Z", f"{hub.address}/user/alice/"]
    assert train.split()[:2] == ["train", "starting"]
    assert run(ListApp, "--json") == 0
    sessions = json.loads(capsys.readouterr().out)["sessions"]
    assert [(each["name"], each["state"]) for each in sessions] == [("", "ready"), ("train", "starting")]


def test_a_token_is_taken_from_a_private_file_only(
    hub: ForgedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN")
    assert run(ListApp) == 2
    assert "/hub/token" in capsys.readouterr().err
    file = tmp_path / "token"
    file.write_text(SECRET + "\n")
    tmp_path.chmod(0o755)
    file.chmod(0o600)
    assert run(ListApp, "--token-file", str(file)) == 0
    tmp_path.chmod(0o700)
    file.chmod(0o644)
    assert run(ListApp, "--token-file", str(file)) == 0, "nobody else gets into the folder"
    assert run(ListApp, "--token-file", str(tmp_path / "none")) == 2
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "old")
    capsys.readouterr()
    assert run(ListApp) == 2
    assert "does not take the token: Missing or invalid credentials." in capsys.readouterr().err


def test_the_commands_hold_no_setting_for_a_token() -> None:
    names = {name for app in (StartApp, StopApp, ListApp) for name in app.class_traits(config=True)}
    assert not [name for name in names if "token" in name and name != "token_file"]


def test_a_token_that_is_no_users_needs_to_be_told_whose_session(
    hub: ForgedHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.answers["GET", "/user"] = [(200, {"kind": "service", "name": "course"})]
    assert run(ListApp) == 2
    assert "--user" in capsys.readouterr().err
    assert run(ListApp, "--user", "alice") == 0


def test_words_that_mean_nothing_are_an_error(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(StartApp, "--gpu", "2") == 2
    assert "Did you mean --gpus?" in capsys.readouterr().err
    for wrong in ("train", "gpus=2"):
        assert run(StartApp, wrong) == 2
    assert run(ListApp, "train") == 2
    assert {method for method, _, _ in hub.asked} == {"GET"}, "nothing was started"


def test_a_hub_that_is_not_there_is_said_in_one_line(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ListApp, "--hub", "http://127.0.0.1:9") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "http://127.0.0.1:9/hub/api does not answer" in line


@pytest.mark.parametrize(
    ("address", "api"),
    [
        ("https://hub.example.org", "https://hub.example.org/hub/api"),
        ("https://hub.example.org/jupyter/", "https://hub.example.org/jupyter/hub/api"),
        ("https://hub.example.org/hub/", "https://hub.example.org/hub/api"),
        ("http://127.0.0.1:8081/hub/api", "http://127.0.0.1:8081/hub/api"),
    ],
)
def test_the_hubs_address_is_taken_as_people_write_it(address: str, api: str) -> None:
    assert api_address(address) == api


@pytest.mark.parametrize("address", ["hub.example.org", "ftp://hub", "https://", "http://hub.example.org"])
def test_an_address_that_is_none_or_shows_the_token_is_refused(address: str) -> None:
    with pytest.raises(CarmeError):
        api_address(address)


def test_it_works_as_a_command(hub: ForgedHub) -> None:
    hub.answers["POST", "/users/alice/server"] = [(400, {"status": 400, "message": REFUSED})]
    command = Path(sys.executable).with_name("carme-hub")
    argv = [str(command), "session", "start", "--gpus", "4"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"carme-hub session start: {REFUSED}\n"
