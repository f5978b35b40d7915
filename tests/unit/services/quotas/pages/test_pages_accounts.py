"""An account's owner sees members and requests, and gives what they have; an administrator gives what is new."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from forged_login import Site, left, logged_in, plain, running

from carme_hub.accounting.requests import Requests
from carme_hub.domain.ledger.entries import GPU_HOUR

GRANTS = "accounts/teaching/grants"
FORM = {"hours": "12.5", "reason": "the course", "key": "k1", "expires": "", "user": ""}


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as found:
        yield found


async def test_an_owner_sees_members_and_their_share(site: Site) -> None:
    for user, hours in (("alice", 3), ("tina", 1)):
        await site.ledger.correct(
            "teaching", -hours * GPU_HOUR, key=user, actor="root", reason="x", user=user, used_at=site.now - 3600
        )
    tina = site.visitor("tina")
    answer = await tina.get("accounts")
    assert answer.headers["Location"] == "/services/quotas/accounts/teaching"
    page = await tina.text("accounts/teaching")
    assert "alice 3 h 75 % tina 1 h 25 %" in page


async def test_accounts_of_others_are_not_to_be_seen(site: Site) -> None:
    assert (await site.visitor("tina").get("accounts/physics")).code == 404
    assert (await site.visitor("alice").get("accounts/teaching")).code == 404
    assert "My accounts" not in await site.visitor("alice").text("")
    assert (await site.visitor("operator").get("accounts/physics")).code == 200
    assert (await site.visitor("operator").get("accounts/nowhere")).code == 404


async def test_a_grant_is_confirmed_first_and_written_once(site: Site) -> None:
    root = await logged_in(site, "root")
    asked = await root.post(GRANTS, **FORM)
    assert "Grant this GPU time?" in plain(asked)
    assert "12.5 h for account teaching." in plain(asked)
    assert await left(site) == 0
    for _ in range(2):
        done = await root.post(GRANTS, **FORM, confirmed="yes")
        assert (done.code, done.headers["Location"]) == (303, "/services/quotas/accounts/teaching")
    assert await left(site) == 12.5 * GPU_HOUR
    page = await root.text("accounts/teaching")
    assert "12.5 h granted to account teaching." in page
    assert "Granted by root: the course." in page
    changed = await root.post(GRANTS, **{**FORM, "hours": "99"}, confirmed="yes")
    assert "This form was sent before." in plain(changed)
    assert await left(site) == 12.5 * GPU_HOUR


async def test_what_is_confirmed_is_what_was_typed(site: Site) -> None:
    root = await logged_in(site, "root")
    body = (await root.post(GRANTS, **{**FORM, "reason": 'a "quote" & <b>'})).body.decode()
    assert 'name="reason" value="a &#34;quote&#34; &amp; &lt;b&gt;"' in " ".join(body.split())


async def test_a_credit_ends_with_its_last_day(site: Site) -> None:
    root = await logged_in(site, "root")
    await root.post(GRANTS, **{**FORM, "expires": "2026-12-31", "user": "alice"}, confirmed="yes")
    page = await root.text("accounts/teaching")
    assert "Granted for alice by root: the course. It expires on 1 Jan 2027, 00:00." in page
    for wrong in ("2020-01-01", "tomorrow"):
        answer = await root.post(GRANTS, **{**FORM, "expires": wrong}, confirmed="yes")
        assert "The last day is a date from today on" in plain(answer)
    answer = await root.post(GRANTS, **{**FORM, "user": "bob"}, confirmed="yes")
    assert "bob is no member of account teaching" in plain(answer)


async def test_nobody_but_an_administrator_makes_gpu_time_out_of_nothing(site: Site) -> None:
    for name in ("alice", "operator", "tina"):  # tina owns the account
        visitor = await logged_in(site, name)
        answer = await visitor.post(GRANTS, **FORM, confirmed="yes")
        assert answer.code == 403
        assert "New GPU time is granted by an administrator of the hub." in plain(answer)
    assert await left(site) == 0
    page = await site.visitor("tina").text("accounts/teaching")
    assert "Grant…" not in page
    assert "Only an administrator of the hub can grant new GPU time. As an owner you can move what" in page


async def test_an_owner_of_one_account_denies_and_is_told_who_can_approve(site: Site) -> None:
    desk = Requests(site.ledger)
    one = await desk.ask("teaching", "alice", 10 * GPU_HOUR, "the thesis", key="1")
    two = await desk.ask("teaching", "alice", 20 * GPU_HOUR, "a game", key="2")
    tina = await logged_in(site, "tina")
    page = await tina.text("accounts/teaching")
    assert "alice asks for 10 h for account teaching the thesis" in page
    assert "An administrator of the hub can approve this." in page
    for source, words in (
        ("", "Only administrators of the hub grant new GPU time to this account"),
        ("physics", "not own"),
    ):
        form = {"decision": "approve", "hours": "4", "reason": "", "source": source, "confirmed": "yes"}
        assert words in plain(await tina.post(f"requests/{one.id}", **form))
    await tina.post(f"requests/{two.id}", decision="deny", hours="", reason="no games", confirmed="yes")
    assert [(each.state, each.answer) for each in await desk.all()] == [("denied", "no games"), ("open", "")]
    assert await left(site) == 0


async def test_an_owner_of_two_approves_with_another_amount_out_of_the_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        site.service.associations, "coordinates", lambda user: ("physics", "teaching") * (user == "tina")
    )
    await site.ledger.grant("physics", 5 * GPU_HOUR, key="p", actor="root")
    one = await Requests(site.ledger).ask("teaching", "alice", 10 * GPU_HOUR, "the thesis", key="1")
    tina = await logged_in(site, "tina")
    body = (await tina.get("accounts/teaching")).body.decode()
    assert '<option value="physics">account physics</option>' in body
    form = {"decision": "approve", "hours": "4", "reason": "", "source": "physics"}
    asked = plain(await tina.post(f"requests/{one.id}", **form))
    assert "4 h go there from account physics." in asked
    assert "Approve and move 4 h" in asked
    too_much = await tina.post(f"requests/{one.id}", **{**form, "hours": "6"}, confirmed="yes")
    assert "Account physics has 5.00 GPU-hours that can be moved" in plain(too_much)
    assert await left(site) == 0
    await tina.post(f"requests/{one.id}", **form, confirmed="yes")
    assert (await left(site), await left(site, "physics")) == (4 * GPU_HOUR, GPU_HOUR)
    page = await tina.text("accounts/teaching")
    assert "4 h moved: the request of alice for account teaching." in page
    assert "Moved here by tina: asked for by alice: the thesis." in page
    again = await tina.post(f"requests/{one.id}", **{**form, "hours": "1"}, confirmed="yes")
    assert "tina has decided on this request already" in plain(again)


async def test_requests_are_answered_by_the_owner_alone(site: Site) -> None:
    one = await Requests(site.ledger).ask("physics", "bob", GPU_HOUR, "x", key="1")
    for name in ("bob", "tina", "operator"):
        visitor = await logged_in(site, name)
        answer = await visitor.post(f"requests/{one.id}", decision="approve", hours="1", confirmed="yes")
        assert answer.code == 403
    root = await logged_in(site, "root")
    assert "bob asks for 1 h" in await root.text("administration/requests")
    assert (await root.post(f"requests/{one.id}", decision="approve", hours="1", confirmed="yes")).code == 303


async def test_all_accounts_are_searched_and_sorted(site: Site) -> None:
    await site.ledger.grant("physics", 5 * GPU_HOUR, key="a", actor="root")
    await site.ledger.grant("zoology", 9 * GPU_HOUR, key="b", actor="root")
    root = site.visitor("root")
    names = re.compile(r'accounts/(\w+)">')
    assert names.findall((await root.get("administration")).body.decode()) == ["physics", "teaching", "zoology"]
    by_grant = (await root.get("administration?sort=granted")).body.decode()
    assert names.findall(by_grant) == ["zoology", "physics", "teaching"]
    assert names.findall((await root.get("administration?q=PHYS")).body.decode()) == ["physics"]
    assert "No account has “<x>” in its name." in await root.text("administration?q=%3Cx%3E")
    for name in ("alice", "tina"):
        assert (await site.visitor(name).get("administration")).code == 403
