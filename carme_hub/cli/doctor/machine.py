"""What a ``jupyterhub_config.py`` needs of its machine: addresses, certificates, programs, images."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from jupyterhub.proxy import ConfigurableHTTPProxy
from traitlets import TraitError
from traitlets.config import Config

from carme_hub.errors import CarmeError, ConfigError
from carme_hub.paths import share_folder
from carme_hub.slurm.settings import CarmeSlurm

from .findings import Finding, advice, unknown, unsafe

#: Hosts that stand for every address of a machine.
_WILDCARD_HOSTS = ("", "*", "0.0.0.0", "::")  # noqa: S104  nothing is bound
#: The names that JupyterHub writes into the hub's certificate by itself.
_LOCAL_NAMES = ("127.0.0.1", "::1", "localhost")


def check(app: Any, config: Config) -> Iterator[Finding]:
    """Yield what the settings name and this machine lacks."""
    yield from _addresses(app)
    if app.internal_ssl:
        yield from _certificate(app)
    yield from _proxy(app, config)
    yield from _submitting(config)
    yield from _images(config)


def _addresses(app: Any) -> Iterator[Finding]:
    for setting, url in (("JupyterHub.hub_bind_url", app.hub_bind_url), ("JupyterHub.bind_url", app.bind_url)):
        host = _host(url)
        if host not in _WILDCARD_HOSTS and (why := why_not_bindable(host)):
            yield unsafe(setting, url, why, f"name an address of this machine in c.{setting} (`ip address` lists them)")


def _host(url: str) -> str:
    """Return the host of an address, "" for a socket file or none."""
    parts = urlsplit(url)
    return "" if parts.scheme.startswith("unix") else parts.hostname or ""


def why_not_bindable(host: str) -> str:
    """Return why nothing can listen at a host here, "" where it can."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return f"this machine cannot resolve {host} ({error.strerror}), so nothing can listen there"
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine, so the hub does not start"
    return ""


def _certificate(app: Any) -> Iterator[Finding]:
    host = app.hub_connect_ip or _host(app.hub_connect_url) or _host(app.hub_bind_url)
    if host in _WILDCARD_HOSTS:
        return
    file = Path(app.internal_certs_location) / "hub-internal" / "hub-internal.crt"
    try:
        names, exists = _names_in(file), True
    except FileNotFoundError:
        extra = [name.partition(":")[2] for name in app.trusted_alt_names]
        names, exists = [*_LOCAL_NAMES, socket.getfqdn(), _host(app.subdomain_host), *extra], False
    except (OSError, ValueError) as error:
        mend = "run the doctor as the hub's user, on the hub's machine"
        yield unknown("JupyterHub.trusted_alt_names", f"{file} cannot be read: {error}", mend)
        return
    if _normalized(host) not in map(_normalized, names):
        mend = f'c.JupyterHub.trusted_alt_names = ["{_alt_name_type(host)}:{host}"]'
        if exists:
            mend += f"; then, while no session runs, move {app.internal_certs_location} away, and start proxy and hub"
        yield unsafe(
            "JupyterHub.trusted_alt_names",
            app.trusted_alt_names,
            f"the hub's certificate does not name {host}: compute nodes do not trust it, and no session starts",
            mend,
        )


def _names_in(file: Path) -> list[str]:
    """Return the names and addresses of a certificate."""
    names = x509.load_pem_x509_certificate(file.read_bytes()).extensions
    found = names.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def _normalized(host: str) -> str:
    """Return the canonical spelling of an address or a name."""
    try:
        return ip_address(host).compressed
    except ValueError:
        return host.lower().rstrip(".")


def _alt_name_type(host: str) -> str:
    """Return the type of a host's subjectAltName."""
    try:
        ip_address(host)
    except ValueError:
        return "DNS"
    return "IP"


def _proxy(app: Any, config: Config) -> Iterator[Finding]:
    if not issubclass(app.proxy_class, ConfigurableHTTPProxy):
        return
    settings = {**config.Proxy, **config.ConfigurableHTTPProxy}  # no instance: without a token it raises
    command = settings.get("command") or ["configurable-http-proxy"]
    for program in dict.fromkeys((str(command[0]), "node")):
        if shutil.which(program) is None:
            yield unsafe(
                "ConfigurableHTTPProxy.command",
                " ".join(map(str, command)),
                f"the program {program} is not on this machine, or not in PATH: nobody reaches the hub",
                "install Node.js, then: npm install -g configurable-http-proxy; or set the command's absolute path",
            )
            return


_LACKS = {"jobs_command": "nobody can act on jobs or read their output on the hub's page"}


def _submitting(config: Config) -> Iterator[Finding]:
    try:
        slurm: Any = CarmeSlurm(config=config)
    except (TraitError, CarmeError):
        return  # reported already
    commands: dict[str, Sequence[str]] = {"token_command": slurm.token_command, "tail_command": slurm.tail_command}
    commands["jobs_command"] = slurm.jobs_command
    if slurm.submit_via == "sudo":
        commands |= {"submit_via": ("sudo",), "submit_command": slurm.submit_command}
    if slurm.submit_via == "sudo" and not slurm.jobs_command:
        yield advice(
            "CarmeSlurm.jobs_command",
            "",
            f"it is not set, so {_LACKS['jobs_command']}",
            "install carme-jobs as docs/howto/submit-as-the-user.md says",
        )
    for name, command in commands.items():
        for word in [word for at, word in enumerate(command) if at == 0 or word.startswith("/")]:
            if shutil.which(word) is None:
                yield unsafe(
                    f"CarmeSlurm.{name}",
                    " ".join(command),
                    f"the program {word} is not on this machine, so {_LACKS.get(name, 'no session can be submitted')}",
                    "install it as docs/howto/submit-as-the-user.md says, or correct the path",
                )
            else:
                yield from _installed(f"CarmeSlurm.{name}", Path(word))


def _installed(setting: str, file: Path) -> Iterator[Finding]:
    """Compare an installed program with the one of this release."""
    try:
        ours = share_folder() / "libexec" / file.name
        same = not file.is_absolute() or not ours.is_file() or file.read_bytes() == ours.read_bytes()
    except (OSError, ConfigError):
        return  # nobody but root can read it, which is as safe
    if not same:
        yield advice(
            setting,
            file,
            "it is of another release: what it does not know, such as the nodes of a job, it refuses",
            f"install -o root -g root -m 755 {ours} {file.parent}/",
        )


def _images(config: Config) -> Iterator[Finding]:
    images = config.SlurmContainerSpawner.get("images", [])
    for image in images if isinstance(images, list) else []:
        path = str(image.get("path", "")) if isinstance(image, dict) else ""
        # Path.exists raises where a folder is closed to the hub's user.
        if path.startswith("/") and not os.path.exists(path):  # noqa: PTH110
            yield unknown(
                "SlurmContainerSpawner.images",
                f"{path} is not on this machine; whether compute nodes have it is not visible from here",
                f"look on a compute node (ls -d {path}); `carme-hub image` builds images",
            )
