"""A Slurm whose jobs are sessions of a site, with their session folders, for ``restore --from-slurm``."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from rig.command_line import CommandLine

from carme_hub.cli.backup import from_slurm
from carme_hub.cli.backup.restore import RestoreApp
from carme_hub.containers.registry import runtime
from carme_hub.containers.runtime import Image
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.sessions.session import Request, Session
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.owner.ways import FileNotRead
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.slurm.usage import UsageReader
from carme_hub.spawners.hub.tls import issue
from carme_hub.spawners.job_script import Owner, Server, Site, render
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore

FIRST, SECOND, THIRD = (f"9f1c7b52-1111-4222-8333-44445555666{number}" for number in (1, 2, 3))
BEGAN = float(int(time.time()) - 600)
ROOT = Owner("root", 0, 0, "/root")
TOKEN = "0123456789abcdef" * 2
REQUEST = Request("a100", "default", Gpus("a100", 1), cpus=4, memory_mib=2048, partition="gpu", account="physics")
IMAGE = Image("default", "/srv/images/default", "dir")


class SlurmWithTheseJobs:
    """The queue, accounting, and the session folders; ``unreadable``: users whose files cannot be read."""

    reads_files = True

    def __init__(self, site: CommandLine) -> None:
        self.site, self.jobs, self.usages = site, list[Job](), list[Usage]()
        self.files: dict[str, bytes] = {}
        self.silent, self.unreadable = False, ""

    async def snapshot(self) -> Snapshot:
        if self.silent:
            raise SlurmUnreachable("squeue: no answer")
        return Snapshot(1.0, 2.0, {job.id: job for job in self.jobs})

    async def usage(self, start: float, *_: Any) -> tuple[Usage, ...]:
        return tuple(each for each in self.usages if not each.end or each.end >= start)

    async def file(self, user: str, request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        if self.unreadable or request["path"] not in self.files:
            raise FileNotRead(self.unreadable or "there is no such file", "missing")
        text = self.files[request["path"]]
        return {"lines": [{"text": each} for each in text.decode().splitlines()]} if "find" in request else {}, text

    def session(self, id: str, number: int, name: str = "", *, whose: str = "root", port: int = 40000) -> Server:
        """Let a session run as the hub has started it; ``whose``: for whom its certificate was issued."""
        certificates = self.site.folder / "state" / "internal-ssl"
        bundle = str(certificates / "notebooks-ca_trust.crt")
        tls = issue(str(certificates), bundle, f"user-{whose}", ["DNS:node1"], timedelta(hours=1))
        environ = {
            "JUPYTERHUB_API_TOKEN": TOKEN[:-1] + str(number),
            "JUPYTERHUB_SERVER_NAME": name,
            "JUPYTERHUB_SERVICE_PREFIX": f"/user/root/{name}/" if name else "/user/root/",
            "JUPYTERHUB_API_URL": "https://127.0.0.1:8081/hub/api",
        }
        server = Server(("jupyterhub-singleuser",), environ, "https://hub/callback", "NONCE", tls=tls)
        self.files[f"/root/.carme/sessions/{id}/data.json"] = render(
            *(id, ROOT, REQUEST, IMAGE, server, Site(runtime("bubblewrap")))
        ).data
        if port:
            log = f"[carme-singleuser] starting jupyterhub-singleuser on port {port + number}\n"
            self.files[f"/root/.carme/sessions/{id}/job.log"] = log.encode()
        self.add(id, number)
        return server

    def add(self, id: str, number: int) -> None:
        self.jobs.append(
            Job(
                *(number, f"carme-{id}", "root", "RUNNING", Phase.ACTIVE),
                **{"nodes": ("node1",), "partition": "gpu", "account": "physics"},
                **{"submitted": BEGAN + number, "start": BEGAN + number + 1, "time_limit": 60},
                gpus=Gpus("a100", 1),
            )
        )


@pytest.fixture
def slurm(site: CommandLine, monkeypatch: pytest.MonkeyPatch) -> SlurmWithTheseJobs:
    forged = SlurmWithTheseJobs(site)
    monkeypatch.setattr(CarmeSlurm, "client", lambda _self: forged)
    monkeypatch.setattr(UsageReader, "usage", lambda _self, start, *_: forged.usage(start))
    monkeypatch.setattr(from_slurm, "_owner", lambda _slurm: forged)
    return forged


def find(site: CommandLine, *argv: str) -> dict[str, Any]:
    code, out, err = site.run(RestoreApp, "--from-slurm", "--json", *argv)
    assert code == 0, err
    return dict(json.loads(out))


def acts(found: dict[str, Any]) -> dict[str, str]:
    return {each["session"]: each["act"] for each in found["sessions"]}


def rows(site: CommandLine) -> dict[str, Session]:
    engine = CarmeStore(url=site.url).open()
    found = {each.id: each for each in SessionStore(engine).open_sessions("lab")}
    engine.dispose()
    return found


def add_row(site: CommandLine, session: Session) -> None:
    engine = CarmeStore(url=site.url).open()
    SessionStore(engine).add(session)
    engine.dispose()


def everything(site: CommandLine) -> list[str]:
    """Return all rows of both databases, apart from the time of the last settlement."""
    found = []
    for name in ("carme-hub.sqlite", "jupyterhub.sqlite"):
        database = sqlite3.connect(site.folder / "state" / name)
        found += [each for each in database.iterdump() if '"note"' not in each]
        database.close()
    return found


def used(number: int, name: str, *, user: str = "root") -> Usage:
    return Usage(
        *(number, str(number), name, user, "physics", "gpu", "normal", "COMPLETED", Phase.TERMINAL),
        *(BEGAN - 900, BEGAN - 800, BEGAN - 200, (Gpus("a100", 2),), "node1"),
    )
