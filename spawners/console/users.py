"""Who is locked out of the hub, and what `carme-hub users offboard` did: each act checked, done and recorded."""

from __future__ import annotations

from typing import Any

from jupyterhub import orm

from carme_hub.domain.administration import acts as kinds
from carme_hub.domain.administration.acts import Act, Actor
from carme_hub.domain.administration.texts import BadAct, checked_text
from carme_hub.spawners.console.acts import administration
from carme_hub.spawners.hub.shared import HubContext

_LONGEST_NAME = 255


def locked_users(hub: HubContext) -> list[Act]:
    """Return the act that locked each user who is locked now, by user."""
    return administration(hub).locked.all()


async def lock_user(hub: HubContext, db: Any, by: Actor, user: str, reason: str) -> Act:
    """Lock a user, and end their logins; sessions and tokens are others' to end.

    Args:
        db: the hub's own database.

    Raises:
        BadAct: a value cannot be used. StoreError: the user is not locked.
    """
    lock = await administration(hub).lock_user(by, _name(user), reason)
    known = orm.User.find(db, user)
    if known is not None:
        known.cookie_id = orm.new_token()
        db.commit()
    return lock


async def unlock_user(hub: HubContext, by: Actor, user: str, reason: str) -> None:
    """Let a user in again.

    Raises:
        BadAct: the reason cannot be used. Unknown: the user is not locked. StoreError: the user still is.
    """
    await administration(hub).unlock_user(by, user, reason)


async def note_offboarding(hub: HubContext, by: Actor, user: str, reason: str, did: str, outcome: str) -> None:
    """Record a step of an offboarding.

    Args:
        did: what, as words. outcome: why it is not done; "" = it is done.

    Raises:
        BadAct: a value cannot be used. StoreError: it is not stored.
    """
    did, outcome = checked_text(did, "did"), checked_text(outcome, "outcome") if outcome else ""
    await administration(hub).note(by, kinds.OFFBOARD_USER, _name(user), reason, {"did": did}, outcome[:500])


def lock_json(lock: Act) -> dict[str, Any]:
    """Return a lock for programs."""
    return {"user": lock.target, "at": lock.at, "actor": lock.actor.name, "reason": lock.reason}


def _name(user: str) -> str:
    if not user.strip() or len(user) > _LONGEST_NAME or not user.isprintable():
        raise BadAct(f"{user[:64]!r} is not the name of a user.", "name")
    return user
