"""A service proves itself to a hub with internal_ssl by its certificate, also by one that was renewed meanwhile."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from certipy import Certipy
from tornado.httpclient import HTTPError
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from carme_hub.services.hub_api import ask_hub


class WhoAsks(RequestHandler):
    def get(self) -> None:
        subject = dict(part[0] for part in self.request.get_ssl_certificate()["subject"])  # type: ignore[index]
        self.write({"name": subject["commonName"]})


@pytest.fixture
def pairs(tmp_path: Path) -> Certipy:
    store = Certipy(store_dir=str(tmp_path))
    store.create_ca("ours")
    for name in ("hub", "first", "second"):
        store.create_signed_pair(name, "ours", alt_names=["DNS:localhost"])
    return store


def file(pairs: Certipy, name: str, part: str) -> Path:
    return Path(pairs.store.get_record(name)["files"][part])


def test_a_renewed_certificate_is_used_from_the_next_request_on(
    pairs: Certipy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = str(file(pairs, "ours", "cert"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(file(pairs, "hub", "cert"), file(pairs, "hub", "key"))
    key, certificate = tmp_path / "key", tmp_path / "certificate"

    def give(name: str) -> None:
        key.write_bytes(file(pairs, name, "key").read_bytes())
        certificate.write_bytes(file(pairs, name, "cert").read_bytes())

    async def story() -> None:
        listening, port = bind_unused_port()
        server = HTTPServer(Application([("/users", WhoAsks)]), ssl_options=context)
        server.add_sockets([listening])
        monkeypatch.setenv("JUPYTERHUB_API_URL", f"https://localhost:{port}")
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "t")
        try:
            with pytest.raises((HTTPError, ssl.SSLError)):  # it proves nothing
                await ask_hub("users", {})
            monkeypatch.setenv("JUPYTERHUB_SSL_KEYFILE", str(key))
            monkeypatch.setenv("JUPYTERHUB_SSL_CERTFILE", str(certificate))
            monkeypatch.setenv("JUPYTERHUB_SSL_CLIENT_CA", authority)
            for name in ("first", "second"):
                give(name)
                assert [(await ask_hub("users", {}))["name"] for _ in range(2)] == [name, name]
        finally:
            server.stop()
            await server.close_all_connections()

    asyncio.run(story())
