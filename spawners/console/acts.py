"""What the console does, for its pages and for REST: each act checked, done, and recorded with who and why."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from jupyterhub import orm

from carme_hub.administration.administration import Administration
from carme_hub.domain.administration import acts
from carme_hub.domain.administration.acts import Actor
from carme_hub.domain.administration.messages import Audience, Message
from carme_hub.domain.administration.start_stops import StartStop
from carme_hub.domain.administration.texts import BadAct, checked_reason, checked_text
from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import Refused, SlurmError, SlurmUnreachable
from carme_hub.slurm.cooperative import all_steps
from carme_hub.slurm.nodes import is_node_name
from carme_hub.slurm.reservations import default_partition
from carme_hub.spawners.console.rows import on_node
from carme_hub.spawners.hub.shared import HubContext

#: Sessions that one act stops.
MOST_SESSIONS = 200
#: Beginning of the reason that the user of a stopped session reads.
STOPPED = "Stopped by an administrator: "


class NoSession(Refused):
    """There is no such session, or it has ended already."""

    reason = "unknown"


@dataclass(frozen=True, slots=True)
class OnNode:
    """Who is on a node: sessions of the hub, and jobs (id, user, name) that came by other ways."""

    sessions: Sequence[Session]
    jobs: Sequence[tuple[int, str, str]]

    @property
    def users(self) -> list[str]:
        """All of them, by name."""
        return sorted({each.user for each in self.sessions} | {user for _, user, _ in self.jobs})


def administration(hub: HubContext) -> Administration:
    """Return the hub's part of administration."""
    if hub.administration is None:
        raise Refused("The hub is starting. Try it again in a moment.", reason="starting")
    return hub.administration


async def read_jobs(hub: HubContext) -> Snapshot:
    """Return the last snapshot of the queue with all jobs read.

    Raises:
        SlurmUnreachable: Slurm has not answered since the hub's start.
    """
    snapshot = hub.watcher.latest
    if snapshot is None:
        raise SlurmUnreachable("Slurm has not answered yet")
    await all_steps(snapshot.read_in_steps())
    return snapshot


async def who_is_on(hub: HubContext, node: str) -> OnNode:
    """Return who is on a node, as Slurm was last seen; errors as for ``read_jobs``."""
    snapshot = await read_jobs(hub)
    # By their user too: anybody may give a job the name of a session's.
    sessions = {(each.job_name, each.user): each for each in hub.registry.open_sessions()}
    here = on_node(snapshot.jobs.values(), node)
    ours = [sessions[job.name, job.user] for job in here if (job.name, job.user) in sessions]
    return OnNode(ours, [(job.id, job.user, job.name) for job in here if (job.name, job.user) not in sessions])


async def stop_session(hub: HubContext, by: Actor, id: str, reason: str) -> Session:
    """Stop a session; its user reads why.

    Raises:
        NoSession: it has ended. BadAct: the reason cannot be used. StoreError: it is not stored, and runs on.
    """
    session = hub.registry.current(id)
    if session is None:
        raise NoSession("There is no such session, or it has ended already.")
    why = f"{STOPPED}{checked_reason(reason)}"
    details = {"user": session.user, "server": session.server_name, "node": session.node}
    details |= {"account": session.request.account, "job": str(session.job_id)}
    details = {name: text for name, text in details.items() if text}
    await administration(hub).recorded(
        by, acts.STOP_SESSION, id, reason, lambda: hub.reconciler.cancel(id, why), details
    )
    return session


async def set_drained(hub: HubContext, by: Actor, node: str, reason: str, *, drained: bool) -> None:
    """Drain or resume a node; what runs on it continues.

    Raises:
        BadAct: the reason cannot be used. SlurmRejected: Slurm refused. SlurmUnreachable: it may or may not be done.
    """
    reason = checked_reason(reason)
    control = hub.settings.node_control(hub.client)
    details = {}
    if drained:
        details["users"] = ", ".join((await who_is_on(hub, node)).users)[:500]

    async def do() -> None:
        if drained:
            await control.drain(node, f"{reason} ({by.name})")
        else:
            await control.resume(node)

    action = acts.DRAIN if drained else acts.RESUME
    await administration(hub).recorded(by, action, node, reason, do, {k: v for k, v in details.items() if v})


