"""What became of a request: who asked reads it on the account's card, its owner on the account's page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from forged_login import Site, running

from carme_hub.accounting.requests import Requests
from carme_hub.domain.ledger.entries import GPU_HOUR

DAY = 86_400
TEACHING = "accounts/teaching"
OWNERS_APPROVE = "zone: Europe/Berlin\nquotas:\n  - {id: heads, account: teaching, owners_approve: 6}\n"


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, "zone: Europe/Berlin\n") as found:
        yield found


async def answered(site: Site, key: str = "1", *, answer: str = "no <b>games</b>", amount: int = 0) -> None:
    """One request of alice for 10 h, denied by tina, or approved by root with this amount a day later."""
    desk = Requests(site.ledger)
    one = await desk.ask("teaching", "alice", 10 * GPU_HOUR, "a <i>game</i>", key=key)
    site.now += DAY
    actor = "root" if amount else "tina"
    await desk.decide(
        one.id, actor=actor, approve=bool(amount), answer=answer, amount=amount * GPU_HOUR or None, may_grant=True
    )


async def test_who_asked_reads_the_answer_on_the_accounts_card_for_30_days(site: Site) -> None:
    await answered(site)
    alice = site.visitor("alice")
    asked = "You asked for 10 h on 20 Nov 2026, 13:00."
    assert f"{asked} Denied by tina on 21 Nov 2026, 13:00: no <b>games</b>" in await alice.text("")
    assert "no &lt;b&gt;games" in (await alice.get("")).body.decode()
    assert "Nobody has answered yet" not in await alice.text("")
    assert asked not in await site.visitor("tina").text("")
    site.now += 29 * DAY
    assert asked in await alice.text("")
    site.now += 2 * DAY
    assert asked not in await alice.text("")


async def test_an_approval_says_how_much_was_given(site: Site) -> None:
    await answered(site, amount=4, answer="")
    assert "Approved with 4 h by root on 21 Nov 2026, 13:00." in await site.visitor("alice").text("")


async def test_an_owner_reads_what_was_answered_lately(site: Site) -> None:
    tina = site.visitor("tina")
    assert "No request was answered in the last 30 days." in await tina.text(TEACHING)
    await answered(site)
    await answered(site, "2", answer="", amount=10)
    page = await tina.text(TEACHING)
    assert "alice asked for 10 h on 20 Nov 2026, 13:00: a <i>game</i> Denied by tina on 21 Nov 2026, 13:00: no" in page
    assert page.index("Approved with 10 h by root") < page.index("Denied by tina"), "the newest is first"
    assert "Nothing was answered" not in page
    assert "a &lt;i&gt;game" in (await tina.get(TEACHING)).body.decode()
    assert "alice asked for" not in await site.visitor("operator").text(TEACHING), "who answers nothing reads nothing"
    site.now += 31 * DAY
    assert "No request was answered in the last 30 days." in await tina.text(TEACHING)


async def test_an_owner_reads_the_newest_of_many_answers(site: Site) -> None:
    for number in range(25):
        await answered(site, str(number), answer=f"no{number}.")
        site.now -= DAY
    site.now += DAY
    page = await site.visitor("tina").text(TEACHING)
    assert "no24." in page
    assert "no5." in page
    assert "no4." not in page
    assert "5 more were answered" in page


async def test_the_administration_pages_on_to_every_request_that_waits(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.services.quotas.pages.requests.PAGE_SIZE", 3)
    desk = Requests(site.ledger)
    for number in range(7):
        await desk.ask("physics", f"user{number}", GPU_HOUR, "x", key="1")
    root, path, seen = site.visitor("root"), "administration/requests", []
    for said in (
        "The newest 3 are shown; older ones wait too.",
        "Newer and older ones wait too.",
        "Newer ones wait too.",
    ):
        body = (await root.get(path)).body.decode()
        seen += re.findall(r"user(\d) asks for", body)
        assert said in await root.text(path)
        older = re.search(r'href="\?(before=\d+)">Older', body)
        path = f"administration/requests?{older[1]}" if older else ""
    assert (seen, path) == ([str(number) for number in reversed(range(7))], "")
    assert "user6 asks for" in await root.text("administration/requests?before=1"), "none is older: the newest again"


async def test_an_owner_approves_out_of_what_the_policy_lets_owners_approve(site: Site) -> None:
    desk, tina = Requests(site.ledger), site.visitor("tina")
    one = await desk.ask("teaching", "alice", 4 * GPU_HOUR, "a thesis", key="1")
    assert "An administrator of the hub can approve this." in await tina.text(TEACHING)
    Path(site.service.settings.policy_file).write_text(OWNERS_APPROVE)
    assert "owners' share: 6 h left" in await tina.text(TEACHING)
    assert "may approve requests with 6 h of new GPU time; 6 h of that are left" in await tina.text(TEACHING)
    said = {"decision": "approve", "reason": "", "source": "", "confirmed": "yes"}
    over = await tina.post(f"requests/{one.id}", **said, hours="7")
    assert over.code == 409
    assert "may approve 6 GPU-hours a month, and 6 of them are left" in over.body.decode()
    asked = await tina.post(f"requests/{one.id}", **{**said, "confirmed": ""}, hours="4")
    assert re.search(r"4\sh are granted to the account\.", asked.body.decode())
    for _ in range(2):  # a second click is told the same
        assert (await tina.post(f"requests/{one.id}", **said, hours="4")).code == 303
    assert (await site.ledger.balances(["teaching"]))["teaching"].left == 4 * GPU_HOUR
    await desk.ask("teaching", "alice", 3 * GPU_HOUR, "another", key="2")
    assert re.search(r'name="hours"\s[^>]*value="2"', (await tina.get(TEACHING)).body.decode()), "no more than is left"
    assert "owners' share: 2 h left" in await tina.text(TEACHING)


async def test_an_owner_is_offered_no_more_than_is_left_to_the_second(site: Site) -> None:
    Path(site.service.settings.policy_file).write_text(OWNERS_APPROVE)
    desk, tina = Requests(site.ledger), site.visitor("tina")
    first = await desk.ask("teaching", "alice", GPU_HOUR, "a thesis", key="1")
    await desk.decide(first.id, actor="tina", approve=True, amount=1000)
    second = await desk.ask("teaching", "alice", 6 * GPU_HOUR, "another", key="2")
    page = (await tina.get(TEACHING)).body.decode()
    assert re.search(r'name="hours"\s[^>]*value="5\.99"', page)
    said = {"decision": "approve", "reason": "", "source": "", "confirmed": "yes"}
    assert (await tina.post(f"requests/{second.id}", **said, hours="5.99")).code == 303


async def test_an_owner_is_not_offered_to_approve_what_they_asked_for_themselves(site: Site) -> None:
    Path(site.service.settings.policy_file).write_text(OWNERS_APPROVE)
    await Requests(site.ledger).ask("teaching", "tina", GPU_HOUR, "a thesis", key="1")
    page = await site.visitor("tina").text(TEACHING)
    assert "owners' share" not in page
    assert "An administrator of the hub can approve this." in page
