"""A hub that lost its lease changes no route any more, and ends by itself; one that does not know waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

import pytest

from carme_hub import fencing
from carme_hub.errors import NotActive, StoreError
from carme_hub.fencing import ALIVE, NOT_ACTIVE, VARIABLE, Ticket
from carme_hub.spawners.hub.lease.active_hub import duties, end_when_not_active, fence_routes


class DatabaseThatIsAsked:
    """What a database says, in order; the last answer is repeated."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self) -> None:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer


class ProxyThatNotes:
    """A class of proxies, as a site may have another one than ours."""

    def __init__(self) -> None:
        self.routes: dict[str, str] = {}

    async def add_route(self, spec: str, target: str, data: dict[str, str]) -> None:
        self.routes[spec] = target

    async def delete_route(self, spec: str) -> None:
        del self.routes[spec]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    fencing.check_with(None)


async def test_a_hub_that_is_not_active_adds_and_removes_no_route() -> None:
    class Proxy(ProxyThatNotes):
        pass

    fence_routes(Proxy)
    fence_routes(Proxy)  # of a second hub in the same process
    proxy = Proxy()
    database = DatabaseThatIsAsked(None)
    fencing.check_with(database)
    await proxy.add_route("/user/ada/", "https://n1:5000", {})
    assert database.asked == 1
    fencing.check_with(DatabaseThatIsAsked(NotActive("another hub is active")))
    with pytest.raises(NotActive):
        await proxy.add_route("/user/bob/", "https://n1:5001", {})
    with pytest.raises(NotActive):
        await proxy.delete_route("/user/ada/")
    assert proxy.routes == {"/user/ada/": "https://n1:5000"}


async def test_a_route_waits_for_a_database_that_does_not_answer() -> None:
    """JupyterHub ends a server whose route cannot be added; nobody may lose one because a database is silent."""

    class Proxy(ProxyThatNotes):
        pass

    fence_routes(Proxy)
    proxy = Proxy()
    fencing.check_with(DatabaseThatIsAsked(StoreError("silent"), StoreError("silent"), None))
    await proxy.add_route("/user/ada/", "https://n1:5000", {})
    assert proxy.routes == {"/user/ada/": "https://n1:5000"}


async def test_a_hub_ends_once_another_one_is_active_and_not_because_a_database_is_silent() -> None:
    ends: list[int] = []
    database = DatabaseThatIsAsked(None, StoreError("silent"), StoreError("silent"), NotActive("another hub is active"))
    fencing.check_with(database)
    await asyncio.wait_for(end_when_not_active(logging.getLogger(), every=0.01, end=ends.append), 5)
    assert ends == [NOT_ACTIVE]
    assert database.asked == 4


def test_a_hub_without_a_lease_has_no_such_duty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, ALIVE):
        monkeypatch.delenv(name, raising=False)
    assert list(duties(logging.getLogger())) == []
    monkeypatch.setenv(VARIABLE, str(Ticket(1, "5ad1", "lab")))
    monkeypatch.setenv(ALIVE, "9")
    found = list(duties(logging.getLogger()))
    assert [name for name, _ in found] == ["carme-say-alive", "carme-end-when-not-active"]
    for _, duty in found:
        with suppress(RuntimeError):
            duty.close()
