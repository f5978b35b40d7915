"""The server of tokens without which registries such as NVIDIA's, Docker Hub and quay.io give no image.

As distribution's spec/auth/token has it: the registry sends who asks here, where a password is asked for; a token is
for one repository, and for some minutes. The registry itself is Debian's docker-registry (``rig.foreign_images``).
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

ISSUER, SERVICE, USER = "tokens of a test", "registry of a test", "$oauthtoken"  # as NGC calls everybody


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class TokenServer(ThreadingHTTPServer):
    """Gives tokens to who has the password.

    Attributes:
        given: scopes of the tokens. refused: how often it gave none.
    """

    daemon_threads = True

    def __init__(self, folder: Path, password: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ISSUER)]), datetime.now(UTC)
        made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(self._key.public_key())
        made = (
            made.serial_number(1).not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        )
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._certificate = made.sign(self._key, hashes.SHA256())
        self.bundle = folder / "tokens.pem"
        self.bundle.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        self.expected = "Basic " + base64.b64encode(f"{USER}:{password}".encode()).decode()
        self.given: list[str] = []
        self.refused = 0

    @property
    def settings(self) -> dict[str, object]:
        """The registry's ``auth``."""
        realm = f"http://127.0.0.1:{self.server_port}/token"
        return {"token": {"realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": str(self.bundle)}}

    def token(self, scopes: list[str]) -> str:
        """Return a token for repositories, as the registry reads it."""
        der = base64.b64encode(self._certificate.public_bytes(serialization.Encoding.DER)).decode()
        now = int(time.time())
        claims = {"iss": ISSUER, "sub": USER, "aud": SERVICE, "exp": now + 300, "nbf": now - 60, "iat": now, "jti": "1"}
        access = [dict(zip(("type", "name", "actions"), each.split(":"), strict=True)) for each in scopes]
        parts = [{"typ": "JWT", "alg": "RS256", "x5c": [der]}]
        parts.append({**claims, "access": [{**each, "actions": each["actions"].split(",")} for each in access]})
        signed = ".".join(_text(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


class _Handler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_GET(self) -> None:
        scopes = parse_qs(urlsplit(self.path).query).get("scope", [])
        if self.headers["Authorization"] != self.server.expected:
            self.server.refused += 1
            self.send_response(401)
            self.end_headers()
            return
        self.server.given += scopes
        body = json.dumps({"token": self.server.token(scopes)}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def token_server(folder: Path, password: str) -> Iterator[TokenServer]:
    """Give tokens until the block ends."""
    with TokenServer(folder, password) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