async def note_update(hub: HubContext, by: Actor, node: str, reason: str, did: str, outcome: str) -> None:
    """Record what a rolling update did on a node through no call of this hub: the site's command, its health check.

    Args:
        did: what, as words. outcome: why it failed; "" = it is done.

    Raises:
        BadAct: a value cannot be used. StoreError: it is not stored.
    """
    if not is_node_name(node):
        raise BadAct(f"{node[:64]!r} is not the name of a node.", "node")
    did, outcome = checked_text(did, "did"), checked_text(outcome, "outcome") if outcome else ""
    await administration(hub).note(by, acts.UPDATE_NODE, node, reason, {"did": did}, outcome[:500])


async def send_message(
    hub: HubContext, db: Any, by: Actor, to: str, name: str, text: str, reason: str, ends: float, *, mail: bool
) -> Message:
    """Send a message.

    Args:
        db: the hub's own database. to: a value of ``Audience``. name: of the user, node, group or image.
        ends: 0 = usual.

    Raises:
        BadAct: a value cannot be used. SlurmUnreachable: it is not known who is on the node.
    """
    try:
        audience = Audience(to)
    except ValueError as error:
        raise BadAct(f"To is one of {', '.join(each.value for each in Audience)}.", "to") from error
    name = name.strip()
    if audience is not Audience.EVERYBODY and not name:
        raise BadAct(f"Name the {audience.value}.", "name")
    users = await _recipients(hub, db, audience, name)
    target = audience.value if audience is Audience.EVERYBODY else f"{audience.value} {name}"
    return await administration(hub).send(by, target, users, text, reason, ends, mail=mail)


async def _recipients(hub: HubContext, db: Any, audience: Audience, name: str) -> list[str]:
    if audience is Audience.EVERYBODY:
        return [user for (user,) in db.query(orm.User.name)]
    if audience is Audience.USER:
        if orm.User.find(db, name) is None:
            raise BadAct(f"There is no user {name[:64]} in this hub.", "name")
        return [name]
    if audience is Audience.GROUP:
        group = orm.Group.find(db, name)
        if group is None:
            raise BadAct(f"There is no group {name[:64]} in this hub.", "name")
        return [user.name for user in group.users]
    if audience is Audience.IMAGE:
        return sorted({each.user for each in hub.registry.open_sessions() if each.request.image == name})
    return (await who_is_on(hub, name)).users


async def stop_starts(
    hub: HubContext,
    by: Actor,
    reason: str,
    profile: str,
    partition: str,
    until: float,
    *,
    profiles: Collection[str] = (),
) -> StartStop:
    """Stop new starts of a profile or partition, or all.

    Args:
        profiles: slugs of the site's profiles; () = they are not known, and any is taken.

    Raises:
        BadAct: a value cannot be used. SlurmError: Slurm does not say what its default partition is.
    """
    profile, partition = profile.strip(), partition.strip()
    is_default = False
    if profile and profiles and profile not in profiles:
        raise BadAct(f"There is no profile {profile[:64]}. There are: {', '.join(profiles)}.", "profile")
    if partition:
        names = {name for node in await hub.watcher.nodes(60.0) for name in node.partitions}
        if partition not in names:
            raise BadAct(f"There is no partition {partition[:64]}. There are: {', '.join(sorted(names))}.", "partition")
        is_default = await default_partition(hub.settings.commands()) == partition
    return await administration(hub).stop_starts(by, reason, profile, partition, until, is_default=is_default)


def said(error: Exception) -> str:
    """Return why an act was not done, for who wanted it."""
    if isinstance(error, Refused):
        return error.message
    if isinstance(error, SlurmUnreachable):
        return f"Slurm does not answer; it may or may not be done. Look at the list before you try it again. ({error})"
    if isinstance(error, SlurmError):
        return str(error)
    return "The database does not answer, so nothing was changed. Try it again in a moment."


def until_words(at: float, clock: Any) -> str:
    """Return a time as words, "until it is allowed again" for none."""
    return f"until {clock(at, time.time())}" if at else "until they are allowed again"
