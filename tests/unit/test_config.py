"""``configure(c)``: a safe site in one line, and every part of it can be set otherwise."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from jupyterhub import orm, roles
from jupyterhub.app import JupyterHub
from jupyterhub.spawner import Spawner
from traitlets.config import Config

import carme_hub
from carme_hub import configure
from carme_hub.auth import secret_files
from carme_hub.config import JOB_SCOPES, QUOTA_SCOPES, RESERVATION_SCOPES, ROLES, SLURM_SCOPES
from carme_hub.domain.administration import scopes as console
from carme_hub.errors import ConfigError
from carme_hub.spawners.slurm.spawner import SlurmContainerSpawner


@pytest.fixture
def c() -> Config:
    return Config()


def test_one_line_gives_a_safe_site(c: Config, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    configure(c, state_folder=tmp_path)
    assert c.JupyterHub.spawner_class == "carme-slurm"
    assert c.JupyterHub.authenticator_class == "carme"
    assert c.JupyterHub.internal_ssl is True
    assert c.JupyterHub.cleanup_servers is False
    assert c.ConfigurableHTTPProxy.should_start is False
    assert c.JupyterHub.db_url != c.CarmeStore.url
    assert c.JupyterHub.cookie_secret_file == str(tmp_path / "jupyterhub_cookie_secret")
    assert Path(c.JupyterHub.template_paths[-1]).is_dir()
    assert {role["name"] for role in c.JupyterHub.load_roles} == {role["name"] for role in (*ROLES, *console.ROLES)}
    assert not c.CarmeAuthenticator.get("allow_all")


def test_it_does_nothing_but_set(c: Config, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    configure(c, state_folder=tmp_path / "not there yet")
    assert list(tmp_path.iterdir()) == []


def test_what_was_set_before_and_after_counts(c: Config) -> None:
    c.JupyterHub.internal_ssl = False
    c.JupyterHub.spawner_class = "simple"
    configure(c, JupyterHub={"named_server_limit_per_user": 2}, CarmeAuthenticator={"allowed_groups": {"lab"}})
    c.JupyterHub.cleanup_servers = True
    hub = JupyterHub(config=c)
    assert hub.internal_ssl is False
    assert hub.spawner_class.__name__ == "SimpleLocalProcessSpawner"
    assert hub.named_server_limit_per_user == 2
    assert hub.cleanup_servers is True
    assert c.CarmeAuthenticator.allowed_groups == {"lab"}


def test_lists_are_added_to(c: Config, tmp_path: Path) -> None:
    c.JupyterHub.template_paths = [str(tmp_path)]
    c.JupyterHub.load_roles = [{"name": "metrics", "scopes": ["read:metrics"], "services": []}]
    configure(c)
    c.JupyterHub.load_roles.append({"name": "late", "scopes": ["list:users"]})
    assert c.JupyterHub.template_paths[0] == str(tmp_path)
    assert len(c.JupyterHub.template_paths) == 2
    assert [role["name"] for role in c.JupyterHub.load_roles] == [
        *("metrics", "teacher", "operator", "console-admin", "console-operator", "late")
    ]


def test_a_list_only_appended_to_before_is_kept(c: Config) -> None:
    c.JupyterHub.load_roles.append({"name": "metrics", "scopes": ["read:metrics"]})
    configure(c)
    assert [role["name"] for role in c.JupyterHub.load_roles] == [
        *("metrics", "teacher", "operator", "console-admin", "console-operator")
    ]


def test_a_role_of_the_sites_keeps_its_scopes_and_gets_the_group(c: Config) -> None:
    c.JupyterHub.load_roles = [{"name": "teacher", "scopes": ["read:users"], "groups": ["staff"]}]
    configure(c)
    teacher = next(role for role in c.JupyterHub.load_roles if role["name"] == "teacher")
    assert teacher["scopes"] == ["read:users"]
    assert teacher["groups"] == ["staff", "role:teacher"]


def test_it_can_run_twice(c: Config) -> None:
    configure(c)
    first = c.copy()
    configure(c)
    assert c == first


def test_two_sites_share_no_roles(c: Config) -> None:
    configure(c)
    c.JupyterHub.load_roles[0]["scopes"].append("admin:users")
    other = Config()
    configure(other)
    assert "admin:users" not in other.JupyterHub.load_roles[0]["scopes"]


def test_one_box_without_slurm(c: Config) -> None:
    configure(c, slurm=False)
    assert c.JupyterHub.spawner_class == "carme-docker"
    assert c.CarmeAuthenticator.accounts_from_slurm is False
    assert not [role for role in c.JupyterHub.load_roles if role["name"].startswith("console")], "it has no console"
    assert "audit_file" not in c.CarmeQuotas


def test_administrators_have_the_console_and_operators_a_part_of_it(c: Config, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    configure(c, state_folder=tmp_path)
    hub = JupyterHub(config=c)
    roles = {role["name"]: role for role in hub.load_roles}
    assert (roles["console-admin"]["groups"], roles["console-admin"]["scopes"]) == (["role:admin"], [console.OPERATE])
    assert (roles["console-operator"]["groups"], roles["console-operator"]["scopes"]) == (
        ["role:operator"],
        [console.MESSAGE],
    )
    assert hub.extra_user_scopes == {console.ACCOUNTS_READ, "custom:carme:jobs"}
    assert c.CarmeQuotas.audit_file == str(tmp_path / "audit.jsonl")


@pytest.mark.parametrize("name", ["jupyterhub_cookie_secret", "jupyterhub.sqlite", "carme-hub.sqlite", "proxy-token"])
def test_a_secret_that_lies_open_is_refused_by_name_with_the_command(
    c: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(secret_files, "_is_traversable", lambda folder: True)
    (tmp_path / name).write_text("secret")
    (tmp_path / name).chmod(0o644)
    with pytest.raises(ConfigError, match=f"chmod 600 {tmp_path / name}"):
        configure(c, state_folder=tmp_path)
    (tmp_path / name).chmod(0o600)
    configure(c, state_folder=tmp_path)


def test_the_proxys_token_comes_from_its_file_unless_the_environment_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.delenv("CONFIGPROXY_AUTH_TOKEN", raising=False)
    (tmp_path / "proxy-token").write_text("abc\n")
    (tmp_path / "proxy-token").chmod(0o600)
    c = Config()
    configure(c, state_folder=tmp_path)
    assert c.ConfigurableHTTPProxy.auth_token == "abc"
    monkeypatch.setenv("CONFIGPROXY_AUTH_TOKEN", "other")
    c = Config()
    configure(c, state_folder=tmp_path)
    assert "auth_token" not in c.ConfigurableHTTPProxy


@pytest.mark.parametrize("settings", [{"state_folder": "relative"}, {"JupyterHub": 5}])
def test_a_wrong_argument_is_named(c: Config, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        configure(c, **settings)  # type: ignore[arg-type]


def test_importing_the_package_imports_no_hub() -> None:
    code = "import carme_hub, sys; sys.exit('jupyterhub' in sys.modules or 'traitlets' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="nonsense"):
        carme_hub.nonsense  # noqa: B018


def test_quotas_bring_their_service_scopes_and_roles_and_keep_what_was_there(c: Config) -> None:
    c.JupyterHub.services = [{"name": "mine", "api_token": "x" * 32}]
    c.JupyterHub.custom_scopes = {"custom:lab": {"description": "Mine"}}
    configure(c, quotas=True)
    hub = JupyterHub(config=c)
    names = [service["name"] for service in hub.services]
    assert names == ["mine", "quotas"]
    service = hub.services[1]
    assert service["url"].startswith("https://127.0.0.1:")
    assert service["command"][-2:] == ["--config", str(Path(__file__))]
    assert set(service["oauth_client_allowed_scopes"]) <= set(hub.custom_scopes)
    assert "custom:lab" in hub.custom_scopes
    assert "custom:carme:quota:manage" in hub.extra_user_scopes
    assert "custom:carme:quota:grant" not in hub.extra_user_scopes
    assert c.CarmeQuotas.enabled is True


def test_the_mail_servers_password_reaches_the_service_by_its_environment_alone(
    c: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARME_SMTP_PASSWORD", "hunter2")
    monkeypatch.setenv("ANOTHER_PASSWORD", "hunter3")
    configure(c, quotas=True)
    service = JupyterHub(config=c).services[-1]
    assert service["environment"]["CARME_SMTP_PASSWORD"] == "hunter2"
    assert "hunter3" not in str(service)
    assert "hunter2" not in str(service["command"]) + str(c.CarmeQuotas)


def test_without_quotas_there_is_no_service(c: Config) -> None:
    configure(c)
    assert "services" not in c.JupyterHub
    assert "enabled" not in c.CarmeQuotas


def test_reservations_bring_their_service_scopes_and_roles_with_quotas_and_without(c: Config) -> None:
    configure(c, reservations=True)
    hub = JupyterHub(config=c)
    (service,) = hub.services
    assert (service["name"], service["url"]) == ("reservations", "https://127.0.0.1:10103")
    assert service["command"][1:3] == ["-m", "carme_hub.services.reservations"]
    # What a person lets the service do in their name; that it sees Slurm's jobs is the service's own scope.
    assert {*service["oauth_client_allowed_scopes"], *SLURM_SCOPES, *JOB_SCOPES, *console.SCOPES} == set(
        hub.custom_scopes
    )
    assert "custom:carme:reservation:write" in hub.extra_user_scopes
    assert "custom:carme:reservation:admin" not in hub.extra_user_scopes
    assert c.CarmeReservations.enabled is True
    assert "enabled" not in c.CarmeQuotas
    roles = {role["name"]: role for role in hub.load_roles}
    assert roles["calendar-admin"]["groups"] == ["role:admin"]
    assert roles["reservations-service"]["services"] == ["reservations"]
    both = Config()
    configure(both, quotas=True, reservations=True)
    assert [each["name"] for each in JupyterHub(config=both).services] == ["quotas", "reservations"]
    assert {*RESERVATION_SCOPES, *QUOTA_SCOPES, *SLURM_SCOPES, *JOB_SCOPES, *console.SCOPES} == set(
        both.JupyterHub.custom_scopes
    )


def test_reservations_need_slurm(c: Config) -> None:
    with pytest.raises(ConfigError, match="needs Slurm"):
        configure(c, slurm=False, reservations=True)


def test_activity_brings_its_service_scopes_and_role(c: Config) -> None:
    configure(c, activity=True)
    hub = JupyterHub(config=c)
    (service,) = hub.services
    assert (service["name"], service["url"]) == ("activity", "https://127.0.0.1:10104")
    assert service["command"][1:3] == ["-m", "carme_hub.services.activity"]
    assert {*service["oauth_client_allowed_scopes"], *SLURM_SCOPES, *JOB_SCOPES, *console.SCOPES} == set(
        hub.custom_scopes
    )
    assert {"custom:carme:activity:read", "access:services!service=activity"} <= hub.extra_user_scopes
    assert "custom:carme:activity:read:all" not in hub.extra_user_scopes
    assert c.CarmeActivity.enabled is True
    roles = {role["name"]: role for role in hub.load_roles}
    assert roles["activity-reader"]["groups"] == ["role:admin", "role:operator"]
    assert roles["activity-admin"] == {
        "name": "activity-admin",
        "description": "Sees what every account had and did not use",
        "scopes": ["custom:carme:activity:unused"],
        "groups": ["role:admin"],
    }
    assert "custom:carme:activity:unused" not in hub.extra_user_scopes
    assert not [role for role in hub.load_roles if "activity" in role.get("services", ())], (
        "it asks the hub for nothing"
    )
    assert "server_token_scopes" not in c.Spawner, "a server's token is as JupyterHub makes it"


def test_users_act_on_their_own_jobs_and_a_site_without_slurm_has_none(c: Config) -> None:
    configure(c)
    hub = JupyterHub(config=c)
    assert set(hub.custom_scopes) == {*JOB_SCOPES, *console.SCOPES}
    assert hub.extra_user_scopes == {"custom:carme:jobs", console.ACCOUNTS_READ}
    own = Config(
        JupyterHub=Config(custom_scopes={"custom:site:x": {"description": "x"}}, extra_user_scopes={"custom:site:x"})
    )
    configure(own, slurm=False)
    assert set(own.JupyterHub.custom_scopes) == {"custom:site:x"}
    configure(own)
    assert set(own.JupyterHub.custom_scopes) == {"custom:site:x", *JOB_SCOPES, *console.SCOPES}
    assert set(own.JupyterHub.extra_user_scopes) == {"custom:site:x", "custom:carme:jobs", console.ACCOUNTS_READ}


def test_activity_needs_slurm(c: Config) -> None:
    with pytest.raises(ConfigError, match="activity=True needs Slurm"):
        configure(c, slurm=False, activity=True)


# -- what a session's own token may -----------------------------------------------------------------------------------

#: Nothing that gives, asks or reads others: its own activity and server, and what its own sessions have left.
TOKEN = [
    "users:activity!user",
    "access:servers!server",
    "access:services!service=quotas",
    "custom:carme:quota:read:session",
]


def test_a_sessions_token_may_ask_what_is_left_of_its_users_sessions_and_nothing_more(c: Config) -> None:
    configure(c, quotas=True)
    assert token_scopes(Spawner(config=c)) == TOKEN
    scopes = JupyterHub(config=c).custom_scopes
    assert not scopes["custom:carme:quota:read:session"].get("subscopes")
    holders = {
        name for name, about in scopes.items() if "custom:carme:quota:read:session" in about.get("subscopes", [])
    }
    assert holders == {"custom:carme:quota:read"}, "users have it by what they have already"


def test_a_sessions_token_sees_what_its_user_has_booked_and_changes_nothing(c: Config) -> None:
    configure(c, reservations=True)
    mine = ["access:services!service=reservations", "custom:carme:reservation:read"]
    assert token_scopes(Spawner(config=c)) == [*TOKEN[:2], *mine]
    both = Config()
    configure(both, quotas=True, reservations=True)
    assert token_scopes(Spawner(config=both)) == [*TOKEN, *mine]
    assert not JupyterHub(config=c).custom_scopes["custom:carme:reservation:read"].get("subscopes")


def test_without_quotas_a_sessions_token_is_as_jupyterhub_makes_it(c: Config) -> None:
    configure(c)
    assert Spawner(config=c).server_token_scopes == []


@pytest.mark.parametrize("section", ["Spawner", "SlurmContainerSpawner"])
def test_the_sites_own_scopes_for_a_sessions_token_count(c: Config, section: str) -> None:
    mine = ["users:activity!user", "access:servers!server"]
    c[section].server_token_scopes = mine
    configure(c, quotas=True)
    assert SlurmContainerSpawner(config=c).server_token_scopes == mine
    after = Config()
    configure(after, quotas=True)
    after[section].server_token_scopes = mine
    assert SlurmContainerSpawner(config=after).server_token_scopes == mine


def test_a_server_role_of_the_sites_is_what_a_sessions_token_begins_with_wherever_it_stands(c: Config) -> None:
    c.JupyterHub.load_roles = [{"name": "server", "description": "Says nothing of scopes"}]
    configure(c, quotas=True)
    assert token_scopes(Spawner(config=c), "users:activity!user", "read:users!user") == [
        *("users:activity!user", "read:users!user"),
        *TOKEN[2:],
    ]


def token_scopes(spawner: Spawner, *role: str) -> list[str]:
    """Return the scopes of a server's token, where the hub's ``server`` role has these, or JupyterHub's own."""
    db = orm.new_session_factory("sqlite:///:memory:")()
    own = next(each for each in roles.get_default_roles() if each["name"] == "server")["scopes"]
    db.add(orm.Role(name="server", scopes=list(role) or own))
    db.commit()
    spawner.user = SimpleNamespace(db=db)
    db.add(orm.User(name="ada"))  # as what JupyterHub has done of a start by then
    asked = spawner.server_token_scopes(spawner)
    db.rollback()  # as at the end of anybody's request
    assert orm.User.find(db, "ada") is not None
    found: list[str] = asyncio.run(asked)
    return found


def test_images_bring_their_service_scopes_and_roles(c: Config) -> None:
    configure(c, images=True)
    hub = JupyterHub(config=c)
    (service,) = hub.services
    assert (service["name"], service["url"]) == ("images", "https://127.0.0.1:10105")
    assert service["command"][1:3] == ["-m", "carme_hub.services.images"]
    assert {"custom:carme:images:offer", "access:services!service=images"} <= hub.extra_user_scopes
    assert not {"custom:carme:images:manage", "custom:carme:images:nodes"} & hub.extra_user_scopes
    assert c.CarmeImages.enabled is True
    roles = {role["name"]: role for role in hub.load_roles}
    assert roles["images-admin"]["groups"] == ["role:admin"]
    assert roles["images-service"]["scopes"] == ["custom:carme:slurm:read", "custom:carme:console:message"]
    assert not [role for role in hub.load_roles if "custom:carme:images:nodes" in role["scopes"]], "a site gives it"


def test_images_need_slurm(c: Config) -> None:
    with pytest.raises(ConfigError, match="needs Slurm"):
        configure(c, slurm=False, images=True)
