"""What a person decides on a record that looked wrong is charged once, at the right price, and to the right account."""

from __future__ import annotations

import pytest
from forged_site import ADA, DAY, HOUR, MONDAY, Site, a100, usage
from sqlalchemy import text

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Balance
from carme_hub.domain.sessions.session import SessionState

ENDED = SessionState.ENDED


async def started(site: Site, id: str = "s1", job: int = 7) -> None:
    """Admit a session of one hour with one GPU, the job of which has begun."""
    assert (await site.ledger.admit(id, ADA, a100(), partition="gpu", qos="normal")).granted
    site.session(id)
    site.session(id, job_id=job, started=site.now, state=SessionState.RUNNING)


async def decide(site: Site, seconds: int | None, kind: str = "") -> int:
    """Decide on the anomaly that waits, and return what that costs."""
    [found] = [each for each in await site.ledger.anomalies() if kind in ("", each.kind)]
    entry = await site.ledger.decide_anomaly(found.id, actor="root", decision="the clock stepped", seconds=seconds)
    return -entry.amount if entry else 0


async def balance(site: Site, account: str = "physics") -> Balance:
    return (await site.ledger.balances([account]))[account]


def without_price(site: Site) -> None:
    """Make the recorded anomalies early ones, of which no price was kept."""
    with site.store._engine.begin() as connection:
        sqlite = connection.dialect.name == "sqlite"
        less = "json_remove(seen, '$.rate', '$.factor')" if sqlite else "(seen::jsonb - 'rate' - 'factor')::json"
        connection.execute(text(f"UPDATE anomaly SET seen = {less}"))


@pytest.mark.parametrize("old", [False, True])
async def test_a_session_is_charged_at_the_price_at_which_it_was_admitted(site: Site, old: bool) -> None:
    await site.grant(9 * GPU_HOUR)
    await started(site)
    site.prices = {"a100": 4000}
    await site.settle(site.usage_of(start=MONDAY, end=MONDAY - 5))
    if old:
        without_price(site)
    site.prices = {"a100": 9000}
    assert await decide(site, 10) == 10_000


async def test_a_job_from_outside_is_charged_at_the_price_of_when_it_was_recorded(site: Site) -> None:
    gpus = (Gpus("a100", 2), Gpus("h100", 1))
    site.prices = {"a100": 2000}
    await site.settle(usage(7, MONDAY, MONDAY - 5, gpus=gpus))
    site.prices = {"a100": 9000}
    assert await decide(site, 10) == 50_000


async def test_an_anomaly_without_a_price_is_charged_at_todays(site: Site) -> None:
    await site.settle(usage(7, MONDAY, MONDAY - 5))
    without_price(site)
    site.prices = {"a100": 9000}
    assert await decide(site, 10) == 90_000


@pytest.mark.parametrize("count", [1, 2])
async def test_a_record_that_changed_is_put_right_at_the_price_of_its_charge(site: Site, count: int) -> None:
    site.prices = {"a100": 2000}
    await site.settle(usage(7, MONDAY - 100, MONDAY - 40))
    site.prices = {"a100": 9000}
    await site.settle(usage(7, MONDAY - 100, MONDAY - 10, gpus=(Gpus("a100", count),)))
    await decide(site, 90)
    assert await balance(site) == Balance(used=90 * 2000 * count)


async def test_a_record_that_moved_to_another_account_is_paid_by_that_one_alone(site: Site) -> None:
    await site.settle(usage(7, MONDAY - 100, MONDAY - 40))
    await site.settle(usage(7, MONDAY - 100, MONDAY - 10, account="teaching"))
    await decide(site, 90)
    assert await balance(site) == Balance(used=0)
    assert await balance(site, "teaching") == Balance(used=90_000)


async def test_a_refunded_job_that_moved_gives_nothing_back_twice(site: Site) -> None:
    await site.settle(usage(7, MONDAY - 100, MONDAY - 40, "NODE_FAIL"))
    await site.settle(usage(7, MONDAY - 100, MONDAY - 10, "NODE_FAIL", account="teaching"))
    await decide(site, 90)
    assert await balance(site) == Balance()
    assert await balance(site, "teaching") == Balance(used=30_000)


@pytest.mark.parametrize("account", ["physics", "teaching"])
async def test_a_refunded_job_that_was_shorter_gains_nobody_anything(site: Site, account: str) -> None:
    await site.settle(usage(7, MONDAY - 100, MONDAY - 40, "NODE_FAIL"))
    await site.settle(usage(7, MONDAY - 100, MONDAY - 70, "NODE_FAIL", account=account))
    await decide(site, 30)
    assert await balance(site) == Balance()
    assert await balance(site, "teaching") == Balance()


