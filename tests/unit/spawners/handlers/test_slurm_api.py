"""The hub's services learn from the hub what Slurm says; nobody else does, and a hub that does not know says so."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import jupyterhub.apihandlers
import jupyterhub.handlers
import pytest
from forged_hub import ForgedHub, forged_hub
from traitlets.config import Config

from carme_hub.config import configure
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.slurm_by_hub import SlurmByHub
from carme_hub.slurm.watcher import SlurmWatcher, WatcherSettings
from carme_hub.spawners.handlers import slurm as slurm_api
from carme_hub.spawners.handlers.pages import install_handlers

RUNNING = Job(7, "carme-x", "alice", "RUNNING", Phase.ACTIVE, nodes=("n1",))
WAITING = Job(8, "x", "bob", "PENDING", Phase.WAITING)
NODE = Node("n1", "idle", True, gpus={"a100": 4})
KINDS = ("jobs", "job-ids", "nodes")
#: A token of each who asks.
TOKENS = {"quotas": "q" * 32, "reservations": "r" * 32, "another": "a" * 32}


@dataclass
class SlurmThatCanFallSilent:
    """Slurm, and how often it was asked for jobs and for nodes."""

    silent: bool = False
    asked: list[str] = field(default_factory=list)

    async def snapshot(self) -> Snapshot:
        self._ask("jobs")
        at = time.monotonic()
        return Snapshot(at, at, {job.id: job for job in (RUNNING, WAITING)})

    async def nodes(self) -> tuple[Node, ...]:
        self._ask("nodes")
        return (NODE,)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.silent:
            raise SlurmUnreachable("squeue: error")


@dataclass
class Site:
    """A hub with both services' roles, and the Slurm behind it."""

    hub: ForgedHub
    slurm: SlurmThatCanFallSilent
    watcher: SlurmWatcher

    async def ask(self, what: str, token: str, max_age: str = "60") -> tuple[int, Any]:
        headers = {"Authorization": f"token {token}"} if token else {}
        url = f"{self.hub.base}/hub/api/carme/slurm/{what}?max_age={max_age}"
        async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as answer:
            return answer.status, await answer.json()


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Ours, whatever tests before this one have left in JupyterHub's lists."""
    lists = (jupyterhub.handlers.default_handlers, jupyterhub.apihandlers.default_handlers)
    before = [list(each) for each in lists]
    install_handlers()
    yield
    for each, old in zip(lists, before, strict=True):
        each[:] = old


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    config = Config()
    configure(config, quotas=True, reservations=True)
    ours = {key: config.JupyterHub[key] for key in ("load_roles", "custom_scopes")}
    services = [{"name": name, "api_token": token} for name, token in TOKENS.items()]
    traits = {**ours, "services": services, "load_groups": {f"role:{n}": {} for n in ("teacher", "operator", "admin")}}
    slurm = SlurmThatCanFallSilent()
    client: Any = slurm
    watcher = SlurmWatcher(client, WatcherSettings(fast_interval=0.05, slow_interval=30.0))
    part = SimpleNamespace(watcher=watcher)
    monkeypatch.setattr(slurm_api, "started_hub", lambda: part)
    async with forged_hub(str(tmp_path), **traits) as hub:
        watcher.start()
        yield Site(hub, slurm, watcher)
        await watcher.stop()


@pytest.mark.parametrize("what", KINDS)
async def test_only_the_hubs_own_services_are_told(site: Site, what: str) -> None:
    await (await site.hub.browser("alice")).get("/hub/home")
    alice = site.hub.app.users["alice"]
    user = alice.new_api_token()
    alice.admin = True
    site.hub.app.db.commit()
    for token in ("", "nonsense", TOKENS["another"], user, alice.new_api_token()):
        status, said = await site.ask(what, token)
        assert status == 403
        assert "answer" not in said
    for name in ("quotas", "reservations"):
        assert (await site.ask(what, TOKENS[name]))[0] == 200


@pytest.mark.parametrize("age", ["-1", "nan", "1e9", "soon"])
async def test_an_age_that_is_none_is_refused(site: Site, age: str) -> None:
    assert (await site.ask("jobs", TOKENS["quotas"], age))[0] == 400


