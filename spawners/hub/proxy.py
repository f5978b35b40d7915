"""CarmeProxy: configurable-http-proxy that connects to a server only if it shows its own certificate.

One authority signs the certificates of all sessions, so the signature does not prove who listens on a port of a shared
node. The route of a server therefore has the fingerprint of the certificate that was issued for its session, as
``#certificate=…`` at the end of the target, and the proxy compares it at every connection, before it sends anything
(``share/carme_hub/proxy/verify-servers.mjs``, which Node loads before the proxy). Slurm is not queried: when a server
is gone, no other program on its port is reached. The hub's route has a fingerprint too; for a service the proxy checks
that its certificate names the service's host, which a session's certificate never does.

A plain configurable-http-proxy ignores the part after ``#``: people reach their servers without this protection, and
the hub logs that until ``carme-hub proxy`` is started instead.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyterhub.proxy import ConfigurableHTTPProxy

from carme_hub.paths import share_folder
from carme_hub.spawners.hub.probe import fingerprint

#: Separates the fingerprint from the target's URL.
CERTIFICATE = "/#certificate="
#: A fingerprint that no certificate has: with it the proxy connects to no server.
NO_CERTIFICATE = "0" * 64
#: The field of a stored route, and its value, by which a proxy reports that it compares certificates.
VERIFIED, BY_CERTIFICATE = "verified", "certificate"

NOT_VERIFIED = (
    "The proxy does not check the certificates of servers: when a server is gone, another user's program on the same "
    "node can take its port. Restart it with `carme-hub proxy`, or with the environment from docs/howto/proxy.md"
)


def proxy_environment(environ: Mapping[str, str], share: Path | None = None) -> dict[str, str]:
    """Return an environment in which configurable-http-proxy checks certificates.

    Args:
        share: the folder share/carme_hub as the proxy's user can read it; None = this installation's.
    """
    program = ((share or share_folder()) / "proxy" / "verify-servers.mjs").resolve()
    options = (environ.get("NODE_OPTIONS", ""), f"--import={program.as_uri()}")
    return {**environ, "NODE_OPTIONS": " ".join(filter(None, options))}


def certificate_in(file: str | Path) -> str:
    """Return the fingerprint of the first certificate in a PEM file, NO_CERTIFICATE if it cannot be read."""
    try:
        text = Path(file).read_text(encoding="ascii")
        first = text[text.index("-----BEGIN CERTIFICATE") :].partition("-----END CERTIFICATE-----")
        return fingerprint(ssl.PEM_cert_to_DER_cert(first[0] + first[1]))
    except (OSError, ValueError):
        return NO_CERTIFICATE


class CarmeProxy(ConfigurableHTTPProxy):
    """JupyterHub's own proxy class, with the certificate that each target must show; it has the same settings."""

    _unverified = 0

    async def start(self) -> None:
        """Start the proxy with the program that checks certificates, if the hub starts the proxy."""
        before = os.environ.get("NODE_OPTIONS")
        os.environ.update(proxy_environment(os.environ))  # JupyterHub passes a copy of its environment
        try:
            await super().start()
        finally:
            os.environ.pop("NODE_OPTIONS", None)
            if before is not None:
                os.environ["NODE_OPTIONS"] = before

    async def add_route(self, routespec: str, target: str, data: dict[str, Any]) -> None:
        """Add a route whose target has the fingerprint of the certificate to expect."""
        await super().add_route(routespec, self._with_certificate(target, data), data)

    async def get_all_routes(self) -> dict[str, Any]:
        """Return the routes with JupyterHub's targets; a route with another certificate gets a different target."""
        routes: dict[str, Any] = await super().get_all_routes()
        unverified = 0
        for route in routes.values():
            verified = route["data"].pop(VERIFIED, "") == BY_CERTIFICATE
            bare = route["target"].partition(CERTIFICATE)[0]
            wanted = self._with_certificate(bare, route["data"])
            unverified += wanted != bare and not verified
            if route["target"] == wanted:
                route["target"] = bare
            elif route["target"] == bare:
                route["target"] = f"{bare}#"  # it differs from JupyterHub's target, so JupyterHub sets the route again
        if unverified and unverified != self._unverified:
            self.log.error("%s (%s routes)", NOT_VERIFIED, unverified)
        self._unverified = unverified
        return routes

    def _with_certificate(self, target: str, data: Mapping[str, Any]) -> str:
        """Return a target with the fingerprint of the certificate that its server must show."""
        certificate = self._certificate(data) if target.startswith("https:") and self.app.internal_ssl else ""
        return f"{target.rstrip('/')}{CERTIFICATE}{certificate}" if certificate else target

    def _certificate(self, data: Mapping[str, Any]) -> str:
        """Return the fingerprint for a route with this data, "" for routes without one."""
        if "user" in data:
            users, name = self.app.users, data["user"]
            spawner = users[name].spawners.get(data.get("server_name", "")) if name in users else None
            # A server of another spawner class has no fingerprint here.
            return str(getattr(spawner, "certificate", "")) or (NO_CERTIFICATE if _needs_certificate(spawner) else "")
        # JupyterHub writes the certificates of all services to one file, so it does not identify one service.
        return certificate_in(self.app.internal_ssl_cert) if data.get("hub") else ""


def _needs_certificate(spawner: Any) -> bool:
    """Return whether a server's route must have a fingerprint; the route of a missing spawner must."""
    return spawner is None or hasattr(spawner, "certificate")
