"""What is said of finished jobs, and what accounts did not use, for pages, REST and the weekly mail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from carme_hub.domain.activity.advice import LAST_DAYS, LAST_FEW, Advice, advice
from carme_hub.domain.activity.finished import WEEK, FinishedJob, Unused, total, week_of
from carme_hub.store.finished_jobs import FinishedJobStore
from carme_hub.store.threads import in_store_thread

DAY = 86_400.0
#: Jobs of one user that are read at most.
MOST = 1000


@dataclass(frozen=True, slots=True)
class Advised:
    """A job with what is said of it."""

    job: FinishedJob
    said: Advice


async def advised(store: FinishedJobStore, user: str, since: float) -> list[Advised]:
    """Return the jobs of a user that ended after a time, the newest first; ``StoreError`` where the database fails."""
    every = await in_store_thread(store.of_user, user, since - LAST_DAYS * DAY, MOST)
    return [each for each in in_order(every) if each.job.ended >= since]


def in_order(every: Sequence[FinishedJob]) -> list[Advised]:
    """Return jobs, the newest first, each with what is said of it.

    Each is compared with the few before it of its kind, and not with all: there may be a thousand tasks of an array.
    """
    before: dict[tuple[str, str, str], list[FinishedJob]] = {}
    found = []
    for job in reversed(every):
        few = before.setdefault(job.kind, [])
        found.append(Advised(job, advice(job, few)))
        few.append(job)
        del few[: -LAST_FEW + 1]
    return found[::-1]


def newest_of_each_kind(found: Iterable[Advised]) -> list[tuple[Advised, int]]:
    """Return the newest job of each kind that has a suggestion, and how many of that kind there are, most first."""
    kinds: dict[tuple[str, str, str], list[Advised]] = {}
    for each in found:
        kinds.setdefault(each.job.kind, []).append(each)
    some = [(of[0], len(of)) for of in kinds.values() if of[0].said.suggestion]
    return sorted(some, key=lambda pair: -pair[1])


@dataclass(frozen=True, slots=True)
class AccountUnused:
    """What an account did not use: in all, and by week, the oldest first; a week without a job is there as well."""

    account: str
    total: Unused
    weeks: Sequence[tuple[int, Unused]]


async def unused_by_account(
    store: FinishedJobStore, weeks: int, now: float, account: str | None = None
) -> list[AccountUnused]:
    """Return what accounts did not use in the last weeks, this one included; those with most unused GPUs first."""
    this = week_of(now)
    every = [this - WEEK * back for back in reversed(range(weeks))]
    found: Mapping[str, Mapping[int, Unused]] = await in_store_thread(store.unused, every[0], account)
    rows = [
        AccountUnused(name, total(of.values()), [(week, of.get(week, Unused())) for week in every])
        for name, of in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.total.gpu_unused, -row.total.cpu_unused, row.account))
