"""With internal_ssl, only the proxy's certificate makes a forwarded address believable, also on the hub's machine."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from certipy import Certipy
from jupyterhub.utils import make_ssl_context
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from carme_hub.address import client_address

#: Component to the authority that signs for it, as JupyterHub has them.
SIGNED = {
    "hub-internal": "hub-ca",
    "proxy-client": "proxy-client-ca",
    "proxy-api": "proxy-api-ca",
    "service-cull": "services-ca",
    "site-proxy": "site-ca",
}


class Shown(RequestHandler):
    """Answers with the address that the hub would count."""

    def get(self) -> None:
        self.write(client_address(self.request, ["127.0.0.0/8"]))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certipy:
    certipy = Certipy(store_dir=str(tmp_path_factory.mktemp("certificates")))
    for authority in set(SIGNED.values()):
        certipy.create_ca(authority)
    everybody = list(set(SIGNED.values()))
    certipy.trust_from_graph({"hub-ca": everybody, **{name: ["hub-ca"] for name in everybody if name != "hub-ca"}})
    for name, authority in SIGNED.items():
        certipy.create_signed_pair(name, authority, alt_names=["IP:127.0.0.1"])
    # Sessions' certificates come from a store of their own here, so that one can have the name of the proxy's.
    sessions = Certipy(store_dir=str(tmp_path_factory.mktemp("sessions")))
    authority_files = sessions.create_ca("notebooks-ca")["files"]
    with (Path(certipy.store.containing_dir) / "hub-ca_trust.crt").open("a") as trusted:
        trusted.write(Path(authority_files["cert"]).read_text())
    for name in ("user-mallory", "proxy-client"):
        record = sessions.create_signed_pair(name, "notebooks-ca", alt_names=["IP:127.0.0.1"])
        certipy.store.add_record(f"session {name}", files=record["files"])
    return certipy


def _context(certipy: Certipy, name: str, purpose: ssl.Purpose) -> ssl.SSLContext:
    files = certipy.store.get_record(name)["files"]
    trusted = Path(certipy.store.containing_dir) / "hub-ca_trust.crt"
    context = make_ssl_context(files["key"], files["cert"], str(trusted), purpose=purpose)
    assert isinstance(context, ssl.SSLContext)
    return context


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("proxy-client", "9.9.9.9"),
        ("session user-mallory", "127.0.0.1"),
        ("service-cull", "127.0.0.1"),
        ("proxy-api", "127.0.0.1"),
        ("hub-internal", "127.0.0.1"),
        ("site-proxy", "127.0.0.1"),
        ("session proxy-client", "127.0.0.1"),
    ],
)
async def test_only_the_proxys_certificate_is_believed(name: str, address: str, certificates: Certipy) -> None:
    server = HTTPServer(
        Application([("/", Shown)]),
        ssl_options=_context(certificates, "hub-internal", ssl.Purpose.CLIENT_AUTH),
        xheaders=True,
    )
    sock, port = bind_unused_port(address="127.0.0.1")
    server.add_sockets([sock])
    client = AsyncHTTPClient(force_instance=True)
    try:
        answer = await client.fetch(
            f"https://127.0.0.1:{port}/",
            ssl_options=_context(certificates, name, ssl.Purpose.SERVER_AUTH),
            headers={"X-Forwarded-For": "9.9.9.9"},
        )
    finally:
        client.close()
        server.stop()
        await server.close_all_connections()
    assert answer.body.decode() == address
