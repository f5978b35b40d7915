"""A request is answered once: by a grant of an administrator, or out of what its owner has elsewhere."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from forged_site import DAY, Site

from carme_hub.accounting.context import Unknown
from carme_hub.accounting.grants import NotEnoughLeft
from carme_hub.accounting.requests import Allowance, AlreadyDecided, NoSource, Requests
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Quota, SubjectKind
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import Filter


@pytest.fixture
def desk(site: Site) -> Requests:
    return Requests(site.ledger)


async def asked(desk: Requests, hours: int = 3) -> str:
    return (await desk.ask("teaching", "ada", hours * GPU_HOUR, "the thesis", key="k")).id


async def test_what_an_owner_gives_is_taken_from_the_account_they_name_and_once(site: Site, desk: Requests) -> None:
    await site.grant(5 * GPU_HOUR)
    id = await asked(desk)
    for _ in range(2):
        done = await desk.decide(id, actor="tina", approve=True, source="physics")
        assert (done.state, done.granted, done.source) == ("approved", 3 * GPU_HOUR, "physics")
    assert (await site.left("physics"), await site.left("teaching")) == (2 * GPU_HOUR, 3 * GPU_HOUR)
    with pytest.raises(AlreadyDecided):
        await desk.decide(id, actor="tina", approve=True, source="astronomy")
    # Who asked reads of what came to them, and nothing of an account that they have no part in.
    assert [each.amount for each in await site.ledger.statement(Filter(user="ada"))] == [3 * GPU_HOUR]


async def test_nothing_comes_from_nowhere_without_the_right_to_grant(site: Site, desk: Requests) -> None:
    id = await asked(desk)
    with pytest.raises(NoSource, match="administrator"):
        await desk.decide(id, actor="tina", approve=True)
    with pytest.raises(Refused, match="The source is the account of the request"):
        await desk.decide(id, actor="tina", approve=True, source="teaching")
    assert [each.state for each in await desk.all()] == ["open"]
    assert (await desk.decide(id, actor="root", approve=True, may_grant=True)).source == ""
    assert await site.left("teaching") == 3 * GPU_HOUR


async def test_a_source_gives_no_more_than_it_has_for_ever(site: Site, desk: Requests) -> None:
    await site.grant(2 * GPU_HOUR)
    await site.grant(2 * GPU_HOUR, key="credit", reason="x", expires=site.now + DAY)
    id = await asked(desk)
    with pytest.raises(NotEnoughLeft, match=r"Account physics has 2\.00 GPU-hours that can be moved"):
        await desk.decide(id, actor="tina", approve=True, source="physics")
    assert (await site.left("physics"), await site.left("teaching")) == (4 * GPU_HOUR, 0)


async def test_who_denies_takes_nothing_from_anywhere(site: Site, desk: Requests) -> None:
    await site.grant(5 * GPU_HOUR)
    done = await desk.decide(await asked(desk), actor="tina", approve=False, answer="no", source="physics")
    assert (done.state, done.granted, done.source, await site.left("physics")) == ("denied", 0, "", 5 * GPU_HOUR)


async def test_a_request_is_found_and_answered_however_many_came_after_it(site: Site, desk: Requests) -> None:
    id = await asked(desk)
    other = {"user": "bob", "account": "physics", "amount": 1, "reason": "x", "asked": 5.0, "state": "denied"}
    with site.store.transaction("lab") as writes:
        for number in range(5001):
            writes.add_note("request", {**other, "id": f"r{number}"}, site.now)
    assert await asked(desk) == id, "the same key is the same request"
    assert (await desk.get(id)).state == "open"
    assert len(await desk.all()) == 5002
    assert (await desk.decide(id, actor="root", approve=True, may_grant=True)).state == "approved"
    page, before = await desk.page(most=5001)
    assert (len(page), [each.id for each in (await desk.page(before=before))[0]]) == (5001, [id])


@pytest.mark.parametrize("id", ["", " "])
async def test_no_id_is_nobodys_request(site: Site, desk: Requests, id: str) -> None:
    await asked(desk)
    with pytest.raises(Unknown, match="request"):
        await desk.get(id)
    for approve in (True, False):
        with pytest.raises(Unknown, match="request"):
            await desk.decide(id, actor="root", approve=approve, may_grant=True)
    assert [each.state for each in await desk.all()] == ["open"]
    assert await site.left("teaching") == 0


def allowing(site: Site, hours: int, *more: Quota) -> None:
    site.quotas = (Quota("owners", SubjectKind.ACCOUNT, "teaching", owners_approve=hours * GPU_HOUR), *more)


async def ask(desk: Requests, hours: int, key: str, user: str = "ada", account: str = "teaching") -> str:
    return (await desk.ask(account, user, hours * GPU_HOUR, "the thesis", key=key)).id


async def test_owners_approve_as_much_in_a_month_as_the_policy_lets_them(site: Site, desk: Requests) -> None:
    allowing(site, 5)
    for _ in range(2):  # the same answer again is the same answer
        done = await desk.decide(await ask(desk, 3, "a"), actor="tina", approve=True)
        assert (done.state, done.granted, done.source, done.by_owner) == ("approved", 3 * GPU_HOUR, "", True)
    over = await ask(desk, 3, "b")
    with pytest.raises(NoSource, match=r"may approve 5 GPU-hours a month, and 2 of them are left"):
        await desk.decide(over, actor="tom", approve=True)  # the owners share it
    assert await desk.allowances(["teaching", "physics"]) == {
        "teaching": Allowance(5 * GPU_HOUR, 2 * GPU_HOUR),
        "physics": Allowance(0, 0),
    }
    assert (await desk.decide(over, actor="tom", approve=True, amount=2 * GPU_HOUR)).granted == 2 * GPU_HOUR
    assert await site.left("teaching") == 5 * GPU_HOUR
    site.now += 31 * DAY
    await desk.decide(await ask(desk, 5, "c"), actor="tina", approve=True)
    assert await site.left("teaching") == 10 * GPU_HOUR


async def test_the_month_begins_with_its_first_moment(site: Site, desk: Requests) -> None:
    allowing(site, 5)
    site.now = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    await desk.decide(await ask(desk, 5, "a"), actor="tina", approve=True)
    with pytest.raises(NoSource, match="and none is left"):
        await desk.decide(await ask(desk, 1, "b"), actor="tina", approve=True)


async def test_what_is_left_is_never_said_to_be_more_than_it_is(site: Site, desk: Requests) -> None:
    allowing(site, 5)
    await desk.decide(await ask(desk, 1, "a"), actor="tina", approve=True, amount=1000)
    with pytest.raises(NoSource, match=r"4\.99 of them are left"):
        await desk.decide(await ask(desk, 5, "b"), actor="tina", approve=True)


async def test_what_administrators_grant_and_what_is_moved_is_not_the_owners(site: Site, desk: Requests) -> None:
    allowing(site, 5)
    await site.grant(9 * GPU_HOUR)
    await desk.decide(await ask(desk, 9, "a"), actor="root", approve=True, may_grant=True)
    await desk.decide(await ask(desk, 9, "b"), actor="tina", approve=True, source="physics")
    await desk.decide(await ask(desk, 9, "c"), actor="tina", approve=False)
    assert await desk.allowances(["teaching"]) == {"teaching": Allowance(5 * GPU_HOUR, 5 * GPU_HOUR)}


async def test_nobody_approves_what_they_asked_for_themselves(site: Site, desk: Requests) -> None:
    allowing(site, 5)
    id = await ask(desk, 1, "a", user="tina")
    with pytest.raises(NoSource, match="This is your own request"):
        await desk.decide(id, actor="tina", approve=True)
    assert (await desk.decide(id, actor="tom", approve=True)).state == "approved"


async def test_an_account_without_such_a_rule_leaves_its_owners_nothing_to_approve(site: Site, desk: Requests) -> None:
    allowing(site, 5, Quota("all", SubjectKind.ACCOUNT, owners_approve=0))
    for account in ("physics", "teaching"):  # of two rules, both must hold
        with pytest.raises(NoSource, match="Only administrators of the hub grant"):
            await desk.decide(await ask(desk, 1, account, account=account), actor="tina", approve=True)
        assert await desk.allowances([account]) == {account: Allowance(0, 0)}


async def test_two_owners_who_answer_at_once_give_no_more_than_there_is(site: Site, desk: Requests) -> None:
    allowing(site, 5)
    ids = [await ask(desk, 1, f"k{n}", user=f"u{n}") for n in range(20)]
    answers = await asyncio.gather(*(desk.decide(id, actor="tina", approve=True) for id in ids), return_exceptions=True)
    assert sum(isinstance(each, NoSource) for each in answers) == 15
    assert await site.left("teaching") == 5 * GPU_HOUR
