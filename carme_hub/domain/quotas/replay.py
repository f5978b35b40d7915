"""Replay past jobs under a policy, to show what it would have refused. Pure.

The jobs are processed in the order of submission, with holds and charges as in the ledger: a job that the policy admits
holds GPUs × time limit until it ends and is then charged for its run time, without refunds; a refused job holds and
uses nothing, so that the next job may be admitted. Jobs from outside the hub are treated like sessions: the hub cannot
refuse them, but the limits in Slurm do. ``carme_hub.accounting.policy_trial`` calls this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from carme_hub.domain.cluster.resources import NO_GPUS, Gpus
from carme_hub.domain.ledger.entries import ONE, Entry
from carme_hub.domain.ledger.usage import Usage

from .decision import decide
from .policy import Policy
from .rules import AppliedQuota, Check, Facts, Person, QuotaRequest, SubjectUsage, applicable, checks
from .running_totals import Meter

#: Slurm's states for which GPU time is refunded, with the reason of the refund.
_REFUNDED = {"NODE_FAIL": "node-failure", "BOOT_FAIL": "node-failure", "PREEMPTED": "preemption"}


@dataclass(frozen=True, slots=True)
class ReplayLine:
    """The effect of a policy on one user in one account. Amounts are milli-GPU-seconds of real usage.

    Attributes:
        jobs: number of jobs. refused, soft: how many of them were refused, or exceeded a soft limit.
        before: what they used. after: what the admitted ones of them used.
        first_at, first: time and sentence of the first refusal; 0 and "" if there was none.
    """

    user: str
    account: str
    jobs: int = 0
    refused: int = 0
    soft: int = 0
    before: int = 0
    after: int = 0
    first_at: float = 0.0
    first: str = ""

    @property
    def refused_amount(self) -> int:
        """Return the real usage of the refused jobs."""
        return self.before - self.after


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    Attributes:
        lines: one for each user and account, the largest loss first.
        rules: how many jobs each rule refused, by its id; a job that several rules refuse counts for each.
    """

    lines: tuple[ReplayLine, ...] = ()
    rules: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> ReplayLine:
        """Return the sums of all lines, without user and account."""
        counted = ("jobs", "refused", "soft", "before", "after")
        return ReplayLine("", "", **{name: sum(getattr(line, name) for line in self.lines) for name in counted})


def full_price(type: str, partition: str, qos: str) -> int:  # noqa: ARG001
    """Return a factor of 1 for everything."""
    return ONE


def replay(
    policy: Policy,
    jobs: Iterable[Usage],
    people: Mapping[str, Person],
    *,
    now: float,
    since: float = 0.0,
    factor: Callable[[str, str, str], int] = full_price,
    left: Mapping[str, int] | None = None,
    grants: Iterable[Entry] = (),
) -> Replay:
    """Replay jobs under a policy.

    Args:
        jobs: every incarnation; the decision on the first one of a job counts for the later ones.
        people: groups and roles by user name; missing users have none.
        now: the end of the period for open jobs.
        since: earlier jobs are admitted without a check: they fill the windows, and appear in no line.
        factor: price in thousandths by GPU type, partition and QOS.
        left: each account's balance before the first job, for rules that need grants.
        grants: entries that changed balances while the jobs ran; entries about jobs are ignored.
    """
    return _ReplayRun(policy, people, now, since, factor, left or {}, grants).run(jobs)


@dataclass(slots=True)
class _Job:
    """One incarnation that holds GPU time."""

    usage: Usage
    count: int
    rate: int
    held: int
    meters: list[Meter]


@dataclass(slots=True)
class _Sums:
    """A line while it is being added up."""

    jobs: int = 0
    refused: int = 0
    soft: int = 0
    before: int = 0
    after: int = 0
    first_at: float = 0.0
    first: str = ""


