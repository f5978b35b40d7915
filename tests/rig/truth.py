"""The facts, read without the hub: Slurm's queue and accounting, both databases, the proxy's routes.

Every query returns None when there was no answer, which differs from an empty answer. Methods whose names end in
``_now`` repeat the query for a while, and fail without an answer.
"""

from __future__ import annotations

import http.client
import json
import sqlite3
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from . import slots
from .budgets import BudgetReport, budgets
from .hub import Hub

T = TypeVar("T")

PREFIX = "carme-"
#: Seconds for which a query is repeated: on a busy machine one answer may be late, or be an error.
ANSWER_TIMEOUT = 30.0
OVER = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"}


@dataclass(frozen=True)
class QueuedJob:
    """One of our jobs as squeue shows it."""

    id: int
    name: str
    user: str
    state: str
    node: str

    @property
    def session(self) -> str:
        """The session's id in its name."""
        return self.name.removeprefix(PREFIX)

    @property
    def live(self) -> bool:
        """Whether it waits or runs; a COMPLETING job is ending."""
        return self.state not in OVER and self.state != "COMPLETING"


@dataclass(frozen=True)
class Record:
    """One incarnation of a job in accounting. Times are epoch seconds; 0 = not yet."""

    id: int
    name: str
    user: str
    state: str
    start: float
    end: float


@dataclass(frozen=True)
class Row:
    """One row of our session table."""

    id: str
    user: str
    server_name: str
    state: str
    created: float
    job_id: int
    port: int
    node: str
    cancel_wanted: float
    cancel_reason: str
    ended: float
    end_reason: str
    token_id: int
    parent: str = ""
    server_ended: float = 0.0

    @property
    def leaving(self) -> bool:
        """Whether it is ending: its end was requested, or its server has ended."""
        return bool(self.cancel_wanted or self.server_ended)

    @property
    def open(self) -> bool:
        """Whether the session has not ended."""
        return self.state != "ended"


@dataclass(frozen=True)
class Token:
    """A valid API token of a user's server in the hub's database."""

    id: int
    user: str
    note: str


