"""A group's members and what they used, for those who may read the group."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import forged_login
import pytest
from forged_login import Site, running

from carme_hub.accounting.requests import Requests
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Person
from carme_hub.services.quotas.scopes import MANAGE, READ, READ_ALL

POLICY = """quotas:
- {id: each, group: course, gpu_time: 4, window: week}
- {id: together, group: course, gpu_time: 10, window: month, together: true}
"""
PEOPLE = {
    "alice": Person("alice", frozenset({"course", "a/b c"})),
    "bob": Person("bob", frozenset({"course"})),
    "tina": Person("tina", frozenset({"staff"})),
}


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setitem(forged_login.SCOPES, "tina", (READ, MANAGE, f"{READ_ALL}!group=course"))
    async with running(tmp_path, monkeypatch, POLICY) as found:
        found.service.hub_users.people = dict(PEOPLE)
        found.ledger.context = replace(found.ledger.context, members=found.service.hub_users.members)
        for user, hours in (("alice", 3), ("bob", 1)):
            await used(found, user, hours)
        yield found


async def used(site: Site, user: str, hours: int, days: float = 0.1, account: str = "physics") -> None:
    await site.ledger.correct(
        *(account, -hours * GPU_HOUR),
        key=f"{user}-{hours}-{days}",
        actor="root",
        reason="x",
        user=user,
        used_at=site.now - days * 86400,
    )


async def test_members_are_compared_in_the_windows_of_the_groups_rules(site: Site) -> None:
    await used(site, "alice", 2, 6)  # last week, and this month
    await used(site, "tina", 9)
    page = await site.visitor("root").text("groups/course")
    assert "2 members. Their use counts in all accounts." in page
    assert "This week 4 h for each member. Starts again" in page
    assert "alice 3 h 0 h 1 h 75 % bob 1 h 0 h 3 h 25 % All 4 h" in page
    assert "Shared by group course. 6 h used 0 h held 4 h left of 10 h" in page
    assert "alice 5 h 0 h 83 % bob 1 h 0 h 17 % All 6 h" in page
    assert "tina" not in page


async def test_a_member_with_nothing_left_is_marked(site: Site) -> None:
    await used(site, "bob", 5)
    assert "bob 6 h 0 h 0 h empty" in await site.visitor("operator").text("groups/course")


async def test_a_group_without_rules_is_compared_over_a_month(site: Site) -> None:
    page = await site.visitor("root").text("groups/a%2Fb%20c")
    assert "Group a/b c" in page
    assert "Last 30 days" in page
    assert "alice 3 h 0 h 100 % All 3 h" in page


async def test_requests_of_members_stand_with_the_group_and_are_answered_by_those_who_may(site: Site) -> None:
    desk = Requests(site.ledger)
    await desk.ask("physics", "bob", GPU_HOUR, "a poster", key="1")
    await desk.ask("teaching", "tina", GPU_HOUR, "not of this group", key="2")
    for name, may in (("root", True), ("operator", False), ("tina", False)):
        page = await site.visitor(name).text("groups/course")
        assert "bob asks for 1 h for account physics a poster" in page
        assert "not of this group" not in page
        assert ("Approve" in page) is may


async def test_an_owner_is_offered_an_answer_that_works(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Requests(site.ledger)
    await desk.ask("teaching", "alice", GPU_HOUR, "a thesis", key="1")
    one = (await desk.all())[0]
    tina = site.visitor("tina")  # she owns the account, and no other
    page = await tina.text("groups/course")
    assert "An administrator of the hub can approve this." in page
    assert ("Deny" in page, "Approve" in page) == (True, False)
    monkeypatch.setattr(
        site.service.associations, "coordinates", lambda user: ("chemistry", "teaching") * (user == "tina")
    )
    await site.ledger.grant("chemistry", 5 * GPU_HOUR, key="c", actor="root")
    body = (await tina.get("groups/course")).body.decode()
    (source,) = re.findall(r'<option value="(.*?)">account chemistry</option>', body)
    answered = await tina.post(
        f"requests/{one.id}", decision="approve", hours="1", reason="", source=source, confirmed="yes"
    )
    assert (source, answered.code) == ("chemistry", 303)
    await desk.ask("teaching", "alice", GPU_HOUR, "another", key="2")
    assert "Given out of" not in await site.visitor("root").text("groups/course")


async def test_a_scope_for_one_group_shows_that_group_alone(site: Site) -> None:
    tina = site.visitor("tina")
    assert "My groups" in await tina.text("")
    answer = await tina.get("groups")
    assert answer.headers["Location"] == "/services/quotas/groups/course"
    assert "alice 3 h" in await tina.text("groups/course")
    assert (await tina.get("groups/staff")).code == 404
    for page in ("administration/groups", "administration", "accounts/physics"):
        assert (await tina.get(page)).code in (302, 403, 404), page
    assert "staff" not in await tina.text("groups/course")


async def test_others_see_no_group(site: Site) -> None:
    alice = site.visitor("alice")
    assert "My groups" not in await alice.text("")
    for page in ("groups", "groups/course", "administration/groups"):
        assert (await alice.get(page)).code == 404


async def test_all_groups_are_listed_and_searched(site: Site) -> None:
    root = site.visitor("root")
    page = await root.text("administration/groups")
    assert "course 2 4 h each (this week), 10 h shared (this month)" in page
    assert page.index("course 2") < page.index("a/b c 1 none of its own") < page.index("staff 1")
    assert "staff" not in await root.text("administration/groups?q=COUR")
    assert "No group has “x” in its name." in await root.text("administration/groups?q=x")
    assert (await root.get("groups/nobody")).code == 404


async def test_while_the_hub_does_not_say_who_is_where_nothing_is_claimed(site: Site) -> None:
    site.service.hub_users.people = {}
    for page in ("administration/groups", "groups/course"):
        text = await site.visitor("root").text(page)
        assert "The hub does not say who is in which group." in text
        assert "alice" not in text
