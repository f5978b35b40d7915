"""Names of hub groups: a group stands for a Slurm account, for a role, or is an ordinary group. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from .rules import Person

#: Prefix of hub groups for accounts that a user may charge. System group names cannot contain a colon.
ACCOUNT_GROUP = "account:"
#: Prefix of hub groups for roles of the same name; see ``CarmeAuthenticator.role_groups``.
ROLE_GROUP = "role:"


def accounts_in(groups: Iterable[str]) -> tuple[str, ...]:
    """Return the accounts that a user of these groups may charge, by name."""
    return tuple(sorted(name.removeprefix(ACCOUNT_GROUP) for name in groups if name.startswith(ACCOUNT_GROUP)))


def person_in(user: str, groups: Iterable[str], *, admin: bool = False) -> Person:
    """Return the policy's view of a user with these groups; JupyterHub's admin flag is the role ``admin``."""
    names = tuple(groups)
    roles = {name.removeprefix(ROLE_GROUP) for name in names if name.startswith(ROLE_GROUP)}
    own = (name for name in names if not name.startswith((ROLE_GROUP, ACCOUNT_GROUP)))
    return Person(user, frozenset(own), frozenset(roles | ({"admin"} if admin else set())))
