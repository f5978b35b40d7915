"""A session is over when something else answers on its port; the callback is taken from where the node is now."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from jupyterhub.objects import Server
from jupyterhub.spawner import SpawnException

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import StoreError
from carme_hub.sessions.registry import CallbackRefused, SessionRegistry
from carme_hub.spawners.form.offers import ended_early
from carme_hub.spawners.handlers.callback import allocated_node
from carme_hub.spawners.hub.probe import WrongCertificate
from carme_hub.spawners.slurm import readiness as arrival_module
from carme_hub.spawners.slurm.readiness import PORT_TAKEN, ServerReadiness
from carme_hub.spawners.slurm.spawner import SlurmContainerSpawner
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore


class ForgedPart:
    """A cluster of one node whose address has changed since Slurm was last asked; one job runs there."""

    def __init__(self) -> None:
        self.registry = SessionRegistry(SessionStore(CarmeStore(url="sqlite://").open()), "lab")
        self.watcher = self.reconciler = self
        self.waiting: set[str] = set()
        self.job: Job | None = Job(1, "carme-s1", "alice", "RUNNING", Phase.ACTIVE, nodes=("node1",), submitted=1.0)
        self.asked: list[float | None] = []
        self.known: dict[str, str] = {"node1": "10.0.0.1"}
        self.now: dict[str, str] = {"node1": "10.0.0.2"}
        self.spawners: dict[str, Any] = {}
        self.broken = False

    async def nodes(self, max_age: float | None = None) -> tuple[Node, ...]:
        self.asked.append(max_age)
        said = self.known if max_age is not None else self.now
        return tuple(Node(n, "idle", True, ("gpu",), 1, 0, 1, 0, {}, {}, address=a) for n, a in said.items())

    def verdict(self, _id: str) -> ForgedPart:
        return self

    def spawner(self, id: str) -> Any:
        return self.spawners.get(id)

    async def cancel(self, id: str, reason: str) -> None:
        if self.broken:
            raise StoreError("disk full")
        await self.registry.request_cancel(id, reason)


class ForgedSpawner:
    """As much of a spawner as a wait for its server needs."""

    internal_ssl = True
    server = None
    log = logging.getLogger("test")

    def __init__(self, node_address: Callable[[str], str] | None = None) -> None:
        self.node_address = node_address


SESSION = Session("s1", "lab", "alice", "", Request(profile="cpu", image="x"), SessionState.SUBMITTED, 1.0)


@pytest.fixture
def part() -> Any:
    return ForgedPart()


@pytest.mark.parametrize("broken", [False, True])
async def test_a_session_is_ended_when_something_else_answers_on_its_port(
    part: Any, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stranger(_url: str, _context: object, *, certificate: str) -> bool:
        raise WrongCertificate(certificate)

    monkeypatch.setattr(arrival_module, "answers", stranger)
    monkeypatch.setattr(ServerReadiness, "_tls_context", lambda _self: object())
    session, _ = await part.registry.intend("s1", "alice", "", SESSION.request, certificate="f" * 64)
    part.broken = broken
    with pytest.raises(SpawnException, match="Another program answers on the session's port"):
        await ServerReadiness(ForgedSpawner(), part).wait_until_answering(session, "https://10.0.0.1:40000")
    if not broken:
        assert part.registry.current("s1").cancel_reason == PORT_TAKEN
    assert not part.waiting


async def test_the_certificate_of_the_sessions_row_is_asked_for(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def wait_until_answering(_url: str, _context: object, *, certificate: str) -> bool:
        asked.append(certificate)
        return True

    monkeypatch.setattr(arrival_module, "answers", wait_until_answering)
    monkeypatch.setattr(ServerReadiness, "_tls_context", lambda _self: object())
    session, _ = await part.registry.intend("s1", "alice", "", SESSION.request, certificate="f" * 64)
    await ServerReadiness(ForgedSpawner(), part).wait_until_answering(session, "https://10.0.0.1:40000")
    assert asked == ["f" * 64]


async def test_a_node_that_is_new_is_asked_for_once_more(part: Any) -> None:
    part.known = {}
    found = await ServerReadiness(ForgedSpawner(), part).address(SESSION.replace(node="node1", port=40000))
    assert found == "https://10.0.0.2:40000"


async def test_the_callback_is_taken_from_a_node_with_a_new_address(part: Any) -> None:
    assert await allocated_node(part, SESSION, "10.0.0.1") == "node1"
    assert part.asked == [3600]  # what is known is enough
    assert await allocated_node(part, SESSION, "10.0.0.2") == "node1"
    with pytest.raises(CallbackRefused):
        await allocated_node(part, SESSION, "10.0.0.9")


async def test_the_callback_is_taken_from_where_the_site_says_that_the_node_is(part: Any) -> None:
    part.spawners["s1"] = ForgedSpawner(lambda node: {"node1": "10.9.0.1"}[node])
    assert await allocated_node(part, SESSION, "10.9.0.1") == "node1"
    with pytest.raises(CallbackRefused):
        await allocated_node(part, SESSION, "10.9.0.2")


async def test_a_restarted_hub_leads_nobody_to_what_answers_in_place_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def taken(_self: SlurmContainerSpawner) -> str:
        raise ended_early(PORT_TAKEN, "")

    monkeypatch.setattr(SlurmContainerSpawner, "_reconnect", taken)
    spawner = SlurmContainerSpawner()
    spawner.server = Server(proto="https", ip="10.0.0.1", port=40000, base_url="/user/bob/")
    spawner._check_pending = True
    assert await spawner.get_url() == "https://127.0.0.1:1/user/bob/"
    assert spawner.http_timeout == 1
