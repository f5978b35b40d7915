"""CarmeProxy: configurable-http-proxy that leads to a server only while that shows its own certificate.

Every session's certificate is signed by one authority, so that signature proves nothing about who listens on a port
of a shared node. The route of a server therefore names the fingerprint of the certificate that was issued for its
session, as ``#certificate=…`` at the end of the target, and the proxy compares it at every connection, before it
sends anything (``share/carme_hub/proxy/verify-servers.mjs``, which Node loads before the proxy). The scheduler is not
asked: when a server is gone, nobody else is reached. The hub is named in the same way; of a service the proxy checks
that its certificate names the service's host, and a session's names its nodes alone.

A plain configurable-http-proxy ignores what comes after ``#``: people reach their servers, unprotected, and the hub
says so in its log until ``carme-hub proxy`` is started anew.
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

#: What a target's address and the fingerprint are joined by.
CERTIFICATE = "/#certificate="
#: The fingerprint of no certificate: where the session's own is not known, nobody is reached.
NO_CERTIFICATE = "0" * 64
#: The field of a stored route by which a proxy says that it compares certificates, and what it says.
VERIFIED, BY_CERTIFICATE = "verified", "certificate"

NOT_VERIFIED = (
    "The proxy does not check whom it leads people to: when a server is gone, another user's program on the same node "
    "can take its port. Start it anew with `carme-hub proxy`, or with the environment that docs/howto/proxy.md gives"
)


def proxy_environment(environ: Mapping[str, str], share: Path | None = None) -> dict[str, str]:
    """Return an environment in which configurable-http-proxy checks certificates.

    Args:
        share: the folder share/carme_hub as the proxy's user can read it; None for this installation's.
    """
    program = ((share or share_folder()) / "proxy" / "verify-servers.mjs").resolve()
    options = (environ.get("NODE_OPTIONS", ""), f"--import={program.as_uri()}")
    return {**environ, "NODE_OPTIONS": " ".join(filter(None, options))}


def certificate_in(file: str | Path) -> str:
    """Return the fingerprint of the first certificate in a PEM file, NO_CERTIFICATE where it cannot be read."""
    try:
        text = Path(file).read_text(encoding="ascii")
        first = text[text.index("-----BEGIN CERTIFICATE") :].partition("-----END CERTIFICATE-----")
        return fingerprint(ssl.PEM_cert_to_DER_cert(first[0] + first[1]))
    except (OSError, ValueError):
        return NO_CERTIFICATE


class CarmeProxy(ConfigurableHTTPProxy):
    """JupyterHub's own proxy, told which certificate each target must show; settings are its."""

    _unverified = 0

    async def start(self) -> None:
        """Start the proxy with the program that checks certificates, where the hub starts it at all."""
        before = os.environ.get("NODE_OPTIONS")
        os.environ.update(proxy_environment(os.environ))  # JupyterHub hands on a copy of its own
        try:
            await super().start()
        finally:
            os.environ.pop("NODE_OPTIONS", None)
            if before is not None:
                os.environ["NODE_OPTIONS"] = before

    async def add_route(self, routespec: str, target: str, data: dict[str, Any]) -> None:
        """Add a route whose target names the certificate that must be shown."""
        await super().add_route(routespec, self._named(target, data), data)

    async def get_all_routes(self) -> dict[str, Any]:
        """Return the routes with the targets that JupyterHub knows; one that names another certificate differs."""
        routes: dict[str, Any] = await super().get_all_routes()
        unverified = 0
        for route in routes.values():
            verified = route["data"].pop(VERIFIED, "") == BY_CERTIFICATE
            bare = route["target"].partition(CERTIFICATE)[0]
            wanted = self._named(bare, route["data"])
            unverified += wanted != bare and not verified
            if route["target"] == wanted:
                route["target"] = bare
            elif route["target"] == bare:
                route["target"] = f"{bare}#"  # JupyterHub compares it with its own, and gives the route again
        if unverified and unverified != self._unverified:
            self.log.error("%s (%s routes)", NOT_VERIFIED, unverified)
        self._unverified = unverified
        return routes

    def _named(self, target: str, data: Mapping[str, Any]) -> str:
        """Return a target with the certificate that whoever answers there must show."""
        certificate = self._certificate(data) if target.startswith("https:") and self.app.internal_ssl else ""
        return f"{target.rstrip('/')}{CERTIFICATE}{certificate}" if certificate else target

    def _certificate(self, data: Mapping[str, Any]) -> str:
        """Return the fingerprint for a route as JupyterHub describes it, "" for what is not of this hub."""
        if "user" in data:
            users, name = self.app.users, data["user"]
            spawner = users[name].spawners.get(data.get("server_name", "")) if name in users else None
            # A spawner of another class is JupyterHub's to protect.
            return str(getattr(spawner, "certificate", "")) or (NO_CERTIFICATE if _is_ours(spawner) else "")
        # JupyterHub writes the certificates of all services to one file, so a service's own cannot be known by it.
        return certificate_in(self.app.internal_ssl_cert) if data.get("hub") else ""


def _is_ours(spawner: Any) -> bool:
    """Return whether a server's route must name a certificate; one that is gone must."""
    return spawner is None or hasattr(spawner, "certificate")
