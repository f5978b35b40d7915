"""``configure(c)``: a safe site in one line of ``jupyterhub_config.py``, every part of which can be overridden.

``configure(c)`` sets what the file has not set before, adds to lists instead of replacing them, and writes plain
values, so that settings after it in the file have precedence. It reads at most the proxy's token and starts nothing,
because every service of the hub reads the same file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from jupyterhub import orm
from traitlets.config import Config, LazyConfigValue

from carme_hub.auth.secret_files import exposure, read_secret
from carme_hub.domain.activity import scopes as activity_scopes
from carme_hub.domain.administration import scopes as console
from carme_hub.domain.cluster.own_jobs.scopes import JOB_SCOPES
from carme_hub.domain.images import scopes as images_scopes
from carme_hub.domain.quotas.group_names import ROLE_GROUP
from carme_hub.errors import ConfigError
from carme_hub.folders import scopes as sharing
from carme_hub.logs import write_json
from carme_hub.paths import share_folder
from carme_hub.store.hub_database import wal_options

#: Files of the state folder, by the trait that holds each.
COOKIE_SECRET, HUB_DATABASE, OUR_DATABASE = "jupyterhub_cookie_secret", "jupyterhub.sqlite", "carme-hub.sqlite"
AUDIT = "audit.jsonl"
PROXY_TOKEN, CERTIFICATES = "proxy-token", "internal-ssl"
#: JupyterHub's own default for ``db_url``.
HUB_DEFAULT_URL = "sqlite:///jupyterhub.sqlite"

#: The roles beside JupyterHub's own ``user`` and ``admin``. ``CarmeAuthenticator.role_groups`` says who has them.
#: JupyterHub's admin flag grants ``admin``, because JupyterHub 6.1 cannot load that role for a group.
ROLES: tuple[dict[str, Any], ...] = (
    {
        "name": "teacher",
        "description": "Lists the groups, to prepare courses for them",
        "scopes": ["list:groups", "read:groups:name"],
        "groups": [ROLE_GROUP + "teacher"],
    },
    {
        "name": "operator",
        "description": "Sees and stops everybody's servers; cannot read their content or act for their owners",
        "scopes": [
            *("admin-ui", "list:users", "read:users", "read:servers", "delete:servers"),
            *("list:groups", "read:groups", "list:services", "read:services", "read:roles", "read:hub", "read:metrics"),
        ],
        "groups": [ROLE_GROUP + "operator"],
    },
)

#: The service's name, and its address below ``/services/``.
QUOTAS = "quotas"
#: The scopes that the quotas service checks, besides access to the service itself.
QUOTA_SCOPES: dict[str, dict[str, Any]] = {
    "custom:carme:quota:read:session": {
        "description": "See how much time and budget one's own sessions have left, and nothing else"
    },
    "custom:carme:quota:read": {
        "description": "See one's own GPU time: balances, statement, prices",
        "subscopes": ["custom:carme:quota:read:session"],
    },
    "custom:carme:quota:read:group": {
        "description": "See everybody's GPU time, reports and anomalies",
        "subscopes": ["custom:carme:quota:read"],
    },
    "custom:carme:quota:manage": {
        "description": "Ask for GPU time; give and move that of accounts which one coordinates in Slurm",
        "subscopes": ["custom:carme:quota:read"],
    },
    "custom:carme:quota:grant": {
        "description": "Give GPU time, decide requests, settle anomalies",
        "subscopes": ["custom:carme:quota:read:group", "custom:carme:quota:manage"],
    },
    "custom:carme:quota:policy": {
        "description": "Change the policy of GPU time, and try a new one on what was used",
        "subscopes": ["custom:carme:quota:read:group"],
    },
}
QUOTA_ROLES: tuple[dict[str, Any], ...] = (
    {
        "name": "gpu-time-admin",
        "description": "Administers everybody's GPU time",
        "scopes": ["custom:carme:quota:grant", "custom:carme:quota:policy"],
        "groups": [ROLE_GROUP + "admin"],
    },
    {
        "name": "gpu-time-reader",
        "description": "Sees everybody's GPU time",
        "scopes": ["custom:carme:quota:read:group"],
        "groups": [ROLE_GROUP + "operator"],
    },
)

#: The scopes of a server's own token besides JupyterHub's: it cannot grant, request more, or read other users' data.
QUOTA_SERVER_SCOPES = (f"access:services!service={QUOTAS}", "custom:carme:quota:read:session")

#: The scope of both services, and of nobody else: jobs and nodes, with the names of everybody's jobs.
SLURM_SCOPES: dict[str, dict[str, Any]] = {
    "custom:carme:slurm:read": {"description": "See everybody's jobs as the hub last saw them in Slurm"},
}
_SERVICE_SCOPES = ("list:users", "read:users:name", "read:users:groups", *SLURM_SCOPES)

#: The role of the service's own token: users, their groups, and the hub's last snapshot of Slurm.
QUOTA_SERVICE_ROLE: dict[str, Any] = {
    "name": "quotas-service",
    "description": "Lets the quotas service read groups and jobs",
    "scopes": [*_SERVICE_SCOPES],
    "services": [QUOTAS],
}

#: The name of the service that keeps the calendar, and its address below ``/services/``.
RESERVATIONS = "reservations"
#: The scopes that the reservations service checks, besides access to the service itself.
RESERVATION_SCOPES: dict[str, dict[str, Any]] = {
    "custom:carme:reservation:read": {"description": "See which GPUs are free and booked, and one's own bookings"},
    "custom:carme:reservation:read:all": {
        "description": "See everybody's bookings, with title and owner",
        "subscopes": ["custom:carme:reservation:read"],
    },
    "custom:carme:reservation:write": {
        "description": "Book GPUs within the policy; change and release one's own bookings",
        "subscopes": ["custom:carme:reservation:read"],
    },
    "custom:carme:reservation:admin": {
        "description": "Approve bookings, change everybody's, set maintenance windows",
        "subscopes": ["custom:carme:reservation:read:all", "custom:carme:reservation:write"],
    },
}
RESERVATION_ROLES: tuple[dict[str, Any], ...] = (
    {
        "name": "calendar-admin",
        "description": "Administers everybody's bookings",
        "scopes": ["custom:carme:reservation:admin"],
        "groups": [ROLE_GROUP + "admin"],
    },
    {
        "name": "calendar-reader",
        "description": "Sees everybody's bookings",
        "scopes": ["custom:carme:reservation:read:all"],
        "groups": [ROLE_GROUP + "operator"],
    },
)

#: The scopes of a server's own token: it sees its user's bookings, and changes nothing.
RESERVATION_SERVER_SCOPES = (f"access:services!service={RESERVATIONS}", "custom:carme:reservation:read")

#: The role of the service's own token, as above.
RESERVATION_SERVICE_ROLE: dict[str, Any] = {
    "name": "reservations-service",
    "description": "Lets the reservations service read groups, jobs and nodes",
    "scopes": [*_SERVICE_SCOPES],
    "services": [RESERVATIONS],
}

#: The variables of the hub's environment that a service receives.
_PASSED_ON = ("SLURM_CONF", "TZ", "CARME_SMTP_PASSWORD", "CARME_HUB_LEASE")


def configure(
    c: Config,
    *,
    state_folder: str | Path = "",
    slurm: bool = True,
    quotas: bool = False,
    reservations: bool = False,
    activity: bool = False,
    images: bool = False,
    folders: bool = False,
    json_logs: bool = False,
    **settings: Mapping[str, Any],
) -> None:
    """Merge a safe site into ``c``.

    Args:
        c: the config object of ``jupyterhub_config.py``.
        state_folder: absolute path of the folder (mode 0700) for databases, secrets and certificates; "" is the
            hub's working folder, as with plain JupyterHub.
        slurm: False for one box with a Docker engine and no Slurm.
        quotas: keep a ledger of GPU time, check ``CarmeQuotas``' policy before a start, and run the quotas service.
        reservations: keep a calendar in which GPUs are booked, and run the service that makes Slurm keep it. It needs
            no ledger; where there is one, it pays for bookings.
        activity: measure what jobs use, and run the service that keeps it.
        images: keep a catalogue of container images, offer those of ``CarmeImages.stores``, and run its service.
        folders: let users make and share folders, and run the service that keeps them (docs/howto/folders.md).
        json_logs: write the logs of the hub and its services as JSON, one object a line.
        settings: settings by class, which replace what is in ``c`` already:
            ``configure(c, CarmeAuthenticator={"allowed_groups": {"gpu-users"}})``.

    Raises:
        ConfigError: others can read a file of secrets; the message has the command that mends it.
    """
    if state_folder and not Path(state_folder).is_absolute():
        raise ConfigError(f"configure: state_folder is {str(state_folder)!r}; give an absolute path")
    for section, values in settings.items():
        if not isinstance(values, Mapping):
            raise ConfigError(f"configure: {section} must be a mapping of settings, such as {section}={{…}}")
        c[section].update(values)

    hub = {
        "spawner_class": "carme-slurm" if slurm else "carme-docker",
        "authenticator_class": "carme",
        "proxy_class": "carme",
        "internal_ssl": slurm,
        # A restart of the hub ends no session and drops no connection: the servers are jobs, and the proxy is a
        # separate process (docs/howto/proxy.md).
        "cleanup_servers": False,
        "cleanup_proxy": False,
        "allow_named_servers": True,
        "named_server_limit_per_user": 5,
        "concurrent_spawn_limit": 100,
        # A session that waits in the queue must not delay the start of the hub, which watches it in the background.
        "init_spawners_timeout": 2,
    }
    store = {}
    if state_folder:
        folder = Path(state_folder)
        hub["cookie_secret_file"] = str(folder / COOKIE_SECRET)
        hub["db_url"] = f"sqlite:///{folder / HUB_DATABASE}"
        hub["internal_certs_location"] = str(folder / CERTIFICATES)
        store["url"] = f"sqlite:///{folder / OUR_DATABASE}"
    _fill(c, "JupyterHub", hub)
    _fill(c, "JupyterHub", {"db_kwargs": wal_options(c.JupyterHub.get("db_url", HUB_DEFAULT_URL))})
    _fill(c, "CarmeStore", store)
    _fill(c, "CarmeAuthenticator", {"accounts_from_slurm": slurm})
    _fill(c, "ConfigurableHTTPProxy", {"should_start": False})
    _refuse_open_secrets(Path(state_folder))
    _proxy_token(c, Path(state_folder))

    if json_logs:
        write_json(c)
    if slurm:
        _let_scopes_exist(c, {**JOB_SCOPES, **console.SCOPES})
        _let_users(c, "custom:carme:jobs", console.ACCOUNTS_READ)
    if reservations and not slurm:
        raise ConfigError("configure: reservations=True needs Slurm, which keeps what is booked; remove slurm=False")
    if activity and not slurm:
        raise ConfigError("configure: activity=True needs Slurm, whose jobs are measured; remove slurm=False")
    if images and not slurm:
        raise ConfigError("configure: images=True needs Slurm, on whose nodes the images are; remove slurm=False")
    if folders and not slurm:
        raise ConfigError("configure: folders=True needs Slurm, whose jobs mount them; remove slurm=False")
    if slurm and state_folder:
        _fill(c, "CarmeQuotas", {"audit_file": str(Path(state_folder) / AUDIT)})
    config_file = sys._getframe(1).f_globals.get("__file__", "jupyterhub_config.py")
    if quotas:
        _add_quotas(c, config_file)
    if reservations:
        _add_reservations(c, config_file)
    if activity:
        _add_activity(c, config_file)
    if images:
        _add_images(c, config_file)
    if folders:
        _add_folders(c, config_file)
    if quotas or reservations:
        _fill(c, "Spawner", {"server_token_scopes": _token_scopes(quotas=quotas, reservations=reservations)})
    _append(c, "JupyterHub", "template_paths", [str(share_folder() / "templates")])
    theirs = {role.get("name"): role for role in _list(c, "JupyterHub", "load_roles")}
    of_services = ((QUOTA_ROLES, quotas), (RESERVATION_ROLES, reservations), (activity_scopes.ROLES, activity))
    parts = (*of_services, (images_scopes.ROLES, images), (sharing.ROLES, folders), (console.ROLES, slurm))
    for ours in (*ROLES, *(role for roles, has in parts if has for role in roles)):
        role = theirs.get(ours["name"])
        if role is None:
            _append(c, "JupyterHub", "load_roles", [deepcopy(ours)])
        else:
            # The site's own definition of the role stays; role_groups relies on its group having the role.
            role["groups"] = list(dict.fromkeys([*role.get("groups", ()), *ours["groups"]]))
            role.setdefault("scopes", list(ours["scopes"]))


def _add_quotas(c: Config, config_file: str) -> None:
    """Enable the ledger and let the hub run its service, which reads the same file."""
    _fill(c, "CarmeQuotas", {"enabled": True})
    _add_service(c, config_file, QUOTAS, c.CarmeQuotas.get("port", 10102), QUOTA_SCOPES, QUOTA_SERVICE_ROLE)
    _let_users(c, "custom:carme:quota:manage", f"access:services!service={QUOTAS}")


def _add_reservations(c: Config, config_file: str) -> None:
    """Enable the calendar and let the hub run its service; the policy decides which users may book."""
    _fill(c, "CarmeReservations", {"enabled": True})
    port = c.CarmeReservations.get("port", 10103)
    _add_service(c, config_file, RESERVATIONS, port, RESERVATION_SCOPES, RESERVATION_SERVICE_ROLE)
    _let_users(c, "custom:carme:reservation:write", f"access:services!service={RESERVATIONS}")


def _add_activity(c: Config, config_file: str) -> None:
    """Have jobs measured, and let the hub run the service that keeps what they use."""
    _fill(c, "CarmeActivity", {"enabled": True})
    name, scopes = activity_scopes.SERVICE, activity_scopes.SCOPES
    _add_service(c, config_file, name, c.CarmeActivity.get("port", 10104), scopes, None)
    _let_users(c, "custom:carme:activity:read", f"access:services!service={name}")


def _add_images(c: Config, config_file: str) -> None:
    """Keep the catalogue of images, and let the hub run its service."""
    _fill(c, "CarmeImages", {"enabled": True})
    name, scopes, role = images_scopes.SERVICE, images_scopes.SCOPES, images_scopes.SERVICE_ROLE
    _add_service(c, config_file, name, c.CarmeImages.get("port", 10105), scopes, role)
    _let_users(c, images_scopes.OFFER, f"access:services!service={name}")


def _add_folders(c: Config, config_file: str) -> None:
    """Enable shared folders, and let the hub run the service that keeps them."""
    _fill(c, "CarmeFolders", {"enabled": True})
    port, ends = c.CarmeFolders.get("port", 10106), c.CarmeFolders.get("end_sessions", False)
    role = sharing.SERVICE_ROLE_WITH_ENDS if ends else sharing.SERVICE_ROLE
    _add_service(c, config_file, sharing.FOLDERS, port, sharing.SCOPES, role)
    _let_users(c, sharing.WRITE, f"access:services!service={sharing.FOLDERS}")


def _add_service(
    c: Config, config_file: str, name: str, port: int, scopes: Mapping[str, dict[str, Any]], role: dict[str, Any] | None
) -> None:
    scheme = "https" if c.JupyterHub.get("internal_ssl") else "http"
    service = {
        "name": name,
        "url": f"{scheme}://127.0.0.1:{port}",
        "command": [sys.executable, "-m", f"carme_hub.services.{name}", "--config", str(Path(config_file).absolute())],
        "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": list(scopes),
        "environment": {name: os.environ[name] for name in _PASSED_ON if name in os.environ},
    }
    if name not in [each.get("name") for each in _list(c, "JupyterHub", "services")]:
        _append(c, "JupyterHub", "services", [service])
    _let_scopes_exist(c, {**scopes, **SLURM_SCOPES})
    if role is not None:
        _append(c, "JupyterHub", "load_roles", [deepcopy(role)])


def _let_scopes_exist(c: Config, scopes: Mapping[str, dict[str, Any]]) -> None:
    known = {**scopes, **c.JupyterHub.get("custom_scopes", {})}
    c.JupyterHub.custom_scopes = {scope: dict(about) for scope, about in known.items()}


def _let_users(c: Config, *scopes: str) -> None:
    c.JupyterHub.extra_user_scopes = {*c.JupyterHub.get("extra_user_scopes", ()), *scopes}


def _token_scopes(*, quotas: bool, reservations: bool) -> Callable[[Any], Awaitable[list[str]]]:
    """Return the function that computes the scopes of a server's own token."""
    ours = (QUOTA_SERVER_SCOPES if quotas else ()) + (RESERVATION_SERVER_SCOPES if reservations else ())

    async def of_role(db: Any) -> list[str]:
        role = orm.Role.find(db, "server")
        return [*(role.scopes if role is not None else ()), *ours]

    def server_token_scopes(spawner: Any) -> Awaitable[list[str]]:
        """Return the scopes of the hub's ``server`` role at the start, and those of our services for a session."""
        # JupyterHub awaits this in the longest piece of a start, so other requests run meanwhile
        # (spawners/hub/start_queue.py), and the end of each request rolls back whatever is not committed.
        spawner.user.db.commit()
        return of_role(spawner.user.db)

    return server_token_scopes


