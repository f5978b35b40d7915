"""GPU time that the members of a hub group used, in the windows of the group's rules, as admission counts it.

The group's page shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from carme_hub.accounting.context import LedgerContext
from carme_hub.accounting.usage_snapshot import SnapshotReader
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import AppliedQuota, Person, Quota, SubjectKind, Window
from carme_hub.services.quotas.application import view
from carme_hub.store.ledger.writes import LedgerReads

#: Days over which members are compared if no rule has a window.
SHARE_DAYS = 30


@dataclass(frozen=True, slots=True)
class Member:
    """One user of a group: used and held in the window, the share of the group's use (percent), and what is left.

    ``left`` is "" if the limit is shared or there is none; ``over``: nothing is left.
    """

    name: str
    used: str
    held: str
    share: int
    share_text: str
    left: str
    over: bool


@dataclass(frozen=True, slots=True)
class Section:
    """The members in one rule's window; ``bar`` is the whole group's if they share the limit."""

    title: str
    text: str
    bar: view.Bar | None
    members: tuple[Member, ...]
    total: str
    has_left: bool


def people_by_group(people: Iterable[Person]) -> dict[str, list[str]]:
    """Return the users of every group, by name."""
    found: dict[str, list[str]] = {}
    for person in people:
        for name in person.groups:
            found.setdefault(name, []).append(person.user)
    return {name: sorted(users) for name, users in sorted(found.items())}


def rules_of(policy: Policy, group: str, now: float) -> list[Quota]:
    """Return the rules in force that limit the GPU time of a group or of its members."""
    return [
        quota
        for quota in policy.quotas
        if quota.who is SubjectKind.GROUP
        and quota.name in (group, "*")
        and quota.gpu_time is not None
        and quota.in_force(now)
    ]


def sections(context: LedgerContext, reads: LedgerReads, group: str, users: Sequence[str], now: float) -> list[Section]:
    """Return the members' use for each of the group's rules; without any, over the last ``SHARE_DAYS``."""
    policy = context.policy()
    # The reader needs a person, and any member will do: a shared limit counts the use of all members.
    snapshot = SnapshotReader(context, reads, Person(users[0] if users else ""), now)
    rules = rules_of(policy, group, now)
    plain = Quota("", SubjectKind.GROUP, group, window=Window.ROLLING, days=SHARE_DAYS)
    return [_section(snapshot, quota, group, users, now, policy.zone) for quota in rules or [plain]]


def _section(
    snapshot: SnapshotReader, quota: Quota, group: str, users: Sequence[str], now: float, zone: str
) -> Section:
    alone = replace(quota, together=False)
    taken = {user: snapshot.taken(AppliedQuota(alone, user)) for user in users}
    start, end = next(((each.start, each.end) for each in taken.values()), (now, now))
    limit = quota.gpu_time
    each_has = None if quota.together else limit
    resets = view.resets(quota, end, now, zone) if limit is not None else ""
    soft = "Over it sessions still start, with a warning." if quota.soft else ""
    bar, text = None, resets
    if limit is not None and quota.together and users:
        whole = snapshot.taken(AppliedQuota(quota, group))
        bar = view.bar(
            view.window_title(quota, start, zone),
            view.subject_text(quota, group, ""),
            *(whole.used, whole.held, limit),
            soft=quota.soft,
            notes=(resets, soft),
        )
    elif limit is not None:
        text = " ".join(part for part in (f"{view.hours(limit)} for each member.", resets, soft) if part)
    used = {user: (each.used, each.held) for user, each in taken.items()}
    return Section(
        view.window_title(quota, start, zone),
        text,
        bar,
        tuple(_members(used, each_has)),
        view.hours(sum(amount for amount, _ in used.values())),
        each_has is not None,
    )


def _members(used: Mapping[str, tuple[int, int]], limit: int | None) -> Iterable[Member]:
    total = sum(max(0, amount) for amount, _ in used.values())
    for name, (amount, held) in sorted(used.items(), key=lambda item: (-item[1][0], -item[1][1], item[0])):
        share = round(100 * max(0, amount) / total) if total else 0
        left = None if limit is None else limit - amount - held
        yield Member(
            name,
            view.hours(amount),
            view.hours(held),
            share,
            f"{share} %" if total else "–",
            "" if left is None else view.hours(max(0, left)),
            left is not None and left <= 0 < amount + held,
        )
