"""What has to be written to the file system of a folder, and what somebody has changed there by hand.

Three things are compared for each user: the desired role (the database), what was last applied, and what is found.
Where the desired role differs from what was applied, it is written: that includes all that a crash has left half-done.
Where it does not, and something else is found, somebody has changed it by hand: that is told, and not overwritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .folder import NOTHING, Folder, FolderState, Member, desired_roles

#: What was applied last is not known: it differs from every role, so that the desired one is applied.
UNKNOWN = "?"
_WORDS = {"": "no access", "ro": "read access", "rw": "write access"}


@dataclass(frozen=True, slots=True)
class Found:
    """What the file system says of one folder, as carme-folders prints it.

    Attributes:
        members: "ro" or "rw" by the number of a user. writers_outside: who could write, and is not let in.
        odd: sentences on rights that are none of ours. problem: why nothing can be said of it.
    """

    members: Mapping[int, str]
    published: bool = False
    writers_outside: Collection[int] = ()
    odd: Sequence[str] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One user whose rights are to be written.

    Attributes:
        uid: of what was applied before, 0 = nothing was, or it is not known. before: what was applied; ``UNKNOWN``: an
            act whose answer was lost.
    """

    user: str
    role: str
    uid: int = 0
    before: str = NOTHING


def changes(folder: Folder, members: Sequence[Member], now: float) -> list[Change]:
    """Return the users whose desired role is not applied yet; those who lose access come first."""
    if folder.state is not FolderState.READY:
        return []
    applied, uids = _applied(members)
    found = [
        Change(user, role, uids.get(user, 0), applied.get(user, NOTHING))
        for user, role in desired_roles(members, now).items()
        if role != applied.get(user, NOTHING)
    ]
    return sorted(found, key=lambda one: (one.role != NOTHING, one.user))


def _applied(members: Sequence[Member]) -> tuple[dict[str, str], dict[str, int]]:
    """Return what was last applied for each user, and the user's number then: each row of a user has the same."""
    applied = {one.subject: one.applied for one in members if one.applied}
    return applied, {one.subject: one.uid for one in members if one.uid}


def drift(folder: Folder, members: Sequence[Member], found: Found | None, now: float) -> tuple[str, ...]:
    """Return what was changed by hand, as sentences; nothing while something is still to be applied.

    Args:
        found: None = there is no such folder.
    """
    if folder.state is not FolderState.READY or changes(folder, members, now):
        return ()
    if folder.published != folder.published_applied:
        return ()
    if found is None:
        return ("The folder is not there any more.",)
    if found.problem:
        return (f"The folder cannot be looked at: {found.problem}.",)
    applied, uids = _applied(members)
    names = {uid: user for user, uid in uids.items()}
    said = list(found.odd)
    for user, role in sorted(applied.items()):
        has = found.members.get(uids.get(user, 0), NOTHING)
        if has != role:
            said.append(f"{user} has {_WORDS[has]} on disk, and should have {_WORDS[role]}.")
    for uid in sorted(found.members):
        user = names.get(uid, "")
        if applied.get(user, NOTHING) == NOTHING:
            has = _WORDS[found.members[uid]]
            said.append(f"{user or f'The user with the number {uid}'} has {has} on disk, and is no member.")
    said += [
        f"{names.get(uid) or f'The user with the number {uid}'} could write if they were let in."
        for uid in sorted(found.writers_outside)
    ]
    if found.published != folder.published:
        said.append(
            "Everybody can read it on disk, and it is not published."
            if found.published
            else "It is published, and others cannot read it on disk."
        )
    return tuple(said)
