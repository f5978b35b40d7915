"""``configure(c, folders=True)``: the service, its scopes and roles, and what its settings take."""

from __future__ import annotations

from pathlib import Path

import pytest
from traitlets import TraitError
from traitlets.config import Config

from carme_hub import configure
from carme_hub.errors import ConfigError
from carme_hub.folders.scopes import ADMIN, READ, WRITE
from carme_hub.folders.settings import CarmeFolders


def roles(c: Config) -> dict[str, dict[str, object]]:
    return {role["name"]: role for role in c.JupyterHub.load_roles}


def test_folders_bring_their_service_scopes_and_roles(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    c = Config()
    configure(c, state_folder=tmp_path, folders=True)
    [service] = c.JupyterHub.services
    assert (service["name"], service["url"]) == ("folders", "https://127.0.0.1:10106")
    assert service["command"][1:3] == ["-m", "carme_hub.services.folders"]
    assert {READ, WRITE, ADMIN} <= set(c.JupyterHub.custom_scopes)
    assert {WRITE, "access:services!service=folders"} <= c.JupyterHub.extra_user_scopes
    assert ADMIN not in c.JupyterHub.extra_user_scopes
    assert roles(c)["folders-admin"]["groups"] == ["role:admin"]
    assert "delete:servers" not in roles(c)["folders-service"]["scopes"]  # type: ignore[operator]
    assert c.CarmeFolders.enabled is True


def test_the_service_may_stop_servers_only_where_the_site_consents() -> None:
    c = Config()
    configure(c, folders=True, CarmeFolders={"end_sessions": True})
    assert "delete:servers" in roles(c)["folders-service"]["scopes"]  # type: ignore[operator]


def test_folders_need_slurm_and_are_off_by_default() -> None:
    with pytest.raises(ConfigError, match="folders=True needs Slurm"):
        configure(Config(), slurm=False, folders=True)
    c = Config()
    configure(c)
    assert "folders-admin" not in roles(c)


@pytest.mark.parametrize(
    "roots", [{"Projects": "/srv"}, {"projects": "srv"}, {"projects": "/srv/../etc"}, {"a b": "/x"}]
)
def test_roots_are_short_names_of_absolute_paths(roots: dict[str, str]) -> None:
    with pytest.raises(TraitError):
        CarmeFolders(roots=roots)
