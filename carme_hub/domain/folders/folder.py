"""A shared folder, and who has a role in it.

The database has the *desired state*: who should be able to read and write. ``applied`` of a member is what was last
written to the file system, so that two cases can be told apart where the file system differs: what is not applied yet,
and what somebody has changed by hand (``reconciliation``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum


class OwnerKind(Enum):
    """Whose a folder is: a user's, or a Slurm account's, whose coordinators then manage it."""

    USER = "user"
    ACCOUNT = "account"


class SubjectKind(Enum):
    """Who is invited. Of a group or an account, each user answers alone, and gets a row of kind USER with ``via``."""

    USER = "user"
    GROUP = "group"
    ACCOUNT = "account"
    #: Nobody was invited: a user keeps a dataset, which all may read, in the own list.
    DATASET = "dataset"


class MemberState(Enum):
    """What became of an invitation. Only ``ACCEPTED`` gives access, and only ``PENDING`` can be answered.

    OPEN: of a group or an account, whose users answer. EXPIRED: the time is over, or a user who came by a group or an
    account is in it no more, and may accept again once they are. REVOKED: a user does not come in by a group again.
    """

    PENDING = "pending"
    OPEN = "open"
    ACCEPTED = "accepted"
    DECLINED = "declined"
    LEFT = "left"
    EXPIRED = "expired"
    REVOKED = "revoked"


class FolderState(Enum):
    """MAKING until it is there, REMOVING until all of it is deleted."""

    MAKING = "making"
    READY = "ready"
    REMOVING = "removing"
    REMOVED = "removed"


#: What a member may do: read, or write as well; "" = nothing.
NOTHING, READER, WRITER = "", "ro", "rw"
ROLES = (READER, WRITER)


@dataclass(frozen=True, slots=True)
class Folder:
    """One shared folder. Times are UTC epoch seconds; 0 and "" mean not yet or none.

    Attributes:
        id: 12 hexadecimal digits, its name below the root. name: at ``/shared/NAME`` in sessions; unique on the site.
        root: name of the root that it is in.
        dataset: read-only for all but its writers; ``description``, ``licence`` and ``checksums`` (a file in it with
            the checksums of the others) describe it. published: everybody may read it.
        published_applied: whether the file system was last told so.
        handover: the user to whom the owner wants to give it; it changes hands when that user accepts.
        spread: numbers of users who are no writers any more, which is to be written into all that is inside; None: it
            is done; (): new writers only.
        problem: why the desired state could not be applied the last time; "" = it was.
        verified: what the last comparison with its checksums has found; "" = there was none.
        drift: what differs from the desired state and was changed by hand, as sentences; drift_since: first seen.
    """

    id: str
    cluster: str
    name: str
    owner_kind: OwnerKind
    owner: str
    root: str
    created_by: str
    created: float
    state: FolderState = FolderState.MAKING
    description: str = ""
    licence: str = ""
    checksums: str = ""
    dataset: bool = False
    published: bool = False
    published_applied: bool = False
    handover: str = ""
    spread: tuple[int, ...] | None = None
    problem: str = ""
    drift: tuple[str, ...] = ()
    drift_since: float = 0.0
    verified: str = ""

    def replace(self, **changes: object) -> Folder:
        """Return a copy with changes."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Member:
    """An invitation and what became of it.

    Attributes:
        via: id of the invitation of a group or an account by which this user came; 0 = by an own one.
        role: what they may do once they have accepted. expires: when that ends; 0 = never.
        applied: what the file system was last told; uid: of whom.
    """

    id: int
    folder: str
    kind: SubjectKind
    subject: str
    role: str
    state: MemberState
    invited_by: str
    invited: float
    via: int = 0
    answered: float = 0.0
    expires: float = 0.0
    applied: str = NOTHING
    uid: int = 0

    def replace(self, **changes: object) -> Member:
        """Return a copy with changes."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def desired_role(self, now: float) -> str:
        """Return what this row lets its user do now."""
        if self.kind is not SubjectKind.USER or self.state is not MemberState.ACCEPTED:
            return NOTHING
        return NOTHING if 0 < self.expires <= now else self.role


def is_owner(folder: Folder, user: str) -> bool:
    """Return whether a folder is a user's own."""
    return folder.owner_kind is OwnerKind.USER and folder.owner == user


def desired_roles(members: Sequence[Member], now: float) -> dict[str, str]:
    """Return what each user may do by all rows of one folder: the most of them. A user without any is there as "" ."""
    found: dict[str, str] = {}
    for one in members:
        if one.kind is SubjectKind.USER:
            roles = found.get(one.subject, NOTHING), one.desired_role(now)
            found[one.subject] = max(roles, key=(NOTHING, *ROLES).index)
    return found