class Truth:
    """Queries about one sandbox and its hub that do not involve the hub."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.folder: Path = hub.demo.folder
        self._gpus: slots.Nodes | None = None

    # -- Slurm --------------------------------------------------------------------------------------------------------

    def queue(self) -> list[QueuedJob] | None:
        """Return our jobs, ended ones too; None when the controller does not answer."""
        text = self._slurm("squeue", "-h", "-a", "-t", "all", "-o", "%A|%j|%u|%T|%N")
        if text is None:
            return None
        rows = (line.split("|") for line in text.splitlines())
        return [QueuedJob(int(r[0]), r[1], r[2], r[3], r[4]) for r in rows if r[1].startswith(PREFIX)]

    def queue_now(self) -> list[QueuedJob]:
        """Return our jobs, ended ones too."""
        return _repeat_until_answered(self.queue, "Slurm")

    def live_jobs(self, session: str) -> list[QueuedJob]:
        """Return the live jobs of a session, with the repetition of ``queue_now``."""
        return [job for job in self.queue_now() if job.session == session and job.live]

    def records(self, session: str = "") -> list[Record] | None:
        """Return the records of ``sacct -D`` of our jobs, or of one session's."""
        words = ["sacct", "-D", "-X", "-a", "-n", "-P", "-S", "now-1day", "-o", "JobIDRaw,JobName,User,State,Start,End"]
        text = self._slurm(*words, *(["--name", PREFIX + session] if session else []))
        if text is None:
            return None
        rows = (line.split("|") for line in text.splitlines())
        return [
            Record(int(r[0]), r[1], r[2], r[3].split()[0], _time(r[4]), _time(r[5]))
            for r in rows
            if r[1].startswith(PREFIX)
        ]

    def records_now(self, session: str) -> list[Record]:
        """Return the records of ``sacct -D`` of a session's jobs."""
        return _repeat_until_answered(lambda: self.records(session), "accounting")

    def reserved(self) -> list[slots.Claim] | None:
        """Return the claims of our reservations in Slurm; None when the controller does not answer."""
        text = self._slurm("scontrol", "show", "reservation", "--oneliner")
        return None if text is None else slots.reserved(text, PREFIX)

    def gpus(self) -> slots.Nodes | None:
        """Return the nodes' GPUs, whatever their state; queried once, because they do not change."""
        if not self._gpus:
            text = self._slurm("sinfo", "-h", "-a", "-N", "-o", "%N|%G")
            self._gpus = None if text is None else slots.nodes(text)
        return self._gpus

    def _slurm(self, command: str, *words: str) -> str | None:
        cluster = self.hub.cluster
        environment = {**cluster.environment(hub=True), "SLURM_TIME_FORMAT": "%s"}
        try:
            done = subprocess.run(
                [cluster.command(command), *words], env=environment, capture_output=True, text=True, timeout=8, cwd="/"
            )
        except subprocess.TimeoutExpired:
            return None
        return done.stdout if done.returncode == 0 and "error" not in done.stderr else None

    # -- databases ----------------------------------------------------------------------------------------------------

    def rows(self) -> list[Row] | None:
        """Return our session rows, oldest first."""
        names = ", ".join(f'"{name}"' for name in Row.__dataclass_fields__)
        found = self._read("carme-hub.sqlite", f"SELECT {names} FROM session ORDER BY created")
        return None if found is None else [Row(*values) for values in found]

    def rows_now(self) -> list[Row]:
        """Return our session rows, oldest first."""
        return _repeat_until_answered(self.rows, "our database")

    def row(self, user: str, server_name: str = "") -> Row:
        """Return the newest session of a server."""
        rows = [row for row in self.rows_now() if not row.parent]
        mine = [r for r in rows if (r.user, r.server_name) == (user, server_name)]
        assert mine, f"{user}/{server_name} never had a session"
        return mine[-1]

    def session(self, id: str) -> Row:
        """Return one session."""
        found = [r for r in self.rows_now() if r.id == id]
        assert found, f"there is no session {id}"
        return found[0]

    def budgets(self) -> BudgetReport | None:
        """Return the policy's budgets by our database."""
        return budgets(self.folder, datetime.now(UTC))

    def booked(self) -> list[slots.Claim] | None:
        """Return the claims of the reservations in our database."""
        return slots.booked(self.folder / "carme-hub.sqlite")

    def tokens(self) -> list[Token] | None:
        """Return the valid tokens of servers."""
        found = self._read(
            "jupyterhub.sqlite",
            "SELECT t.id, u.name, t.note FROM api_tokens t JOIN users u ON u.id = t.user_id "
            "WHERE t.note LIKE 'Server at %' AND (t.expires_at IS NULL OR t.expires_at > datetime('now'))",
        )
        return None if found is None else [Token(*values) for values in found]

    def _read(self, file: str, question: str) -> list[tuple[Any, ...]] | None:
        try:
            connection = sqlite3.connect(f"file:{self.folder / file}?mode=ro", uri=True, timeout=2)
            try:
                return connection.execute(question).fetchall()
            finally:
                connection.close()
        except sqlite3.Error:
            return None

    # -- hub and proxy ------------------------------------------------------------------------------------------------

    def servers(self) -> dict[tuple[str, str], Mapping[str, Any]] | None:
        """Return the hub's models of all servers by user and server name; None when the hub does not answer."""
        try:
            answer = self.hub.api("GET", "/users", timeout=5)
        except (OSError, http.client.HTTPException):
            return None
        if answer.status != 200 or not isinstance(answer.body, list):
            return None
        return {(u["name"], name): model for u in answer.body for name, model in (u.get("servers") or {}).items()}

    def routes(self) -> dict[tuple[str, str], str] | None:
        """Return where the proxy sends requests for servers, by user and server name."""
        certs = self.folder / "internal-ssl"
        try:
            context = ssl.create_default_context(cafile=str(certs / "hub-ca_trust.crt"))
            context.load_cert_chain(certs / "hub-internal/hub-internal.crt", certs / "hub-internal/hub-internal.key")
        except OSError:
            return None  # a starting hub is writing them
        port = self.hub.demo.ports["proxy_api"]
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
        try:
            token = self.hub.demo.secrets()["CONFIGPROXY_AUTH_TOKEN"]
            connection.request("GET", "/api/routes", headers={"Authorization": f"token {token}"})
            answer = connection.getresponse()
            if answer.status != 200:
                return None
            found = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return {(r["user"], r["server_name"]): r["target"] for r in found.values() if "server_name" in r}


def _repeat_until_answered(ask: Callable[[], T | None], who: str) -> T:
    deadline = time.monotonic() + ANSWER_TIMEOUT
    while (found := ask()) is None:
        assert time.monotonic() < deadline, f"{who} has not answered in {ANSWER_TIMEOUT:g} s"
        time.sleep(0.5)
    return found


def _time(text: str) -> float:
    return float(text) if text.isdigit() else 0.0
