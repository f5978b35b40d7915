"""A separate hub for a storm of starts: its database, its interfaces, and a second quotas service."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyterhub.utils import random_port
from rig.changed import ChangedDemo
from rig.hub import Hub, wait_for
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from carme_hub.cli.session import StartApp
from carme_hub.errors import CarmeError, Refused

COMMAND = Path(sys.executable).with_name("carme-hub")
USERS = ("alice", "bob", "tina", "ada")
#: Seconds for one answer while two hundred others are being made on the same two cores.
TIMEOUT = 120.0
_SECOND = "second-quotas-service"
#: JupyterHub's own limits would keep most of the starts away from admission, which is what is tested. The hub's own
#: database is new as well: two hundred named servers are nothing that other tests should find.
_SETTINGS = """
c.JupyterHub.db_url = {hub_url!r}
c.JupyterHub.named_server_limit_per_user = 100
c.JupyterHub.concurrent_spawn_limit = 0
c.CarmeStore.url = {url!r}
c.CarmeQuotas.interval = 2
for service in c.JupyterHub.services:
    if service["name"] == "quotas":
        service["command"] = [*service["command"][:-1], __file__]
"""


#: User options, by the names that the hub's REST API has for them.
Choice = dict[str, str | int]


class Storm:
    """The hub, its users' tokens, and its ledger.

    Attributes:
        url: the address of Carme Hub's own database, which this hub has for itself.
    """

    def __init__(self, site: Hub, url: str, folder: Path) -> None:
        self.site, self.url = site, url
        self.people = {user: site.login(user) for user in USERS}
        self.tokens = {user: _token(site, user) for user in USERS}
        self._folder = folder
        for user, token in self.tokens.items():
            file = self.token_file(user)
            file.touch(mode=0o600)
            file.write_text(token)
        for user in USERS:
            wait_for(lambda user=user: "carme-users" in self._groups(user), 10, f"the groups of {user}")
        self._engine = _reading(url)

    def _groups(self, user: str) -> Sequence[str]:
        return list(self.site.api("GET", f"/users/{user}").body["groups"])

    def token_file(self, user: str) -> Path:
        return self._folder / f"token-{user}"

    # -- doors --------------------------------------------------------------------------------------------------------

    def by_form(self, user: str, name: str, choice: Choice) -> int:
        """Start by the form's post, as a browser does; return the status."""
        person = self.people[user]
        profile = choice["profile"]
        fields = {f"{profile}.{key}": str(value) for key, value in choice.items() if key != "profile"}
        fields |= {"profile": str(profile), "_xsrf": person.cookies.get("_xsrf", "")}
        headers = {
            "Cookie": "; ".join(f"{name}={value}" for name, value in person.cookies.items()),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        path = f"/hub/spawn/{user}/{name}".rstrip("/")
        return self.site.request("POST", path, urllib.parse.urlencode(fields), headers, TIMEOUT).status

    def by_rest(self, user: str, name: str, choice: Choice) -> int:
        """Start by the hub's REST API with the user's token; return the status."""
        path = f"/users/{user}/servers/{name}" if name else f"/users/{user}/server"
        return self.site.api("POST", path, {"user_options": choice}, self.tokens[user], TIMEOUT).status

    def by_command(self, user: str, name: str, choice: Choice) -> int:
        """Start by ``carme-hub session start`` in this process; return its exit status."""
        where = {"hub": self.site.demo.url, "token_file": str(self.token_file(user)), "server": name}
        command = StartApp(as_json=True, **where, **{key: str(value) for key, value in choice.items()})
        try:
            return asyncio.run(command.work())
        except Refused:
            return 1
        except CarmeError as error:
            print(f"{user}/{name}: {error}")
            return 2

    def by_process(self, user: str, name: str, choice: Choice) -> int:
        """Start by the command in a separate process; return its exit status."""
        argv = [str(COMMAND), "session", "start", "--hub", self.site.demo.url]
        argv += ["--token-file", str(self.token_file(user)), *(("--name", name) if name else ())]
        for key, value in choice.items():
            argv += [f"--{key.replace('_', '-')}", str(value)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=TIMEOUT + 30)
        if done.returncode not in (0, 1):
            print(done.stderr)
        return done.returncode

    # -- the ledger, read without our code ----------------------------------------------------------------------------

    def rows(self, query: str, **values: Any) -> list[Any]:
        """Return the rows of a query on Carme Hub's own database."""
        with self._engine.connect() as connection:
            return list(connection.execute(text(query), values))

    def number(self, query: str, **values: Any) -> int:
        """Return the one number that a query gives."""
        return int(self.rows(query, **values)[0][0] or 0)

    def open_holds(self) -> int:
        return self.number("select count(*) from open_hold")

    def last_entry(self) -> int:
        return self.number("select max(id) from ledger")

    def used_minutes(self) -> int:
        """Return all use minus refunds, in minutes of one GPU, rounded up."""
        used = "select -sum(amount) from ledger where kind in ('charge', 'correction') and job_id is not null"
        return -(-self.number(used) // 60_000)

    def active(self) -> int:
        """Return how many servers run, start or stop by the hub's API."""
        return sum(len(user.get("servers") or {}) for user in self.site.api("GET", "/users", timeout=TIMEOUT).body)

    # -- the service --------------------------------------------------------------------------------------------------

    def service(self) -> int:
        """Return the pid of the quotas service that the hub runs, 0 while there is none."""
        state = str(self.site.cluster.state).encode()
        second = self.site.demo.sandbox.processes.record(_SECOND)
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = b"carme_hub.services.quotas" in words and any(state in word for word in words)
            if ours and (second is None or second.pid != int(folder.name)):
                return int(folder.name)
        return 0

    def second_service(self) -> int:
        """Run the service a second time as the hub runs it, on another port; return its pid when it settles."""
        processes = self.site.demo.sandbox.processes
        if processes.alive(_SECOND):
            record = processes.record(_SECOND)
            assert record is not None
            return record.pid
        processes.stop(_SECOND)
        first = Path("/proc") / str(self.service())
        argv = [word.decode() for word in (first / "cmdline").read_bytes().split(b"\0")[:-1]]
        pairs = [line.decode().partition("=") for line in (first / "environ").read_bytes().split(b"\0") if line]
        port = random_port()
        environ = {name: value for name, _, value in pairs} | {"JUPYTERHUB_SERVICE_URL": f"https://127.0.0.1:{port}"}
        demo = self.site.demo
        pid = processes.start(
            _SECOND, argv, log=self.second_log, env=environ, user=demo.user, cwd=demo.folder, umask=0o077
        )
        health = f"https://127.0.0.1:{port}{environ['JUPYTERHUB_SERVICE_PREFIX']}api/v1/health"
        wait_for(lambda: self._settles(health), 60, "the second service to settle")
        return pid

    @property
    def second_log(self) -> Path:
        return self.site.cluster.layout.log / "second-service.log"

    def _settles(self, health: str) -> bool:
        try:
            with urllib.request.urlopen(health, timeout=5, context=self.site.demo.hub_ssl()) as answer:
                return b'"settling": true' in answer.read()
        except (urllib.error.URLError, OSError):
            return False

    def end(self) -> None:
        """End the second service."""
        self.site.demo.sandbox.processes.stop(_SECOND)
        self._engine.dispose()


@contextmanager
def storm_hub(site: Hub, kind: str, url: str, folder: Path) -> Iterator[Storm]:
    """Run the hub with new databases in place of the running one; the fixture ``site`` starts that one again.

    Args:
        kind: "sqlite" or "postgresql". url: for PostgreSQL, the address of an empty database.
        folder: for the users' tokens.
    """
    files = site.demo.folder
    old = list(files.glob("storm-*.sqlite*"))
    for file in old:
        file.unlink()
    if kind == "postgresql":
        _install_driver(site.demo.environment)
    ours = url or f"sqlite:///{files / 'storm-carme.sqlite'}"
    settings = _SETTINGS.format(hub_url=f"sqlite:///{files / 'storm-hub.sqlite'}", url=ours)
    demo = ChangedDemo(**{field.name: getattr(site.demo, field.name) for field in dataclasses.fields(site.demo)})
    demo.write_config(settings)
    hub = Hub(demo)
    demo.sandbox.processes.stop("hub", within=20)
    try:
        hub.start()
        storm = Storm(hub, ours, folder)
        try:
            yield storm
        finally:
            storm.end()
    finally:
        if demo.sandbox.processes.alive("hub"):
            hub.stop_all()
        demo.sandbox.processes.stop("hub", within=20)
    for file in files.glob("storm-*.sqlite*"):
        file.unlink()


def _install_driver(environment: Path) -> None:
    """Install the extra ``postgresql`` for the hub where it is missing."""
    uv = Path(sys.prefix) / "bin" / "uv"
    argv = [str(uv), "pip", "install", "-q", "--python", f"{environment}/bin/python", "psycopg[binary]>=3.2"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _reading(url: str) -> Engine:
    """Return a read-only engine: this process is root, and must create no file beside SQLite's."""
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, poolclass=NullPool)
    file = f"file:{make_url(url).database}?mode=ro"
    return create_engine("sqlite://", creator=lambda: sqlite3.connect(file, uri=True, timeout=30), poolclass=NullPool)


def _token(site: Hub, user: str) -> str:
    return str(site.api("POST", f"/users/{user}/tokens", {"note": "storm"}).body["token"])
