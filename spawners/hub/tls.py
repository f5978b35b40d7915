"""Certificates of servers for JupyterHub's ``internal_ssl``: issued in a millisecond, never on the hub's disk.

JupyterHub creates an RSA key for every start, which takes a tenth of a second or more, and stores it in a file. An
elliptic-curve key costs very little; it is in the session's data document only.

The certificate must name the node, which Slurm chooses later: so it names all nodes of the request's partition.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from certipy import Certipy
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from carme_hub.errors import CarmeError, ConfigError
from carme_hub.spawners.hub.probe import fingerprint
from carme_hub.spawners.hub.shared import HubContext

#: JupyterHub's name for the authority of servers.
AUTHORITY = "notebooks-ca"
#: How long a certificate is valid beyond the start and the time limit, and before its issue, since clocks differ.
VALID_AFTER, VALID_BEFORE = timedelta(days=1), timedelta(hours=1)
#: How old the list of nodes may be, in seconds: normally, and while Slurm does not answer.
NODES_MAX_AGE, OUTAGE_MAX_AGE = 300.0, 30 * 86400.0


async def issue_certificate(spawner: Any, hub: HubContext) -> dict[str, str]:
    """Return the texts of key, certificate and authority for one start, by JupyterHub's names for them."""
    names = _names_of_site(spawner)
    if callable(names):
        names = names(spawner)
        if inspect.isawaitable(names):
            names = await names
    elif not names:
        names = await _node_names(spawner, hub)
    alt_names = list(dict.fromkeys(names))
    return await asyncio.to_thread(
        issue,
        spawner.internal_certs_location,
        spawner.internal_trust_bundles[AUTHORITY],
        f"user-{spawner.user.name}",
        alt_names,
        lifetime(spawner),
    )


def lifetime(spawner: Any) -> timedelta:
    """Return how long a server's certificate must be valid: it may wait in the queue, then run to its time limit."""
    request = spawner._request
    minutes = request.time_limit if request is not None else 0
    return timedelta(seconds=spawner.start_timeout, minutes=minutes) + VALID_AFTER


def certificate_of(texts: Mapping[str, str]) -> str:
    """Return the fingerprint of an issued certificate, "" if none was issued."""
    if not texts:
        return ""
    return fingerprint(ssl.PEM_cert_to_DER_cert(texts["certfile"]))


def _names_of_site(spawner: Any) -> Any:
    """Return what the site has set as ``ssl_alt_names``.

    JupyterHub's default for them is ``trusted_alt_names``, where a site names its hub. A certificate with these, or with
    localhost, which JupyterHub adds, lets a session impersonate the hub; and it does not name the session's node.
    """
    names = spawner.ssl_alt_names
    return [] if not callable(names) and list(names) == list(spawner.trusted_alt_names) else names


async def _node_names(spawner: Any, hub: HubContext) -> list[str]:
    if spawner.node_address is not None:
        return []  # a name for each node is the site's to set, in ssl_alt_names
    request = spawner._request
    partition = request.partition if request is not None else ""
    try:
        nodes = await hub.watcher.nodes(max_age=NODES_MAX_AGE)
    except CarmeError as error:
        try:
            nodes = await hub.watcher.nodes(max_age=OUTAGE_MAX_AGE)
        except CarmeError:
            spawner.log.warning("Slurm does not list its nodes, so the certificate names none: %s", error)
            return []
    return [_alt_name(n.address or n.name) for n in nodes if not partition or partition in n.partitions]


def _alt_name(address: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(address)}"
    except ValueError:
        return f"DNS:{address}"


def issue(location: str, bundle: str, name: str, alt_names: list[str], valid_for: timedelta) -> dict[str, str]:
    """Create a key, and a certificate that the authority below ``location`` signs.

    Args:
        bundle: file with the authorities that the server trusts.
        alt_names: in the format of JupyterHub's ``ssl_alt_names``.
        valid_for: how long it is valid.
    """
    authority, authority_key = _authority(location)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID_BEFORE)
        .not_valid_after(now + valid_for)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(n) for n in alt_names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return {
        "keyfile": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii"),
        "certfile": certificate.public_bytes(Encoding.PEM).decode("ascii"),
        "cafile": Path(bundle).read_text(encoding="ascii"),
    }


@lru_cache(maxsize=4)
def _authority(location: str) -> tuple[x509.Certificate, Any]:
    """Return certificate and key of the authority, which JupyterHub creates before the first server starts."""
    files = Certipy(store_dir=location).store.get_files(AUTHORITY)
    return files.cert.load(), files.key.load()


def _general_name(name: str) -> x509.GeneralName:
    """Parse a name in the format of ``ssl_alt_names``: ``DNS:name``, ``IP:address``, ``email:…`` or ``URI:…``."""
    kind, _, value = name.partition(":")
    if kind == "IP":
        return x509.IPAddress(ipaddress.ip_address(value))
    kinds: dict[str, Callable[[str], x509.GeneralName]]
    kinds = {"DNS": x509.DNSName, "email": x509.RFC822Name, "URI": x509.UniformResourceIdentifier}
    if kind not in kinds:
        raise ConfigError(f"ssl_alt_names: {name!r} must begin with DNS:, IP:, email: or URI:")
    return kinds[kind](value)
