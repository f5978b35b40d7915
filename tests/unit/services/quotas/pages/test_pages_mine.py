"""My GPU time: what a user sees of balances, limits, use and sessions, and what nobody else does."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from forged_login import Site, plain, running

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.rules import Person, QuotaRequest
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.store.sessions import SessionStore

POLICY = """
zone: Europe/Berlin
quotas:
  - {id: week, user: "*", gpu_time: 20, window: week}
  - {id: granted, account: teaching, needs_grant: true}
"""


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, POLICY) as found:
        yield found


async def session(
    site: Site, id: str = "3f2a", user: str = "alice", account: str = "physics", gpus: int = 2, state: str = "CANCELLED"
) -> None:
    """One session of two hours that is stopped after fifteen minutes, and settled."""
    await site.ledger.admit(id, Person(user), QuotaRequest(account, Gpus("a100", gpus), 7200))
    if state == "open":
        return
    request = Request("a100", "default", Gpus("a100", gpus), account=account)
    row = Session(id, "lab", user, "", request, SessionState.ENDED, site.now, job_id=7, started=site.now + 5)
    SessionStore(site.service.settlement._sessions._engine).add(row)
    ended = Usage(
        7, "7", JOB_NAME_PREFIX + id, user, account, "gpu", "normal", state, Phase.TERMINAL,
        site.now, site.now, site.now + 900, (Gpus("a100", gpus),), "node1", 7200,
    )  # fmt: skip
    site.now += 960
    await site.ledger.settle([ended], sessions=[row])


async def test_a_user_sees_the_account_and_its_window_with_used_held_and_left(site: Site) -> None:
    await session(site)
    await session(site, "9b1c", gpus=1, state="open")
    page = await site.visitor("alice").text("")
    assert "In all your accounts This week Yours, in all accounts. 0.5 h used 2 h held 17.5 h left of 20 h" in page
    assert "Starts again on Monday 23 November at 00:00." in page
    assert "Account physics" in page
    assert "Account teaching Balance" in page


async def test_a_user_reads_what_the_policy_allows_with_each_account(site: Site) -> None:
    page = await site.visitor("alice").text("")
    usual = "If this site offers it, you may extend running sessions and book GPUs; you may not add images."
    assert page.count(usual) == 2  # one for each account, none for what counts in all of them
    Path(site.service.settings.policy_file).write_text(
        "quotas:\n  - {id: exam, account: teaching, may_book: false, may_extend: false}\n"
        "  - {id: alice, user: alice, may_add_images: true}\n"
    )
    page = await site.visitor("alice").text("")
    assert re.search(
        r"Account physics .* you may extend running sessions and book GPUs and add images\. .*Account teaching .* "
        r"you may add images; you may not extend running sessions or book GPUs\.",
        page,
    )


async def test_a_bar_is_red_where_use_has_filled_it_and_not_where_all_is_only_held(site: Site) -> None:
    await site.ledger.grant("teaching", 4 * GPU_HOUR, key="g", actor="root")
    await session(site, account="teaching", state="open")
    alice = site.visitor("alice")
    assert "0 h used 4 h held 0 h left of 4 h" in await alice.text("")
    assert "quota-over" not in (await alice.get("")).body.decode()
    await site.ledger.correct("teaching", -GPU_HOUR, key="c", actor="root", reason="x", user="alice", used_at=site.now)
    assert "quota-over" in (await alice.get("")).body.decode()


async def test_every_line_of_the_statement_explains_itself(site: Site) -> None:
    await session(site)
    page = await site.visitor("alice").text("")
    assert "hold Held for the whole time limit" in page
    assert "−4 h" in page
    assert "charge Used by job 7, which was cancelled. 2 × a100 for 15 min" in page
    assert "13:00:00 to 13:15:00" in page  # Berlin
    assert "on node1" in page
    assert "−0.5 h" in page
    assert "release The hold was released: the session is over." in page
    assert "+4 h" in page


async def test_a_correction_of_a_use_names_its_day_in_the_sites_zone(site: Site) -> None:
    for key, used_at in (("a", site.now - 19 * 86400 + 11.5 * 3600), ("b", 0.0)):  # 23:30 UTC on 1 November
        await site.ledger.correct(
            "physics", -GPU_HOUR, key=key, actor="root", reason=f"the {key}", user="alice", used_at=used_at
        )
    page = await site.visitor("alice").text("")
    assert "Corrected by root: the a use of 2 November 2026 account physics" in page
    assert "Corrected by root: the b account physics" in page


async def test_a_refund_says_why(site: Site) -> None:
    await session(site, state="NODE_FAIL")
    page = await site.visitor("alice").text("sessions/3f2a")
    assert "refund Refunded: a node failed." in page
    assert "It cost 0 h" in page
    assert "Refunded 0.5 h" in page


async def test_more_nodes_for_a_session_are_found_in_its_story_and_lead_back_to_it(site: Site) -> None:
    await session(site)
    await site.ledger.admit("7d11", Person("alice"), QuotaRequest("physics", Gpus("a100", 4), 3600))
    request = Request("a100", "default", Gpus("a100", 4), account="physics", nodes=2, purpose="run1")
    row = Session("7d11", "lab", "alice", "", request, SessionState.SUBMITTED, site.now, parent="3f2a")
    SessionStore(site.service.settlement._sessions._engine).add(row)
    parent = await site.visitor("alice").get("sessions/3f2a")
    assert '/sessions/7d11">2 nodes more for run1, 4 × a100</a>' in parent.body.decode()
    own = await site.visitor("alice").text("sessions/7d11")
    assert "These were additional nodes for session 3f2a ." in own
    assert "4 h is held until the session ends" in own
    assert "More nodes" not in await site.visitor("alice").text("sessions/7d11")


async def test_a_session_tells_its_story_to_its_user_and_to_nobody_who_may_not_see_it(site: Site) -> None:
    await session(site)
    await session(site, "9b1c", state="open")
    page = await site.visitor("alice").text("sessions/3f2a")
    assert "It cost 0.5 h Held 4 h Released 4 h Used 0.5 h Refunded 0 h" in page
    assert "So far it cost 0 h 4 h is held until the session ends" in await site.visitor("alice").text("sessions/9b1c")
    assert (await site.visitor("bob").get("sessions/3f2a")).code == 404
    assert (await site.visitor("tina").get("sessions/3f2a")).code == 404  # she owns another account
    assert (await site.visitor("operator").get("sessions/3f2a")).code == 200
    assert (await site.visitor("alice").get("sessions/none")).code == 404


async def test_nobody_sees_the_statement_of_others_but_everybody_what_their_account_was_granted(site: Site) -> None:
    await session(site)
    await site.ledger.grant("physics", 5 * GPU_HOUR, key="a", actor="root", reason="for all of you")
    await site.ledger.grant("physics", 7 * GPU_HOUR, key="b", actor="root", reason="a secret", user="alice")
    page = await site.visitor("bob").text("")
    assert "Granted by root: for all of you." in page
    assert "a secret" not in page
    assert "job 7" not in page
    assert "Balance Granted to the account, and shared by its members. 0.5 h used 0 h held 11.5 h left of 12 h" in page


async def test_the_forecast_is_a_line_through_the_last_14_days_and_there_is_none_without_use(site: Site) -> None:
    await site.ledger.grant("teaching", 100 * GPU_HOUR, key="a", actor="root")
    assert "at the present rate" not in await site.visitor("alice").text("")
    await site.ledger.correct(
        "teaching", -50 * GPU_HOUR, key="c", actor="root", reason="x", user="alice", used_at=site.now - 86400
    )
    # 50 h in 14 days and 50 h left: 14 days from Friday the 20th.
    assert "Used up on 4 December at the present rate." in await site.visitor("alice").text("")


async def test_the_statement_goes_back_page_by_page_and_loses_nothing(site: Site) -> None:
    for number in range(95):
        user = ("", "alice", "bob")[number % 3]
        await site.ledger.grant("physics", GPU_HOUR, key=f"k{number}", actor="root", reason=f"no{number}.", user=user)
    alice, seen, path = site.visitor("alice"), [], ""
    for _ in range(10):
        body = (await alice.get(path)).body.decode()
        seen += [int(number) for number in re.findall(r"\bno(\d+)\b", body)]
        older = re.search(r"\?before=(\d+)", body)
        if older is None:
            break
        path = f"?before={older[1]}"
    assert seen == [number for number in range(94, -1, -1) if number % 3 != 2]
    csv = (await alice.get("statement.csv")).body.decode()
    assert csv.count("\r\n") == 1 + len(seen)


async def test_a_page_for_somebody_without_account_or_use_says_so(site: Site) -> None:
    page = await site.visitor("operator").text("")
    assert "You have no Slurm account" in page
    assert "You have used no GPU time in the last 30 days." in page
    assert "No entries yet." in page


async def test_what_people_type_is_shown_as_text(site: Site) -> None:
    await site.ledger.grant("physics", GPU_HOUR, key="a", actor="root", reason="<script>alert(1)</script>")
    body = (await site.visitor("alice").get("")).body.decode()
    assert "<script>alert(1)" not in body
    assert "&lt;script&gt;alert(1)" in body


async def test_the_login_comes_first_and_the_scope_counts(site: Site) -> None:
    answer = await site.visitor("").get("")
    assert answer.code == 302
    assert "/hub/api/oauth2/authorize" in answer.headers["Location"]
    assert (await site.visitor("stranger").get("")).code == 403


async def test_more_gpu_time_is_asked_for_once_however_often_the_form_is_sent(site: Site) -> None:
    alice = site.visitor("alice")
    await alice.get("")
    form = {"account": "physics", "hours": "12.5", "reason": "the thesis", "key": "k1"}
    for _ in range(2):
        answer = await alice.post("requests", **form)
        assert (answer.code, answer.headers["Location"]) == (303, "/services/quotas/")
    page = await alice.text("")
    assert "You asked for 12.5 h for account physics. Its owner or an administrator will answer." in page
    assert page.count("You asked for 12.5 h on") == 1
    assert "Its owner or an administrator will answer." not in await alice.text("")  # a notice is shown once


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"account": "chemistry"}, "You may not charge account chemistry"),
        ({"hours": "many"}, "many is not a number of GPU-hours"),
        ({"hours": "-1"}, "Give GPU-hours above 0"),
        ({"hours": "NaN"}, "Give GPU-hours above 0"),
        ({"hours": "1e400"}, "Give GPU-hours above 0"),
        ({"hours": "0.0001"}, "at most three decimals"),
        ({"reason": "  "}, "The reason is missing."),
        ({"reason": "x" * 501}, "at most 500 characters"),
    ],
)
async def test_a_wrong_form_is_refused_in_plain_words(site: Site, change: dict[str, str], said: str) -> None:
    alice = site.visitor("alice")
    await alice.get("")
    form = {"account": "physics", "hours": "1", "reason": "x", "key": "k", **change}
    answer = await alice.post("requests", **form)
    assert answer.code == 409
    assert said in plain(answer)


async def test_a_form_from_elsewhere_is_not_taken(site: Site) -> None:
    alice = site.visitor("alice")
    await alice.get("")
    for forged in ({}, {"_xsrf": "forged"}, {"_xsrf": "2|x|y|z"}):
        answer = await alice.raw("requests", {"account": "physics", "hours": "1", "reason": "x", "key": "k", **forged})
        assert answer.code == 403
        assert "Open the page again" in plain(answer)


async def test_while_the_service_is_not_ready_the_page_says_so(site: Site) -> None:
    site.service.not_ready = "The database is away."
    answer = await site.visitor("alice").get("")
    assert answer.code == 503
    assert "The database is away. It tries again by itself." in plain(answer)
