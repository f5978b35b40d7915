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

from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.spawners.hub.shared import HubContext


@pytest.fixture
def db() -> Any:
    opened = orm.new_session_factory("sqlite:///:memory:")()
    opened.add_all([orm.User(name="alice"), orm.Service(name="monitoring"), orm.OAuthClient(identifier="jupyterhub")])
    opened.commit()
    yield opened
    opened.close()
    opened.get_bind().dispose()


@pytest.fixture
async def shared(db: Any) -> HubContext:
    shared = HubContext(Config(), lambda: db, logging.getLogger("test"))
    shared.registry = BookOf()
    return shared


def _session(token: orm.APIToken) -> Session:
    request = Request(profile="cpu", image="default")
    return Session("id", "sandbox", "alice", "", request, SessionState.RUNNING, time.time(), token_id=token.id)


def _token(db: Any, owner: orm.User | orm.Service) -> orm.APIToken:
    return orm.APIToken.find(db, owner.new_api_token(note="Server at /user/alice/", scopes=[]))


async def test_the_token_of_an_ended_session_is_gone(db: Any, shared: HubContext) -> None:
    alice = orm.User.find(db, "alice")
    token, other = _token(db, alice), _token(db, alice)
    session = _session(token)
    await shared.revoke(session)
    await shared.revoke(session)
    assert [t.id for t in db.query(orm.APIToken)] == [other.id]


@pytest.mark.parametrize("kind", ["the same user's next server", "a service"])
async def test_a_token_that_got_the_id_of_a_deleted_one_is_kept(db: Any, shared: HubContext, kind: str) -> None:
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


async def test_a_spawner_that_resumes_keeps_its_token(db: Any, shared: HubContext) -> None:
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
    db: Any, shared: HubContext, replaced: bool
) -> None:
    session = _session(_token(db, orm.User.find(db, "alice"))).replace(ended=1.0)
    user = SimpleNamespace(spawners={})
    old, new = SpawnerThatCountsLooks(user), SpawnerThatCountsLooks(user)
    user.spawners[""] = new if replaced else old
    shared.register(session.id, old)
    shared._notify_spawner(session)
    await asyncio.sleep(0)
    assert (old.looks, new.looks) == (0 if replaced else 1, 0)


async def test_the_token_of_a_server_that_never_had_a_session_is_gone_when_the_hub_starts(
    db: Any, shared: HubContext
) -> None:
    alice = orm.User.find(db, "alice")
    cut_off, other = orm.Server(base_url="/user/alice/"), orm.Server(base_url="/user/alice/two/")
    db.add_all([orm.Spawner(user=alice, name="", server=cut_off), orm.Spawner(user=alice, name="two", server=other)])
    unborn, hers = _token(db, alice), orm.APIToken.find(db, alice.new_api_token(note="my laptop", scopes=[]))
    living = orm.APIToken.find(db, alice.new_api_token(note="Server at /user/alice/two/", scopes=[]))
    shared.registry = BookOf(_session(living).replace(server_name="two"))
    shared._revoke_unused_tokens()
    assert {t.id for t in db.query(orm.APIToken)} == {hers.id, living.id} != {unborn.id}


class BookOf:
    """A book with these open sessions."""

    def __init__(self, *sessions: Session) -> None:
        self._sessions = sessions

    def open_of(self, user: str, server_name: str) -> tuple[Session, ...]:
        return tuple(s for s in self._sessions if (s.user, s.server_name) == (user, server_name))


def _visit(db: Any, server: orm.Spawner, visitor: orm.User) -> orm.APIToken:
    """Return the token that JupyterHub puts into the cookie of somebody who visits a server."""
    return orm.APIToken.find(db, visitor.new_api_token(oauth_client=server.oauth_client, scopes=[]))


async def test_the_cookies_of_a_servers_visitors_are_worth_nothing_once_its_session_has_ended(
    db: Any, shared: HubContext
) -> None:
    alice, bob = orm.User.find(db, "alice"), orm.User(name="bob")
    clients = {name: orm.OAuthClient(identifier=f"jupyterhub-user-alice-{name}") for name in ("", "b")}
    servers = [orm.Spawner(user=alice, name=name, oauth_client=client) for name, client in clients.items()]
    db.add_all([bob, *servers])
    db.commit()
    session = _session(_token(db, alice))
    leaked = [_visit(db, servers[0], alice), _visit(db, servers[0], bob)]
    others = {_visit(db, servers[1], alice).id, _token(db, alice).id, _token(db, bob).id}
    gone = {token.id for token in leaked}
    await shared.revoke(session)
    left = {token.id for token in db.query(orm.APIToken)}
    assert left == others
    assert not left & gone


async def test_visitors_of_the_next_session_of_a_server_stay_logged_in(db: Any, shared: HubContext) -> None:
    alice = orm.User.find(db, "alice")
    server = orm.Spawner(user=alice, name="", oauth_client=orm.OAuthClient(identifier="server"))
    db.add(server)
    db.commit()
    last, newer = _session(_token(db, alice)).replace(created=time.time() - 3), time.time() - 2
    visit = _visit(db, server, alice)
    shared.registry = BookOf(last, last.replace(id="next", created=newer))
    await shared.revoke(last)
    assert db.get(orm.APIToken, visit.id) is not None
