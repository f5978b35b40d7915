"""GPU time is moved and corrected by those who may, after a look at the balances before and after."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from forged_login import Site, left, logged_in, plain, running
from tornado.httpclient import HTTPResponse

from carme_hub.domain.ledger.entries import GPU_HOUR, Kind
from carme_hub.store.ledger.writes import Filter, Subject

POLICY = "zone: Europe/Berlin\nquotas:\n- {id: day, user: '*', gpu_time: 20, window: day}\n"
MOVE, CORRECT = "accounts/teaching/transfers", "accounts/teaching/corrections"
FORM = {"target": "physics", "hours": "12.5", "reason": "the lab course", "key": "k1-move"}
FIX = {"direction": "take", "hours": "3", "reason": "typed twice", "key": "k1-correct", "user": "", "day": ""}


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, POLICY) as found:
        await found.ledger.grant("teaching", 20 * GPU_HOUR, key="first", actor="root")
        yield found


# -- transfer ---------------------------------------------------------------------------------------------------------


async def test_a_transfer_shows_both_balances_and_is_done_once(site: Site) -> None:
    root = await logged_in(site, "root")
    asked = plain(await root.post(MOVE, **FORM))
    assert "Move this GPU time?" in asked
    assert "teaching 20 h 7.5 h physics 0 h 12.5 h" in asked
    assert await left(site) == 20 * GPU_HOUR
    for _ in range(2):
        done = await root.post(MOVE, **FORM, confirmed="yes")
        assert (done.code, done.headers["Location"]) == (303, "/services/quotas/accounts/teaching")
    assert (await left(site), await left(site, "physics")) == (7.5 * GPU_HOUR, 12.5 * GPU_HOUR)
    page = await root.text("accounts/teaching")
    assert "12.5 h moved from account teaching to account physics." in page
    assert "Moved to another account by root: the lab course." in page
    changed = await root.post(MOVE, **{**FORM, "hours": "1"}, confirmed="yes")
    assert "This form was sent before." in plain(changed)


async def test_an_owner_moves_away_and_is_not_told_others_balances(site: Site) -> None:
    await site.ledger.grant("physics", 7 * GPU_HOUR, key="second", actor="root")
    tina = await logged_in(site, "tina")
    asked = plain(await tina.post(MOVE, **FORM))
    assert "teaching 20 h 7.5 h physics not visible to you not visible to you" in asked
    assert (await tina.post(MOVE, **FORM, confirmed="yes")).code == 303
    assert await left(site, "physics") == 19.5 * GPU_HOUR
    away = await tina.post("accounts/physics/transfers", **{**FORM, "target": "teaching"}, confirmed="yes")
    assert away.code == 403
    for name in ("alice", "operator"):
        visitor = await logged_in(site, name)
        assert (await visitor.post(MOVE, **FORM, confirmed="yes")).code == 403


async def test_a_transfer_that_cannot_be_is_refused_before_it_is_confirmed(site: Site) -> None:
    await site.ledger.grant(
        "teaching", 5 * GPU_HOUR, key="credit", actor="root", reason="term", expires=site.now + 86400
    )
    tina = await logged_in(site, "tina")
    assert "20 h can be moved." in await tina.text("accounts/teaching")
    for wrong, said in (
        ({"hours": "22"}, "Account teaching has 20 h that can be moved, and you asked for 22 h."),
        ({"target": "nowhere"}, "There is no Slurm account nowhere."),
        ({"target": "teaching"}, "Both accounts are the same."),
        ({"hours": "-1"}, "Give GPU-hours above 0"),
        ({"reason": " "}, "The reason is missing."),
    ):
        answer = await tina.post(MOVE, **{**FORM, **wrong})
        assert (answer.code, said in plain(answer)) == (409, True), plain(answer)
    late = await tina.post(MOVE, **{**FORM, "hours": "22"}, confirmed="yes")
    assert "that can be moved" in plain(late)
    assert await left(site) == 25 * GPU_HOUR


async def test_an_account_with_nothing_to_move_says_so(site: Site) -> None:
    root = site.visitor("root")
    assert "Nothing can be moved" in await root.text("accounts/physics")
    assert "Move GPU time to another account" not in await site.visitor("operator").text("accounts/physics")


# -- correction -------------------------------------------------------------------------------------------------------


async def test_a_correction_shows_the_balance_and_is_written_once(site: Site) -> None:
    root = await logged_in(site, "root")
    asked = plain(await root.post(CORRECT, **FIX))
    assert "3 h are taken from account teaching." in asked
    assert "teaching 20 h 17 h" in asked
    assert "It changes the balance, and the use in no limit." in asked
    assert await left(site) == 20 * GPU_HOUR
    for _ in range(2):
        assert (await root.post(CORRECT, **FIX, confirmed="yes")).code == 303
    assert await left(site) == 17 * GPU_HOUR
    assert "Corrected by root: typed twice" in await root.text("accounts/teaching")


async def test_a_correction_of_use_counts_on_its_day(site: Site) -> None:
    root = await logged_in(site, "root")
    form = {**FIX, "user": "alice", "day": "2026-11-18"}
    assert "It counts as more use on 18 November 2026, in every limit of that day." in plain(
        await root.post(CORRECT, **form)
    )
    await root.post(CORRECT, **form, confirmed="yes")
    midnight = 1_794_956_400  # the 18th in Berlin
    alice = Subject(users=frozenset({"alice"}))
    with site.ledger.context.store.reading("lab") as reads:
        days = [reads.used(alice, midnight + day * 86400, midnight + (day + 1) * 86400).amount for day in (-1, 0, 1)]
    assert days == [0, 3 * GPU_HOUR, 0]
    await root.post(CORRECT, **{**form, "key": "k2", "day": "2026-11-20", "direction": "add"}, confirmed="yes")
    (entry,) = await site.ledger.statement(Filter("teaching", kind=Kind.CORRECTION), most=1)
    assert (entry.amount, entry.end) == (3 * GPU_HOUR, int(min(site.now, midnight + 2.5 * 86400)))


def fields(answer: HTTPResponse) -> dict[str, str]:
    """Return what the page that asks once more would send."""
    found = re.findall(r'<input type="hidden" name="(\w+)"\s+value="(.*?)">', answer.body.decode())
    return {name: value for name, value in found if name != "_xsrf"}


async def test_a_correction_of_today_that_is_confirmed_twice_is_written_once(site: Site) -> None:
    root = await logged_in(site, "root")
    site.now = 1_795_158_000.0  # today at 8 in Berlin: noon, the moment of other days, is still to come
    asked = fields(await root.post(CORRECT, **{**FIX, "user": "alice", "day": "2026-11-20"}))
    for _ in range(2):
        site.now += 60
        assert (await root.post(CORRECT, **asked)).code == 303
    (entry,) = await site.ledger.statement(Filter("teaching", kind=Kind.CORRECTION), most=5)
    assert (entry.end, await left(site)) == (1_795_158_000, 17 * GPU_HOUR)


async def test_the_moment_of_a_correction_lies_in_its_day_and_not_ahead(site: Site) -> None:
    root = await logged_in(site, "root")
    site.now = 1_795_158_000.0
    asked = fields(await root.post(CORRECT, **{**FIX, "user": "alice", "day": "2026-11-20"}))
    for wrong in ("1795071600", "1795161600", "0", "-1", "now", "9" * 12):
        answer = await root.post(CORRECT, **{**asked, "moment": wrong})
        assert answer.code == 409, plain(answer)
    assert await left(site) == 20 * GPU_HOUR


async def test_a_correction_of_nothing_is_refused(site: Site) -> None:
    root = await logged_in(site, "root")
    for wrong, said in (
        ({"user": "bob"}, "bob is no member of account teaching and has used none of its GPU time."),
        ({"day": "2026-11-30"}, "lies in the future"),
        ({"day": "tomorrow"}, "a date up to today"),
        ({"direction": "both"}, "Say whether GPU time is added or taken."),
        ({"direction": ""}, "is missing"),
    ):
        answer = await root.post(CORRECT, **{**FIX, **wrong})
        assert (answer.code, said in plain(answer)) == (409, True), plain(answer)
    assert "There is no account nowhere." in plain(await root.post("accounts/nowhere/corrections", **FIX))
    assert await left(site) == 20 * GPU_HOUR


async def test_only_granters_correct(site: Site) -> None:
    for name in ("tina", "alice", "operator"):
        visitor = await logged_in(site, name)
        assert (await visitor.post(CORRECT, **FIX, confirmed="yes")).code == 403
    assert "Correct a mistake" not in await site.visitor("tina").text("accounts/teaching")
    assert "Correct a mistake" in await site.visitor("root").text("accounts/teaching")
