"""An extension that Slurm refused is taken back, and nothing but that."""

from __future__ import annotations

from forged_site import ADA, MONDAY, Site, a100

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Quota, QuotaRequest, SubjectKind


async def test_the_last_extension_is_taken_back_once_and_the_hold_stays(site: Site) -> None:
    await site.grant(9 * GPU_HOUR)
    assert (await site.ledger.admit("s1", ADA, a100())).granted
    site.session("s1")
    for _ in range(2):
        assert (await site.ledger.extend("s1", 1800)).granted
    assert await site.left() == 7 * GPU_HOUR
    assert await site.ledger.undo_extension("s1", "Slurm did not give it")
    assert not await site.ledger.undo_extension("s1", "again")
    assert await site.left() == int(7.5 * GPU_HOUR)
    assert (await site.ledger.extend("s1", 3600)).granted
    with site.store.reading("lab") as reads:
        hold = reads.open_holds(["s1"])["s1"]
    assert (hold.amount, hold.seconds) == (int(2.5 * GPU_HOUR), 9000)
    assert hold.end == MONDAY + 9000
    site.rows.clear()
    await site.ledger.release("s1", "it is over")
    assert await site.left() == 9 * GPU_HOUR


async def test_time_that_slurm_refused_a_session_without_gpus_is_not_counted_towards_its_limit(site: Site) -> None:
    site.quotas = (Quota("two", SubjectKind.USER, time_limit=7200),)
    assert (await site.ledger.admit("s1", ADA, QuotaRequest("physics", seconds=3600))).granted
    for _ in range(3):
        assert (await site.ledger.extend("s1", 3600)).granted
        assert await site.ledger.undo_extension("s1", "Slurm did not give it")
        assert not await site.ledger.undo_extension("s1", "again")


async def test_a_session_without_extensions_has_none_to_take_back(site: Site) -> None:
    await site.grant(GPU_HOUR)
    assert (await site.ledger.admit("s1", ADA, a100())).granted
    assert not await site.ledger.undo_extension("s1", "no")
    assert not await site.ledger.undo_extension("nobody", "no")
    assert await site.left() == 0
