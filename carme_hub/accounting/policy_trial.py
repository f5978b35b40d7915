"""Trial of a policy on past jobs: how far back its windows reach, the balances at that time, and the result.

The page *Try a policy* and ``carme-hub quotas policy`` call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from carme_hub.domain.ledger.entries import Entry, Kind
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.replay import Replay, replay
from carme_hub.domain.quotas.rules import DAY, Person, Quota, Window
from carme_hub.slurm.usage import UsageReader
from carme_hub.store.ledger.report import used_between
from carme_hub.store.ledger.writes import Filter, Subject
from carme_hub.store.threads import in_store_thread

from .context import LedgerContext

_DAYS = {Window.DAY: 1, Window.WEEK: 7, Window.MONTH: 31}


@dataclass(frozen=True, slots=True)
class Trial:
    """The effect that a policy would have had on the jobs of a period, and from when on use is known.

    Attributes:
        since: jobs submitted from here on are decided on. use_since: use from here on counts in the policy's windows;
            it is ``since`` if no rule counts GPU time. Both are epoch seconds.
        known: when the first job that counts was submitted; 0 = there is none.
        missing: milli-GPU-seconds charged from ``use_since`` to ``known``: Slurm's accounting has lost their jobs.
    """

    replay: Replay
    since: float
    use_since: float
    known: float = 0.0
    missing: int = 0


async def try_policy(
    context: LedgerContext,
    reader: UsageReader,
    policy: Policy,
    people: Mapping[str, Person],
    since: float,
    until: float,
    *,
    tell: Callable[[str], None] = lambda _words: None,
) -> Trial:
    """Return what a policy would have decided on the jobs of a period; write nothing.

    Earlier use counts in the policy's windows, from as far back as they reach.

    Args:
        people: groups and roles by user name. tell: is called with each step of the work, as a sentence.

    Raises:
        SlurmUnreachable: accounting gave no answer, or an answer that cannot be parsed.
    """
    policy = replace(policy, default_refunds=context.policy().default_refunds)
    use_since = await in_store_thread(_use_since, context, policy, since)
    tell("Reading Slurm’s accounting.")
    usages = await reader.usage(use_since, until)
    jobs = [usage for usage in usages if usage.submitted < until]
    count = sum(usage.submitted >= since for usage in jobs)
    tell(f"Replaying {count:,} job{'' if count == 1 else 's'} of the period and {len(jobs) - count:,} from before.")

    def replay_jobs() -> Trial:
        known = min((usage.submitted for usage in jobs), default=0.0)
        missing = 0
        if use_since < (known or since):
            with context.store.reading(context.cluster) as reads:
                missing = sum(each.charged for each in used_between(reads, use_since, known or since))
        left, grants = balances_at(context, {usage.account for usage in jobs}, use_since)
        found = replay(policy, jobs, people, now=until, since=since, factor=context.factor, left=left, grants=grants)
        return Trial(found, since, use_since, known, missing)

    return await in_store_thread(replay_jobs)


def _use_since(context: LedgerContext, policy: Policy, since: float) -> float:
    """Return from when on use counts; for windows without a beginning that is the ledger's first use, if any."""
    use_since = windows_start(policy, since)
    if use_since:
        return use_since
    with context.store.reading(context.cluster) as reads:
        first = reads.oldest_uses(Subject(), 0, 1)
    return min(since, float(first[0][0])) if first else 0.0


def windows_start(policy: Policy, since: float) -> float:
    """Return the start of the policy's longest window at a time (epoch seconds); 0 = it has no beginning."""
    return min((_window_start(quota, since) for quota in policy.quotas if quota.gpu_time is not None), default=since)


def balances_at(context: LedgerContext, accounts: Iterable[str], at: float) -> tuple[dict[str, int], list[Entry]]:
    """Return what each account had left at a time, without holds, and later changes of balances, oldest first."""
    left: dict[str, int] = {}
    later: list[Entry] = []
    with context.store.reading(context.cluster) as reads:
        for account in sorted(set(accounts)):
            entries = reads.grants(account)
            given = sum(entry.amount for entry in entries if entry.at < at)
            left[account] = given - reads.used(Subject(account), 0, at).amount
            later += [entry for entry in entries if entry.at >= at]
    return left, sorted(later, key=lambda entry: entry.at)


def spending_limits(context: LedgerContext, accounts: Iterable[str]) -> dict[str, int]:
    """Return what each account may use in total since its start: grants and refunds (milli-GPU-seconds)."""
    found: dict[str, int] = {}
    with context.store.reading(context.cluster) as reads:
        balances = reads.balances(sorted(set(accounts)))
        for account, balance in balances.items():
            which, before, refunds = Filter(account=account, kind=Kind.CORRECTION), 0, 0
            while page := reads.statement(which, before, 5000):
                refunds += sum(entry.amount for entry in page if entry.end and entry.amount > 0)
                before = page[-1].id
            found[account] = max(0, balance.granted + refunds)
    return found


def _window_start(quota: Quota, since: float) -> float:
    if quota.window is Window.TOTAL:
        return 0.0
    if quota.window is Window.TERM:
        return min(since, quota.start)
    days = quota.days if quota.window is Window.ROLLING else _DAYS[quota.window]
    return since - days * DAY