@pytest.mark.parametrize(("seconds", "used"), [(40, 40_000), (None, 0)])
@pytest.mark.parametrize("was_started", [True, False])
async def test_a_decision_after_days_gives_the_hold_back_once(
    site: Site, seconds: int | None, used: int, was_started: bool
) -> None:
    await site.grant(2 * GPU_HOUR)
    await started(site)
    site.session("s1", state=ENDED, ended=site.now, started=site.now if was_started else 0.0)
    assert (await site.settle(site.usage_of(start=MONDAY, end=MONDAY - 30))).flagged
    site.now += 5 * DAY
    assert not await site.settle(since=site.now - DAY)  # accounting is asked for a day, and the record lies before it
    await decide(site, seconds)
    done = await site.settle(since=site.now - DAY)
    assert [(entry.session, entry.amount) for entry in done.released] == [("s1", GPU_HOUR)]
    assert await balance(site) == Balance(2 * GPU_HOUR, used)
    assert not await site.settle(since=site.now - DAY)


async def test_a_hold_stays_until_the_last_doubt_of_its_session_is_decided(site: Site) -> None:
    await site.grant(2 * GPU_HOUR)
    await started(site)
    site.session("s1", state=ENDED, ended=site.now)
    runs = [site.usage_of(start=MONDAY + n, end=MONDAY - 30, submitted=MONDAY + n) for n in (0, 100)]
    await site.settle(*runs)
    site.now += 5 * DAY
    for seconds, is_last in ((40, False), (None, True)):
        found = max(await site.ledger.anomalies(), key=lambda each: each.submitted)
        await site.ledger.decide_anomaly(found.id, actor="root", decision="a clock stepped", seconds=seconds)
        done = await site.settle(since=site.now - DAY)
        assert bool(done.released) is is_last
    assert await balance(site) == Balance(2 * GPU_HOUR, 40_000)


async def test_a_missing_record_may_be_decided_on_after_days(site: Site) -> None:
    await site.grant(GPU_HOUR)
    await started(site)
    site.session("s1", state=ENDED, ended=site.now)
    site.now += 700
    assert (await site.settle(since=MONDAY - HOUR)).flagged
    site.now += 5 * DAY
    await decide(site, None)
    assert [entry.session for entry in (await site.settle(since=site.now - DAY)).released] == ["s1"]
    assert await site.left() == GPU_HOUR


async def test_what_a_person_decided_stands_when_accounting_is_put_right_later(site: Site) -> None:
    await site.grant(GPU_HOUR)
    await started(site)
    site.session("s1", state=ENDED, ended=site.now)
    site.now += 700
    assert (await site.settle(site.usage_of(start=MONDAY), live=())).flagged
    await decide(site, None)
    done = await site.settle(site.usage_of(start=MONDAY, end=site.now), live=())
    assert (done.charged, done.flagged, len(done.released)) == ([], [], 1)
    assert await balance(site) == Balance(GPU_HOUR)


async def test_a_runaway_that_was_charged_by_the_rules_is_nobodys_decision_and_hides_no_later_change(
    site: Site,
) -> None:
    eight = (Gpus("a100", 8),)
    site.now += HOUR
    done = await site.settle(usage(7, MONDAY, gpus=eight), live=())
    assert [each.kind for each in done.flagged] == ["runaway"]
    first = usage(7, MONDAY, MONDAY + 100, gpus=eight)
    assert [each.amount for each in (await site.settle(first, live=())).charged] == [-800_000]
    report = await site.ledger.reconcile([first], MONDAY, site.now)
    assert (report.decided, report.waiting, report.ledger, report.difference) == ((), (), 800, 0)
    later = usage(7, MONDAY, MONDAY + 2000, gpus=eight)
    report = await site.ledger.reconcile([later], MONDAY, site.now)
    assert (report.changed, report.difference) == (("charge:lab:7:50",), 1900 * 8)
    assert [each.kind for each in (await site.settle(later, live=())).flagged] == ["changed"]
    report = await site.ledger.reconcile([later], MONDAY, site.now)
    assert (report.waiting, report.decided) == (("charge:lab:7:50",), ())
    assert await decide(site, 2000, "changed") == 1900 * 8 * 1000
    assert await balance(site) == Balance(used=2000 * 8 * 1000)


@pytest.mark.parametrize(("suspended", "kinds", "charged"), [(5 * HOUR, [], 6 * HOUR), (4 * HOUR, ["long"], 0)])
async def test_a_job_may_outlive_its_time_limit_by_what_slurm_says_it_was_suspended_for_and_no_more(
    site: Site, suspended: int, kinds: list[str], charged: int
) -> None:
    done = await site.settle(usage(7, MONDAY - 6 * HOUR, MONDAY, time_limit=HOUR, suspended=suspended))
    assert [each.kind for each in done.flagged] == kinds
    assert -sum(each.amount for each in done.charged) == charged * 1000  # suspended, it kept its GPUs
