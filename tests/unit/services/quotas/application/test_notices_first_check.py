"""What was written while the hub or Slurm had not said who is who is told once they have, and no minute costs more."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.policy import Policy, parse_policy
from carme_hub.domain.quotas.rules import Person, SubjectKind
from carme_hub.services.hub_users import HubUsers
from carme_hub.services.quotas.application.notices import Notices
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore

NOW = 1_795_000_000.0
LOG = logging.getLogger("test")
ML = frozenset({"ml"})
GRANTS = {"id": "grants", "account": "*", "needs_grant": True}
TOGETHER = {"id": "g", "group": "ml", "together": True, "gpu_time": 10, "window": "week"}
EACH = {"id": "each", "group": "ml", "gpu_time": 10, "window": "week"}


class BookThatCounts:
    """ada and bea may charge physics, once Slurm has said so; notes how often all accounts are asked for."""

    def __init__(self, known: bool = True) -> None:
        self.known = known
        self.looked = 0

    def accounts_of(self, user: str) -> tuple[str, ...]:
        return ("physics",) if self.known and user in ("ada", "bea") else ()

    def users_of(self, account: str) -> tuple[str, ...]:
        return ("ada", "bea") if self.known and account == "physics" else ()

    def coordinators_of(self, _account: str) -> tuple[str, ...]:
        return ()

    def accounts(self) -> tuple[str, ...]:
        self.looked += 1
        return ("physics",) if self.known else ()


class Site:
    """A ledger, and notices that look at it each minute."""

    def __init__(self, tmp_path: Path, *quotas: dict[str, object], known: bool = True) -> None:
        self.policy: Policy = parse_policy({"quotas": list(quotas)})
        self.hub_users = HubUsers(LOG)
        self.associations = BookThatCounts(known)
        self.ledger = Ledger(
            LedgerStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()),
            "lab",
            policy=lambda: self.policy,
            factor=lambda *_: 1000,
            clock=lambda: NOW,
            members=self._members,
        )
        associations: Any = self.associations
        self.notices = Notices(CarmeQuotas(), self.ledger, associations, self.hub_users, LOG)

    def _members(self, who: SubjectKind, name: str) -> Collection[str]:
        return self.hub_users.members(who, name)

    def log_in(self) -> None:
        """Let the hub know ada and bea, who are in a group."""
        self.hub_users.people = {user: Person(user, ML) for user in ("ada", "bea")}

    async def use(self, hours: int, account: str = "physics") -> None:
        """Write down that ada has used so much; nothing of it runs any more."""
        await self.ledger.correct(
            account, -hours * GPU_HOUR, key=f"x{hours}", actor="root", user="ada", reason="it ran", used_at=NOW - 1
        )

    async def round(self) -> list[str]:
        """Return who was told."""
        return sorted(each.user for each in await self.notices.check_changes(()))


async def test_a_groups_limit_is_told_when_the_hub_has_said_who_is_in_it(tmp_path: Path) -> None:
    site = Site(tmp_path, TOGETHER)
    await site.use(9)
    assert await site.round() == [], "the hub has not said who is in the group"
    site.log_in()
    assert await site.round() == ["ada", "bea"]


async def test_news_of_before_the_hub_has_said_who_is_in_a_group_is_told_then(tmp_path: Path) -> None:
    site = Site(tmp_path, EACH)
    assert await site.round() == []
    await site.use(9)
    assert await site.round() == [], "the hub has not said that ada is in the group"
    assert await site.round() == []
    site.log_in()
    assert await site.round() == ["ada"]


async def test_what_an_account_has_left_is_told_when_slurm_has_said_who_may_charge_it(tmp_path: Path) -> None:
    site = Site(tmp_path, GRANTS, known=False)
    site.log_in()
    await site.ledger.grant("physics", 10 * GPU_HOUR, key="g1", actor="root")
    await site.use(9)
    assert await site.round() == []
    site.associations.known = True
    assert await site.round() == ["ada", "bea"]


async def test_news_of_an_account_that_slurm_did_not_name_is_told_when_it_does(tmp_path: Path) -> None:
    site = Site(tmp_path, GRANTS, known=False)
    site.log_in()
    assert await site.round() == []
    await site.ledger.grant("physics", 10 * GPU_HOUR, key="g1", actor="root")
    await site.use(9)
    assert await site.round() == []
    site.associations.known = True
    assert await site.round() == ["ada", "bea"]


async def test_not_everything_is_looked_at_each_minute_however_long_nobody_is_known(tmp_path: Path) -> None:
    for has_people, has_accounts, looks in ((False, True, 1), (True, False, 1), (True, True, 1)):
        folder = tmp_path / f"{has_people}-{has_accounts}"
        folder.mkdir()
        site = Site(folder, GRANTS, TOGETHER, known=has_accounts)
        if has_people:
            site.log_in()
        for _ in range(4):
            assert await site.round() == []
        assert site.associations.looked == looks
        site.log_in()
        site.associations.known = True
        for _ in range(4):
            assert await site.round() == []
        assert site.associations.looked == looks + (not (has_people and has_accounts)), (
            "once more, now that all are known"
        )
