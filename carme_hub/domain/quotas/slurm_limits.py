"""Derive the limits that Slurm itself should enforce for a policy, and the changes they need. Pure.

Slurm's limits are never tighter than the policy, so Slurm refuses nobody whom the hub admits, and as tight as Slurm
allows (docs/explanation/second-fence.md). A limit that somebody has set manually is reported as drift and kept, unless
forced. The limits written last are passed as plain data: ``{"user physics/alice MaxJobs": "3"}``. The quotas service
and ``carme-hub quotas`` call ``plan``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from carme_hub.domain.ledger.entries import ONE

from .last_written_limits import id_of, is_ours, list_of, read_id
from .rules import Person, Quota, SubjectKind, Window, applicable
from .sacctmgr_argv import ORDER, Entity, Target, settings_of, single

GPU = "gres/gpu"
#: The account of Slurm's own administrators; policies do not apply to it.
ROOT = "root"
#: Permissions to use a QOS are never removed.
_STAYS = ("QOS", "DefaultQOS")


class AdminLevel(Enum):
    """The AdminLevel in Slurm that a change requires."""

    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"


class Budgets(Enum):
    """Where Slurm enforces budgets of GPU time.

    On a QOS for each account (NoDecay, exact; the account's jobs may use no other), on the account's association
    (decays with PriorityDecayHalfLife; exact if that is 0), or nowhere.
    """

    QOS = "qos"
    ASSOCIATION = "association"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """The site's settings for limits in Slurm.

    Attributes:
        session_qos: a QOS that only the hub's sessions use, "" = none. It gets the limits of sessions.
        every_job: limits of sessions apply to every job, also from outside the hub, and are written to associations.
        budgets: where budgets are enforced. prefix: of the QOS created for accounts.
        keep_qos: QOS that accounts may use besides their own; jobs with them do not count in the budget.
        least_factor: the lowest price factor, in thousandths. Slurm counts GPU-minutes, not prices.

    Names of QOS are converted to lower case, as Slurm stores them.
    """

    session_qos: str = ""
    every_job: bool = False
    budgets: Budgets = Budgets.QOS
    prefix: str = "carme-"
    keep_qos: tuple[str, ...] = ()
    least_factor: int = ONE

    def __post_init__(self) -> None:
        object.__setattr__(self, "session_qos", self.session_qos.lower())
        object.__setattr__(self, "prefix", self.prefix.lower())
        object.__setattr__(self, "keep_qos", tuple(name.lower() for name in self.keep_qos))


@dataclass(frozen=True, slots=True)
class State:
    """The current limits in Slurm.

    Attributes:
        limits: by target, the limits set on it directly (not inherited): value by key, without limits that are not set.
            Keys are sacctmgr's names, with a slash before the TRES: ``GrpTRES/gres/gpu``. Times are minutes, lists are
            sorted. Users are named ``account/user``, or ``account/user/partition`` for one partition.
        tres: the TRES that Slurm counts (AccountingStorageTRES) and can limit.
        may_use: the QOS that each account and user may use, inherited or not.
    """

    cluster: str
    limits: Mapping[Target, Mapping[str, str]] = field(default_factory=dict)
    tres: frozenset[str] = frozenset()
    may_use: Mapping[Target, frozenset[str]] = field(default_factory=dict)

    def value(self, target: Target, key: str) -> str:
        """Return the value of a limit, "" = not set. ``QOS/NAME`` is "yes" if that QOS may be used."""
        word, _, name = key.partition("/")
        if word == "QOS" and name:
            return "yes" if name in self.may_use.get(target, ()) else ""
        return self.limits.get(target, {}).get(key, "")


@dataclass(frozen=True, slots=True)
class Change:
    """One limit that differs from the policy. "" = not set. ``argv`` is the command that sets it."""

    entity: Entity
    name: str
    key: str
    have: str
    want: str
    admin_level: AdminLevel = AdminLevel.OPERATOR
    argv: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Return the id of this limit in the stored data."""
        return id_of((self.entity, self.name), self.key)


@dataclass(frozen=True, slots=True)
class UnenforcedRule:
    """A rule, or a part of one, that Slurm cannot enforce: the quota's id and the reason as a sentence."""

    quota: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that a policy needs.

    Attributes:
        changes: limits to write. drift: limits that somebody changed manually; they stay as they are.
        unenforced: what only the hub's own check enforces. wanted: all limits, by their id.
        kept: QOS that we allowed earlier and no rule wants any more; they are never removed.
    """

    changes: tuple[Change, ...] = ()
    drift: tuple[Change, ...] = ()
    unenforced: tuple[UnenforcedRule, ...] = ()
    wanted: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)

    def written(self, last: Mapping[str, str], applied: Iterable[Change] = ()) -> dict[str, str]:
        """Return the limits written by us after these changes are applied: the ``last`` of the next plan."""
        done, kept = {c.id: c.want for c in applied}, {c.id for c in self.drift}
        open_ = {c.id for c in self.changes} - set(done)
        ours = {id_: want for id_, want in self.wanted.items() if id_ not in open_ | kept}
        old = {id_: value for id_, value in last.items() if id_ in open_ | kept}
        ours |= {id_: want for id_, want in done.items() if want}
        return {**{id_: value for id_, value in self.kept.items() if list_of(id_) not in ours}, **old, **ours}


def plan(
    quotas: Sequence[Quota],
    state: State,
    *,
    now: float,
    people: Mapping[str, Person] | None = None,
    budgets: Mapping[str, int] | None = None,
    limit_settings: LimitSettings | None = None,
    last: Mapping[str, str] | None = None,
    force: bool = False,
) -> Plan:
    """Return the changes that Slurm needs for these quotas.

    Args:
        people: groups and roles by user name. budgets: all grants of each account (with refunds), in
            milli-GPU-seconds. last: limits that earlier plans have written. force: overwrite limits set by others.
    """
    builder = _LimitBuilder(quotas, state, limit_settings or LimitSettings(), now)
    builder.collect(people or {}, budgets or {})
    known, changes, drift = dict(last or {}), [], []
    by_hand = set() if force else builder.lists_by_hand(known)
    wanted = {(target, key): str(value) for target, limits in builder.limits.items() for key, value in limits.items()}
    named = {id_of(t, k): (t, k) for t in state.limits for k in state.limits[t]} | {id_of(*one): one for one in wanted}
    for id_, (target, key) in sorted(named.items()):
        if (target, key) not in wanted and id_ not in known:
            continue  # not a limit of ours
        have, want = state.value(target, key), wanted.get((target, key), "")
        if have == want or (not want and key.partition("/")[0] in (*_STAYS, "Name")):
            continue
        change = Change(
            *target, key, have, want, builder.admin_level(target, key, want), single(target, key, want, state.cluster)
        )
        # Slurm refuses a default QOS that is not in a manual list, or starts no job with it.
        ours = is_ours(id_, have, known) and not (key == "DefaultQOS" and target in by_hand)
        if ours or force:
            changes.append(change)
        elif want:
            drift.append(change)
    ids = {id_of(*one): value for one, value in wanted.items()}
    changes.sort(key=lambda c: (ORDER.index(c.entity), c.name, c.key != "Name", c.key != "QOS", c.key))
    old = {id_: value for id_, value in known.items() if id_ not in ids and state.value(*read_id(id_)) == value}
    kept = {id_: value for id_, value in old.items() if read_id(id_)[1].partition("/")[0] in _STAYS}
    return Plan(tuple(changes), tuple(drift), tuple(dict.fromkeys(builder.unenforced)), ids, kept)


class _LimitBuilder:
    """Collects the limits of a policy, the tightest if several rules set the same limit."""

    def __init__(self, quotas: Sequence[Quota], state: State, settings: LimitSettings, now: float) -> None:
        self.quotas = [quota for quota in quotas if quota.in_force(now)]
        self.soft = [q for q in quotas if q.soft_qos and (q.window is not Window.TERM or now < q.end)]
        self.soft_of: dict[str, set[str]] = {}
        self.state, self.settings = state, settings
        self.limits: dict[Target, dict[str, int | str]] = {}
        self.unenforced: list[UnenforcedRule] = []

    def collect(self, people: Mapping[str, Person], budgets: Mapping[str, int]) -> None:
        """Collect the limits of all associations."""
        if GPU not in self.state.tres:
            self._report_unenforced(None, "Slurm counts no GPUs: AccountingStorageTRES does not name gres/gpu.")
        self._find_soft(people)
        accounts = [name for entity, name in self.state.limits if entity is Entity.ACCOUNT and name != ROOT]
        for account in accounts:
            target = (Entity.ACCOUNT, account)
            for one in applicable(self.quotas, Person(""), account):
                if one.quota.who is SubjectKind.ACCOUNT:
                    self._rule(target, one.quota)
                    self._budget(account, one.quota)
            if account in budgets:
                self._write_budget(account, budgets[account])
        for entity, name in self.state.limits:
            account, _, user = name.partition("/")
            user = user.partition("/")[0]
            if entity is not Entity.USER or account == ROOT:
                continue
            for one in applicable(self.quotas, people.get(user, Person(user)), account):
                if one.quota.who is SubjectKind.ACCOUNT:
                    continue
                if one.subject != user or one.quota.together:
                    self._report_unenforced(one.quota, "Slurm has no limit that the members of a group or role share.")
                    continue
                self._rule((entity, name), one.quota)
                self._user_time((entity, name), one.quota)
            self._no_wider((entity, name), (Entity.ACCOUNT, account))
        self._allow_soft()
        self._sessions()

    def lists_by_hand(self, known: Mapping[str, str]) -> set[Target]:
        """Return the targets with a manual QOS list in place of ours, and add the QOS of soft limits to it."""
        found = set()
        for target in [target for target, limits in self.limits.items() if "QOS" in limits]:
            have = self.state.value(target, "QOS")
            if have != self.limits[target]["QOS"] and not is_ours(id_of(target, "QOS"), have, known):
                found.add(target)
                for qos in sorted(self.soft_of.get(target[1], ())):
                    self._put(target, f"QOS/{qos}", "yes")
        return found

    def admin_level(self, target: Target, key: str, want: str) -> AdminLevel:
        """Return the AdminLevel for a change: QOS need an administrator, as does a limit that names a missing QOS."""
        names = want.split(",") if key in ("QOS", "DefaultQOS") else []
        names += [key.partition("/")[2]] if key.startswith("QOS/") else []
        missing = any((Entity.QOS, name) not in self.state.limits for name in names if name)
        return AdminLevel.ADMINISTRATOR if target[0] is Entity.QOS or missing else AdminLevel.OPERATOR

    def _rule(self, target: Target, quota: Quota) -> None:
        """Write the limits of one rule to an association."""
        if quota.concurrent_gpus is not None:
            self._put(target, f"GrpTRES/{GPU}", quota.concurrent_gpus)
        if quota.gpu_types is not None:
            for name in sorted(self.state.tres):
                type_ = name.removeprefix(f"{GPU}:")
                if type_ != name and type_ not in quota.gpu_types:
                    self._put(target, f"GrpTRES/{name}", 0)
        if quota.sessions_per_day is not None:
            self._report_unenforced(quota, "Slurm does not count starts per day.")
        for key, value in self._of_sessions(quota, "GrpJobs" if target[0] is Entity.ACCOUNT else "MaxJobs").items():
            if self.settings.every_job:
                self._put(target, key, value)
            elif quota.who is not SubjectKind.USER or quota.name != "*" or not self.settings.session_qos:
                self._report_unenforced(
                    quota,
                    "Limits of single sessions: Slurm cannot tell a session from another job. If they are for all "
                    "users, a QOS for sessions only can enforce them; otherwise they apply to every job or to none.",
                )

    @staticmethod
    def _of_sessions(quota: Quota, jobs: str) -> dict[str, int]:
        found = {
            f"MaxTRES/{GPU}": quota.session_gpus,
            "MaxWall": None if quota.time_limit is None else -(-quota.time_limit // 60),
            jobs: quota.sessions,
        }
        return {key: value for key, value in found.items() if value is not None}

    def _sessions(self) -> None:
        """Write the limits of every user's sessions to the QOS that only sessions use."""
        name = self.settings.session_qos
        if not name:
            return
        target = (Entity.QOS, name)
        self._put(target, "Name", "yes")
        for quota in self.quotas:
            if quota.who is SubjectKind.USER and quota.name == "*":
                for key, value in self._of_sessions(quota, "MaxJobsPerUser").items():
                    self._put(target, key, value)
                if quota.concurrent_gpus is not None:
                    self._put(target, f"MaxTRESPerUser/{GPU}", quota.concurrent_gpus)

    def _find_soft(self, people: Mapping[str, Person]) -> None:
        """Find the QOS of soft limits that apply to each account or one of its users, now or later."""
        for entity, name in self.state.limits:
            account, _, user = name.partition("/")
            user = user.partition("/")[0]
            if entity is Entity.QOS or account == ROOT:
                continue
            for one in applicable(self.soft, people.get(user, Person(user)), account):
                if user or one.quota.who is SubjectKind.ACCOUNT:
                    self.soft_of.setdefault(account, set()).add(one.quota.soft_qos)
        for quota in self.soft:
            if (Entity.QOS, quota.soft_qos) not in self.state.limits:
                self._report_unenforced(
                    quota,
                    f"Slurm refuses whoever is over this limit (Invalid qos) until there is a QOS {quota.soft_qos}; "
                    "its Priority is yours to set.",
                )

    def _allow_soft(self) -> None:
        """Allow the QOS of soft limits to accounts, and to users with QOS of their own."""
        for (entity, name), limits in self.state.limits.items():
            own = bool(limits.get("QOS")) if entity is Entity.USER else entity is Entity.ACCOUNT
            for qos in sorted(self.soft_of.get(name.partition("/")[0], ())) if own else ():
                self._put((Entity.QOS, qos), "Name", "yes")
                if "QOS" not in self.limits.get((entity, name), {}):  # else it is in that list
                    self._put((entity, name), f"QOS/{qos}", "yes")

    def _budget(self, account: str, quota: Quota) -> None:
        if quota.gpu_time is None or quota.soft:
            return
        if quota.window is Window.TOTAL:
            self._write_budget(account, quota.gpu_time)
        else:
            self._report_unenforced(quota, "GPU time per window: Slurm's counters have no windows.")

    def _write_budget(self, account: str, amount: int) -> None:
        minutes = self._minutes(amount)
        if minutes is None or self.settings.budgets is Budgets.NONE:
            return
        if self.settings.budgets is Budgets.ASSOCIATION:
            self._put((Entity.ACCOUNT, account), f"GrpTRESMins/{GPU}", minutes)
            return
        name = self.settings.prefix + account
        target = (Entity.QOS, name)
        self._put(target, "Name", "yes")
        self._put(target, "Flags/NoDecay", "yes")
        self._put(target, f"GrpTRESMins/{GPU}", minutes)
        beside = {*self.settings.keep_qos, *self.soft_of.get(account, ())}
        self._put((Entity.ACCOUNT, account), "QOS", ",".join(sorted({name, *beside})))
        self._put((Entity.ACCOUNT, account), "DefaultQOS", name)
        for qos in sorted(self.soft_of.get(account, ())):
            self._report_unenforced(None, f"Slurm does not count jobs with QOS {qos} in {account}'s budget.")
        for (entity, user), limits in self.state.limits.items():
            own = {*limits.get("QOS", "").split(","), limits.get("DefaultQOS", "")}
            own -= {"", name, *self.settings.keep_qos}
            if entity is Entity.USER and user.startswith(f"{account}/") and own:
                self._report_unenforced(
                    None,
                    f"{user} has QOS of its own ({', '.join(sorted(own))}), which {account}'s budget does not count. "
                    "While one of them is the user's default, Slurm does not apply the account's default.",
                )

    def _user_time(self, target: Target, quota: Quota) -> None:
        if quota.gpu_time is None or quota.soft:
            return
        minutes = self._minutes(quota.gpu_time)
        if quota.window is not Window.TOTAL:
            self._report_unenforced(quota, "GPU time per window: Slurm's counters have no windows.")
        elif self.settings.budgets is not Budgets.ASSOCIATION:
            self._report_unenforced(quota, "GPU time of a user: only associations can limit it, and there it decays.")
        elif minutes is not None:
            self._put(target, f"GrpTRESMins/{GPU}", minutes)

    def _minutes(self, amount: int) -> int | None:
        """Return the GPU-minutes of an amount at the lowest price, None for unlimited."""
        return -(-max(0, amount) // (60 * self.settings.least_factor)) if self.settings.least_factor else None

    def _no_wider(self, user: Target, account: Target) -> None:
        """Keep a user's own limits within the account's: Slurm uses the user's limit, even if it is wider."""
        mine, theirs = self.limits.get(user, {}), self.limits.get(account, {})
        for key in [key for key in mine if key.startswith("Max") and key in theirs]:
            self._put(user, key, theirs[key])

    def _put(self, target: Target, key: str, value: int | str) -> None:
        tres = key.partition("/")[2]
        if tres.startswith("gres/") and tres not in self.state.tres:
            return
        limits = self.limits.setdefault(target, {})
        known = limits.get(key, value)
        limits[key] = min(known, value) if isinstance(known, int) and isinstance(value, int) else value

    def _report_unenforced(self, quota: Quota | None, reason: str) -> None:
        self.unenforced.append(UnenforcedRule(quota.id if quota else "", reason))


def commands(changes: Iterable[Change], cluster: str) -> tuple[tuple[str, ...], ...]:
    """Return sacctmgr's commands for these changes: one for each QOS and account, one for users who get the same."""
    return settings_of([((c.entity, c.name), c.key, c.want) for c in changes], cluster)
