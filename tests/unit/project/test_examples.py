"""Each example is loaded as a hub loads it; the doctor finds nothing in its settings that its README does not name."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rig.extension import extension, installed_extension
from traitlets.config import Config

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.auth.authenticator import CarmeAuthenticator
from carme_hub.auth.system_users import look_up
from carme_hub.cli.doctor import machine
from carme_hub.cli.doctor.command import DoctorApp
from carme_hub.cli.doctor.findings import Level
from carme_hub.cli.hub_config import load_config
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.sessions.profile_fields import profile_field
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.engine import CarmeStore

__all__ = ["extension", "installed_extension"]
#: Of ldap3, at its import with a present pyasn1.
pytestmark = pytest.mark.filterwarnings("ignore:t(ag|ype)Map is deprecated:DeprecationWarning")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FOLDERS = sorted(file.parent for file in EXAMPLES.glob("*/jupyterhub_config.py"))
LOGINS = {
    "oidc-keycloak": "GenericOAuthenticator",
    "ldap": "LDAPAuthenticator",
    "github-teams": "GitHubOAuthenticator",
    "pam-2fa": "PAMAuthenticator",
    "slurm-site": "GenericOAuthenticator",
}


@pytest.fixture
def machine_that_has_all(monkeypatch: pytest.MonkeyPatch, extension: Path) -> None:
    """Forges the machine of the example: its addresses, programs and images are there, and no secret is known."""
    exists = os.path.exists
    monkeypatch.setattr(machine, "why_not_bindable", lambda host: "")
    monkeypatch.setattr(shutil, "which", lambda program, *_, **__: str(program))
    monkeypatch.setattr(os.path, "exists", lambda path: str(path).startswith("/opt/images/") or exists(path))
    monkeypatch.setenv("CONFIGPROXY_AUTH_TOKEN", "5" * 64)
    for name in (
        "JUPYTERHUB_CRYPT_KEY",
        "OAUTH_CLIENT_SECRET",
        "GITHUB_CLIENT_SECRET",
        "JUPYTERHUB_ALLOW_TOKEN_IN_URL",
    ):
        monkeypatch.delenv(name, raising=False)


def loaded(name: str) -> Any:
    return load_config(EXAMPLES / name / "jupyterhub_config.py")


def readme(folder: Path) -> str:
    file = folder / "README.md"
    return (file if file.exists() else EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_doctor_finds_nothing_that_the_readme_does_not_name(folder: Path, machine_that_has_all: None) -> None:
    file = folder / "jupyterhub_config.py"
    findings = list(DoctorApp(config_path=str(file), no_slurm=True).examine(file))
    assert [found.text() for found in findings if found.level is not Level.ADVICE] == []
    assert [found.text() for found in findings if f"`{found.setting}`" not in readme(folder)] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_part_of_the_hub_takes_the_settings(folder: Path, machine_that_has_all: None) -> None:
    config = loaded(folder.name)
    authenticator = CarmeAuthenticator(config=config)
    assert authenticator.wrapped is not None
    assert authenticator.wrapped.__name__ == LOGINS.get(folder.name, "PAMAuthenticator")
    assert authenticator.any_allow_config, "somebody is allowed"
    assert not authenticator.allow_all, "and nobody else"
    CarmeSlurm(config=config).client()
    assert CarmeStore(config=config).url
    quotas = CarmeQuotas(config=config)
    section = "CarmeDockerSpawner" if "Docker" in str(config.keys()) else "SlurmContainerSpawner"
    profiles = parse_profiles(config[section].profile_list, profile_field(quotas))
    assert profiles
    images = {image["name"] for image in config[section].images}
    assert all(set(profile.images) <= images for profile in profiles)


@pytest.mark.parametrize(
    "folder", [folder for folder in FOLDERS if (folder / "README.md").exists()], ids=lambda f: f.name
)
def test_a_readme_is_short_and_every_folder_is_in_the_list(folder: Path) -> None:
    assert len(readme(folder).splitlines()) <= 14
    assert f"{folder.name}/README.md" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_example_has_a_secret_in_it(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            assert not re.search(r"[0-9a-f]{32}|BEGIN .*PRIVATE", file.read_text()), file


def test_a_name_at_github_is_nobodys_name_here(machine_that_has_all: None) -> None:
    settings = loaded("github-teams").GitHubOAuthenticator
    assert settings.username_claim({"id": 583231, "login": "octocat"}) == "alice"
    stranger = settings.username_claim({"id": 1, "login": "root"})
    assert look_up(stranger) is None
    assert look_up("root") is not None


def test_a_team_of_another_organization_is_no_group(machine_that_has_all: None) -> None:
    groups = loaded("github-teams").GitHubOAuthenticator.auth_state_groups_key
    teams = [
        {"slug": "gpu-users", "organization": {"login": "elsewhere"}},
        {"slug": "hub-admins", "organization": {"login": "example-lab"}},
    ]
    assert groups({"teams": teams}) == ["github:hub-admins"]
    assert groups({}) == []


def test_the_file_of_pam_asks_for_both(machine_that_has_all: None) -> None:
    text = (EXAMPLES / "pam-2fa" / "carme-hub.pam").read_text()
    lines = [line.split()[:3] for line in text.splitlines() if line and not line.startswith("#")]
    assert lines == [
        ["auth", "required", "pam_unix.so"],
        ["auth", "required", "pam_oath.so"],
        ["account", "required", "pam_unix.so"],
    ]
    config: Config = loaded("pam-2fa")
    authenticator: Any = CarmeAuthenticator(config=config)
    assert authenticator.request_otp
    assert authenticator.service == "carme-hub"
