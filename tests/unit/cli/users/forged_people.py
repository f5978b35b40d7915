"""A forged hub with its calendar, and a forged Slurm, of which alice has something of each kind; both can be silent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from rig.forged_http import ForgedHandler, ForgedServer, serving

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.client import Association

ID = "0f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071"
BOOKING = "1f3a9d4c-5b6e-4f80-9a1b-2c3d4e5f6071"
SCOPES = [
    *("custom:carme:console:operate", "read:users:name", "read:servers", "delete:servers", "read:tokens", "tokens"),
    *("shares", "delete:users", "custom:carme:reservation:admin"),
]


class SlurmThatCanFallSilent:
    """The queue and the associations."""

    def __init__(self) -> None:
        job = Job(812, f"carme-{ID}", "alice", "RUNNING", Phase.ACTIVE)
        self.jobs = {812: job, 815: Job(815, "train", "alice", "PENDING", Phase.WAITING)}
        self.jobs[900] = Job(900, "theirs", "bob", "RUNNING", Phase.ACTIVE)
        self.users = [Association("alice", "physics"), Association("bob", "physics"), Association("alice", "alice-own")]
        self.silent = False
        self.cancelled: list[int] = []
        self.ignores_cancel = False

    async def snapshot(self) -> Snapshot:
        self._answer()
        return Snapshot(0.0, 0.0, dict(self.jobs))

    async def cancel(self, job: Job) -> None:
        self._answer()
        self.cancelled.append(job.id)
        if not self.ignores_cancel:
            self.jobs.pop(job.id, None)

    async def associations(self) -> tuple[Association, ...]:
        self._answer()
        return tuple(self.users)

    def _answer(self) -> None:
        if self.silent:
            raise SlurmUnreachable("Slurm does not answer")


class Handler(ForgedHandler):
    """One request."""

    server: People

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        url = urlsplit(self.path)
        body = self.body()
        status, said = self.server.answer(method, url.path, parse_qs(url.query), body)
        self.say(status, said if isinstance(said, str) else json.dumps(said))


class People(ForgedServer):
    """The hub and its calendar."""

    def __init__(self, slurm: SlurmThatCanFallSilent) -> None:
        super().__init__(Handler)
        self.slurm = slurm
        self.scopes = list(SCOPES)
        self.locked: list[str] = []
        self.users = {"alice"}
        self.sessions = [
            {
                **{"id": ID, "kind": "session", "user": "alice", "server": "", "node": "n1", "state": "running"},
                **{"gpus": 1, "gpu_type": "a100", "job": 812},
            }
        ]
        self.servers: list[str] = ["", "other"]
        self.tokens = {"a17": "my script", "a18": ""}
        self.shares, self.codes, self.shared = ["", "other"], ["other"], [("bob", "lab")]
        self.bookings = {BOOKING: "confirmed"}
        self.notes: list[tuple[str, str]] = []
        self.writes: list[str] = []
        #: Paths (as patterns) that are answered with 503.
        self.fails = ""
        self.records = True

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        """Return status and body of an answer."""
        if method != "GET":
            self.writes.append(f"{method} {path}")
        if self.fails and re.search(self.fails, path):
            return 503, {"message": "out of order"}
        if path.startswith("/services/reservations/api/v1/"):
            return self._calendar(method, path.removeprefix("/services/reservations/api/v1/"), query)
        path = path.removeprefix("/hub/api")
        if path.startswith("/carme/console/"):
            return self._console(method, path.removeprefix("/carme/console/"), body)
        return self._jupyterhub(method, path)

    def _calendar(self, method: str, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        if method == "GET":
            state = query["state"][0]
            common = {"kind": "booking", "total": 4, "gpu_type": "a100", "start": 1_900_000_000, "zone": "UTC"}
            own = [{"id": id, "owner": "alice", "state": said} for id, said in self.bookings.items() if said == state]
            bob = [{"id": "x", "owner": "bob", "state": state}]
            return 200, {"bookings": [{**common, "title": "Lab", "waits": False, **one} for one in (*own, *bob)]}
        found = self.bookings.pop(path.split("/")[1], None)
        return (200, {"bookings": []}) if found else (404, {"error": "unknown", "message": "none"})

    def _console(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "locked-users":
            return 200, {"locked": [{"user": name, "at": 1, "actor": "ada", "reason": "x"} for name in self.locked]}
        if path == "sessions":
            return 200, {"sessions": self.sessions, "pages": 1, "count": len(self.sessions)}
        if path.endswith("/stop"):
            found = [one for one in self.sessions if one["id"] == path.split("/")[1]]
            if not found:
                return 404, {"error": "unknown", "message": "no such session"}
            self.sessions.clear()
            self.servers.remove("")
            if not self.slurm.silent:
                self.slurm.jobs.pop(812, None)
            return 202, {"session": ID}
        user, what = unquote(path.split("/")[1]), path.split("/")[2]
        if what == "offboardings":
            if not self.records:
                return 503, {"message": "the database does not answer"}
            self.notes.append((body["did"], body["outcome"]))
            return 201, {"user": user}
        if what == "lock" and user not in self.locked:
            self.locked.append(user)
        if what == "unlock":
            self.locked.remove(user)
        return 200, {"user": user}

    def _jupyterhub(self, method: str, path: str) -> tuple[int, Any]:
        if path == "/user":
            return 200, {"kind": "user", "name": "ada", "scopes": self.scopes}
        kind, user, *rest = (unquote(part) for part in path.strip("/").split("/"))
        rest = [*rest, ""] if path.endswith("/") else rest
        if user not in self.users:
            return 404, {"status": 404, "message": "Not Found"}
        if method == "GET":
            return 200, self._of_user(kind, rest)
        if kind == "users" and not rest:
            self.users.remove(user)
        elif kind == "users" and rest[0] == "servers":
            self.servers.remove(rest[1])
        elif kind == "users" and rest[0] == "tokens":
            if rest[1] not in self.tokens:
                return 404, {"message": "no such token"}
            self.tokens.clear()  # all of one client
        elif kind == "users" and rest[0] == "shared":
            self.shared.clear()
        elif kind == "shares":
            self.shares.remove(rest[0])
        elif kind == "share-codes":
            self.codes.remove(rest[0])
        return 204, ""

    def _of_user(self, kind: str, rest: list[str]) -> Any:
        if kind == "users" and not rest:
            return {"name": "alice", "servers": {name: {"name": name} for name in self.servers}}
        if rest == ["tokens"]:
            return {"api_tokens": [{"id": id, "note": note, "oauth_client": "lab"} for id, note in self.tokens.items()]}
        mine = {"shares": self.shares, "share-codes": self.codes}.get(kind)
        if mine is not None:
            items = [{"server": {"name": name, "user": {"name": "alice"}}} for name in mine]
        else:
            items = [
                {"server": {"name": server, "user": {"name": owner}}, "user": {"name": "alice"}}
                for owner, server in self.shared
            ]
            items += [{"server": {"name": "x", "user": {"name": "zoe"}}, "user": None, "group": {"name": "g"}}]
        return {"items": items, "_pagination": {"next": None}}


@contextmanager
def people() -> Iterator[People]:
    """Run the hub."""
    with serving(People(SlurmThatCanFallSilent())) as found:
        yield found