async def test_one_question_to_slurm_serves_the_hub_and_its_services(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    itself = SlurmThatCanFallSilent()
    await site.watcher.fresh(0.0)
    services = [by_hub(site, monkeypatch, name, itself) for name in ("quotas", "reservations")]
    for _ in range(3):
        for service in services:
            assert await service.job_ids() == {7, 8}
            assert dict((await service.snapshot()).jobs) == {7: RUNNING}  # who waits is of no use to a calendar
            assert await service.nodes() == (NODE,)
    assert site.slurm.asked == ["jobs", "nodes"]
    assert itself.asked == []


async def test_an_answer_is_never_taken_for_younger_than_it_is(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    service = by_hub(site, monkeypatch, "quotas", SlurmThatCanFallSilent())
    real = await site.watcher.fresh(0.0)
    await service.nodes()
    known, nodes_asked_at = site.watcher._nodes, service.nodes_asked_at
    assert known is not None
    await asyncio.sleep(0.05)
    found = await service.snapshot()
    assert real.asked - 60 < found.asked <= real.asked  # hub and service have one clock here
    assert nodes_asked_at <= known[0]


async def test_slurm_is_asked_first_where_the_answer_would_be_too_old(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = by_hub(site, monkeypatch, "reservations", SlurmThatCanFallSilent(), age=0.0)
    await site.watcher.fresh(0.0)
    before = time.monotonic()
    await service.snapshot()
    assert site.watcher.latest is not None
    assert site.watcher.latest.asked >= before
    assert site.slurm.asked == ["jobs", "jobs"]


async def test_a_hub_that_slurm_does_not_answer_says_so_and_the_service_asks_slurm_itself(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    itself = SlurmThatCanFallSilent()
    service = by_hub(site, monkeypatch, "quotas", itself)
    await site.watcher.fresh(0.0)
    site.slurm.silent = True
    with pytest.raises(SlurmUnreachable):
        await site.watcher.fresh()
    for what in KINDS:
        assert (await site.ask(what, TOKENS["quotas"]))[0] == 503
    assert await service.job_ids() == {7, 8}
    assert await service.nodes() == (NODE,)
    assert itself.asked == ["jobs", "nodes"]
    itself.silent = True
    with pytest.raises(SlurmUnreachable):
        await service.job_ids()


async def test_a_hub_that_is_starting_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_api, "started_hub", lambda: None)
    assert (await site.ask("jobs", TOKENS["quotas"]))[0] == 503


async def test_without_the_hub_a_service_asks_slurm_itself_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_URL", "http://127.0.0.1:9/hub/api")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "none")
    itself: Any = SlurmThatCanFallSilent()
    service = SlurmByHub(itself, jobs_age=60.0, nodes_age=lambda: 60.0, log=logging.getLogger("test"))
    for _ in range(2):
        assert await service.job_ids() == {7, 8}
        assert (await service.snapshot()).jobs[8] == WAITING
        assert await service.nodes() == (NODE,)
    assert itself.asked == ["jobs", "jobs", "nodes"] * 2
    assert len([each for each in caplog.records if "so Slurm is queried directly" in each.message]) == 1


@pytest.mark.parametrize(
    "answer", [{}, {"age": -1, "answer": []}, {"age": "x", "answer": []}, {"age": 1, "answer": {}}]
)
async def test_what_the_hub_says_is_not_believed_where_it_cannot_be_understood(answer: dict[str, Any]) -> None:
    async def hub(_path: str, _query: object) -> dict[str, Any]:
        return answer

    itself: Any = SlurmThatCanFallSilent()
    service = SlurmByHub(itself, log=logging.getLogger("test"), ask=hub)
    assert await service.job_ids() == {7, 8}
    assert dict((await service.snapshot()).jobs) == {7: RUNNING, 8: WAITING}
    assert await service.nodes() == (NODE,)


def by_hub(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str, itself: SlurmThatCanFallSilent, age: float = 60.0
) -> SlurmByHub:
    """Return Slurm as one of the services knows it."""
    monkeypatch.setenv("JUPYTERHUB_API_URL", f"{site.hub.base}/hub/api")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", TOKENS[name])
    client: Any = itself
    return SlurmByHub(client, jobs_age=age, nodes_age=lambda: age, log=logging.getLogger("test"))
