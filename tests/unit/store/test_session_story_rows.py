"""Rows that only a story and a bundle ask for; nothing is written by the question."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from sqlalchemy import Engine

from carme_hub.domain.administration.acts import DONE, Act, Actor
from carme_hub.domain.administration.messages import Kind, Message
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import StoreError
from carme_hub.store.administration.history import acts_on, shown_between
from carme_hub.store.administration.store import AdministrationStore
from carme_hub.store.check import open_read_only, overview
from carme_hub.store.engine import head_revision
from carme_hub.store.names import hub_user_names, stored_secrets, user_names
from carme_hub.store.secrets import shared_secret
from carme_hub.store.sessions import SessionStore

BY = Actor("ada", "page")


def session(id: str, user: str = "alice", **changes: object) -> Session:
    row = Session(id, "lab", user, "", Request("cpu", "default"), SessionState.ENDED, 1000.0)
    return row.replace(**changes)


def test_sessions_are_found_by_the_number_of_their_job_and_the_beginning_of_their_id(engine: Engine) -> None:
    store = SessionStore(engine)
    for each in (session("ab1", job_id=7), session("ab2", job_id=7, created=2000.0), session("a%1", cluster="other")):
        store.add(each)
    assert [each.id for each in store.of_job("lab", 7)] == ["ab2", "ab1"]
    assert store.of_job("other", 7) == []
    assert [each.id for each in store.beginning_with("ab", 9)] == ["ab2", "ab1"]
    assert [each.id for each in store.beginning_with("a%", 9)] == ["a%1"], "a wildcard is a character"


def test_messages_to_a_user_and_announcements_of_that_time_are_found(engine: Engine) -> None:
    store = AdministrationStore(engine, "lab")

    def add(kind: Kind, at: float, text: str, users: list[str]) -> None:
        message = Message(str(uuid.uuid4()), kind, at, "ada", "somebody", text, at, at + 100.0)
        store.add_message(message, users, Act(at, BY, "message", text, "why"))

    add(Kind.MESSAGE, 1000.0, "to alice", ["alice", "bob"])
    add(Kind.MESSAGE, 1000.0, "to bob", ["bob"])
    add(Kind.MESSAGE, 5000.0, "too late", ["alice"])
    add(Kind.ANNOUNCEMENT, 950.0, "to all", [])
    add(Kind.ANNOUNCEMENT, 100.0, "over", [])
    found = shown_between(engine, "lab", "alice", 1000.0, 2000.0)
    assert [(each.kind, each.text) for each in found] == [("announcement", "to all"), ("message", "to alice")]
    assert shown_between(engine, "other", "alice", 0.0, 9000.0) == []


def test_acts_on_a_session_and_its_node_are_found(engine: Engine) -> None:
    store = AdministrationStore(engine, "lab")
    for at, target in ((1000.0, "s1"), (1001.0, "node1"), (1002.0, "s2"), (9000.0, "s1")):
        id = store.begin(Act(at, BY, "stop-session", target, "a fan"))
        store.finish(id, DONE, {})
    found = acts_on(engine, "lab", ["s1", "node1"], 900.0, 2000.0)
    assert [(each.target, each.actor.name, each.outcome) for each in found] == [
        ("s1", "ada", DONE),
        ("node1", "ada", DONE),
    ]


def test_a_database_is_summed_up_and_has_its_secrets_and_names_read(engine: Engine, database_url: str) -> None:
    SessionStore(engine).add(session("s1"))
    AdministrationStore(engine, "lab").begin(Act(1.0, Actor("service:culler", "rest"), "message", "x", "y"))
    AdministrationStore(engine, "lab").begin(Act(1.0, BY, "message", "x", "y"))
    secret = shared_secret(engine, "lab", "reporting")
    found = overview(database_url)
    assert (found.schema, found.wanted_schema) == (head_revision(), head_revision())
    assert (found.rows["session"], found.rows["administration_act"], found.rows["ledger"]) == (1, 2, 0)
    assert stored_secrets(database_url) == [secret]
    assert user_names(database_url) == ["ada", "alice"], "a service is no user"


def test_what_is_opened_to_read_is_neither_made_nor_changed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'missing.sqlite'}"
    for question in (open_read_only, overview, stored_secrets, user_names, hub_user_names):
        with pytest.raises(StoreError):
            question(url)
    assert list(tmp_path.iterdir()) == []
