"""Which apps a session gets, what an administrator may name, and that it all fits into the data document."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from traitlets import TraitError
from traitlets.config import Config

from carme_hub.containers.registry import runtime
from carme_hub.containers.runtime import Image
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request
from carme_hub.spawners.apps.settings import BUILT_IN, CONFIG, PACKED, CarmeApps, fault
from carme_hub.spawners.job_script import Owner, Server, Site, render
from carme_hub.spawners.slurm.settings import SessionSettings

DASHBOARD: dict[str, Any] = {"title": "Dashboard", "command": ["dash", "--listen", "{unix_socket}"]}


def apps(**settings: Any) -> CarmeApps:
    return CarmeApps(config=Config(CarmeApps=settings))


def packed(of: CarmeApps) -> dict[str, str]:
    """Return what the session's server unpacks."""
    return dict(json.loads(zlib.decompress(base64.b64decode(of.files()[PACKED]))))


def test_a_session_gets_our_apps_with_their_icons() -> None:
    files = packed(apps())
    listed = json.loads(files["apps.json"])
    assert [app["name"] for app in listed] == ["tensorboard", "mlflow", "optuna", "vscode", "templates"]
    for app in listed:
        assert files[f"carme-app-{app['name']}.svg"].startswith("<svg")
        assert fault(app["name"], {key: value for key, value in app.items() if key != "name"}) == ""
    assert {"carme_apps.py", "carme-tensorboard.py", "carme-tensorboard.js", "carme-tensorboard.html"} < set(files)


def test_an_administrator_takes_away_and_adds() -> None:
    files = packed(apps(offered=["vscode"], apps={"dashboard": DASHBOARD}))
    assert [app["name"] for app in json.loads(files["apps.json"])] == ["vscode", "dashboard"]
    assert "carme-tensorboard.py" not in files
    own = packed(apps(apps={"tensorboard": DASHBOARD}))  # theirs wins
    assert json.loads(own["apps.json"])[0]["title"] == "Dashboard"


def test_sessions_know_where_mlflow_keeps_runs_if_it_is_offered() -> None:
    assert apps().environ("/home/alice") == {
        "MLFLOW_TRACKING_URI": "sqlite:////home/alice/.carme/mlflow/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    assert apps(offered=["tensorboard"]).environ("/home/alice") == {}


def test_an_icon_of_the_site_travels(tmp_path: Path) -> None:
    icon = tmp_path / "mine.svg"
    icon.write_text("<svg/>")
    files = packed(apps(apps={"dashboard": {**DASHBOARD, "icon": str(icon)}}))
    assert files["carme-app-dashboard.svg"] == "<svg/>"
    assert str(tmp_path) not in files["apps.json"]


@pytest.mark.parametrize(
    ("name", "app", "said"),
    [
        ("My App", DASHBOARD, "lower-case"),
        ("lab", DASHBOARD, "choose another"),
        ("x", {**DASHBOARD, "port": 80}, "no field 'port'"),
        ("x", {**DASHBOARD, "command": "dash {unix_socket}"}, "command must be a list"),
        ("x", {"title": "No command"}, "list of texts"),
        ("x", {"command": ["dash", "--port", "8050"]}, "{unix_socket}"),
        ("x", {**DASHBOARD, "needs": "rm -rf"}, "python:MODULE"),
        ("x", {**DASHBOARD, "cookies": ["jupyterhub-session-id"]}, "hub's own cookie"),
        ("x", {**DASHBOARD, "cookies": ["_xsrf"]}, "hub's own cookie"),
        ("x", {**DASHBOARD, "closed": ["/Admin"]}, "small letters"),
        ("x", {**DASHBOARD, "icon": "/nowhere.svg"}, "SVG file"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(name: str, app: dict[str, Any], said: str) -> None:
    with pytest.raises(TraitError, match=r"CarmeApps\.apps") as raised:
        apps(apps={name: app})
    assert said in str(raised.value)


def test_an_app_may_have_its_socket_by_environment() -> None:
    assert fault("x", {"command": ["dash"], "environment": {"LISTEN": "{unix_socket}"}}) == ""
    assert fault("x", {**DASHBOARD, "needs": "program:dash", "cookies": ["dash-session"], "hub": True}) == ""


class SpawnerThatOnlyKnowsItsApps:
    """As much of a spawner as ``with_apps`` asks for."""

    config = Config()
    parent = None
    container_environment: dict[str, str] = {}
    disable_user_config = False
    _session_id = "0f9a"
    with_apps = SessionSettings.with_apps


ALICE = Owner("alice", 1001, 1001, "/home/alice")


def server(spawner: Any, environ: dict[str, str]) -> Server:
    return spawner.with_apps(Server(("jupyterhub-singleuser",), environ, "http://hub/callback", "nonce"), ALICE)


def test_the_server_finds_its_configuration_before_what_was_named_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carme_hub.spawners.slurm.settings.CarmeApps", lambda parent: apps())
    spawner = SpawnerThatOnlyKnowsItsApps()
    folder = "/home/alice/.carme/sessions/0f9a"
    assert server(spawner, {}).environ["JUPYTER_CONFIG_PATH"] == folder
    assert server(spawner, {"JUPYTER_CONFIG_PATH": "/etc/x"}).environ["JUPYTER_CONFIG_PATH"] == f"{folder}:/etc/x"
    spawner.container_environment = {"JUPYTER_CONFIG_PATH": "/etc/y"}
    assert server(spawner, {}).environ["JUPYTER_CONFIG_PATH"] == f"{folder}:/etc/y"
    assert server(spawner, {}).argv == ("jupyterhub-singleuser",)
    spawner.disable_user_config = True
    assert server(spawner, {}).argv[-1] == f"--config={folder}/{CONFIG}"


@pytest.mark.parametrize("name", ["bubblewrap", "charliecloud", "apptainer"])
def test_with_its_apps_the_data_document_still_fits_into_one_variable(name: str) -> None:
    environ = {f"VARIABLE_{number}": "x" * 100 for number in range(40)}
    tls = {"keyfile": "k" * 1750, "certfile": "c" * 1600, "cafile": "c" * 1600}
    with_apps = Server(
        ("jupyterhub-singleuser",), environ, "http://hub/callback", "nonce", tls=tls, files=apps().files()
    )
    request = Request("gpu", "default", gpus=Gpus("h100", 4))
    spec = render(
        "0f9a", ALICE, request, Image("default", "/srv/images/default", "dir"), with_apps, Site(runtime(name))
    )
    document = json.loads(spec.data)
    assert document["files"][PACKED]["mode"] == document["files"][CONFIG]["mode"] == 0o600
    # As carme_hub.slurm.submit sends it. Linux takes 128 KiB for one string of an environment (MAX_ARG_STRLEN), of
    # which the files of a run that is submitted from elsewhere may need a third.
    assert len(base64.b64encode(zlib.compress(spec.data))) < 76 << 10


def test_every_app_of_ours_has_what_it_says() -> None:
    for name, app in BUILT_IN.items():
        assert fault(name, app) == "", name
