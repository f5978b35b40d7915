"""A lock keeps a user out until it is taken away, over restarts of the hub, and is recorded with who and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_administration import ADA, Site

from carme_hub.administration.administration import Administration, Unknown
from carme_hub.administration.locked_users import LockedUsers
from carme_hub.domain.administration.acts import Actor
from carme_hub.domain.administration.texts import BadAct

BOB = Actor("bob", "rest")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def restarted(site: Site) -> Administration:
    found = Administration(site.store, site.reported.append, lambda _at: "18:00", site.clock, LockedUsers())
    await found.load()
    return found


def names(hub: Administration) -> list[str]:
    return [lock.target for lock in hub.locked.all()]


async def test_a_lock_outlasts_restarts_until_it_is_taken_away(site: Site) -> None:
    hub = await restarted(site)
    first = await hub.lock_user(ADA, "alice", "Her contract\nhas ended")
    assert (first.actor.name, first.reason, first.outcome) == ("ada", "Her contract has ended", "done")
    await hub.lock_user(ADA, "zoe", "x")
    assert await hub.lock_user(BOB, "alice", "again") == first, "it was there already"
    hub = await restarted(site)
    assert names(hub) == ["alice", "zoe"]
    await hub.unlock_user(BOB, "alice", "She stays")
    assert names(hub) == names(await restarted(site)) == ["zoe"]
    hub = await restarted(site)
    await hub.lock_user(ADA, "alice", "now")
    assert names(await restarted(site)) == ["alice", "zoe"]
    assert [(act.action, act.actor.name, act.target) for act in site.reported] == [
        *(("lock-user", "ada", "alice"), ("lock-user", "ada", "zoe")),
        *(("unlock-user", "bob", "alice"), ("lock-user", "ada", "alice")),
    ]


async def test_nobody_locks_themselves_out_or_without_a_reason(site: Site) -> None:
    hub = await restarted(site)
    with pytest.raises(BadAct, match="yourself"):
        await hub.lock_user(ADA, "ada", "x")
    with pytest.raises(BadAct, match="Say why"):
        await hub.lock_user(ADA, "alice", " ")
    with pytest.raises(Unknown, match="alice is not locked"):
        await hub.unlock_user(ADA, "alice", "x")
    assert (names(hub), site.reported) == ([], [])


async def test_the_schema_of_events_knows_the_acts(site: Site) -> None:
    hub = await site.start()
    try:
        await hub.lock_user(ADA, "alice", "x")
        await hub.note(ADA, "offboard-user", "alice", "x", {"did": "sessions: 1 stopped"})
        await hub.unlock_user(ADA, "alice", "y")
    finally:
        hub.locked.replace(())  # of this process
    assert [each["action"] for each in site.audit()] == ["lock-user", "offboard-user", "unlock-user"]
