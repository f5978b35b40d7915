"""What two hosts must have alike is compared by its content, read anew at each question."""

from __future__ import annotations

from pathlib import Path

import pytest
from traitlets.config import Config

from carme_hub.cli.hub_config import hub_of
from carme_hub.cli.standby.secrets import SharedSecrets
from carme_hub.errors import ConfigError


def host(folder: Path, environ: dict[str, str] | None = None, **hub: object) -> SharedSecrets:
    """Return the secrets of a host with a state folder, which is made where it is missing."""
    if not folder.exists():
        authority = folder / "internal-ssl" / "hub-ca"
        authority.mkdir(parents=True)
        (authority / "hub-ca.crt").write_text("certificate")
        (folder / "internal-ssl" / "hub-ca_trust.crt").write_text(f"made anew, in any order, in {folder}")
        (folder / "jupyterhub_cookie_secret").write_text("5ad1\n")
        (folder / "proxy-token").write_text("70ce\n")
    config = Config()
    config.JupyterHub.cookie_secret_file = str(folder / "jupyterhub_cookie_secret")
    config.JupyterHub.internal_certs_location = str(folder / "internal-ssl")
    config.JupyterHub.internal_ssl = True
    config.JupyterHub.update(hub)
    config.ConfigurableHTTPProxy.auth_token = (folder / "proxy-token").read_text().strip()  # as `configure` does
    return SharedSecrets(hub_of(config), environ or {})


def test_a_copied_state_folder_has_the_same_secrets_and_any_other_has_not(tmp_path: Path) -> None:
    one, two = host(tmp_path / "one"), host(tmp_path / "two")
    assert one.digest() == two.digest()
    for name in ("jupyterhub_cookie_secret", "proxy-token", "internal-ssl/hub-ca/hub-ca.crt"):
        file = tmp_path / "two" / name
        before = file.read_text()
        file.write_text("another")
        assert one.digest() != two.digest(), f"{name} was replaced while it stands by"
        assert one.digest() != host(tmp_path / "two").digest()
        file.write_text(before)
        assert one.digest() == two.digest()


def test_secrets_of_the_environment_are_compared(tmp_path: Path) -> None:
    found = [
        host(tmp_path / "one", environ).digest()
        for environ in ({}, {"JUPYTERHUB_CRYPT_KEY": "a"}, {"JUPYTERHUB_CRYPT_KEY": "b"}, {"JPY_COOKIE_SECRET": "c"})
    ]
    assert len(set(found)) == 4


@pytest.mark.parametrize("name", ["jupyterhub_cookie_secret", "internal-ssl/hub-ca/hub-ca.crt"])
def test_a_secret_that_the_hub_would_make_anew_is_an_error(tmp_path: Path, name: str) -> None:
    secrets = host(tmp_path / "one")
    (tmp_path / "one" / name).unlink()
    with pytest.raises(ConfigError, match=r"copy the state folder.*carme-hub init"):
        secrets.digest()


def test_a_hub_without_certificates_needs_none(tmp_path: Path) -> None:
    secrets = host(tmp_path / "one", internal_ssl=False)
    (tmp_path / "one" / "internal-ssl/hub-ca/hub-ca.crt").unlink()
    assert len(secrets.digest()) == 64
