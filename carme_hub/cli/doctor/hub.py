"""Settings of a ``jupyterhub_config.py`` that endanger sessions, people or secrets."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.app import JupyterHub
from jupyterhub.auth import DummyAuthenticator
from jupyterhub.proxy import ConfigurableHTTPProxy
from traitlets import TraitError
from traitlets.config import Config

from carme_hub.auth.authenticator import CarmeAuthenticator
from carme_hub.auth.secret_files import exposure, hub_files, sqlite_file
from carme_hub.config import PROXY_TOKEN, ROLES
from carme_hub.errors import CarmeError
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.spawners.hub.proxy import CarmeProxy
from carme_hub.store.engine import CarmeStore

from . import activity, disk, folders, images, machine, mail
from .addresses import is_loopback
from .findings import Finding, advice, unsafe

#: Names of settings whose value is a secret.
_SECRET = re.compile(r"(secret|token|password|api_key|auth_token|crypt_key)$")
#: A closed account must lose access to services within 60 s and its servers within 5 minutes, which is three checks.
REFRESH_AGE, REVOKE_INTERVAL = 60, 90


def check(config: Config, file: Path) -> Iterator[Finding]:
    """Yield what is unsafe in the settings that a hub would read from this file."""
    yield from _file(config, file)
    try:
        app: Any = JupyterHub(config=config)
        authenticator = app.authenticator_class
    except (TraitError, ImportError, CarmeError) as error:
        yield unsafe("JupyterHub", "", f"the hub cannot start: {error}", "correct the setting that the message names")
        return
    yield from _hub(app)
    yield from _proxy(app, config)
    yield from machine.check(app, config)
    yield from _secrets(app, config, file.parent)
    yield from images.check(config)
    yield from disk.check(config)
    yield from mail.check(config)
    yield from activity.check(app, config)
    yield from folders.check_jobs(app, config)
    if not issubclass(authenticator, CarmeAuthenticator):
        yield unsafe(
            "JupyterHub.authenticator_class",
            authenticator.__name__,
            "nothing checks system users, counts wrong passwords or locks out closed accounts",
            f'c.JupyterHub.authenticator_class = "carme" and '
            f"c.CarmeAuthenticator.authenticator_class = {authenticator.__name__!r}",
        )
    else:
        try:
            yield from _authenticator(authenticator(config=config), app)
        except (TraitError, CarmeError) as error:
            yield unsafe("CarmeAuthenticator", "", str(error), "correct the setting that the message names")
    try:
        CarmeSlurm(config=config).client()
    except (TraitError, CarmeError) as error:
        yield unsafe("CarmeSlurm", "", str(error), "correct the setting that the message names")


def _file(config: Config, file: Path) -> Iterator[Finding]:
    status = file.stat()
    if status.st_mode & 0o022:
        yield unsafe(
            str(file),
            f"mode {status.st_mode & 0o777:04o}",
            "others can write the file, and the hub runs what is in it",
            f"chmod go-w {file}",
        )
    text = file.read_text("utf-8", "replace")
    written = sorted(name for name, value in _secret_values(config) if value and value in text)
    if written and status.st_mode & 0o044:
        yield unsafe(
            ", ".join(written),
            f"written in {file}",
            "others can read the file, and the secret in it",
            f"chmod 600 {file}, or read the secret from the environment or a file of its own",
        )


def _secret_values(config: Config) -> Iterator[tuple[str, str]]:
    for section, values in config.items():
        for name, value in values.items():
            if isinstance(value, bytes | str) and _SECRET.search(name):
                yield f"{section}.{name}", value if isinstance(value, str) else value.hex()
            if name in ("db_url", "url") and isinstance(value, str) and "://" in value:
                try:
                    yield f"{section}.{name}", urlsplit(value).password or ""
                except ValueError:
                    continue
    services = config.JupyterHub.get("services", [])
    for service in services if isinstance(services, list) else []:
        yield f"token of service {service.get('name')}", str(service.get("api_token", ""))


def _hub(app: Any) -> Iterator[Finding]:
    if app.cleanup_servers:
        yield unsafe(
            "JupyterHub.cleanup_servers",
            True,
            "a restart of the hub ends everybody's sessions",
            "c.JupyterHub.cleanup_servers = False",
        )
    on_nodes = hasattr(app.spawner_class, "req_partition") or "Slurm" in app.spawner_class.__name__
    if on_nodes and not app.internal_ssl:
        yield unsafe(
            "JupyterHub.internal_ssl",
            False,
            "everybody on the network or the same node can read a session's traffic, or impersonate it",
            "c.JupyterHub.internal_ssl = True",
        )
    if not app.spawner_class.__module__.startswith("carme_hub."):
        yield advice(
            "JupyterHub.spawner_class",
            app.spawner_class.__name__,
            "it is not one of Carme Hub's: nothing that Carme Hub promises about sessions holds",
            'c.JupyterHub.spawner_class = "carme-slurm"',
        )
    if "batchspawner" in sys.modules:
        ours = app.spawner_class.__module__.startswith("carme_hub.")
        why = "importing it adds an API handler to the hub that sets any attribute of a user's spawner"
        mend = "remove the import of batchspawner from the configuration; req_* settings work without it"
        level = advice if ours else unsafe
        yield level("batchspawner", "imported", why + ("; Carme Hub removes that handler" if ours else ""), mend)
    if os.environ.get("JUPYTERHUB_ALLOW_TOKEN_IN_URL", "0").lower() not in ("", "0", "false"):
        yield unsafe(
            "JUPYTERHUB_ALLOW_TOKEN_IN_URL",
            os.environ["JUPYTERHUB_ALLOW_TOKEN_IN_URL"],
            "tokens in addresses end up in logs and histories",
            "unset JUPYTERHUB_ALLOW_TOKEN_IN_URL",
        )
    defined = {role.get("name") for role in app.load_roles}
    for role in ROLES:
        if role["name"] not in defined:
            yield advice(
                "JupyterHub.load_roles",
                f"no {role['name']}",
                "configure(c) defines the role, and something after it replaced the list",
                "c.JupyterHub.load_roles.append(…) instead of c.JupyterHub.load_roles = […]",
            )


def _proxy(app: Any, config: Config) -> Iterator[Finding]:
    if issubclass(app.proxy_class, ConfigurableHTTPProxy):
        settings = {**config.Proxy, **config.ConfigurableHTTPProxy}  # no instance: without a token it raises
        if settings.get("should_start", True):
            yield unsafe(
                "ConfigurableHTTPProxy.should_start",
                True,
                "the proxy ends with the hub, and with it everybody's connection",
                "c.ConfigurableHTTPProxy.should_start = False, and run it as a separate process (docs/howto/proxy.md)",
            )
        elif not (settings.get("auth_token") or os.environ.get("CONFIGPROXY_AUTH_TOKEN")):
            yield unsafe(
                "ConfigurableHTTPProxy.auth_token",
                "none",
                "the hub cannot authenticate to its proxy, and does not start",
                "carme-hub init creates a file with it; or set CONFIGPROXY_AUTH_TOKEN",
            )
    if app.internal_ssl and not issubclass(app.proxy_class, CarmeProxy):
        yield unsafe(
            "JupyterHub.proxy_class",
            app.proxy_class.__name__,
            "the proxy does not check whose server answers: on a shared node another user's program can take the port "
            "of a server that has ended, and receive its visitors' cookies",
            'c.JupyterHub.proxy_class = "carme", as configure(c) sets it',
        )
    where = urlsplit(app.bind_url)
    if where.scheme == "http" and not app.ssl_cert and not is_loopback(where.hostname or ""):
        yield advice(
            "JupyterHub.bind_url",
            app.bind_url,
            "passwords travel unencrypted, unless a server in front of the hub terminates TLS",
            "set JupyterHub.ssl_key and ssl_cert, or listen on 127.0.0.1 behind a web server",
        )


def _secrets(app: Any, config: Config, folder: Path) -> Iterator[Finding]:
    store = CarmeStore(config=config)
    files = dict(hub_files(app))
    ours, theirs = sqlite_file(store.url), sqlite_file(app.db_url)
    if ours is not None:
        files["CarmeStore.url"] = ours
    files["the proxy's token"] = Path(app.cookie_secret_file).with_name(PROXY_TOKEN)
    for what, path in files.items():
        wrong = exposure(path if path.is_absolute() else folder / path)
        if wrong:
            why, _, mend = wrong.partition("; run: ")
            yield unsafe(what, "", why, mend or "run the doctor as the hub's user")
    if store.url == app.db_url or (ours is not None and ours == theirs):
        yield unsafe(
            "CarmeStore.url",
            store.url,
            "the hub's own database: an upgrade of either can stop the other",
            "give Carme Hub a database of its own",
        )
    others = "://" in app.db_url and not app.db_url.startswith("sqlite")
    if others and "check_same_thread" in app.db_kwargs.get("connect_args", {}):
        yield unsafe(
            "JupyterHub.db_kwargs",
            "for SQLite",
            "the hub does not start: configure(c) had set what SQLite needs, and JupyterHub.db_url is another database",
            "c.JupyterHub.db_kwargs = {}, after configure(c)",
        )


def _authenticator(a: Any, app: Any) -> Iterator[Finding]:
    def bad(name: str, why: str, mend: str) -> Finding:
        return unsafe(f"CarmeAuthenticator.{name}", getattr(a, name), why, f"c.CarmeAuthenticator.{mend}")

    if issubclass(a.wrapped, DummyAuthenticator):
        yield bad("authenticator_class", "anybody can log in as anybody", 'authenticator_class = "pam"')
    if a.allow_all:
        yield bad("allow_all", "everybody whom the login knows may log in", 'allowed_groups = {"gpu-users"}')
    elif not a.any_allow_config:
        yield advice(
            "CarmeAuthenticator.allowed_groups",
            "empty",
            "nobody can log in",
            'c.CarmeAuthenticator.allowed_groups = {"gpu-users"}',
        )
    if a.allow_existing_users:
        yield bad(
            "allow_existing_users", "everybody who logged in once may log in for ever", "allow_existing_users = False"
        )
    if a.minimum_uid < 1000:
        yield bad("minimum_uid", "system accounts can log in and run jobs", "minimum_uid = 1000")
    if a.login_tries == 0 or a.login_tries > 100:
        yield bad("login_tries", "passwords can be guessed as fast as the hub answers", "login_tries = 10")
    if not 0 < a.auth_refresh_age <= REFRESH_AGE:
        yield bad("auth_refresh_age", "a closed account keeps access to services", "auth_refresh_age = 30")
    if not a.auth_refresh_strict:
        yield bad("auth_refresh_strict", "the tokens of a closed account keep working", "auth_refresh_strict = True")
    if not a.refresh_pre_spawn:
        yield bad("refresh_pre_spawn", "a closed account can start a server", "refresh_pre_spawn = True")
    if not 0 < a.revoke_interval <= REVOKE_INTERVAL:
        yield bad("revoke_interval", "servers of a closed account keep running", "revoke_interval = 60")
    if a.enable_auth_state and not os.environ.get("JUPYTERHUB_CRYPT_KEY") and "CryptKeeper" not in app.config:
        yield advice(
            "Authenticator.enable_auth_state",
            True,
            "the hub does not start without a key to encrypt it",
            "set JUPYTERHUB_CRYPT_KEY in the hub's environment",
        )


def slurm_commands(config: Config) -> tuple[str, dict[str, str]]:
    """Return the folder of Slurm's commands, "" = PATH, and the environment in which the hub would run them."""
    settings = CarmeSlurm(config=config)
    environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    conf = settings.slurm_conf or os.environ.get("SLURM_CONF", "")
    if conf:
        environ["SLURM_CONF"] = conf
    return (f"{settings.slurm_prefix}/bin" if settings.slurm_prefix else ""), environ
