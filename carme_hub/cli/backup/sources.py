"""What belongs into a backup of a site: the files and databases that its configuration names, and what it cannot have.

The roles are the names of the settings, so that a person reads in the manifest what each file is.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from traitlets.config import Config

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.config import PROXY_TOKEN
from carme_hub.errors import ConfigError, Refused
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.backup import database_file, is_postgresql, shown_url
from carme_hub.store.engine import VERSION_TABLE, CarmeStore
from carme_hub.store.lease.lease import LeaseStore

#: The roles of the two databases, and the version table of each.
HUB_DATABASE, OUR_DATABASE = "JupyterHub.db_url", "CarmeStore.url"
VERSION_TABLES = {HUB_DATABASE: "alembic_version", OUR_DATABASE: VERSION_TABLE}
#: The role of the file to which changes by people are appended; a restore never puts an older one in its place.
AUDIT = "CarmeQuotas.audit_file"
CONFIGURATION, PROXY, CERTIFICATES = "the configuration file", "the proxy's token", "JupyterHub.internal_certs_location"
#: The folder of backups in the hub's state folder, where none is named.
BACKUPS = "backups"
#: Files of SQLite beside a database: of another moment, or of another database, they destroy it.
BESIDE = ("-wal", "-shm", "-journal")
#: The file in which certipy, and so JupyterHub, lists its certificates, by absolute paths.
CERTIPY = "certipy.json"
#: The setting with the address on which the hub itself listens.
HUB_ADDRESS = "JupyterHub.hub_bind_url"
#: Hosts that stand for every address of a machine.
_WILDCARDS = ("", "0.0.0.0", "::", "*")  # noqa: S104  nothing is bound
_ANSWER_TIMEOUT = 3.0
#: Secrets that a hub has by its environment, and so in no file of its own.
_IN_ENVIRONMENT = ("CONFIGPROXY_AUTH_TOKEN", "JUPYTERHUB_CRYPT_KEY", "CARME_SMTP_PASSWORD")


@dataclass(frozen=True, slots=True)
class Source:
    """One file, folder or database. ``url`` is a database's, with its password, which is written nowhere."""

    role: str
    kind: str  # file, folder, sqlite or postgresql
    path: Path = Path()
    url: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Site:
    """A site as its configuration describes it.

    Attributes:
        sources: in the order in which they are copied. missing: roles of files that do not exist (yet).
        elsewhere: what belongs to the site and is in no backup, as sentences.
        state: the folder of the hub's own files. addresses: by setting, those that name this machine.
        urls: of the databases by role.
    """

    sources: Sequence[Source]
    missing: Sequence[str]
    elsewhere: Sequence[str]
    state: Path
    cluster: str
    addresses: dict[str, str]
    urls: dict[str, str] = field(repr=False, default_factory=dict)


def site_of(config: Config, file: Path, also: Sequence[str] = ()) -> Site:
    """Return what belongs into a backup of the site with this configuration file.

    Args:
        also: further files and folders, such as those that the configuration reads by itself.
    """
    from carme_hub.cli.hub_config import hub_of  # here: importing JupyterHub takes a second

    hub: Any = hub_of(config)
    quotas, hub_url = CarmeQuotas(config=config), str(hub.db_url)
    hub_url = hub_url if "://" in hub_url else f"sqlite:///{hub_url}"  # as JupyterHub reads it
    urls = {HUB_DATABASE: hub_url, OUR_DATABASE: str(CarmeStore(config=config).url)}
    cookie = Path(hub.cookie_secret_file).expanduser().absolute()
    found = [_database(role, urls[role]) for role in (HUB_DATABASE, OUR_DATABASE)]
    found += [Source("JupyterHub.cookie_secret_file", "file", cookie)]
    found += [Source(PROXY, "file", cookie.with_name(PROXY_TOKEN))]
    if hub.internal_ssl:
        found.append(Source(CERTIFICATES, "folder", Path(hub.internal_certs_location).expanduser().absolute()))
    found.append(Source(CONFIGURATION, "file", file.absolute()))
    named = {f"CarmeQuotas.{name}": getattr(quotas, name) for name in _files_of(quotas)}
    named |= {f"JupyterHub.{name}": getattr(hub, name) for name in ("ssl_key", "ssl_cert")}
    found += [Source(role, "file", Path(path).expanduser().absolute()) for role, path in named.items() if path]
    for path in map(Path, also):
        if path.resolve() not in {each.path.resolve() for each in found}:
            found.append(Source("--also", "folder" if path.is_dir() else "file", path.absolute()))
    there = [each for each in found if each.kind == "postgresql" or each.path.exists()]
    expected = [each.role for each in found if each not in there and each.role not in (PROXY, AUDIT)]
    return Site(
        sources=there,
        missing=expected,
        elsewhere=list(_elsewhere(any(each.kind == "postgresql" for each in found))),
        state=cookie.parent,
        cluster=str(CarmeSlurm(config=config).cluster),
        addresses=addresses_of(hub),
        urls=urls,
    )


