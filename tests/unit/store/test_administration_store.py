"""What administrators do is stored with its effect, and is there after a restart."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from carme_hub.domain.administration.acts import DONE, Act, Actor
from carme_hub.domain.administration.messages import Kind, Message
from carme_hub.domain.administration.start_stops import StartStop
from carme_hub.errors import StoreError
from carme_hub.store.administration.store import RECIPIENTS_KEPT, AdministrationStore

NOW = 1_800_000_000.0
ADA = Actor("ada", "page")


@pytest.fixture
def kept(engine: Engine) -> AdministrationStore:
    return AdministrationStore(engine, "lab")


def act(action: str = "message", at: float = NOW, **more: str) -> Act:
    return Act(at, ADA, action, "user alice", "Because", more, DONE)


def message(id: str = "1", *, mail: bool = False, ends: float = NOW + 100, at: float = NOW) -> Message:
    return Message(id * 36, Kind.MESSAGE, at, "ada", "group course", "Hello", at, ends, mail=mail)


def test_a_message_has_its_recipients_and_who_has_seen_it(kept: AdministrationStore) -> None:
    kept.add_message(message(), ["alice", "bob"], act())
    [(found, unseen)] = kept.current_messages(NOW)
    assert (found.text, found.recipients, found.seen, sorted(unseen)) == ("Hello", 2, 0, ["alice", "bob"])
    kept.mark_seen("1" * 36, "alice", NOW + 5)
    kept.mark_seen("1" * 36, "alice", NOW + 9)
    [(found, unseen)] = kept.current_messages(NOW)
    assert (found.seen, unseen) == (1, ["bob"])
    assert kept.current_messages(NOW + 100) == [], "it is over"
    assert kept.messages(10) == ([found], 1)


def test_what_is_withdrawn_is_not_current(kept: AdministrationStore) -> None:
    kept.add_message(message(), ["alice"], act())
    kept.withdraw("1" * 36, NOW + 1, act("withdraw"))
    assert kept.current_messages(NOW) == []
    found = kept.message("1" * 36)
    assert found is not None
    assert found.withdrawn == NOW + 1
    assert kept.message("2" * 36) is None


def test_a_message_is_mailed_once_to_those_who_have_not_seen_it(kept: AdministrationStore) -> None:
    kept.add_message(message("1", mail=True), ["alice", "bob"], act())
    kept.add_message(message("2"), ["alice"], act())
    kept.mark_seen("1" * 36, "alice", NOW)
    [(found, users)] = kept.to_mail(NOW)
    assert (found.id, users) == ("1" * 36, ["bob"])
    kept.mark_mailed(found.id, NOW)
    assert kept.to_mail(NOW) == []


def test_who_has_seen_a_message_is_forgotten_long_after_its_end(kept: AdministrationStore, engine: Engine) -> None:
    kept.add_message(message(), ["alice"], act())
    later = NOW + 101 + RECIPIENTS_KEPT
    kept.add_message(message("2", at=later, ends=later + 10), ["bob"], act())
    with engine.connect() as connection:
        assert list(connection.execute(text('SELECT "user" FROM message_recipient'))) == [("bob",)]


def test_a_rule_is_there_until_it_is_lifted_or_over(kept: AdministrationStore) -> None:
    first = StartStop("1" * 36, NOW, "ada", "New driver", profile="a100")
    second = StartStop("2" * 36, NOW + 1, "ada", "Fan", partition="gpu", is_default=True, until=NOW + 50)
    kept.add_stop(first, act("stop-starts"))
    kept.add_stop(second, act("stop-starts"))
    assert kept.stops(NOW + 2) == [first, second]
    assert kept.stops(NOW + 50) == [first]
    kept.lift(first.id, NOW + 60, act("allow-starts"))
    assert kept.stops(NOW + 2) == [second]


def test_acts_are_listed_newest_first_with_who_why_and_what_came_of_it(kept: AdministrationStore) -> None:
    id = kept.begin(Act(NOW, ADA, "drain-node", "node1", "A fan fails"))
    kept.add_message(message(), ["alice"], act())
    kept.finish(id, DONE, {"users": "bob"})
    found, count = kept.acts(10)
    assert count == 2
    assert [each.action for each in found] == ["message", "drain-node"]
    assert (found[1].actor, found[1].reason, found[1].outcome, found[1].details) == (
        *(ADA, "A fan fails", DONE),
        {"users": "bob"},
    )
    assert [each.target for each in kept.acts(10, action="drain-node")[0]] == ["node1"]
    assert kept.acts(10, actor="bob") == ([], 0)
    assert kept.acts(1, 1)[0] == [found[1]]


def test_of_another_cluster_there_is_nothing(kept: AdministrationStore, engine: Engine) -> None:
    kept.add_message(message(mail=True), ["alice"], act())
    kept.add_stop(StartStop("1" * 36, NOW, "ada", "Fan"), act("stop-starts"))
    other = AdministrationStore(engine, "elsewhere")
    assert (other.current_messages(NOW), other.stops(NOW), other.acts(10)) == ([], [], ([], 0))
    assert (other.to_mail(NOW), other.messages(10), other.message("1" * 36)) == ([], ([], 0), None)


def test_a_database_that_does_not_answer_changes_nothing(kept: AdministrationStore, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE administration_act"))
    with pytest.raises(StoreError):
        kept.add_stop(StartStop("1" * 36, NOW, "ada", "Fan"), act("stop-starts"))
    assert kept.stops(NOW) == [], "the act and the rule are one transaction"
    with pytest.raises(StoreError):
        kept.acts(10)
