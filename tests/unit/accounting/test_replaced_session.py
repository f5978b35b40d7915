"""A session that starts in place of another one is asked as if that had given back what it cannot use any more."""

from __future__ import annotations

import pytest
from forged_site import ADA, GRANTED_ONLY, HOUR, MONDAY, Site, a100

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Quota, SubjectKind
from carme_hub.domain.sessions.session import SessionState

#: What stays held of a session that began half an hour ago: that, and a minute in which its job may have ended.
KEPT = 31 * 60 * 1000


async def half_way(site: Site) -> None:
    """Have a session of two hours that has just ended after half an hour, and nothing else left."""
    await site.grant(2 * GPU_HOUR)
    assert (await site.ledger.admit("s1", ADA, a100(seconds=2 * HOUR))).granted
    site.session("s1", job_id=7, started=site.now, state=SessionState.RUNNING)
    site.now += HOUR / 2


@pytest.mark.parametrize("more", [{}, {"concurrent_gpus": 1}, {"sessions": 1}])
async def test_the_rest_of_its_time_is_granted_without_waiting_for_the_first_to_be_settled(
    site: Site, more: dict[str, int]
) -> None:
    site.quotas = (GRANTED_ONLY, Quota("some", SubjectKind.USER, **more)) if more else (GRANTED_ONLY,)
    await half_way(site)
    ask = a100(seconds=HOUR)
    assert not (await site.ledger.preview(ADA, [ask]))[0].granted
    assert (await site.ledger.preview(ADA, [ask], instead_of="s1"))[0].granted
    assert await site.left() == 0, "who only asks gives nothing back"
    assert (await site.ledger.admit("s2", ADA, ask, instead_of="s1")).granted
    assert await site.left() == GPU_HOUR - KEPT
    assert (await site.ledger.admit("s2", ADA, ask, instead_of="s1")).granted
    assert await site.left() == GPU_HOUR - KEPT, "asked twice, it is done once"


async def test_what_the_first_may_have_used_stays_held_and_settling_adds_up(site: Site) -> None:
    await half_way(site)
    refused = (await site.ledger.admit("s2", ADA, a100(seconds=2 * HOUR), instead_of="s1")).largest
    assert refused is not None
    assert refused.amount <= 2 * GPU_HOUR - KEPT
    assert await site.left() == 0, "a refusal gives nothing back"
    assert (await site.ledger.admit("s2", ADA, a100(seconds=HOUR), instead_of="s1")).granted
    site.session("s1", state=SessionState.ENDED, ended=site.now)
    used = site.usage_of(start=MONDAY + 10, end=site.now, state="CANCELLED by 0", submitted=MONDAY)
    site.now += 60
    done = await site.settle(used)
    assert [entry.session for entry in done.released] == ["s1"]
    assert await site.left() == 2 * GPU_HOUR - (HOUR // 2 - 10) * 1000 - GPU_HOUR


async def test_a_session_that_holds_nothing_any_more_frees_nothing(site: Site) -> None:
    await half_way(site)
    await site.ledger.release("s1", "over")
    assert (await site.ledger.admit("s2", ADA, a100(seconds=2 * HOUR), instead_of="s1")).granted
    assert not (await site.ledger.admit("s3", ADA, a100(), instead_of="unknown")).granted
    assert await site.left() == 0
