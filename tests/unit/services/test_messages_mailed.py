"""An administrator's message is mailed once to each of its users who has not seen it yet."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.administration.acts import DONE, Act, Actor
from carme_hub.domain.administration.messages import Kind, Message
from carme_hub.errors import StoreError
from carme_hub.services.messages import MessagesByMail
from carme_hub.services.notice_channels import Notice
from carme_hub.store.administration.store import AdministrationStore
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore

NOW = 1_800_000_000.0


class Stores:
    """The store of a service."""

    def __init__(self, folder: Path) -> None:
        self.engine = CarmeStore(url=f"sqlite:///{folder}/carme.sqlite").open()
        self.store, self.cluster = LedgerStore(self.engine), "lab"

    def clock(self) -> float:
        return NOW


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


@pytest.fixture
def messages(stores: Stores) -> AdministrationStore:
    return AdministrationStore(stores.engine, "lab")


def service(stores: Stores, got: list[Notice]) -> MessagesByMail:
    settings = CarmeQuotas(notice_channels=[got.append])
    return MessagesByMail(settings, stores, stores.engine, logging.getLogger("test"))


def write(messages: AdministrationStore, *users: str, mail: bool = True) -> None:
    one = Message("1" * 36, Kind.MESSAGE, NOW, "ada", "node node1", "Save your work", NOW, NOW + 100, mail=mail)
    messages.add_message(one, users, Act(NOW, Actor("ada", "page"), "message", "node node1", "Fan", {}, DONE))


async def test_each_user_gets_it_once_whichever_service_is_first(stores: Stores, messages: AdministrationStore) -> None:
    write(messages, "alice", "bob", "carol")
    messages.mark_seen("1" * 36, "carol", NOW)
    got: list[Notice] = []
    first, second = service(stores, got), service(stores, got)
    for each in (first, second, first):
        await each.deliver()
        await each.notifier.wait_until_delivered()
    assert sorted((each.user, each.text) for each in got) == [
        (user, "ada writes to node node1:\n\nSave your work") for user in ("alice", "bob")
    ]
    assert got[0].link.endswith("hub/home")


async def test_a_message_that_is_not_for_mail_is_not_mailed(stores: Stores, messages: AdministrationStore) -> None:
    write(messages, "alice", mail=False)
    got: list[Notice] = []
    one = service(stores, got)
    await one.deliver()
    assert got == []


async def test_a_database_that_fails_is_asked_again(
    stores: Stores, messages: AdministrationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(messages, "alice")
    got: list[Notice] = []
    one = service(stores, got)

    def fail(*_: object) -> None:
        raise StoreError("away")

    with monkeypatch.context() as patch:
        patch.setattr(one._messages, "mark_mailed", fail)
        await one.deliver()
    await one.deliver()
    await one.notifier.wait_until_delivered()
    assert [each.user for each in got] == ["alice"]
