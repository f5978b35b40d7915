"""Who answers is told of a request, and who asked of the answer: once each, on pages, by webhook and by mail."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from forged_login import Site, logged_in, running

from carme_hub.accounting.requests import Request, Requests
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Person
from carme_hub.errors import StoreError
from carme_hub.services.quotas.application.notices import Notices

DAY = 86_400
ASKED = "alice asks for 10 GPU-hours for account teaching: the <b>thesis</b>"
DENIED = "tina denied your request for 10 GPU-hours for account teaching: no <i>games</i>"


class Outbox:
    """The mails that a mail server was given."""

    def __init__(self) -> None:
        self.sent: list[EmailMessage] = []

    def __call__(self, *_args: Any, **_more: Any) -> Outbox:
        return self

    def __enter__(self) -> Outbox:
        return self

    def __exit__(self, *_error: object) -> None:
        """Close nothing."""

    def send_message(self, mail: EmailMessage) -> None:
        self.sent.append(mail)

    def letters(self) -> list[tuple[str, str]]:
        """Return to whom, and what."""
        return [(str(each["To"]), each.get_content().strip()) for each in self.sent]


@pytest.fixture
def outbox(monkeypatch: pytest.MonkeyPatch) -> Outbox:
    found = Outbox()
    monkeypatch.setattr("smtplib.SMTP", found)
    return found


@pytest.fixture
async def site(outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, smtp_host="mail", smtp_tls="off", mail_domain="lab.org") as found:
        await found.service.associations.refresh()
        yield found


async def ask(site: Site, account: str = "teaching", user: str = "alice") -> str:
    visitor = await logged_in(site, user)
    form = {"account": account, "hours": "10", "reason": "the\n<b>thesis</b>", "key": "k"}
    assert (await visitor.post("requests", **form)).code == 303
    return (await Requests(site.ledger).all())[0].id


async def test_a_page_that_lists_a_request_does_not_tell_of_it_too(site: Site) -> None:
    id = await ask(site)
    tina, root = await logged_in(site, "tina"), await logged_in(site, "root")
    site.service.hub_users.people = {"root": Person("root", frozenset(), frozenset({"admin"}))}
    await ask(site, "teaching", "tina")  # whom no other owner can answer
    for visitor, who, page in ((tina, "alice", "accounts/teaching"), (root, "tina", "administration/requests")):
        assert f"{who} asks for 10 GPU-hours" in await visitor.text("")
        shown = await visitor.text(page)
        assert f"{who} asks for 10 h for account teaching" in shown
        assert f"{who} asks for 10 GPU-hours" not in shown
    deny = {"decision": "deny", "hours": "", "reason": "", "confirmed": ""}
    for visitor, tab in ((tina, "My accounts"), (root, "Requests")):
        question = (await visitor.post(f"requests/{id}", **deny)).body.decode()
        assert "Deny this request?" in question
        assert "Answer it" not in question
        assert tab in re.findall(r'aria-current="page"[^>]*>([^<]*)<', question)


async def test_owners_are_told_of_a_request_and_who_asked_of_the_answer_once(
    site: Site, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_PUBLIC_URL", "https://hub.lab.org/services/quotas/")
    id = await ask(site)
    link = "https://hub.lab.org/services/quotas/accounts/teaching#requests"
    told = [("tina@lab.org", f"{ASKED}\n\n{link}")]
    tina, alice = await logged_in(site, "tina"), await logged_in(site, "alice")
    await site.service.notices.wait_until_delivered()
    assert outbox.letters() == told
    page = (await tina.get("")).body.decode()
    assert "the &lt;b&gt;thesis" in page
    assert 'href="/services/quotas/accounts/teaching#requests">Answer it</a>' in page
    assert "asks for" not in await alice.text("")
    await tina.post(f"requests/{id}", decision="deny", hours="", reason="no <i>games</i>", confirmed="yes")
    for again in (site.service.notices, Notices(*_parts(site))):  # as after a restart
        await again.notify_about(["alice", "tina"])
        await again.wait_until_delivered()
    assert outbox.letters() == [*told, ("alice@lab.org", DENIED)]
    assert DENIED in await alice.text("")
    assert ASKED not in await tina.text(""), "what is answered waits for nobody"
    site.now += 8 * DAY
    await site.service.notices.notify_about([])
    assert "your request" not in await alice.text("")


def _parts(site: Site) -> tuple[Any, ...]:
    one = site.service
    return one.settings, one.ledger, one.associations, one.hub_users, one.log


async def test_an_approval_says_what_was_given(site: Site, outbox: Outbox) -> None:
    id = await ask(site)
    root = await logged_in(site, "root")
    await root.post(f"requests/{id}", decision="approve", hours="4", reason="", confirmed="yes")
    await site.service.notices.wait_until_delivered()
    text = "root approved your request for 10 GPU-hours for account teaching, and gave 4 GPU-hours."
    assert outbox.letters()[1:] == [("alice@lab.org", text)]


async def test_a_request_that_no_owner_can_answer_reaches_the_administrators(site: Site, outbox: Outbox) -> None:
    site.service.hub_users.people = {"root": Person("root", frozenset(), frozenset({"admin"})), "bob": Person("bob")}
    await ask(site, "teaching", "tina")  # she is the only owner
    await site.service.notices.wait_until_delivered()
    (letter,) = outbox.letters()
    assert letter[0] == "root@lab.org"
    assert letter[1].endswith("/services/quotas/accounts/teaching#requests")


async def test_nobody_is_taken_for_ownerless_while_slurm_has_not_said_who_owns_what(
    outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as site:
        site.service.hub_users.people = {"root": Person("root", frozenset(), frozenset({"admin"}))}
        await Requests(site.ledger).ask("teaching", "alice", GPU_HOUR, "x", key="1")
        assert await site.service.notices.notify_about(()) == []
        await site.service.associations.refresh()
        assert [each.user for each in await site.service.notices.notify_about(())] == ["tina"]


async def test_what_was_asked_or_answered_elsewhere_is_told_by_the_loop(site: Site, outbox: Outbox) -> None:
    desk = Requests(site.ledger)
    one = await desk.ask("teaching", "alice", GPU_HOUR, "x", key="1")
    await desk.decide(one.id, actor="root", approve=False, answer="later")
    two = await desk.ask("teaching", "alice", GPU_HOUR, "y", key="2")
    assert {each.user for each in await site.service.notices.notify_about(())} == {"alice", "tina"}
    site.now += 8 * DAY
    await desk.decide(two.id, actor="alice", approve=False)
    assert await site.service.notices.notify_about(()) == [], "who answers themselves is told nothing"


async def test_rest_tells_as_pages_do(site: Site, outbox: Outbox) -> None:
    body = json.dumps({"account": "teaching", "gpu_hours": "10", "reason": "the <b>thesis</b>"})
    made = await site.api("alice", "POST", "api/v1/requests", body, **{"Idempotency-Key": "r1"})
    assert made.code in (200, 201), made.body
    await site.service.notices.wait_until_delivered()
    assert [to for to, _ in outbox.letters()] == ["tina@lab.org"]


async def test_a_request_is_kept_although_nobody_can_be_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_users: Any) -> None:
        raise StoreError("the database is busy")

    monkeypatch.setattr(site.service.notices, "notify_about", fail)
    assert await ask(site)


async def test_many_requests_that_wait_leave_the_page_in_view(site: Site) -> None:
    desk = Requests(site.ledger)
    for number in range(5):
        await desk.ask("teaching", "alice", GPU_HOUR, f"thesis {number}", key=str(number))
    await site.service.notices.check_changes(["alice"])
    page = (await (await logged_in(site, "tina")).get("")).body.decode()
    before, _, folded = page.partition("<summary>2 more notices</summary>")
    assert before.count("asks for 1 GPU-hour") == 3
    assert folded.count("asks for 1 GPU-hour") == 2


async def test_a_page_reads_no_requests_but_those_of_the_week_that_concern_who_looks(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.service.hub_users.people = {"root": Person("root", frozenset(), frozenset({"admin"})), "bob": Person("bob")}
    desk = Requests(site.ledger)
    old = await desk.ask("teaching", "alice", GPU_HOUR, "old", key="1")
    await desk.decide(old.id, actor="tina", approve=False)
    site.now += 8 * DAY
    denied = await desk.ask("teaching", "alice", GPU_HOUR, "new", key="2")
    await desk.decide(denied.id, actor="tina", approve=False)
    waits = await desk.ask("teaching", "alice", GPU_HOUR, "open", key="3")
    nobodys = await desk.ask("physics", "bob", GPU_HOUR, "open", key="4")
    await site.service.notices.notify_about(["alice", "bob", "tina", "root"])
    read: list[str] = []
    every = Requests.all

    async def note(desk: Requests, *which: Any) -> list[Request]:
        found = await every(desk, *which)
        read.extend(each.id for each in found)
        return found

    monkeypatch.setattr(Requests, "all", note)
    for user, ids, said in (
        ("alice", [waits.id, denied.id], ["tina denied your request"]),
        ("tina", [waits.id, denied.id], ["alice asks for 1 GPU-hour for account teaching"]),
        ("root", [nobodys.id, waits.id, denied.id], ["bob asks for 1 GPU-hour for account physics"]),
        ("bob", [], []),
    ):
        shown = [each["text"] for each in await site.service.notices.open_for(user)]
        assert [text.startswith(words) for text, words in zip(shown, said, strict=True)] == [True] * len(said)
        assert read == ids, user
        read.clear()
