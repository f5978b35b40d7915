"""Admission holds what a session may use, and nothing is held beyond what the rules allow."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from forged_site import ADA, BOB, DAY, GRANTED_ONLY, HOUR, MONDAY, Site, a100, usage
from sqlalchemy import Engine

from carme_hub.accounting.admission import StillRunning, admit
from carme_hub.accounting.context import Unknown
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Quota, QuotaRequest, SubjectKind, Window
from carme_hub.errors import Refused
from carme_hub.store.engine import make_engine
from carme_hub.store.ledger.writes import Filter, LedgerStore


async def test_a_session_holds_gpus_times_time_limit_times_price(site: Site) -> None:
    await site.grant(10 * GPU_HOUR)
    site.prices = {"a100": 1500}
    decision = await site.ledger.admit("s1", ADA, a100(2), partition="gpu", qos="high")
    assert decision.granted
    assert await site.left() == 7 * GPU_HOUR
    [hold, _] = await site.ledger.statement(Filter())
    assert (hold.amount, hold.session, hold.user, hold.factor) == (-3 * GPU_HOUR, "s1", "ada", 1500)
    assert (hold.start, hold.end, hold.partition, hold.qos) == (MONDAY, MONDAY + HOUR, "gpu", "high")


async def test_what_is_more_than_is_left_is_refused_with_the_largest_that_is_not(site: Site) -> None:
    await site.grant(2 * GPU_HOUR)
    decision = await site.ledger.admit("s1", ADA, a100(4))
    assert not decision.granted
    assert decision.refusals[0].quota == "grants"
    assert decision.largest is not None
    assert decision.largest.amount == 2 * GPU_HOUR
    assert await site.left() == 2 * GPU_HOUR


async def test_a_session_that_asks_twice_is_granted_and_held_once(site: Site) -> None:
    await site.grant(GPU_HOUR)
    for _ in range(3):
        assert (await site.ledger.admit("s1", ADA, a100())).granted
    assert await site.left() == 0
    assert not (await site.ledger.admit("s2", ADA, a100())).granted


async def test_what_was_given_back_is_not_granted_again_under_the_same_id(site: Site) -> None:
    await site.grant(GPU_HOUR)
    await site.ledger.admit("s1", ADA, a100())
    await site.ledger.release("s1", "It never got a job.")
    with pytest.raises(Refused, match="hold of this session was released") as refused:
        await site.ledger.admit("s1", ADA, a100())
    assert refused.value.reason == "given-back"
    assert await site.left() == GPU_HOUR


async def test_a_preview_says_what_admission_would_and_writes_nothing(site: Site) -> None:
    await site.grant(2 * GPU_HOUR)
    small, large, poor = await site.ledger.preview(ADA, [a100(2), a100(3), a100(account="bio")])
    assert (small.granted, large.granted, poor.granted) == (True, False, False)
    assert await site.left() == 2 * GPU_HOUR


async def test_an_extension_holds_more_at_the_old_price_or_is_refused(site: Site) -> None:
    site.quotas = (GRANTED_ONLY, Quota("gpus", SubjectKind.USER, concurrent_gpus=1, sessions=1, time_limit=2 * HOUR))
    await site.grant(3 * GPU_HOUR)
    await site.ledger.admit("s1", ADA, a100())
    site.prices = {"a100": 9000}
    assert (await site.ledger.extend("s1", HOUR)).granted
    assert await site.left() == GPU_HOUR
    assert not (await site.ledger.extend("s1", HOUR)).granted
    assert await site.left() == GPU_HOUR
    assert (await site.ledger.extend("s1", HOUR, extension=1)).granted
    assert await site.left() == GPU_HOUR
    with pytest.raises(Unknown, match="has ended, or was never admitted"):
        await site.ledger.extend("other", HOUR)


async def test_a_hold_comes_back_whole_and_once_but_not_while_there_is_a_job(site: Site) -> None:
    await site.grant(GPU_HOUR)
    await site.ledger.admit("s1", ADA, a100())
    site.session("s1", job_id=7)
    site.running = [site.usage_of("s1", start=site.now)]
    with pytest.raises(StillRunning, match="End it first"):
        await site.ledger.release("s1", "sbatch refused it")
    site.running = []
    assert await site.ledger.release("s1", "sbatch refused it")
    assert not await site.ledger.release("s1", "sbatch refused it")
    assert await site.left() == GPU_HOUR
    with pytest.raises(Unknown):
        await site.ledger.extend("s1", HOUR)


async def test_jobs_from_outside_count_by_what_they_have_used_so_far(site: Site) -> None:
    site.quotas = (
        GRANTED_ONLY,
        Quota("day", SubjectKind.USER, gpu_time=4 * GPU_HOUR, window=Window.DAY, concurrent_gpus=3),
    )
    await site.grant(10 * GPU_HOUR)
    site.now = MONDAY + HOUR
    site.running = [usage(start=MONDAY - HOUR, time_limit=4 * HOUR)]  # one hour of it was yesterday
    assert not (await site.ledger.admit("s1", ADA, a100(3, HOUR // 2))).granted
    assert not (await site.ledger.admit("s1", ADA, a100(2, 2 * HOUR))).granted
    [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
    assert (limit.taken.used, limit.taken.held, limit.limit) == (GPU_HOUR, 0, 4 * GPU_HOUR)
    assert (await site.ledger.admit("s1", ADA, a100(2))).granted
    [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
    assert limit.taken.held == 2 * GPU_HOUR
    assert (await site.ledger.quota_status(BOB, ["physics"])).limits[0].taken.used == 0


async def test_a_job_with_the_name_of_another_session_is_not_covered_by_its_hold(site: Site) -> None:
    site.quotas = (Quota("gpus", SubjectKind.USER, concurrent_gpus=2),)
    await site.ledger.admit("s1", ADA, a100())
    site.session("s1", job_id=7)
    site.running = [site.usage_of("s1", 7, start=site.now), site.usage_of("s1", 8, start=site.now)]
    assert not (await site.ledger.admit("s2", ADA, a100())).granted
    site.running.pop()
    assert (await site.ledger.admit("s2", ADA, a100())).granted


async def test_members_of_a_group_share_what_is_given_to_them_together(site: Site) -> None:
    site.quotas = (Quota("course", SubjectKind.GROUP, "course", together=True, gpu_time=3 * GPU_HOUR, sessions=2),)
    site.members = {"course": ("ada", "bob", "eve")}
    assert (await site.ledger.admit("s1", ADA, a100(2))).granted
    assert not (await site.ledger.admit("s2", BOB, a100(2))).granted
    assert (await site.ledger.admit("s2", BOB, a100(1))).granted
    assert not (await site.ledger.admit("s3", BOB, QuotaRequest("physics"))).granted


async def test_sessions_without_gpus_cost_nothing_and_count_as_sessions(site: Site) -> None:
    site.quotas = (GRANTED_ONLY, Quota("two", SubjectKind.USER, sessions=2, sessions_per_day=3))
    assert (await site.ledger.admit("s1", ADA, QuotaRequest("physics", seconds=HOUR))).granted
    assert (await site.ledger.admit("s2", ADA, QuotaRequest("physics", seconds=HOUR))).granted
    refused = await site.ledger.admit("s3", ADA, QuotaRequest("physics", seconds=HOUR))
    assert [each.reason for each in refused.refusals] == ["sessions"]
    await site.ledger.release("s1", "over")
    await site.ledger.release("s2", "over")
    assert (await site.ledger.admit("s3", ADA, QuotaRequest("physics", seconds=HOUR))).granted
    refused = await site.ledger.admit("s4", ADA, QuotaRequest("physics", seconds=HOUR))
    assert [each.reason for each in refused.refusals] == ["sessions-per-day"]
    site.now += DAY + 1
    assert (await site.ledger.admit("s4", ADA, QuotaRequest("physics", seconds=HOUR))).granted


async def test_a_refusal_says_when_use_leaves_a_rolling_window(site: Site) -> None:
    site.quotas = (Quota("week", SubjectKind.USER, gpu_time=2 * GPU_HOUR, window=Window.ROLLING, days=7),)
    await site.settle(usage(7, MONDAY - 3 * HOUR, MONDAY - 2 * HOUR), usage(8, MONDAY - HOUR, MONDAY))
    refused = await site.ledger.admit("s1", ADA, a100())
    assert refused.refusals[0].possible_at == MONDAY - 2 * HOUR + 7 * DAY
    site.now = MONDAY - 2 * HOUR + 7 * DAY
    assert (await site.ledger.admit("s1", ADA, a100())).granted


async def test_many_at_once_in_one_process_are_granted_exactly_what_there_is(site: Site) -> None:
    await site.grant(10 * GPU_HOUR)
    decisions = await asyncio.gather(*(site.ledger.admit(f"s{n}", ADA, a100()) for n in range(40)))
    assert sum(decision.granted for decision in decisions) == 10
    assert await site.left() == 0


async def test_forty_threads_with_connections_of_their_own_are_granted_exactly_ten(
    site: Site, database_url: str, engine: Engine
) -> None:
    await site.grant(10 * GPU_HOUR)
    go = threading.Barrier(40)
    engines = [make_engine(database_url) for _ in range(40)]

    def start(n: int) -> bool:
        # A store of its own has no turn to wait for: only the database keeps them apart.
        context = Site(LedgerStore(engines[n])).ledger.context
        go.wait()
        return admit(context, f"s{n}", ADA, a100(), "", "").granted

    with ThreadPoolExecutor(40) as pool:
        granted = sum(pool.map(start, range(40)))
    for each in engines:
        each.dispose()
    assert granted == 10
    assert await site.left() == 0
