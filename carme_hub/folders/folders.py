"""What people do with shared folders. REST, pages and the command line call these functions.

Each stores the desired state in one transaction, together with the event that says who did it, and has it applied.
Where that fails, the desired state stays, the folder says why, and the reconciler tries again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from carme_hub.domain.folders import rules
from carme_hub.domain.folders.folder import (
    WRITER,
    Folder,
    FolderState,
    Member,
    MemberState,
    OwnerKind,
    SubjectKind,
    desired_roles,
    is_owner,
)
from carme_hub.domain.folders.reconciliation import UNKNOWN
from carme_hub.domain.folders.rules import Actor, FolderRefused, NoFolder
from carme_hub.folders.program import FolderError, FolderProgram
from carme_hub.folders.settings import CarmeFolders
from carme_hub.store.folders.store import Event, FolderStore, WithMembers, Written
from carme_hub.store.threads import in_store_thread

#: Applies the desired state of one folder at once (``reconciler.FolderReconciler.apply``).
Apply = Callable[[str], Awaitable[WithMembers | None]]
#: Folders whose files are looked at for people at the same time: each costs a process of root's.
_MOST_LOOKS = 4


class Folders:
    """The folders of one cluster."""

    def __init__(
        self,
        settings: CarmeFolders,
        store: FolderStore,
        program: FolderProgram,
        apply: Apply,
        cluster: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._store, self._program = settings, store, program
        self._apply, self._cluster, self._clock = apply, cluster, clock
        #: Ids of folders whose files somebody has counted or mended at the moment.
        self._looked_at: set[str] = set()

    # -- reads --------------------------------------------------------------------------------------------------------

    async def of(self, actor: Actor, after: str = "") -> list[WithMembers]:
        """Return the folders that somebody owns, manages, is a member of or is invited to, by name.

        Args:
            after: only those with a later name.
        """
        groups, accounts = tuple(actor.groups or ()), (*(actor.accounts or ()), *actor.coordinates)
        found = await in_store_thread(self._store.of_user, actor.name, groups, accounts, after)
        return [one for one in found if rules.manages(one.folder, replace(actor, admin=False)) or _live(one, actor)]

    @staticmethod
    def sees(found: WithMembers, actor: Actor) -> bool:
        """Return whether somebody may know of a folder."""
        return rules.manages(found.folder, actor) or found.folder.published or _live(found, actor)

    async def one(self, id: str, actor: Actor) -> WithMembers:
        """Return a folder by its id or name; raise ``NoFolder`` where somebody may not know of it."""
        found = await in_store_thread(self._store.get, id)
        if found is None or not self.sees(found, actor):
            raise NoFolder
        return found

    async def every(self, words: str = "", after: str = "", most: int = 0) -> list[WithMembers]:
        """Return all folders whose name, description, licence or owner have all the words, for administrators.

        Args:
            after: only those with a later name. most: how many, 0 = all.
        """
        return await in_store_thread(self._store.every, words, after, most)

    async def datasets(self, words: str, after: str = "", most: int = 100) -> list[WithMembers]:
        """Return the published datasets that have all the words; ``after`` and ``most`` as for ``every``."""
        return await in_store_thread(self._store.datasets, words, after, most)

    async def events(self, id: str) -> list[Event]:
        """Return what was done with a folder, the newest first."""
        return await in_store_thread(self._store.events, id)

    # -- acts of who manages a folder ---------------------------------------------------------------------------------

    async def create(
        self, name: str, actor: Actor, *, account: str = "", root: str = "", description: str = ""
    ) -> WithMembers:
        """Make a folder of the actor or of an account that the actor coordinates; the actor is its first writer."""
        kind, owner = (OwnerKind.ACCOUNT, account) if account else (OwnerKind.USER, actor.name)
        now, root = self._clock(), root or next(iter(self._settings.roots), "")
        if root not in self._settings.roots:
            known = ", ".join(self._settings.roots)
            raise FolderRefused(f"Folders are not made in “{root}” here. Choose one of: {known}.")
        folder = Folder(
            *(secrets.token_hex(6), self._cluster, rules.checked_name(name), kind, owner, root, actor.name, now),
            description=rules.checked_description(description),
        )

        def most(own: int) -> None:
            rules.may_create(actor, kind, owner, own, self._settings.max_folders)

        first = _writer(folder.id, actor.name, now).replace(answered=now)
        await in_store_thread(self._store.create, folder, first, Event(now, actor.name, "created"), most)
        return await self._applied(folder.id)

    async def describe(self, id: str, actor: Actor, changes: Mapping[str, Any]) -> WithMembers:
        """Change what is said of a folder: ``description``, ``licence``, ``checksums``, ``dataset``, ``published``."""
        new = dict(changes)
        for name, check in (("description", rules.checked_description), ("checksums", rules.checked_file)):
            if name in new:
                new[name] = check(new[name])
        if "licence" in new:
            new["licence"] = rules.checked_text(new["licence"], "The licence")

        def rule(folder: Folder, _members: Sequence[Member]) -> Written:
            rules.require_there(folder)
            rules.require_manager(folder, actor)
            changed = folder.replace(**new)
            if changed.checksums != folder.checksums:
                changed = changed.replace(verified="")  # that was of another list
            if changed.published and not (changed.dataset and changed.description and changed.licence):
                raise FolderRefused("A published folder is a dataset with a description and a licence. Fill them in.")
            said = ", ".join(sorted(new))
            return Written(changed, event=Event(self._clock(), actor.name, "described", said))

        return await self._change(id, actor, rule)

    async def invite(
        self, id: str, actor: Actor, kind: SubjectKind, subject: str, role: str, expires: float = 0.0
    ) -> WithMembers:
        """Invite a user, a group or an account; or change what an invitation lets them do and until when."""

        def rule(folder: Folder, members: Sequence[Member]) -> Written:
            now = self._clock()
            row = rules.invite(folder, members, kind, subject, role, expires, actor, now)
            of_group = [one.replace(role=role, expires=expires) for one in members if row.id and one.via == row.id]
            about = f"{kind.value} {subject}, to {'read and write' if role == WRITER else 'read'}"
            return Written(members=[row, *of_group], event=Event(now, actor.name, "invited", about))

        return await self._change(id, actor, rule)

    async def revoke(self, id: str, actor: Actor, member: int) -> WithMembers:
        """End the access of a member, or of a group or an account and all who came by it."""

        def rule(folder: Folder, members: Sequence[Member]) -> Written:
            now = self._clock()
            rows = rules.revoke(folder, members, member, actor, now)
            about = ", ".join(dict.fromkeys(f"{one.kind.value} {one.subject}" for one in rows))
            out = folder.handover in {one.subject for one in rows}
            changed = folder.replace(handover="") if out else None
            return Written(changed, rows, Event(now, actor.name, "revoked", about))

        return await self._change(id, actor, rule)

    async def offer_handover(self, id: str, actor: Actor, to: str) -> WithMembers:
        """Offer a folder to a member, who becomes its owner by accepting; "" takes the offer back."""

        def rule(folder: Folder, members: Sequence[Member]) -> Written:
            now = self._clock()
            changed = rules.offer_handover(folder, members, to, actor, now)
            return Written(changed, event=Event(now, actor.name, "handover-offered", to))

        return await self._change(id, actor, rule)

    async def delete(self, id: str, actor: Actor, confirmed_name: str) -> WithMembers:
        """Delete a folder and all that is in it, once its name was repeated."""

        def rule(folder: Folder, members: Sequence[Member]) -> Written:
            rules.require_manager(folder, actor)
            if confirmed_name != folder.name:
                raise FolderRefused(f"Type the folder's name, {folder.name}, to delete it with all that is in it.")
            now = self._clock()
            live = (MemberState.PENDING, MemberState.OPEN, MemberState.ACCEPTED)
            gone = [one.replace(state=MemberState.REVOKED, answered=now) for one in members if one.state in live]
            changed = folder.replace(state=FolderState.REMOVING, published=False, handover="")
            return Written(changed, gone, Event(now, actor.name, "deleted"))

        return await self._change(id, actor, rule)

    # -- acts of members ----------------------------------------------------------------------------------------------

    async def accept(self, id: str, actor: Actor, invitation: int) -> WithMembers:
        """Accept an invitation."""

        def rule(folder: Folder, members: Sequence[Member]) -> Written:
            now = self._clock()
            row = rules.accept(folder, *_invitation(members, invitation, actor), actor, now)
            rules.require_room(members, actor.name, now)
            return Written(members=[row], event=Event(now, actor.name, "accepted"))

        return await self._change(id, actor, rule)

    async def decline(self, id: str, actor: Actor, invitation: int) -> WithMembers:
        """Decline an invitation."""

        def rule(_folder: Folder, members: Sequence[Member]) -> Written:
            now = self._clock()
            row = rules.decline(*_invitation(members, invitation, actor), actor, now)
            return Written(members=[row], event=Event(now, actor.name, "declined"))

        return await self._change(id, actor, rule)

    async def leave(self, id: str, actor: Actor) -> WithMembers:
        """Leave a folder, or take a dataset off the own list."""

        def rule(folder: Folder, members: Sequence[Member]) -> Written:
            now = self._clock()
            return Written(members=rules.leave(folder, members, actor.name, now), event=Event(now, actor.name, "left"))

        return await self._change(id, actor, rule)

    async def accept_handover(self, id: str, actor: Actor, accepted: bool) -> WithMembers:
        """Become the owner of a folder that was offered, or refuse it; who had it stays a writer."""
        if accepted:
            own = await in_store_thread(self._store.owned, OwnerKind.USER, actor.name)
            rules.may_create(actor, OwnerKind.USER, actor.name, own, self._settings.max_folders)

        def rule(folder: Folder, members: Sequence[Member]) -> Written:
            now = self._clock()
            if folder.handover != actor.name:
                raise FolderRefused("This folder is not offered to you.")
            if not accepted:
                return Written(folder.replace(handover=""), event=Event(now, actor.name, "handover-declined"))
            if not desired_roles(members, now).get(actor.name):
                raise FolderRefused("You are no member of this folder any more. Ask to be invited again.")
            changed = folder.replace(handover="", owner_kind=OwnerKind.USER, owner=actor.name)
            mine = next((one for one in members if (one.kind, one.subject, one.via) == _own(actor.name)), None)
            row = (mine or _writer(folder.id, actor.name, now)).replace(
                role=WRITER, state=MemberState.ACCEPTED, answered=now, expires=0.0
            )
            event = Event(now, actor.name, "handed-over", f"from {folder.owner}")
            return Written(changed, [_with_applied(row, members)], event)

        return await self._change(id, actor, rule)

    async def keep_dataset(self, id: str, actor: Actor) -> WithMembers:
        """Put a published dataset on the actor's own list, which the form of a start shows."""

        def rule(folder: Folder, members: Sequence[Member]) -> Written:
            if not folder.published:
                raise NoFolder
            now = self._clock()
            mine = next((one for one in members if (one.kind, one.subject) == (SubjectKind.DATASET, actor.name)), None)
            row = mine or _writer(folder.id, actor.name, now).replace(kind=SubjectKind.DATASET, role="ro")
            return Written(members=[row.replace(state=MemberState.ACCEPTED, answered=now)])

        return await self._change(id, actor, rule)

    async def repair(self, id: str, actor: Actor) -> Mapping[str, Any]:
        """Let the members use the actor's own files, and count what they cannot use of others'."""
        return await self._looked(id, actor, actor.name)

    async def scan(self, id: str, actor: Actor) -> Mapping[str, Any]:
        """Count what members cannot use."""
        return await self._looked(id, actor)

    async def apply_again(self, id: str, actor: Actor) -> WithMembers:
        """Write the whole desired state to the file system, over what somebody changed there by hand."""

        def rule(folder: Folder, members: Sequence[Member]) -> Written:
            rules.require_there(folder)
            rules.require_manager(folder, actor)
            again = [one.replace(applied=UNKNOWN) for one in members if one.kind is SubjectKind.USER and one.uid]
            changed = folder.replace(drift=(), drift_since=0.0, published_applied=not folder.published, spread=())
            return Written(changed, again, Event(self._clock(), actor.name, "applied-again"))

        return await self._change(id, actor, rule)

    # -- what they share ----------------------------------------------------------------------------------------------

    async def _change(self, id: str, actor: Actor, rule: Callable[[Folder, Sequence[Member]], Written]) -> WithMembers:
        found = await self.one(id, actor)
        await in_store_thread(self._store.change, found.folder.id, rule)
        return await self._applied(found.folder.id)

    async def _applied(self, id: str) -> WithMembers:
        done = await self._apply(id)
        if done is None:
            raise NoFolder
        return done

    async def _looked(self, id: str, actor: Actor, mended_for: str = "") -> Mapping[str, Any]:
        """Have root go through all files: for who is in the folder or manages it, and one at a time."""
        folder = (found := await self.one(id, actor)).folder
        if not (role_of(found, actor, self._clock()) or rules.manages(folder, actor)):
            raise FolderRefused("Only members have the files looked at.", reason="not-yours")
        if folder.id in self._looked_at or len(self._looked_at) >= _MOST_LOOKS:
            raise FolderRefused("Somebody has the files looked at already. Try again in a minute.", reason="busy")
        self._looked_at.add(folder.id)
        try:
            if mended_for:
                return await self._program.repair(folder.root, folder.id, mended_for)
            return await self._program.scan(folder.root, folder.id)
        except FolderError as error:
            raise FolderRefused(f"The files cannot be looked at now: {error.message}.", reason=error.reason) from error
        finally:
            self._looked_at.discard(folder.id)


