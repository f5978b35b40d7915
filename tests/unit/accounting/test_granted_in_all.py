"""An account's grants are brought to an amount: by one entry, once, whatever else happens; credits do not count."""

from __future__ import annotations

import asyncio

import pytest
from forged_site import Site

from carme_hub.accounting.context import Unknown
from carme_hub.domain.ledger.entries import GPU_HOUR, Entry, Kind


async def brought(site: Site, hours: int, key: str, **more: object) -> Entry | None:
    about = {"key": key, "actor": "root", "reason": "imported", **more}
    return await site.ledger.set_granted("physics", hours * GPU_HOUR, **about)  # type: ignore[arg-type]


async def test_what_is_missing_is_granted_and_what_is_more_is_taken_back_by_one_entry(site: Site) -> None:
    first = await brought(site, 100, "a")
    assert first is not None
    assert (first.kind, first.amount, first.actor, first.reason) == (Kind.GRANT, 100 * GPU_HOUR, "root", "imported")
    assert await brought(site, 100, "b") is None
    back = await brought(site, 60, "c")
    assert back is not None
    assert (back.kind, back.amount) == (Kind.CORRECTION, -40 * GPU_HOUR)
    assert await site.left() == 60 * GPU_HOUR
    assert await site.ledger.granted_for_good(["physics", "bio"]) == {"physics": 60 * GPU_HOUR, "bio": 0}


async def test_imports_at_the_same_time_grant_once(site: Site) -> None:
    found = await asyncio.gather(*(brought(site, 100, f"key{number}") for number in range(8)))
    assert sum(one is not None for one in found) == 1
    assert await site.left() == 100 * GPU_HOUR


async def test_a_credit_that_expires_is_neither_counted_nor_given_again(site: Site) -> None:
    await brought(site, 100, "a")
    await site.ledger.grant(
        "physics", 50 * GPU_HOUR, key="credit", actor="root", reason="a term", expires=site.now + 1000
    )
    assert await brought(site, 100, "b") is None
    site.now += 2000
    await site.ledger.expire()
    assert await site.left() == 100 * GPU_HOUR
    assert await brought(site, 100, "c") is None


async def test_transfers_and_corrections_count(site: Site) -> None:
    await brought(site, 100, "a")
    await site.ledger.transfer("physics", "bio", 30 * GPU_HOUR, key="t", actor="root", reason="agreed")
    await site.ledger.correct("physics", 5 * GPU_HOUR, key="x", actor="root", reason="a mistake")
    assert await site.ledger.granted_for_good(["physics"]) == {"physics": 75 * GPU_HOUR}


async def test_an_account_that_does_not_exist_gets_nothing(site: Site) -> None:
    with pytest.raises(Unknown):
        await brought(site, 100, "a", accounts={"bio"})
    assert await site.ledger.balances() == {}
