"""What may be done with a shared folder, by whom. Each function returns the changed row, or raises ``Refused``."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from carme_hub.errors import Refused

from .folder import ROLES, Folder, FolderState, Member, MemberState, OwnerKind, SubjectKind, desired_roles, is_owner

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,62}")
#: An id of a folder: no name looks like one, since either names a folder for people and programs.
ID = re.compile(r"[0-9a-f]{12}")
#: Members of one folder whom its file system lets in, as carme-folders has it.
MOST_MEMBERS = 200
_LINE, _TEXT = 200, 4000
DAY = 86_400.0


class FolderRefused(Refused):
    """A rule on shared folders does not allow it."""

    reason = "folder-refused"


class NoFolder(Refused):
    """There is no such folder for this user; whether there is one at all is not said."""

    reason = "unknown"

    def __init__(self) -> None:
        super().__init__("There is no such folder of yours, and none that is shared with you.")


class NotManager(Refused):
    """Only who manages the folder may do it."""

    reason = "not-yours"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a user with the groups, accounts and coordinated accounts that are known now.

    Attributes:
        accounts, groups: None = not known at the moment.
        admin: may do everything with every folder.
    """

    name: str
    groups: Collection[str] | None = ()
    accounts: Collection[str] | None = ()
    coordinates: Collection[str] = ()
    admin: bool = False

    def belongs_to(self, kind: SubjectKind, name: str) -> bool | None:
        """Return whether the user is meant by an invitation; None = it is not known at the moment."""
        if kind is SubjectKind.USER:
            return self.name == name
        known = self.groups if kind is SubjectKind.GROUP else self.accounts
        return None if known is None else name in known


def checked_name(name: str) -> str:
    """Return a folder's name that is one."""
    if not NAME.fullmatch(name):
        raise FolderRefused(
            "A folder's name has 2 to 63 small letters, digits, dots, dashes and underscores, and begins with a letter "
            "or digit: it is its place in sessions, /shared/NAME."
        )
    if ID.fullmatch(name):
        raise FolderRefused("12 hexadecimal digits are no name, but the number of a folder. Choose another name.")
    return name


def checked_text(text: str, what: str, longest: int = _LINE) -> str:
    """Return a text of people, on one line unless it may be long."""
    text = text.strip()
    lines = text.replace("\n", "").replace("\r", "") if longest > _LINE else text
    if len(text) > longest or not (lines.isprintable() or not lines):
        raise FolderRefused(f"{what} has at most {longest} printable characters.")
    return text


def checked_description(text: str) -> str:
    """Return the description of a folder."""
    return checked_text(text, "The description", _TEXT)


def checked_file(path: str) -> str:
    """Return the path of a file inside a folder, "" = none."""
    path = path.strip()
    if path and (path.startswith("/") or ".." in path.split("/") or len(path) > _LINE or not path.isprintable()):
        raise FolderRefused("The file of checksums is named by its path inside the folder, such as SHA256SUMS.")
    return path


def manages(folder: Folder, actor: Actor) -> bool:
    """Return whether somebody decides about a folder: its owner, a coordinator of its account, an administrator."""
    if actor.admin or is_owner(folder, actor.name):
        return True
    return folder.owner_kind is OwnerKind.ACCOUNT and folder.owner in actor.coordinates


def require_manager(folder: Folder, actor: Actor) -> None:
    """Refuse somebody who does not decide about a folder."""
    if not manages(folder, actor):
        whose = folder.owner if folder.owner_kind is OwnerKind.USER else f"a coordinator of the account {folder.owner}"
        raise NotManager(f"Only {whose} decides about the folder {folder.name}.")


def require_there(folder: Folder) -> None:
    """Refuse a folder that is being deleted."""
    if folder.state in (FolderState.REMOVING, FolderState.REMOVED):
        raise FolderRefused(f"The folder {folder.name} is being deleted.")