def _fill(c: Config, section: str, values: Mapping[str, Any]) -> None:
    """Set the values that are not set yet."""
    for name, value in values.items():
        if name not in c[section]:
            c[section][name] = value


def _list(c: Config, section: str, name: str) -> list[Any]:
    """Return a list setting as a plain list, whether it was set or only appended to."""
    value = c[section].get(name, [])
    return list(value.get_value([]) if isinstance(value, LazyConfigValue) else value)


def _append(c: Config, section: str, name: str, values: list[Any]) -> None:
    """Append to a list setting the values that are not in it yet."""
    present = _list(c, section, name)
    c[section][name] = present + [value for value in values if value not in present]


def _refuse_open_secrets(folder: Path) -> None:
    for name in (COOKIE_SECRET, HUB_DATABASE, OUR_DATABASE, PROXY_TOKEN):
        path = folder / name
        # A service runs this file as its own user; the hub checks the files' owner when it starts.
        wrong = exposure(path, any_owner=True)
        if wrong:
            raise ConfigError(f"others can read a secret of the hub: {wrong}")


def _proxy_token(c: Config, folder: Path) -> None:
    """Set the token of the separate proxy, where this process may read it."""
    path = folder / PROXY_TOKEN
    if os.environ.get("CONFIGPROXY_AUTH_TOKEN") or "auth_token" in c.ConfigurableHTTPProxy:
        return
    if path.exists() and os.access(path, os.R_OK):
        # Root's commands read the settings of a hub that is not root; a hub that is refuses other files of such a user.
        c.ConfigurableHTTPProxy.auth_token = read_secret(path, "the proxy's token", any_owner=os.geteuid() == 0)
