"""The functions of the REST operations on folders: each parses, calls one use case, and renders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from carme_hub.domain.folders.folder import FolderState, MemberState, SubjectKind, is_owner
from carme_hub.domain.folders.mounts import PLACE
from carme_hub.domain.folders.rules import Actor, require_manager
from carme_hub.folders.folders import managed, role_of
from carme_hub.services.folders.rest import models
from carme_hub.services.folders.scopes import ADMIN
from carme_hub.services.rest import Call, NotOwner
from carme_hub.store.folders.store import WithMembers


async def actor_of(call: Call) -> Actor:
    """Return who calls."""
    admin = call.handler.has_scope(ADMIN)
    if not call.visitor.is_user and not admin:
        raise NotOwner("A service needs the scope for everybody's folders.")
    found: Actor = await call.service.people.actor(call.visitor, admin=admin)
    return found


async def listed(call: Call) -> models.FoldersOut:
    """Return the caller's folders, or all."""
    actor = await actor_of(call)
    if call.query.all and not actor.admin:
        raise NotOwner("Administrators see everybody's folders.")
    limit, cursor = call.query.limit, call.query.cursor
    if call.query.all:
        found = await call.service.folders.every(after=cursor, most=limit + 1)
    else:
        found = await call.service.folders.of(actor, after=cursor)
    return _page(call, found, actor)


def _page(call: Call, found: Sequence[WithMembers], actor: Actor) -> models.FoldersOut:
    limit = call.query.limit
    shown = [folder_out(call.service, one, actor) for one in found[:limit]]
    return models.FoldersOut(folders=shown, next=shown[-1].name if len(found) > limit else "")


async def datasets(call: Call) -> models.FoldersOut:
    """Return published datasets."""
    actor = await actor_of(call)
    query = call.query
    found = await call.service.folders.datasets(query.words, after=query.cursor, most=query.limit + 1)
    return _page(call, found, actor)


async def one(call: Call) -> models.FolderOut:
    """Return a folder."""
    actor = await actor_of(call)
    return folder_out(call.service, await call.service.folders.one(_id(call), actor), actor)


async def create(call: Call) -> models.FolderOut:
    """Make a folder."""
    actor, body = await actor_of(call), call.body
    more = {"account": body.account, "root": body.root, "description": body.description}
    return folder_out(call.service, await call.service.folders.create(body.name, actor, **more), actor)


async def describe(call: Call) -> models.FolderOut:
    """Change what is said of a folder."""
    changes = call.body.model_dump(exclude_none=True)
    return await _done(call, "describe", changes)


async def invite(call: Call) -> models.FolderOut:
    """Invite somebody."""
    body = call.body
    kind = SubjectKind(body.kind)
    return await _done(call, "invite", kind, body.subject, body.role, float(body.expires or 0))


async def revoke(call: Call) -> models.FolderOut:
    """End somebody's access."""
    return await _done(call, "revoke", int(call.path_parameters["member"]))


async def answer(call: Call) -> models.FolderOut:
    """Accept or decline."""
    return await _done(call, "accept" if call.body.accepted else "decline", call.body.invitation)


async def leave(call: Call) -> dict[str, Any]:
    """Leave a folder."""
    await call.service.folders.leave(_id(call), await actor_of(call))
    return {}


async def keep(call: Call) -> models.FolderOut:
    """Put a dataset on the caller's list."""
    return await _done(call, "keep_dataset")


async def offer_handover(call: Call) -> models.FolderOut:
    """Offer a folder to a member."""
    return await _done(call, "offer_handover", call.body.to)


async def answer_handover(call: Call) -> models.FolderOut:
    """Become the owner, or not."""
    return await _done(call, "accept_handover", call.body.accepted)


async def apply_again(call: Call) -> models.FolderOut:
    """Apply the whole desired state."""
    return await _done(call, "apply_again")


async def delete(call: Call) -> dict[str, Any]:
    """Delete a folder."""
    await call.service.folders.delete(_id(call), await actor_of(call), call.query.name)
    return {}


async def scan(call: Call) -> models.FilesOut:
    """Count what members cannot use."""
    return models.FilesOut(**await call.service.folders.scan(_id(call), await actor_of(call)))


async def repair(call: Call) -> models.FilesOut:
    """Mend the caller's own files."""
    return models.FilesOut(**await call.service.folders.repair(_id(call), await actor_of(call)))