def may_create(actor: Actor, kind: OwnerKind, owner: str, own: int, most: int) -> None:
    """Refuse a folder that somebody may not make.

    Args:
        own: how many folders the owner has. most: how many an owner may have.
    """
    if kind is OwnerKind.ACCOUNT and not (actor.admin or owner in actor.coordinates):
        raise NotManager(f"Coordinators of the account {owner} in Slurm make its folders, and administrators.")
    if own >= most:
        whose = "You have" if kind is OwnerKind.USER else f"The account {owner} has"
        raise FolderRefused(f"{whose} {own} folders, which is the most. Delete one first.", reason="too-many")


def checked_expiry(expires: float, now: float) -> float:
    """Return when a membership ends, 0 = never."""
    if expires and not now < expires < now + 3660 * DAY:
        raise FolderRefused("A membership ends in the future, within ten years; leave it empty for no end.")
    return expires


def invite(
    folder: Folder,
    members: Sequence[Member],
    kind: SubjectKind,
    subject: str,
    role: str,
    expires: float,
    actor: Actor,
    now: float,
) -> Member:
    """Return the row of an invitation: a new one (id 0), or that of an earlier one of the same subject, changed."""
    require_there(folder)
    require_manager(folder, actor)
    if role not in ROLES:
        raise FolderRefused("A member reads (ro) or writes (rw).")
    if kind is SubjectKind.DATASET or not subject or len(subject) > 255 or not subject.isprintable():
        raise FolderRefused("Name a user, a group or an account.")
    if kind is SubjectKind.USER and is_owner(folder, subject):
        raise FolderRefused(f"{subject} owns the folder.")
    checked_expiry(expires, now)
    first = MemberState.PENDING if kind is SubjectKind.USER else MemberState.OPEN
    before = next((one for one in members if (one.kind, one.subject, one.via) == (kind, subject, 0)), None)
    if before is None:
        require_room(members, subject if kind is SubjectKind.USER else "", now)
        if sum(one.state in (MemberState.PENDING, MemberState.OPEN) for one in members) >= MOST_MEMBERS:
            raise FolderRefused(f"{MOST_MEMBERS} invitations have no answer yet. End some of them first.")
        return Member(0, folder.id, kind, subject, role, first, actor.name, now, expires=expires)
    if before.state in (MemberState.ACCEPTED, MemberState.OPEN, MemberState.PENDING):
        return before.replace(role=role, expires=expires)  # no new answer is needed
    return before.replace(role=role, expires=expires, state=first, invited_by=actor.name, invited=now, answered=0.0)


def require_room(members: Sequence[Member], user: str, now: float) -> None:
    """Refuse one member more than a folder can have."""
    users = {name for name, role in desired_roles(members, now).items() if role} | {user}
    if len(users) > MOST_MEMBERS:
        raise FolderRefused(f"A folder has at most {MOST_MEMBERS} members. Publish it, or use several folders.")


def accept(folder: Folder, invitation: Member, mine: Member | None, actor: Actor, now: float) -> Member:
    """Return the row by which somebody has access.

    Args:
        mine: an earlier row of the user by the same invitation of a group or an account.
    """
    require_there(folder)
    belongs = actor.belongs_to(invitation.kind, invitation.subject)
    if belongs is None:
        raise FolderRefused(f"It is not known at the moment who is in {invitation.subject}. Try again in a moment.")
    if not belongs:
        raise NoFolder
    if 0 < invitation.expires <= now:
        raise FolderRefused("The invitation has expired. Ask for a new one.")
    if invitation.kind is SubjectKind.USER:
        if invitation.state is MemberState.ACCEPTED:
            return invitation
        if invitation.state is not MemberState.PENDING:
            raise FolderRefused(f"The invitation is {invitation.state.value}. Ask for a new one.")
        return invitation.replace(state=MemberState.ACCEPTED, answered=now)
    if invitation.state is not MemberState.OPEN:
        raise FolderRefused(f"The invitation of {invitation.subject} is {invitation.state.value}.")
    if mine is not None:
        if mine.state is MemberState.REVOKED:
            raise FolderRefused("Your access has been ended. Ask to be invited by name.")
        return mine.replace(state=MemberState.ACCEPTED, answered=now, role=invitation.role, expires=invitation.expires)
    return Member(
        *(0, folder.id, SubjectKind.USER, actor.name, invitation.role, MemberState.ACCEPTED),
        *(invitation.invited_by, invitation.invited),
        via=invitation.id,
        answered=now,
        expires=invitation.expires,
    )


