"""Whoever shares a budget is told of it, also who used nothing of it; what that costs does not grow with the users."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest
from forged_login import Site, running
from sqlalchemy import event

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.accounting.settlement import SettlementResult
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.policy import parse_policy
from carme_hub.domain.quotas.rules import Person, QuotaRequest, SubjectKind
from carme_hub.services.hub_users import HubUsers
from carme_hub.services.quotas.application.notices import Notices
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore

DAY = 86_400
GRANTS = "quotas: [{id: grants, account: '*', needs_grant: true}]"


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """alice may charge physics and teaching, bob physics, tina teaching; the service has looked at them once."""
    async with running(tmp_path, monkeypatch, GRANTS) as found:
        await found.service._notify(SettlementResult())
        yield found


async def hold(ledger: Ledger, session: str, hours: int, account: str = "physics", user: str = "alice") -> None:
    ask = QuotaRequest(account, Gpus("a100", 1), hours * 3600)
    assert (await ledger.admit(session, Person(user), ask)).granted


async def shown(site: Site, user: str) -> list[str]:
    """Return what the pages show a user, once the loop has looked."""
    await site.service._notify(SettlementResult())
    return [each["text"] for each in await site.service.notices.open_for(user)]


async def test_who_may_use_a_credit_is_told_that_it_expires_without_having_used_anything(site: Site) -> None:
    await site.ledger.grant("physics", GPU_HOUR, key="c1", actor="root", reason="sorry", expires=site.now + 4 * DAY)
    assert await shown(site, "bob") == []
    site.now += 2 * DAY
    for user in ("alice", "bob"):
        [text] = await shown(site, user)
        assert text.startswith("A credit of 1 GPU-hour of physics expires on ")
    assert await shown(site, "tina") == []


async def test_a_credit_for_one_user_is_told_to_that_user_alone(site: Site) -> None:
    await site.ledger.grant(
        "physics", GPU_HOUR, key="c1", actor="root", user="bob", reason="sorry", expires=site.now + DAY
    )
    assert len(await shown(site, "bob")) == 1
    assert await shown(site, "alice") == []


async def test_a_balance_that_somebody_else_used_up_is_told_to_all_who_share_it(site: Site) -> None:
    await site.ledger.grant("physics", 10 * GPU_HOUR, key="g1", actor="root")
    await hold(site.ledger, "s1", 9)
    [text] = await shown(site, "bob")
    assert text == "Account physics has used or holds 90 % of what it was granted: 1 of 10 GPU-hours are left."
    assert await shown(site, "alice") == [text]
    assert await shown(site, "tina") == []


async def test_a_balance_that_was_moved_away_is_told_to_all_who_share_it(site: Site) -> None:
    await site.ledger.grant("teaching", 10 * GPU_HOUR, key="g1", actor="root")
    await hold(site.ledger, "s1", 2, "teaching", "tina")
    assert await shown(site, "alice") == []
    await site.ledger.release("s1", "stopped early")
    await hold(site.ledger, "s2", 4, "teaching", "tina")
    await site.ledger.transfer("teaching", "physics", 5 * GPU_HOUR, key="t1", actor="root")
    [text] = await shown(site, "alice")
    assert "Account teaching has used or holds 75 %" in text


async def test_each_is_told_once_also_after_a_restart(site: Site) -> None:
    await site.ledger.grant("physics", 10 * GPU_HOUR, key="g1", actor="root", reason="sorry", expires=site.now + DAY)
    await hold(site.ledger, "s1", 9)
    first = await site.service.notices.check_changes(())
    assert sorted(each.user for each in first) == ["alice", "alice", "bob", "bob"]
    again = Notices(
        *(getattr(site.service, name) for name in ("settings", "ledger", "associations", "hub_users", "log"))
    )
    for notices in (site.service.notices, again, again):
        assert await notices.check_changes(["alice", "bob"]) == []


async def test_what_was_used_up_while_the_service_was_away_is_told_when_it_is_back(site: Site) -> None:
    await site.ledger.grant("physics", 10 * GPU_HOUR, key="g1", actor="root")
    await hold(site.ledger, "s1", 10)
    await site.ledger.release("s1", "stopped early")
    await site.ledger.correct("physics", -8 * GPU_HOUR, key="x1", actor="root", reason="it ran", used_at=site.now)
    again = Notices(
        *(getattr(site.service, name) for name in ("settings", "ledger", "associations", "hub_users", "log"))
    )
    assert {each.user for each in await again.check_changes(())} == {"alice", "bob"}


class Crowd:
    """So many users of one account."""

    known = True

    def __init__(self, size: int) -> None:
        self._users = tuple(f"user{n}" for n in range(size))

    def accounts_of(self, _user: str) -> tuple[str, ...]:
        return ("physics",)

    def users_of(self, _account: str) -> tuple[str, ...]:
        return self._users

    def accounts(self) -> tuple[str, ...]:
        return ("physics",)

    def coordinators_of(self, _account: str) -> tuple[str, ...]:
        return ()


async def test_a_limit_that_a_group_shares_is_told_to_all_its_members(tmp_path: Path) -> None:
    policy = parse_policy({"quotas": [{"id": "g", "group": "ml", "together": True, "gpu_time": 10, "window": "week"}]})
    log = logging.getLogger("test")
    hub_users = HubUsers(log)
    hub_users.people = {
        user: Person(user, frozenset({"ml"} if user != "eve" else ())) for user in ("ada", "bea", "eve")
    }

    def members(who: SubjectKind, name: str) -> Collection[str]:
        return hub_users.members(who, name)

    store = LedgerStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open())
    ledger = Ledger(
        store, "lab", policy=lambda: policy, factor=lambda *_: 1000, clock=lambda: 1_795_000_000.0, members=members
    )
    book: Any = Crowd(3)
    notices = Notices(CarmeQuotas(), ledger, book, hub_users, log)
    await notices.check_changes(())
    ask = QuotaRequest("physics", Gpus("a100", 1), 8 * 3600)
    assert (await ledger.admit("s1", Person("ada", frozenset({"ml"})), ask)).granted
    told = await notices.check_changes(())
    assert {(each.user, "Group ml has used or holds 75 %" in each.text) for each in told} == {
        ("ada", True),
        ("bea", True),
    }


async def test_a_round_asks_the_database_no_more_often_however_many_users_there_are(tmp_path: Path) -> None:
    asked = {}
    for size in (3, 900):
        policy = parse_policy({"quotas": [{"id": "grants", "account": "*", "needs_grant": True}]})
        engine = CarmeStore(url=f"sqlite:///{tmp_path}/{size}.sqlite").open()
        ledger = Ledger(
            LedgerStore(engine), "lab", policy=lambda policy=policy: policy, factor=lambda *_: 1000, clock=lambda: 1.8e9
        )
        book: Any = Crowd(size)
        log = logging.getLogger("test")
        notices = Notices(CarmeQuotas(), ledger, book, HubUsers(log), log)
        await ledger.grant("physics", 10 * GPU_HOUR, key="g", actor="root", reason="sorry", expires=1.8e9 + DAY)
        await hold(ledger, "s1", 8, user="user1")
        assert len(await notices.check_changes(())) == 2 * size
        statements = []
        event.listen(engine, "before_cursor_execute", lambda *each: statements.append(each[2]))  # noqa: B023
        assert await notices.check_changes(()) == []
        asked[size] = len(statements)
        engine.dispose()
    assert asked[3] == asked[900] < 20
