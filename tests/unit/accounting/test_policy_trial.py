"""A policy is tried with what was used before, and says from when on use is known."""

from __future__ import annotations

from typing import Any, cast

from forged_site import DAY, HOUR, MONDAY, Site, usage

from carme_hub.accounting.policy_trial import try_policy
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import Quota, SubjectKind, Window
from carme_hub.slurm.usage import UsageReader

#: Twelve GPU-hours a month; the trial begins on the 20th day of a month.
MONTHLY = Policy((Quota("month", SubjectKind.USER, gpu_time=12 * GPU_HOUR, window=Window.ROLLING, days=30),))
TOTAL = Policy((Quota("total", SubjectKind.USER, gpu_time=12 * GPU_HOUR),))


class AccountingSince:
    """Slurm's accounting, which remembers what was submitted from a moment on."""

    def __init__(self, *usages: Usage, first: float = 0.0) -> None:
        self.usages = [each for each in usages if each.submitted >= first]
        self.asked: list[float] = []

    async def usage(self, start: float, end: float | None = None, **_more: Any) -> tuple[Usage, ...]:
        self.asked.append(start)
        return tuple(each for each in self.usages if each.end >= start)


def reader(accounting: AccountingSince) -> UsageReader:
    return cast(UsageReader, accounting)


def job(number: int, days: float, hours: float = 10) -> Usage:
    """A job that began so many days from Monday."""
    start = MONDAY + days * DAY
    return usage(number, start, start + hours * HOUR, submitted=start, time_limit=int(hours * HOUR))


async def test_use_from_before_fills_the_windows(site: Site) -> None:
    slurm = AccountingSince(job(1, -3), job(2, 1))
    tried = await try_policy(site.ledger.context, reader(slurm), MONTHLY, {}, MONDAY, MONDAY + 2 * DAY)
    assert (tried.replay.total.jobs, tried.replay.total.refused) == (1, 1)
    assert slurm.asked == [MONDAY - 30 * DAY]
    assert (tried.use_since, tried.known) == (MONDAY - 30 * DAY, MONDAY - 3 * DAY)
    alone = AccountingSince(job(2, 1))
    tried = await try_policy(site.ledger.context, reader(alone), MONTHLY, {}, MONDAY, MONDAY + 2 * DAY)
    assert (tried.replay.total.jobs, tried.replay.total.refused) == (1, 0)


async def test_without_windows_nothing_before_is_looked_at(site: Site) -> None:
    slurm = AccountingSince(job(1, -3), job(2, 1))
    shape = Policy((Quota("shape", SubjectKind.USER, session_gpus=1),))
    tried = await try_policy(site.ledger.context, reader(slurm), shape, {}, MONDAY, MONDAY + 2 * DAY)
    assert slurm.asked == [MONDAY]
    assert tried.use_since == MONDAY


async def test_what_slurm_forgot_and_the_ledger_has_is_said(site: Site) -> None:
    old, lately, asked = job(1, -20), job(2, -3), job(3, 1)
    await site.settle(old, lately)
    more = {"key": "c", "actor": "root", "reason": "no job at all", "used_at": MONDAY - 10 * DAY}
    await site.ledger.correct("physics", -GPU_HOUR, **more)
    slurm = AccountingSince(old, lately, asked, first=MONDAY - 4 * DAY)
    tried = await try_policy(site.ledger.context, reader(slurm), MONTHLY, {}, MONDAY, MONDAY + 2 * DAY)
    assert tried.known == MONDAY - 3 * DAY
    assert tried.missing == 10 * GPU_HOUR


async def test_a_total_counts_from_the_ledgers_first_use(site: Site) -> None:
    old, asked = job(1, -200), job(2, 1)
    slurm = AccountingSince(old, asked)
    tried = await try_policy(site.ledger.context, reader(slurm), TOTAL, {}, MONDAY, MONDAY + 2 * DAY)
    assert (slurm.asked, tried.replay.total.refused) == ([0], 1)
    await site.settle(old)
    tried = await try_policy(site.ledger.context, reader(slurm), TOTAL, {}, MONDAY, MONDAY + 2 * DAY)
    assert (slurm.asked[1:], tried.replay.total.refused) == ([MONDAY - 200 * DAY], 1)


async def test_it_says_what_it_is_doing(site: Site) -> None:
    said: list[str] = []
    slurm = AccountingSince(job(1, -3), job(2, 1))
    await try_policy(site.ledger.context, reader(slurm), MONTHLY, {}, MONDAY, MONDAY + 2 * DAY, tell=said.append)
    assert said == ["Reading Slurm’s accounting.", "Replaying 1 job of the period and 1 from before."]


async def test_credits_that_expire_cannot_be_moved(site: Site) -> None:
    await site.grant(5 * GPU_HOUR, "a")
    await site.grant(3 * GPU_HOUR, "b", reason="term", expires=site.now + DAY)
    assert await site.ledger.movable("physics") == 5 * GPU_HOUR
    assert await site.ledger.movable("nowhere") == 0