class _ReplayRun:
    """The state of the ledger and of the queue while the clock runs through the jobs."""

    def __init__(
        self,
        policy: Policy,
        people: Mapping[str, Person],
        now: float,
        since: float,
        factor: Callable[[str, str, str], int],
        left: Mapping[str, int],
        grants: Iterable[Entry],
    ) -> None:
        self._policy, self._people, self._now, self._since, self._factor = policy, people, now, since, factor
        self._left = dict(left)
        self._grants = sorted((e for e in grants if not e.end and not e.job_id), key=lambda e: e.at, reverse=True)
        self._applied: dict[tuple[str, str], tuple[tuple[AppliedQuota, ...], list[Meter]]] = {}
        self._meters: dict[tuple[str, str], Meter] = {}
        self._open: list[tuple[float, int, _Job]] = []
        self._fates: dict[tuple[int, str], bool] = {}
        self._lines: dict[tuple[str, str], _Sums] = {}
        self._rules: dict[str, int] = {}

    def run(self, jobs: Iterable[Usage]) -> Replay:
        """Process all jobs and return the result."""
        for number, usage in enumerate(sorted(jobs, key=lambda u: (u.submitted, u.job_id))):
            self._settle(usage.submitted)
            self._next(number, usage)
        lines = [
            ReplayLine(user, account, s.jobs, s.refused, s.soft, s.before, s.after, s.first_at, s.first)
            for (user, account), s in self._lines.items()
        ]
        lines.sort(key=lambda line: (-line.refused_amount, -line.refused, line.account, line.user))
        return Replay(tuple(lines), dict(sorted(self._rules.items(), key=lambda item: (-item[1], item[0]))))

    def _next(self, number: int, usage: Usage) -> None:
        ran = max(0, usage.seconds(self._now))
        seconds = usage.time_limit or ran  # without a time limit, assume its real run time
        count = sum(gpus.count for gpus in usage.gpus)
        rate = sum(gpus.count * self._factor(gpus.type, usage.partition, usage.qos) for gpus in usage.gpus)
        whole = sum(gpus.whole for gpus in usage.gpus)
        applied, meters = self._rules_for(usage)
        fate = (usage.job_id, usage.user)
        admitted = self._fates.get(fate)
        if usage.submitted >= self._since:
            sums = self._lines.setdefault((usage.user, usage.account), _Sums())
            sums.jobs += admitted is None
            sums.before += ran * rate
            if admitted is None:
                admitted = self._admit(usage, applied, meters, count, rate, seconds, sums)
            if admitted:
                sums.after += ran * rate
        self._fates[fate] = admitted is not False
        if admitted is not False:
            job = _Job(usage, count, rate, seconds * rate, meters)
            for meter in meters:
                meter.open(number, usage.submitted, (usage.start or usage.submitted) + seconds, whole, job.held)
            self._left[usage.account] = self._left.get(usage.account, 0) - job.held
            if usage.end:
                heappush(self._open, (usage.end, number, job))

    def _admit(
        self,
        usage: Usage,
        applied: tuple[AppliedQuota, ...],
        meters: list[Meter],
        count: int,
        rate: int,
        seconds: int,
        sums: _Sums,
    ) -> bool:
        at = usage.submitted
        facts = Facts(at, {meter.key: meter.use(at) for meter in meters}, self._left)
        # A job with several types is checked with each of them, and with the price of all.
        priced = -(-rate // count) if count else ONE
        types = [Gpus(gpus.type, count) for gpus in usage.gpus if gpus] or [NO_GPUS]
        for gpus in types:
            request = QuotaRequest(usage.account, gpus, seconds, priced)
            broken: list[Check] = [check for check in checks(applied, request, facts) if not check.holds]
            if broken:
                sums.refused += 1
                for id in {check.rule.quota.id for check in broken}:
                    self._rules[id] = self._rules.get(id, 0) + 1
                if not sums.first:
                    full = Facts(at, {meter.key: meter.use(at, whole=True) for meter in meters}, self._left)
                    sums.first_at = at
                    sums.first = decide(applied, request, full, zone=self._policy.zone).message
                return False
        none = SubjectUsage()
        sums.soft += any(
            one.quota.soft
            and one.quota.gpu_time is not None
            and one.quota.in_force(at)
            and facts.use.get((one.quota.id, one.subject), none).gpu_time + seconds * rate > one.quota.gpu_time
            for one in applied
        )
        return True

    def _settle(self, until: float) -> None:
        """Charge the jobs that ended until a moment, release their holds, and apply grants."""
        while self._open and self._open[0][0] <= until:
            end, number, job = heappop(self._open)
            usage = job.usage
            refund = _REFUNDED.get(usage.state)
            ran = 0 if refund in self._policy.refunded else max(0, usage.seconds(end))
            for meter in job.meters:
                meter.close(number, end, end - ran, job.rate)
            self._left[usage.account] += job.held - ran * job.rate
        while self._grants and self._grants[-1].at <= until:
            entry = self._grants.pop()
            self._left[entry.account] = self._left.get(entry.account, 0) + entry.amount

    def _rules_for(self, usage: Usage) -> tuple[tuple[AppliedQuota, ...], list[Meter]]:
        key = (usage.user, usage.account)
        if key not in self._applied:
            person = self._people.get(usage.user) or Person(usage.user)
            applied = applicable(self._policy.quotas, person, usage.account)
            meters = []
            for one in applied:
                if Meter.needed(one.quota):
                    subject = (one.quota.id, one.subject)
                    if subject not in self._meters:
                        self._meters[subject] = Meter(one, self._policy.zone)
                    meters.append(self._meters[subject])
            self._applied[key] = (applied, meters)
        return self._applied[key]