def _invitation(members: Sequence[Member], id: int, actor: Actor) -> tuple[Member, Member | None]:
    """Return an invitation, and the actor's own row by it; id 0: the first one that the actor can answer."""
    answerable = (MemberState.PENDING, MemberState.OPEN)
    for one in members:
        if one.id != id and (id or one.state not in answerable or one.via):
            continue
        if one.kind is not SubjectKind.DATASET and actor.belongs_to(one.kind, one.subject) is not False:
            mine = next((each for each in members if (each.subject, each.via) == (actor.name, one.id)), None)
            if not id and mine is not None and mine.state is MemberState.REVOKED:
                continue
            return one, mine
    raise NoFolder


def _live(found: WithMembers, actor: Actor) -> bool:
    """Return whether somebody is in a folder, invited to it, or has it on the own list."""
    live = (MemberState.PENDING, MemberState.OPEN, MemberState.ACCEPTED)
    ended = {one.via for one in found.members if one.subject == actor.name and one.state is MemberState.REVOKED}
    for one in found.members:
        if one.id in ended:  # the invitation of a group, which does not let this user in any more
            continue
        kind = SubjectKind.USER if one.kind is SubjectKind.DATASET else one.kind
        if one.state in live and actor.belongs_to(kind, one.subject):
            return True
    return False


def _own(user: str) -> tuple[SubjectKind, str, int]:
    return SubjectKind.USER, user, 0


def _writer(folder: str, user: str, now: float) -> Member:
    return Member(0, folder, SubjectKind.USER, user, WRITER, MemberState.ACCEPTED, user, now)


def _with_applied(row: Member, members: Sequence[Member]) -> Member:
    """Return a row that knows what was last applied for its user by any row."""
    known = next((one for one in members if one.subject == row.subject and one.uid), None)
    return row if known is None or row.uid else row.replace(applied=known.applied, uid=known.uid)


def managed(found: WithMembers, actor: Actor) -> bool:
    """Return whether somebody decides about a folder."""
    return rules.manages(found.folder, actor)


def role_of(found: WithMembers, actor: Actor, now: float) -> str:
    """Return what a user may do with the files, "owner" for the owner."""
    if is_owner(found.folder, actor.name):
        return "owner"
    mine = [one.desired_role(now) for one in found.members if one.subject == actor.name]
    return WRITER if WRITER in mine else next(filter(None, mine), "")