def files_of(folder: Source, site: Site, backups: Path) -> list[Path]:
    """Return the files of a folder that no other source has, the list of certificates first; none of ``backups``.

    What the list names is there already, and what comes later may lack in it. A database that runs must not be copied
    as a file is, and a backup of backups would be twice as long each time.
    """
    others = [each for each in site.sources if each is not folder and each.kind != "postgresql"]
    apart = {backups.resolve(), (site.state / BACKUPS).resolve(), *(each.path.resolve() for each in others)}
    for each in others:
        if each.kind == "sqlite":
            apart.update(each.path.with_name(each.path.name + end).resolve() for end in BESIDE)
    top = folder.path.resolve()
    found = (each for each in folder.path.rglob("*") if each.is_file())
    inside = [each for each in found if apart.isdisjoint(_up_to(each.resolve(), top))]
    return sorted(inside, key=lambda each: (each.name != CERTIPY, each))


def _up_to(path: Path, top: Path) -> list[Path]:
    """Return a path and the folders above it that are below another one."""
    return [each for each in (path, *path.parents) if each != top and each.is_relative_to(top)] or [path]


def addresses_of(hub: Any) -> dict[str, str]:
    """Return the settings of a JupyterHub application that name the hub's own machine."""
    names = ("bind_url", "hub_bind_url", "hub_connect_url", "hub_connect_ip", "public_url")
    found = {f"JupyterHub.{name}": str(getattr(hub, name, "") or "") for name in names}
    found[HUB_ADDRESS] = found[HUB_ADDRESS] or f"http://{hub.hub_ip}:{hub.hub_port}"
    return {name: value for name, value in found.items() if value}


def own_names() -> list[str]:
    """Return the names and addresses of this machine."""
    name = socket.getfqdn()
    found = {name, socket.gethostname()}
    with contextlib.suppress(OSError):  # a machine may not know its own name
        found |= {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)}
    return sorted(found)


def hub_that_answers(addresses: Mapping[str, str]) -> str:
    """Return the address of a hub, by settings of ``addresses_of``, if something listens there; "" if nothing does.

    The proxy, which has ``bind_url``, may run without its hub.
    """
    parts = urlsplit(addresses.get(HUB_ADDRESS, ""))
    if "unix" in parts.scheme or not parts.netloc:
        return ""
    host = "127.0.0.1" if (parts.hostname or "") in _WILDCARDS else str(parts.hostname)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), _ANSWER_TIMEOUT).close()
    except OSError:
        return ""
    return f"{host}:{port}"


def host_with_lease(urls: Mapping[str, str], cluster: str) -> str:
    """Return the host whose hub is active, of a site with two (``carme-hub standby``); "" where none has the lease.

    Its address may lead to the other host, or to none, so ``hub_that_answers`` does not find each such hub.

    Raises:
        StoreError: PostgreSQL does not answer, so it is not known.
    """
    if not all(map(is_postgresql, urls.values())):
        return ""
    leases = LeaseStore(urls[OUR_DATABASE], urls[HUB_DATABASE], cluster)
    try:
        found = leases.read()
    finally:
        leases.close()
    return "" if found is None or found.free else found.host


def refuse_beside_a_hub(addresses: Iterable[Mapping[str, str]], urls: Mapping[str, str], cluster: str) -> None:
    """Raise ``Refused`` where a hub runs: it knows its sessions, and two must never have the same ones.

    Args:
        addresses: as of ``addresses_of``, of each configuration that a hub may run with. urls: of both databases.
    """
    for each in addresses:
        if at := hub_that_answers(each):
            raise Refused(f"A hub answers on {at}. Stop it before.", reason="hub-runs")
    if urls and (host := host_with_lease(urls, cluster)):
        raise Refused(
            f"The hub on {host} is active (carme-hub standby --status). Stop it on both hosts before.",
            reason="hub-runs",
        )


def _database(role: str, url: str) -> Source:
    file = database_file(url)
    if file is not None:
        return Source(role, "sqlite", file.absolute(), url)
    if is_postgresql(url):
        return Source(role, "postgresql", Path(), url)
    raise ConfigError(f"{role} is {shown_url(url)}: only files of SQLite and PostgreSQL can be backed up here")


def _files_of(quotas: CarmeQuotas) -> list[str]:
    return sorted(name for name in quotas.trait_names(config=True) if name.endswith("_file"))


def _elsewhere(on_server: bool) -> Iterator[str]:
    yield from (f"{name}, which the environment has" for name in _IN_ENVIRONMENT if os.environ.get(name))
    yield "systemd units, EnvironmentFile= and what else only they name (add such files with --also)"
    if on_server:
        yield "the passwords of PostgreSQL (~/.pgpass, PGPASSWORD)"
