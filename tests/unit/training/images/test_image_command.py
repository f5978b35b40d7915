"""`carme-hub image` in a session and outside of one: what it sends to the hub, and what it prints of the build."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forged_hub_api import ForgedHub
from rig.forged_http import serving

from carme_hub.cli.images.build import BuildApp
from carme_hub.training import command as whole
from carme_hub.training.images import command
from carme_hub.training.images.wanted import of_path, of_session
from carme_hub.training.run.failures import CannotRun

ID = "11111111-1111-4111-8111-111111111111"
BUILD: dict[str, Any] = {"id": ID, "name": "tools", "state": "building", "base": "default", "job": 7, "problem": ""}
PLACE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgedHub]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(command, "LOOK", 0.01)
    with serving(ForgedHub()) as server:
        monkeypatch.setenv("JUPYTERHUB_API_URL", f"http://127.0.0.1:{server.server_address[1]}/hub/api")
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
        monkeypatch.setenv("JUPYTERHUB_USER", "alice")
        monkeypatch.setenv("CARME_SESSION", "s1")
        yield server


def log(home: Path, text: str) -> None:
    """Write what the batch script would have written so far."""
    file = home / ".carme/sessions" / ID / "job.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as opened:
        opened.write(text)


def test_a_build_is_followed_to_its_end(hub: ForgedHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "requirements.txt").write_text("rich\n")
    log(tmp_path, "Collecting rich\n")
    hub.answers = [(0, None), (201, {**BUILD, "warnings": ["Much."]}), (200, BUILD), (200, {**BUILD, "state": "ready"})]
    assert whole.main(["image", "build", str(tmp_path), "--name", "tools", "--minutes", "9"]) == 0
    first, second, *_ = hub.asked
    assert (first[0], first[1]) == ("POST", "/hub/api/carme/sessions/s1/image-builds")
    body = {"kind": "requirements", "text": "rich\n", "name": "tools", "minutes": 9, "description": ""}
    assert first[2] == second[2] == body
    assert first[3]["Idempotency-Key"] == second[3]["Idempotency-Key"], "it is built once"
    assert hub.asked[-1][1] == f"/hub/api/carme/users/alice/image-builds/{ID}"
    out, err = capfd.readouterr()
    assert out == "Collecting rich\n", "each line once"
    assert "Image tools on top of default: job 7." in err
    assert "Much." in err


def test_a_failure_is_said_and_is_the_exit_status(
    hub: ForgedHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "packages.txt"
    file.write_text("rich\n")
    failed = {**BUILD, "state": "failed", "problem": "The build ended with exit code 1; its log says why."}
    part = {"text": "No matching distribution\n", "end": 25}
    hub.answers = [(201, BUILD), (200, BUILD), (200, part), (200, failed), (404, {"message": "gone"})]
    assert whole.main(["image", "build", str(file)]) == 1
    assert hub.asked[2][1].endswith(f"{ID}/log?from=0"), "where the home is another one, the hub reads the log"
    assert hub.asked[4][1].endswith("log?from=25")
    out, err = capfd.readouterr()
    assert out == "No matching distribution\n"
    assert "Image tools is not built: The build ended with exit code 1" in err
    hub.answers = [(409, {"error": "image-build", "message": "You may not build images here."})]
    assert whole.main(["image", "build", str(file)]) == 1
    assert "You may not build images here." in capfd.readouterr().err


def test_outside_of_a_session_options_say_what_the_job_gets(
    hub: ForgedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CARME_SESSION")
    (tmp_path / "environment.yml").write_text("dependencies: [pip, {pip: [rich]}]\n")
    hub.answers = [(200, {"kind": "user", "name": "alice"}), (201, BUILD)]
    words = ["image", "build", str(tmp_path), "--detach", "--option", "image=default", "--option", "profile=cpu"]
    assert whole.main(words) == 0
    _, (method, path, body, _) = hub.asked
    assert (method, path) == ("POST", "/hub/api/carme/users/alice/image-builds")
    assert (body["kind"], body["options"]) == ("environment", {"image": "default", "profile": "cpu"})
    assert capfd.readouterr().out == "tools\n"
    monkeypatch.setenv("CARME_SESSION", "s1")
    assert whole.main(words) == 2
    assert "--option is for outside" in capfd.readouterr().err


def test_images_are_listed_and_discarded_with_their_files(
    hub: ForgedHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / ".carme/images" / ID
    other = tmp_path / ".carme/images" / ID.replace("1", "2")
    for each in (old, other):
        each.mkdir(parents=True)
    ready = {**BUILD, "state": "ready", "until": 86_400}
    hub.answers = [(200, {"image_builds": [ready], "removed": [other.name]}), (200, {"image_builds": []})]
    assert whole.main(["image", "mine"]) == 0
    assert "tools  ready  on top of default, removed on 1970-01-02 unless it is used" in capfd.readouterr().out
    assert (old.exists(), other.exists()) == (True, False)
    assert whole.main(["image", "mine"]) == 0
    assert "You have built no images" in capfd.readouterr().err
    hub.answers = [(200, {"image_builds": [ready]}), (200, {**ready, "state": "removed"})]
    assert whole.main(["image", "discard", "tools"]) == 0
    assert (hub.asked[-1][0], hub.asked[-1][1]) == ("DELETE", f"/hub/api/carme/users/alice/image-builds/{ID}")
    assert not old.exists()
    hub.answers = [(200, {"image_builds": []})]
    assert whole.main(["image", "discard", "tools"]) == 1


def installed(place: Path, name: str, version: str, url: dict[str, Any] | None = None) -> None:
    info = place / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if url is not None:
        (info / "direct_url.json").write_text(json.dumps(url))


def test_what_pip_has_installed_in_the_session_is_taken_in_its_versions(tmp_path: Path) -> None:
    place, environ = tmp_path / PLACE, {"CARME_PACKAGES": str(tmp_path)}
    with pytest.raises(CannotRun, match="pip has installed nothing"):
        of_session(environ)
    installed(place, "rich", "14.0")
    installed(place, "tool", "1.0", {"url": "https://x/tool.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    installed(place, "wheel_of_a_url", "2.0", {"url": "https://x/w.whl", "archive_info": {}})
    wanted = of_session(environ)
    assert wanted.kind == "packages"
    assert wanted.text.splitlines() == [
        "rich==14.0",
        "tool @ git+https://x/tool.git@abc",
        "wheel_of_a_url @ https://x/w.whl",
    ]
    installed(place, "mine", "0", {"url": "file:///home/alice/mine", "dir_info": {"editable": True}})
    with pytest.raises(CannotRun, match="mine was installed from /home/alice/mine"):
        of_session(environ)
    with pytest.raises(CannotRun, match="this is none"):
        of_session({})


def test_a_folder_is_searched_and_a_containerfile_takes_its_files_along(tmp_path: Path) -> None:
    folder = tmp_path / "My Climate"
    folder.mkdir()
    with pytest.raises(CannotRun, match=r"has none of Containerfile, Dockerfile, requirements.txt, environment.yml"):
        of_path(folder)
    for name in ("Dockerfile", "Containerfile", "gpu.Dockerfile"):
        (folder / name).write_text(f"FROM {name}\n")
    for path, text in (
        (folder, "Containerfile"),
        (folder / "Dockerfile", "Dockerfile"),
        (folder / "gpu.Dockerfile", "gpu"),
    ):
        found = of_path(path)
        assert (found.kind, found.name, found.context) == ("containerfile", "my-climate", str(folder))
        assert found.text.startswith(f"FROM {text}")
    for name in ("Dockerfile", "Containerfile"):
        (folder / name).unlink()
    (folder / "environment.yml").write_text("dependencies: []\n")
    assert (of_path(folder).kind, of_path(folder).name) == ("environment", "my-climate")
    (folder / "requirements.txt").write_text("rich\n")
    assert of_path(folder).kind == "requirements"
    assert of_path(folder / "requirements.txt").name == "my-climate"
    with pytest.raises(CannotRun, match="cannot be read"):
        of_path(folder / "missing.txt")
    os.truncate(folder / "requirements.txt", 1 << 20)
    with pytest.raises(CannotRun, match="too large"):
        of_path(folder)


def test_the_command_outside_of_sessions_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[list[str]] = []
    monkeypatch.setattr(whole, "main", lambda words: passed.append(words) or 3)
    words = ["climate", "--name=tools", "--option=image=lab", "--option=profile=cpu", "--hub=https://h", "--detach"]
    for given in (words, ["--installed"], ["--installed", "--store=/opt"]):
        app = BuildApp()
        app.initialize(given)
        with pytest.raises(SystemExit):
            app.start()
    first = ["image", "build", "climate", "--name=tools", "--hub=https://h", "--minutes=30"]
    assert passed == [
        [*first, "--option=image=lab", "--option=profile=cpu", "--detach"],
        ["image", "build", "--minutes=30", "--installed"],
    ]
