"""Servers that say who somebody is: OpenLDAP and a provider of OpenID Connect as processes, and GitHub, forged."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rig.hub import wait_for

#: The apt package of slapd; named in sandbox/apt-packages.txt.
SLAPD = "slapd"
BASE = "dc=example,dc=org"
CONF = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
TLSCertificateFile {folder}/server.pem
TLSCertificateKeyFile {folder}/server.key
security simple_bind=64
database mdb
suffix "{base}"
directory {folder}/data
access to attrs=userPassword by anonymous auth by * none
access to * by users read by * none
"""


def free_port() -> int:
    """Return a port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Return whether somebody does."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _process(argv: list[str], port: int, log: Path, **environ: str) -> Iterator[None]:
    """Run a server until this ends; it is ready when its port listens."""
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environ})
    try:
        wait_for(lambda: listens(port) or process.poll() is not None, 30, argv[0])
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        yield
    finally:
        process.terminate()
        process.wait(20)


# -- LDAP --------------------------------------------------------------------------------------------------------------


def certificate(folder: Path, name: str) -> Path:
    """Make a certificate that names localhost and is its own authority; return its file."""
    file = folder / f"{name}.pem"
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    subject = ("-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost")
    argv = ["openssl", "req", "-x509", *kind, *subject, "-keyout", str(folder / f"{name}.key"), "-out", str(file)]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    return file


@contextmanager
def slapd(folder: Path, passwords: Mapping[str, str]) -> Iterator[int]:
    """Run OpenLDAP with these people below ``ou=people``; yield its port.

    Its certificate is ``server.pem`` in the folder. It takes a password over an encrypted connection alone.
    """
    program = shutil.which("slapd", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.fail(f"This test needs slapd: apt-get install {SLAPD} (make setup does it)", pytrace=False)
    certificate(folder, "server")
    (folder / "data").mkdir()
    conf = folder / "slapd.conf"
    conf.write_text(CONF.format(folder=folder, base=BASE))
    entries = [f"dn: {BASE}\nobjectClass: dcObject\nobjectClass: organization\ndc: example\no: example\n"]
    entries.append(f"dn: ou=people,{BASE}\nobjectClass: organizationalUnit\nou: people\n")
    entries += [
        f"dn: uid={name},ou=people,{BASE}\nobjectClass: inetOrgPerson\n"
        f"uid: {name}\ncn: {name}\nsn: {name}\nuserPassword: {password}\n"
        for name, password in passwords.items()
    ]
    argv = [program.replace("slapd", "slapadd"), "-f", str(conf)]
    done = subprocess.run(argv, input="\n".join(entries), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    port = free_port()
    with _process([program, "-d", "0", "-f", str(conf), "-h", f"ldap://127.0.0.1:{port}/"], port, folder / "slapd.log"):
        yield port


# -- OpenID Connect ----------------------------------------------------------------------------------------------------


class Provider:
    """A running provider of OpenID Connect (PyPI: oidc-provider-mock), at which clients must register."""

    def __init__(self, port: int) -> None:
        self.url = f"http://localhost:{port}"

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Send JSON and return what it answers."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
            return json.loads(answer.read() or b"null")

    def register(self, callback: str) -> tuple[str, str]:
        """Register a client for one address to return to; return its id and its secret."""
        body = {"redirect_uris": [callback], "token_endpoint_auth_method": "client_secret_post"}
        client = self.send("POST", "/oauth2/clients", body)
        return str(client["client_id"]), str(client["client_secret"])

    def person(self, subject: str, name: str, *groups: str) -> None:
        """Add a person, or change one: the name on the cluster, and groups as Keycloak's mapper writes them."""
        self.send("PUT", f"/users/{subject}", {"preferred_username": name, "groups": list(groups)})

    def addresses(self) -> dict[str, str]:
        """Return the addresses that it publishes, by the settings of GenericOAuthenticator."""
        found = self.send("GET", "/.well-known/openid-configuration")
        names = {"authorize_url": "authorization", "token_url": "token", "userdata_url": "userinfo"}
        return {setting: str(found[f"{name}_endpoint"]) for setting, name in names.items()}


@contextmanager
def oidc_provider(folder: Path) -> Iterator[Provider]:
    """Run the provider as a process."""
    port = free_port()
    argv = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "--require-registration", "true"]
    with _process(argv, port, folder / "oidc.log"):
        yield Provider(port)


# -- GitHub ------------------------------------------------------------------------------------------------------------


class GitHubOfOneVisitor(ThreadingHTTPServer):
    """Forges what GitHub answers to an OAuth app: who logs in is set by the test, and nobody is asked for a password.

    Attributes:
        visitor: number, name and teams (organization, slug) of who logs in next. secret: of the app.
        codes: that were given and not used yet. tokens: each with its visitor.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _GitHub)
        self.visitor: tuple[int, str, list[tuple[str, str]]] = (0, "", [])
        self.secret = secrets.token_hex(8)
        self.codes: dict[str, tuple[int, str, list[tuple[str, str]]]] = {}
        self.tokens: dict[str, tuple[int, str, list[tuple[str, str]]]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _GitHub(BaseHTTPRequestHandler):
    server: GitHubOfOneVisitor

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        if path == "/login/oauth/authorize":
            code = secrets.token_hex(8)
            self.server.codes[code] = self.server.visitor
            back = urllib.parse.urlencode({"code": code, "state": asked["state"]})
            self._say(302, {}, Location=f"{asked['redirect_uri']}?{back}")
            return
        visitor = self.server.tokens.get(self.headers.get("Authorization", "").rpartition(" ")[2])
        if visitor is None:
            self._say(401, {"message": "Bad credentials"})
        elif path == "/api/v3/user":
            self._say(200, {"id": visitor[0], "login": visitor[1], "email": None, "name": None})
        elif path == "/api/v3/user/teams":
            self._say(200, [{"slug": slug, "organization": {"login": owner}} for owner, slug in visitor[2]])
        else:
            self._say(404, {"message": "Not Found"})

    def do_POST(self) -> None:
        form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        visitor = self.server.codes.pop(form.get("code", ""), None)
        if self.path != "/login/oauth/access_token" or form.get("client_secret") != self.server.secret or not visitor:
            self._say(200, {"error": "bad_verification_code"})  # as GitHub: 200 with an error
            return
        token = secrets.token_hex(8)
        self.server.tokens[token] = visitor
        self._say(200, {"access_token": token, "token_type": "bearer", "scope": "read:org"})

    def _say(self, status: int, body: Any, **headers: str) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(raw)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def github() -> Iterator[GitHubOfOneVisitor]:
    """Run the forged GitHub in a thread."""
    server = GitHubOfOneVisitor()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
