"""Two requests under one key at the same moment are one: the work is done once, whoever does it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from forged_rest import NOW, Service

from carme_hub.errors import StoreError
from carme_hub.services import idempotency
from carme_hub.store.ledger.idempotency import Claim

GRANT = {"account": "teaching", "gpu_hours": "2.5", "reason": "for the course"}


@pytest_asyncio.fixture
async def other(service: Service, tmp_path: Path) -> AsyncIterator[Service]:
    """A second service process on the same database, as far as one process can be two."""
    other = Service(tmp_path)
    yield other
    await other.close()


class Work:
    """Grants that wait until they may go on, and are counted."""

    def __init__(self, *services: Service) -> None:
        self.begun, self.goes_on = 0, asyncio.Event()
        for service in services:
            self._slow(service)

    def _slow(self, service: Service) -> None:
        grant = service.ledger.grant

        async def slow(*args: Any, **more: Any) -> Any:
            self.begun += 1
            await self.goes_on.wait()
            return await grant(*args, **more)

        service.ledger.grant = slow  # type: ignore[method-assign]

    async def has_begun(self) -> None:
        async with asyncio.timeout(30):
            while not self.begun:
                await asyncio.sleep(0.01)


async def granted(service: Service) -> int:
    return int((await service.ledger.balances(["teaching"]))["teaching"].granted)


async def test_of_two_at_the_same_moment_one_works_and_both_get_its_answer(service: Service, other: Service) -> None:
    work = Work(service, other)
    two = [asyncio.create_task(each.post("grants", "ada", GRANT)) for each in (service, other)]
    await work.has_begun()
    await asyncio.sleep(0.3)
    work.goes_on.set()
    first, second = await asyncio.gather(*two)
    assert (work.begun, first.status, second.status) == (1, 200, 200)
    assert first.json == second.json
    assert await granted(service) == 9_000_000


async def test_who_waits_too_long_for_the_first_is_told_to_come_again(
    service: Service, other: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "WAIT", 0.2)
    work = Work(service)
    first = asyncio.create_task(service.post("grants", "ada", GRANT))
    await work.has_begun()
    second = await other.post("grants", "ada", GRANT)
    assert (second.status, second.json["error"], second.headers["Retry-After"]) == (409, "still-working", "5")
    another = await other.post("grants", "ada", {**GRANT, "reason": "another"})
    assert (another.status, another.json["error"]) == (422, "key-used")
    work.goes_on.set()
    assert (await first).status == 200
    assert (await other.post("grants", "ada", GRANT)).json == (await first).json
    assert await granted(service) == 9_000_000


async def test_when_the_first_fails_the_second_does_the_work(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    grant, tries = service.ledger.grant, []

    async def fails_once(*args: Any, **more: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.sleep(0.2)
            raise StoreError("the disk is full")
        return await grant(*args, **more)

    monkeypatch.setattr(service.ledger, "grant", fails_once)
    answers = await asyncio.gather(*(service.post("grants", "ada", GRANT) for _ in range(2)))
    assert sorted(answer.status for answer in answers) == [200, 503]
    assert await granted(service) == 9_000_000


async def test_a_key_whose_worker_was_killed_is_free_after_a_while(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "WAIT", 0.2)
    work = Work(service)
    lost = asyncio.create_task(service.post("grants", "ada", GRANT))
    await work.has_begun()
    assert (await service.post("grants", "ada", GRANT)).status == 409
    service.now = NOW + idempotency.LEASE + 1
    work.goes_on.set()
    assert (await service.post("grants", "ada", GRANT)).status == 200
    await lost
    assert await granted(service) == 9_000_000


async def test_two_claims_within_two_transactions_are_one(service: Service, other: Service) -> None:
    def claim(of: Service, token: str) -> Claim:
        with of.ledger.context.store.transaction("lab") as writes:
            return writes.claim(Claim("k" * 64, "d" * 64, token, NOW), lease=60, keep=3600)

    one, two = await asyncio.gather(asyncio.to_thread(claim, service, "one"), asyncio.to_thread(claim, other, "two"))
    assert one == two


async def test_answers_are_kept_for_a_month_and_what_was_granted_for_ever(service: Service) -> None:
    first = await service.post("grants", "ada", GRANT)
    service.now = NOW + idempotency.RETENTION + 1
    again = await service.post("grants", "ada", GRANT)
    assert again.json == first.json
    assert await granted(service) == 9_000_000


async def test_a_write_that_happened_is_told_though_its_answer_could_not_be_kept(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def locked(*_args: Any) -> None:
        raise StoreError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(idempotency.IdempotentWrite, "store_answer", locked)
        first = await service.post("grants", "ada", GRANT)
    assert (first.status, first.json["entries"][0]["amount"]) == (200, 9_000_000)
    assert "database is locked" in caplog.text
    service.now = NOW + idempotency.LEASE + 1
    assert (await service.post("grants", "ada", GRANT)).json == first.json
    assert await granted(service) == 9_000_000