def decline(invitation: Member, mine: Member | None, actor: Actor, now: float) -> Member:
    """Return the row of somebody who does not want it; a group's other users may still accept theirs."""
    if not actor.belongs_to(invitation.kind, invitation.subject):
        raise NoFolder
    if invitation.kind is SubjectKind.USER:
        if invitation.state is not MemberState.PENDING:
            raise FolderRefused(f"The invitation is {invitation.state.value}, and cannot be declined.")
        return invitation.replace(state=MemberState.DECLINED, answered=now)
    row = mine or Member(
        *(0, invitation.folder, SubjectKind.USER, actor.name, invitation.role, MemberState.PENDING),
        *(invitation.invited_by, invitation.invited),
        via=invitation.id,
    )
    return row.replace(state=MemberState.DECLINED, answered=now)


def leave(folder: Folder, members: Sequence[Member], user: str, now: float) -> list[Member]:
    """Return the rows of a user who leaves a folder, or takes a dataset off the own list."""
    if is_owner(folder, user):
        raise FolderRefused("You own the folder. Hand it over, or delete it.")
    mine = [
        one
        for one in members
        if one.subject == user
        and one.kind in (SubjectKind.USER, SubjectKind.DATASET)
        and one.state is MemberState.ACCEPTED
    ]
    if not mine:
        raise NoFolder
    return [one.replace(state=MemberState.LEFT, answered=now) for one in mine]


def revoke(folder: Folder, members: Sequence[Member], member: int, actor: Actor, now: float) -> list[Member]:
    """Return the rows whose access ends: all of a user, or that of a group or an account and of all who came by it.

    Who came by a group's invitation cannot come by it again then.
    """
    require_manager(folder, actor)
    one = next((each for each in members if each.id == member), None)
    if one is None:
        raise FolderRefused("There is no such member.", reason="unknown")
    if one.kind is SubjectKind.USER and is_owner(folder, one.subject):
        raise FolderRefused("The owner keeps the folder. Hand it over first.")
    open_states = (MemberState.PENDING, MemberState.OPEN, MemberState.ACCEPTED)
    if one.kind is SubjectKind.USER:
        rows = [each for each in members if (each.kind, each.subject) == (one.kind, one.subject)]
    else:
        rows = [each for each in members if member in (each.id, each.via)]
    return [each.replace(state=MemberState.REVOKED, answered=now) for each in rows if each.state in open_states]


def offer_handover(folder: Folder, members: Sequence[Member], to: str, actor: Actor, now: float) -> Folder:
    """Return a folder whose owner wants somebody else to have it; "" takes that back."""
    require_there(folder)
    require_manager(folder, actor)
    if to and folder.owner_kind is OwnerKind.ACCOUNT:
        raise FolderRefused(f"The folder belongs to the account {folder.owner}, whose coordinators in Slurm manage it.")
    if to and is_owner(folder, to):
        raise FolderRefused(f"{to} owns the folder already.")
    if to and not any(one.subject == to and one.desired_role(now) for one in members):
        raise FolderRefused(f"{to} is no member yet. Invite {to}, and hand over once that is accepted.")
    return folder.replace(handover=to)


def ended(members: Sequence[Member], people: Collection[Actor], now: float) -> list[Member]:
    """Return the rows that end by themselves: whose time is over, and of users who are no more in a group.

    Args:
        people: of the users who came by a group or an account; who is not in it is not known at the moment.
    """
    by_name, by_id = {one.name: one for one in people}, {one.id: one for one in members}
    found = []
    for one in members:
        if one.state not in (MemberState.PENDING, MemberState.OPEN, MemberState.ACCEPTED):
            continue
        if 0 < one.expires <= now:
            found.append(one.replace(state=MemberState.EXPIRED, answered=now))
        elif one.via and one.state is MemberState.ACCEPTED:
            invitation, person = by_id.get(one.via), by_name.get(one.subject)
            if invitation is None or person is None:
                continue
            if person.belongs_to(invitation.kind, invitation.subject) is False:
                found.append(one.replace(state=MemberState.EXPIRED, answered=now))
    return found
