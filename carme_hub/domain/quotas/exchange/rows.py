"""Rows of quotas and accounts: what a site's file has, checked row by row, and the same rows of a policy. Pure.

A row has the keys of a quota in a policy, and for an account also ``granted`` (GPU-hours in all) and ``users``. So the
rows that go out come in again, and change nothing. A row without an ``id`` gets one of its subject.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from carme_hub.domain.ledger.entries import GPU_HOUR, Balance
from carme_hub.domain.quotas import policy_values as values
from carme_hub.domain.quotas.policy import Policy, dump_policy, parse_policy
from carme_hub.domain.quotas.rules import Quota, SubjectKind
from carme_hub.errors import ConfigError

#: Keys that say whom a row is about.
SUBJECTS = tuple(each.value for each in SubjectKind)
#: Keys of an account besides its limits. Those of ``SHOWN`` go out, and are not read.
ACCOUNT_KEYS, SHOWN = ("granted", "users"), ("credits", "used", "held", "left")
_LIMITS = (
    *("together", "gpu_time", "window", "days", "start", "end", "soft", "soft_qos", "concurrent_gpus", "session_gpus"),
    *("sessions", "sessions_per_day", "time_limit", "gpu_types", "needs_grant", "may_extend", "may_book"),
    *("may_add_images", "booking", "priority", "owners_approve"),
)
#: Every key, in the order of columns.
KEYS = (*reversed(SUBJECTS), *ACCOUNT_KEYS, *SHOWN, "id", *_LIMITS)
_SLURM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")
_NOT_IN_ID = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Row:
    """One row. ``place``: where it is, such as "line 3". ``lines``: the places of its keys, where they differ."""

    place: str
    data: Mapping[str, Any]
    lines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AccountRow:
    """What a file wants of an account. ``granted``: milli-GPU-seconds in all, None = it says nothing of it."""

    account: str
    granted: int | None
    users: tuple[str, ...]
    place: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Quotas and accounts that are to be, in the order of the rows."""

    quotas: tuple[Quota, ...] = ()
    accounts: tuple[AccountRow, ...] = ()


class BadRows(ConfigError):
    """Rows are wrong; ``problems`` has a sentence for each, with its place."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def read_rows(rows: Iterable[Row], zone: str) -> Wanted:
    """Return what rows want.

    Args:
        zone: IANA zone of dates in them.

    Raises:
        BadRows: something is wrong in one row or several.
    """
    problems: list[str] = []
    quotas: dict[str, Quota] = {}
    accounts: dict[str, AccountRow] = {}
    places: dict[tuple[str, str], str] = {}

    def is_new(kind: str, name: str, place: str) -> bool:
        before = places.setdefault((kind, name), place)
        if before != place:
            problems.append(f"{place}: {kind} {name} is there already, in {before}.")
        return before == place

    for row in rows:
        try:
            quota, account = _read(row, zone)
        except ConfigError as error:
            problems.append(_placed(row, str(error)))
            continue
        if quota is not None and is_new("id", quota.id, row.place):
            quotas[quota.id] = quota
        if account is not None and is_new("account", account.account, row.place):
            accounts[account.account] = account
    if problems:
        raise BadRows(problems)
    return Wanted(tuple(quotas.values()), tuple(accounts.values()))


def _placed(row: Row, error: str) -> str:
    """Return an error with the line of its key, if there is one."""
    key = re.split(r"[.:\[]", error, maxsplit=1)[0]
    return f"{row.lines.get(key, row.place)}: {error}"


def _read(row: Row, zone: str) -> tuple[Quota | None, AccountRow | None]:
    data = dict(row.data)
    for key in data:
        if key not in KEYS:
            raise values.config_error(str(key), f"unknown key. {values.hint(key, KEYS)}")
    shown = [data.pop(key) for key in SHOWN if key in data]
    account = _account(row, {key: data.pop(key) for key in ACCOUNT_KEYS if key in data}, data)
    subjects = [key for key in SUBJECTS if key in data]
    if (account is not None or shown) and set(data) <= {"account"}:
        return None, account
    if len(subjects) != 1:
        raise values.config_error(subjects[-1] if subjects else "account", f"name one of {', '.join(SUBJECTS)}")
    if "id" not in data:
        data["id"] = id_of(subjects[0], str(data[subjects[0]]))
    try:
        [quota] = parse_policy({"zone": zone, "quotas": [data]}).quotas
    except ConfigError as error:
        raise ConfigError(re.sub(r"^quotas\[0\][.:]? ?", "", str(error))) from error
    return quota, account


def _account(row: Row, said: Mapping[str, Any], data: Mapping[str, Any]) -> AccountRow | None:
    if not said:
        return None
    name = data.get("account")
    if not isinstance(name, str) or not _SLURM_NAME.fullmatch(name):
        key = next(iter(said))
        raise values.config_error(key, "it is of one account, so the row names it in account")
    granted = values.gpu_time(said["granted"], "granted") if "granted" in said else None
    users = []
    for user in values.items(said.get("users", ()), "users"):
        users.append(values.text(user, "users", _SLURM_NAME, "names of users"))
    return AccountRow(name, granted, tuple(dict.fromkeys(users)), row.place)


def id_of(kind: str, name: str) -> str:
    """Return the id of a rule about a subject that has none: ``account-physics``."""
    word = "each" if name == "*" else _NOT_IN_ID.sub("-", name.lower())
    return f"{kind}-{word}"[:64].rstrip("._-")


def merged(policy: Policy, wanted: Sequence[Quota], *, replace: bool = False) -> tuple[Quota, ...]:
    """Return the quotas of a policy with these in the place of those with the same id; new ones come last.

    Args:
        replace: quotas that are not wanted are left out.
    """
    new = {quota.id: quota for quota in wanted}
    known = [new.pop(quota.id, None if replace else quota) for quota in policy.quotas]
    return (*(quota for quota in known if quota is not None), *new.values())


# -- what goes out ----------------------------------------------------------------------------------------------------


def rows_of(
    policy: Policy,
    balances: Mapping[str, tuple[int, int, Balance]],
    users: Mapping[str, Collection[str]] | None,
) -> list[dict[str, Any]]:
    """Return the rows of a site: accounts by name, then the policy's quotas in their order.

    Args:
        balances: of each account, what was granted without an end, and as credits (milli-GPU-seconds), and its balance.
        users: of each account in Slurm; None = they are not known, and left out.
    """
    rows: list[dict[str, Any]] = []
    for account in sorted({*balances, *(users or ())}):
        lasting, credits, balance = balances.get(account, (0, 0, Balance()))
        row: dict[str, Any] = {"account": account}
        if lasting > 0:
            row["granted"] = values.write_gpu_time(lasting)
        if credits:
            row["credits"] = hours(credits)
        row |= {"used": hours(balance.used), "held": hours(balance.held), "left": hours(balance.left)}
        if users is not None:
            row["users"] = sorted(users.get(account, ()))
        rows.append(row)
    quotas: Any = dump_policy(policy)["quotas"]
    return [*rows, *(dict(quota) for quota in quotas)]


def hours(amount: int) -> float | int:
    """Return GPU-hours, with three decimals at most."""
    return amount // GPU_HOUR if amount % GPU_HOUR == 0 else round(amount / GPU_HOUR, 3)
