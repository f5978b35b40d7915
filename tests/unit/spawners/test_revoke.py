"""The end of a session takes that session's token away, and nobody else's; only its own spawner is told."""

from __future__ import annotations

import asyncio
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub import orm
from traitlets.config import Config

from carme_hub.domain.sessions import Request, Session, SessionState
from carme_hub.spawners.shared import Shared


@pytest.fixture
def db() -> Any:
    opened = orm.new_session_factory("sqlite:///:memory:")()
    opened.add_all([orm.User(name="alice"), orm.Service(name="monitoring"), orm.OAuthClient(identifier="jupyterhub")])
    opened.commit()
    yield opened
    opened.close()
    opened.get_bind().dispose()


@pytest.fixture
async def shared(db: Any) -> Shared:
    return Shared(Config(), lambda: db, logging.getLogger("test"))


def _session(token: orm.APIToken) -> Session:
    request = Request(profile="cpu", image="default")
    return Session("id", "sandbox", "alice", "", request, SessionState.RUNNING, time.time(), token_id=token.id)


def _token(db: Any, owner: orm.User | orm.Service) -> orm.APIToken:
    return orm.APIToken.find(db, owner.new_api_token(note="Server at /user/alice/", scopes=[]))


async def test_the_token_of_an_ended_session_is_gone(db: Any, shared: Shared) -> None:
    alice = orm.User.find(db, "alice")
    token, other = _token(db, alice), _token(db, alice)
    session = _session(token)
    await shared.revoke(session)
    await shared.revoke(session)
    assert [t.id for t in db.query(orm.APIToken)] == [other.id]


@pytest.mark.parametrize("kind", ["the same user's next server", "a service"])
async def test_a_token_that_got_the_id_of_a_deleted_one_is_kept(db: Any, shared: Shared, kind: str) -> None:
    alice = orm.User.find(db, "alice")
    old = _token(db, alice)
    session = _session(old)
    db.delete(old)  # as JupyterHub does when it stops a server
    db.commit()
    new = _token(db, alice if kind.startswith("the same") else orm.Service.find(db, "monitoring"))
    assert new.id == session.token_id
    await shared.revoke(session)
    assert db.query(orm.APIToken).count() == 1


class SpawnerThatResumes:
    will_resume = True


async def test_a_spawner_that_resumes_keeps_its_token(db: Any, shared: Shared) -> None:
    session = _session(_token(db, orm.User.find(db, "alice")))
    spawner = SpawnerThatResumes()
    shared.register(session.id, spawner)
    await shared.revoke(session)
    assert db.query(orm.APIToken).count() == 1


class SpawnerThatCountsLooks:
    name = ""
    pending = None
    looks = 0

    def __init__(self, user: Any) -> None:
        self.user = user

    async def poll_and_notify(self) -> None:
        self.looks += 1


@pytest.mark.parametrize("replaced", [False, True])
async def test_only_the_spawner_of_the_server_that_is_there_now_is_told_of_an_end(
    db: Any, shared: Shared, replaced: bool
) -> None:
    session = _session(_token(db, orm.User.find(db, "alice"))).but(ended=1.0)
    user = SimpleNamespace(spawners={})
    old, new = SpawnerThatCountsLooks(user), SpawnerThatCountsLooks(user)
    user.spawners[""] = new if replaced else old
    shared.register(session.id, old)
    shared._tell_spawner(session)
    await asyncio.sleep(0)
    assert (old.looks, new.looks) == (0 if replaced else 1, 0)


async def test_the_token_of_a_server_that_never_had_a_session_is_gone_when_the_hub_starts(
    db: Any, shared: Shared
) -> None:
    alice = orm.User.find(db, "alice")
    cut_off, other = orm.Server(base_url="/user/alice/"), orm.Server(base_url="/user/alice/two/")
    db.add_all([orm.Spawner(user=alice, name="", server=cut_off), orm.Spawner(user=alice, name="two", server=other)])
    unborn, hers = _token(db, alice), orm.APIToken.find(db, alice.new_api_token(note="my laptop", scopes=[]))
    living = orm.APIToken.find(db, alice.new_api_token(note="Server at /user/alice/two/", scopes=[]))
    shared.book = BookOf(_session(living).but(server_name="two"))
    shared._revoke_unborn()
    assert {t.id for t in db.query(orm.APIToken)} == {hers.id, living.id} != {unborn.id}


class BookOf:
    """A book with one open session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def open_of(self, user: str, server_name: str) -> tuple[Session, ...]:
        mine = (self._session.user, self._session.server_name) == (user, server_name)
        return (self._session,) if mine else ()