async def sessions(call: Call) -> models.SessionsOut:
    """Return the sessions that have a folder, for who manages it."""
    actor = await actor_of(call)
    found = await call.service.folders.one(_id(call), actor)
    require_manager(found.folder, actor)
    rows = await call.service.sessions.of(found)
    return models.SessionsOut(
        sessions=[
            models.SessionOut(
                session=row.session,
                user=row.user,
                server_name=row.server_name,
                mode=row.mode,
                created=int(row.created),
                lost=row.lost,
            )
            for row in rows
        ]
    )


async def end_sessions(call: Call) -> models.SessionsOut:
    """End the sessions whose users should not have the folder any more; return the rest."""
    actor = await actor_of(call)
    found = await call.service.folders.one(_id(call), actor)
    require_manager(found.folder, actor)
    for row in await call.service.sessions.end_lost(found):
        call.service.log.info(
            "%s ended the session %s of %s for folder %s", actor.name, row.session, row.user, _id(call)
        )
    return await sessions(call)


async def events(call: Call) -> models.EventsOut:
    """Return what was done with a folder, for who manages it."""
    actor = await actor_of(call)
    found = await call.service.folders.one(_id(call), actor)
    require_manager(found.folder, actor)
    rows = await call.service.folders.events(found.folder.id)
    return models.EventsOut(
        events=[models.EventOut(at=int(row.at), actor=row.actor, act=row.act, about=row.about) for row in rows]
    )


async def health(call: Call) -> models.HealthOut:
    """Return how the folders are kept."""
    reconciler, every = call.service.reconciler, await call.service.folders.every()
    return models.HealthOut(
        compared=int(reconciler.compared),
        problem=reconciler.problem,
        folders=len(every),
        not_applied=[each.folder.name for each in every if each.folder.problem],
        drifted=[each.folder.name for each in every if each.folder.drift],
        unknown_on_disk=reconciler.unknown_on_disk,
    )


async def _done(call: Call, act: str, *arguments: Any) -> models.FolderOut:
    actor = await actor_of(call)
    found = await getattr(call.service.folders, act)(_id(call), actor, *arguments)
    call.service.log.info("%s: %s of folder %s", actor.name, act, found.folder.name)
    return folder_out(call.service, found, actor)


def _id(call: Call) -> str:
    return call.path_parameters["id"]


def folder_out(service: Any, found: WithMembers, actor: Actor) -> models.FolderOut:
    """Return a folder as the caller may see it: members see who manages it, and not who else is in it."""
    folder, decides = found.folder, managed(found, actor)
    mine = [row for row in found.members if decides or row.subject == actor.name]
    there = folder.state is FolderState.READY
    return models.FolderOut(
        id=folder.id,
        name=folder.name,
        owner_kind=folder.owner_kind.value,
        owner=folder.owner,
        state=folder.state.value,
        place=f"{PLACE}/{folder.name}",
        path=service.settings.source(folder.root, folder.id) if there else "",
        description=folder.description,
        licence=folder.licence,
        checksums=folder.checksums,
        dataset=folder.dataset,
        published=folder.published,
        created=int(folder.created),
        my_role=role_of(found, actor, time.time()),
        managed=decides,
        invitations=invitations(found, actor),
        handover=folder.handover if decides or folder.handover == actor.name else "",
        problem=folder.problem if decides else "",
        drift=list(folder.drift) if decides else [],
        verified=folder.verified,
        warnings=[each.text for each in service.disk.known(folder.id).warnings],
        members=[
            models.MemberOut(
                id=row.id,
                kind=row.kind.value,
                subject=row.subject,
                role=row.role,
                state=row.state.value,
                invited_by=row.invited_by,
                invited=int(row.invited),
                answered=int(row.answered),
                expires=int(row.expires),
                via=row.via,
                on_disk=row.applied if row.kind is SubjectKind.USER else "",
            )
            for row in mine
        ],
    )


def invitations(found: WithMembers, actor: Actor) -> list[int]:
    """Return the invitations that somebody has not answered yet."""
    if is_owner(found.folder, actor.name):
        return []
    mine = [row for row in found.members if row.subject == actor.name and row.via]
    answered = {row.via for row in mine if row.state is not MemberState.EXPIRED}
    return [
        row.id
        for row in found.members
        if row.state in (MemberState.PENDING, MemberState.OPEN)
        and row.id not in answered
        and not row.via
        and row.kind is not SubjectKind.DATASET
        and actor.belongs_to(row.kind, row.subject)
    ]
