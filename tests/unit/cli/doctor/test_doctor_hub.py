"""The doctor on ``jupyterhub_config.py``: each unsafe setting is named, and the exit status says so."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from carme_hub.auth import secret_files
from carme_hub.cli.doctor.command import DoctorApp
from carme_hub.cli.init import InitApp

SAFE = """\
from carme_hub import configure
c = get_config()
configure(c, state_folder={state!r})
c.CarmeAuthenticator.allowed_groups = {{"gpu-users"}}
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.JupyterHub.spawner_class = "simple"
"""


@pytest.fixture(scope="module")
def made_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder as ``carme-hub init`` makes it; once, since keys take their time."""
    folder = tmp_path_factory.mktemp("site")
    file = folder / "jupyterhub_config.py"
    file.write_text(SAFE.format(state=str(folder / "state")))
    InitApp(config_path=str(file)).start()
    return folder / "state"


@pytest.fixture
def site(tmp_path: Path, made_state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("node", "configurable-http-proxy"):
        (programs / name).touch(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.delitem(sys.modules, "batchspawner", raising=False)
    monkeypatch.delenv("CONFIGPROXY_AUTH_TOKEN", raising=False)
    shutil.copytree(made_state, tmp_path / "state")
    file = tmp_path / "jupyterhub_config.py"
    file.write_text(SAFE.format(state=str(tmp_path / "state")))
    file.chmod(0o600)
    return file


def examined(file: Path, more: str = "") -> dict[str, str]:
    file.write_text(file.read_text() + more)
    findings = DoctorApp(config_path=str(file), no_slurm=True).examine(file)
    return {finding.setting: finding.level.value for finding in findings}


def test_a_safe_site_is_left_alone(site: Path) -> None:
    assert examined(site) == {"JupyterHub.spawner_class": "advice"}  # it is the stand-in of this test


@pytest.mark.parametrize(
    ("line", "setting"),
    [
        ("c.JupyterHub.cleanup_servers = True", "JupyterHub.cleanup_servers"),
        ("c.JupyterHub.authenticator_class = 'dummy'", "JupyterHub.authenticator_class"),
        ("c.JupyterHub.authenticator_class = 'nosuch'", "JupyterHub"),
        ("c.CarmeAuthenticator.allow_all = True", "CarmeAuthenticator.allow_all"),
        ("c.CarmeAuthenticator.authenticator_class = 'dummy'", "CarmeAuthenticator.authenticator_class"),
        ("c.CarmeAuthenticator.authenticator_class = 'nosuch'", "CarmeAuthenticator"),
        ("c.CarmeAuthenticator.minimum_uid = 1", "CarmeAuthenticator.minimum_uid"),
        ("c.CarmeAuthenticator.login_tries = 0", "CarmeAuthenticator.login_tries"),
        ("c.CarmeAuthenticator.auth_refresh_age = 0", "CarmeAuthenticator.auth_refresh_age"),
        ("c.Authenticator.auth_refresh_age = 900", "CarmeAuthenticator.auth_refresh_age"),
        ("c.CarmeAuthenticator.auth_refresh_strict = False", "CarmeAuthenticator.auth_refresh_strict"),
        ("c.CarmeAuthenticator.refresh_pre_spawn = False", "CarmeAuthenticator.refresh_pre_spawn"),
        ("c.CarmeAuthenticator.revoke_interval = 0", "CarmeAuthenticator.revoke_interval"),
        ("c.Authenticator.allow_existing_users = True", "CarmeAuthenticator.allow_existing_users"),
        ("c.ConfigurableHTTPProxy.should_start = True", "ConfigurableHTTPProxy.should_start"),
        ("c.CarmeStore.url = c.JupyterHub.db_url", "CarmeStore.url"),
        ("c.JupyterHub.db_url = 'postgresql+psycopg://db.example.org/hub'", "JupyterHub.db_kwargs"),
        ("c.CarmeSlurm.submit_via = 'rest'", "CarmeSlurm"),
        ("c.CarmeSlurm.ask_via = 'pyslurm'", "CarmeSlurm"),
        ("raise OSError('disk')", "FILE"),
        ("c.JupyterHub.internal_ssl = 'perhaps'", "JupyterHub"),
    ],
)
def test_each_unsafe_setting_is_named(site: Path, line: str, setting: str) -> None:
    found = examined(site, line + "\n")
    assert found.get(str(site) if setting == "FILE" else setting) == "unsafe"


def test_a_login_to_the_mail_server_without_tls_is_named(site: Path) -> None:
    mail = "c.CarmeQuotas.update(smtp_host='mail.lab.org', smtp_tls='off')\n"
    assert "CarmeQuotas.smtp_tls" not in examined(site, mail), "no password travels there"
    assert examined(site, "c.CarmeQuotas.smtp_user = 'hub'\n")["CarmeQuotas.smtp_tls"] == "unsafe"
    assert "CarmeQuotas.smtp_tls" not in examined(site, "c.CarmeQuotas.smtp_tls = 'auto'\n")


def test_a_password_of_the_mail_server_that_others_can_read_is_named(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_files, "_is_traversable", lambda _folder: True)
    file = site.parent / "smtp-password"
    file.write_text("hunter2")
    file.chmod(0o600)
    mail = f"c.CarmeQuotas.update(smtp_host='mail', smtp_user='hub', smtp_password_file={str(file)!r})\n"
    setting = "CarmeQuotas.smtp_password_file"
    assert setting not in examined(site, mail)
    file.chmod(0o640)
    assert examined(site)[setting] == "unsafe"


def test_a_slurm_hub_without_internal_tls_is_unsafe(site: Path) -> None:
    found = examined(site, "c.JupyterHub.spawner_class = 'carme-slurm'\nc.JupyterHub.internal_ssl = False\n")
    assert found["JupyterHub.internal_ssl"] == "unsafe"


def test_a_secret_in_a_file_that_others_can_read_is_named(site: Path) -> None:
    more = "c.GitHubOAuthenticator.client_secret = 'hunter2'\nc.CarmeStore.url = 'postgresql://carme:pw123@db/carme'\n"
    assert not any("client_secret" in setting for setting in examined(site, more))
    site.chmod(0o644)
    assert examined(site)["CarmeStore.url, GitHubOAuthenticator.client_secret"] == "unsafe"


def test_a_configuration_that_others_can_write_is_unsafe(site: Path) -> None:
    site.chmod(0o666)
    assert examined(site)[str(site)] == "unsafe"


def test_open_secrets_are_named_with_the_command(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_files, "_is_traversable", lambda folder: True)
    secret = site.parent / "state" / "jupyterhub_cookie_secret"
    secret.chmod(0o644)
    findings = list(DoctorApp(config_path=str(site), no_slurm=True).examine(site))
    assert any(f"chmod 600 {secret}" in finding.text() for finding in findings)


def test_batchspawner_in_the_hub_is_named(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "batchspawner", ModuleType("batchspawner"))
    assert examined(site)["batchspawner"] == "unsafe"


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    assert "unsafe" in examined_missing(tmp_path / "none.py").values()


def examined_missing(file: Path) -> dict[str, str]:
    return {f.setting: f.level.value for f in DoctorApp(config_path=str(file)).examine(file)}


@pytest.mark.parametrize(
    ("line", "accept", "status"),
    [
        ("", [], 0),
        ("c.JupyterHub.cleanup_servers = True", [], 1),
        ("c.JupyterHub.cleanup_servers = True", ["JupyterHub.cleanup_servers"], 0),
    ],
)
def test_the_exit_status_says_whether_something_is_unsafe(
    site: Path, capsys: pytest.CaptureFixture[str], line: str, accept: list[str], status: int
) -> None:
    site.write_text(site.read_text() + line + "\n")
    doctor = DoctorApp(config_path=str(site), no_slurm=True, accept=accept)
    with pytest.raises(SystemExit) as ended:
        doctor.start()
    assert ended.value.code == status
    output = capsys.readouterr().out
    assert ("mend: c.JupyterHub.cleanup_servers = False" in output) == bool(line)
    assert ("accepted" in output) == bool(accept)


def test_programs_get_one_object_a_line(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor = DoctorApp(config_path=str(site), no_slurm=True, as_json=True)
    doctor.report(list(doctor.examine(site)))
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [found["setting"] for found in objects] == ["JupyterHub.spawner_class"]
