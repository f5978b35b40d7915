"""A server's certificate is taken by the hub for the names of its nodes, and its key lies in no file of the hub."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certipy import Certipy
from cryptography import x509

from carme_hub.domain.sessions.session import Request
from carme_hub.errors import ConfigError
from carme_hub.spawners.hub.tls import AUTHORITY, issue, issue_certificate, lifetime


@pytest.fixture
def location(tmp_path: Path) -> Path:
    folder = tmp_path / "internal-ssl"
    Certipy(store_dir=str(folder)).create_ca(AUTHORITY)
    return folder


def issued(location: Path, *names: str) -> dict[str, str]:
    return issue(
        str(location), str(location / AUTHORITY / f"{AUTHORITY}.crt"), "user-alice", list(names), timedelta(hours=1)
    )


def shake_hands(texts: dict[str, str], tmp_path: Path, name: str) -> None:
    """Let a client that knows the authority connect to a server with these texts; neither needs a socket."""
    paths = {part: tmp_path / part for part in texts}
    for part, path in paths.items():
        path.write_text(texts[part])
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(paths["cafile"]))
    server.load_cert_chain(paths["certfile"], paths["keyfile"])
    server.verify_mode = ssl.CERT_REQUIRED  # the same certificate is shown to the hub
    client = ssl.create_default_context(cafile=str(paths["cafile"]))
    client.load_cert_chain(paths["certfile"], paths["keyfile"])
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in tuple(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                pass


@pytest.mark.parametrize("name", ["127.0.0.1", "node7.example.org"])
def test_certificate_is_good_for_both_sides_and_every_name(location: Path, tmp_path: Path, name: str) -> None:
    shake_hands(issued(location, "DNS:localhost", "IP:127.0.0.1", "DNS:node7.example.org"), tmp_path, name)


def test_certificate_is_refused_under_another_name(location: Path, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(issued(location, "DNS:node7.example.org"), tmp_path, "node8.example.org")


def test_no_key_of_a_server_is_written_down(location: Path) -> None:
    before = sorted(location.rglob("*"))
    key = issued(location, "IP:127.0.0.1")["keyfile"]
    assert "PRIVATE KEY" in key
    assert sorted(location.rglob("*")) == before


class SpawnerWithARequest:
    start_timeout = 600
    _request = Request(profile="cpu", image="default", time_limit=120)


def test_certificate_is_good_for_a_day_longer_than_its_session(location: Path) -> None:
    lasts = lifetime(SpawnerWithARequest())
    bundle = str(location / AUTHORITY / f"{AUTHORITY}.crt")
    texts = issue(str(location), bundle, "user-alice", ["IP:127.0.0.1"], lasts)
    good = x509.load_pem_x509_certificate(texts["certfile"].encode()).not_valid_after_utc - datetime.now(UTC)
    assert abs(good - timedelta(days=1, hours=2, minutes=10)) < timedelta(minutes=1)


def test_a_name_of_no_kind_is_refused(location: Path) -> None:
    with pytest.raises(ConfigError, match="DNS:"):
        issued(location, "node7")


class WatcherThatKnowsTwoNodes:
    async def nodes(self, max_age: float) -> tuple[SimpleNamespace, ...]:
        return tuple(
            SimpleNamespace(name=name, address=address, partitions=("gpu",))
            for name, address in (("gpu01", "10.0.0.11"), ("gpu02", ""))
        )


#: JupyterHub gives each spawner the names of the hub's own certificate, also as the default of ``ssl_alt_names``.
OF_THE_HUB = ["IP:10.0.0.1"]
HUB: Any = SimpleNamespace(watcher=WatcherThatKnowsTwoNodes())


@pytest.mark.parametrize(
    ("set_by_the_site", "named"),
    [
        (OF_THE_HUB, ["10.0.0.11", "gpu02"]),
        ([], ["10.0.0.11", "gpu02"]),
        (["DNS:*.ib.example.org"], ["*.ib.example.org"]),
        (lambda spawner: ["DNS:node7"], ["node7"]),
    ],
)
async def test_certificate_names_the_nodes_and_never_the_hub(
    location: Path, set_by_the_site: Any, named: list[str]
) -> None:
    spawner = SimpleNamespace(
        ssl_alt_names=set_by_the_site,
        trusted_alt_names=OF_THE_HUB,
        internal_certs_location=str(location),
        internal_trust_bundles={AUTHORITY: str(location / AUTHORITY / f"{AUTHORITY}.crt")},
        user=SimpleNamespace(name="alice"),
        node_address=None,
        start_timeout=600,
        _request=Request(profile="gpu", image="default", time_limit=120, partition="gpu"),
    )
    texts = await issue_certificate(spawner, HUB)
    names = x509.load_pem_x509_certificate(texts["certfile"].encode()).extensions
    found = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in found] == named
