"""The hub's watch for idle sessions: what it needs of the registry, the policy and JupyterHub's users."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from jupyterhub import orm

from carme_hub.activity.idle_watch import IdleWatch, Surroundings
from carme_hub.domain.quotas.group_names import person_in
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import Person
from carme_hub.sessions.registry import SessionRegistry
from carme_hub.spawners.hub.idle.orderly_end import put_in_order
from carme_hub.store.activity import ActivityStore
from carme_hub.store.idle import IdleStore

#: Seconds for which a user's groups are known: a look asks for those of every user with a session.
PERSON_AGE = 300.0


class People:
    """The policy's view of the hub's users, from the hub's own database, which only the event loop may read."""

    def __init__(self, hub_db: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._hub_db, self._clock = hub_db, clock
        self._known: dict[str, tuple[float, Person]] = {}

    def person(self, name: str) -> Person:
        """Return a user; one who is not known to the hub any more has no groups."""
        at, known = self._known.get(name, (float("-inf"), Person(name)))
        if self._clock() - at > PERSON_AGE:
            user = self._hub_db().query(orm.User).filter_by(name=name).one_or_none()
            groups = [group.name for group in user.groups] if user is not None else []
            known = person_in(name, groups, admin=user is not None and bool(user.admin))
            self._known[name] = self._clock(), known
        return known


def idle_watch(
    engine: Any,
    cluster: str,
    activity: ActivityStore,
    registry: SessionRegistry,
    policy: Callable[[], Policy],
    hub_db: Callable[[], Any],
    cancel: Callable[[str, str], Awaitable[None]],
    spawner: Callable[[str], Any],
    log: logging.Logger,
) -> IdleWatch:
    """Return the watch of a hub; nothing runs yet. ``spawner``: of a session, None where JupyterHub has none."""
    hub = Surroundings(
        policy=policy,
        sessions=registry.open_sessions,
        # A batch job is none: it was submitted by the session, and goes on without it.
        companions=lambda id: sum(not each.request.batch for each in registry.companions_of(id)),
        person=People(hub_db).person,
        cancel=cancel,
        put_in_order=lambda session, key: put_in_order(spawner(session.id), session, key, log),
    )
    return IdleWatch(activity, IdleStore(engine, cluster), hub, log)
