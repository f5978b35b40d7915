"""REST and pages say what finished jobs used to their users, and what accounts did not use to those who may see it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forged_activity import Site, running

from carme_hub.domain.activity.advice import advice
from carme_hub.domain.activity.efficiency import Asked, Used
from carme_hub.domain.activity.finished import REPORTER, SACCT, FinishedJob
from carme_hub.services.activity.application.advice import in_order

HOUR = 3600


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, weekly_mail=True) as found:
        found.service.finished_jobs.put([job(1), job(2, user="bob", account="bio"), batch(3)])
        yield found


def job(number: int, **changes: Any) -> FinishedJob:
    asked, used = Asked(4, 16, 65_536, 480), Used(1, 80.0, 20_000, 3.0, 10.0, 50_000, 1.0)
    ended = time.time() - 60 * number
    found = FinishedJob(
        *(number, "alice", "physics", "gpu", "COMPLETED", ended - HOUR - 60, ended - HOUR, ended, asked, used),
        source=REPORTER,
        cpu_seconds=3.0 * HOUR,
        memory=50_000,
        gpu_busy=0.8 * HOUR,
        gpu_type="a100",
        session="0f",
        image="base",
        interactive=True,
    )
    return replace(found, **changes)


def batch(number: int, **changes: Any) -> FinishedJob:
    """Return a job of the command line, whose name is not of our making."""
    used = Used(cpus=15.0, memory=60_000, measured=1.0)
    more = {"used": used, "source": SACCT, "session": "", "image": "", "interactive": False, "gpu_busy": None}
    return job(number, **{**more, "name": "<b>train</b>", "shown_id": "3_1", **changes})


async def get(site: Site, name: str, path: str, status: int = 200) -> Any:
    answer = await site.get(name, path)
    assert answer.code == status, answer.body
    return json.loads(answer.body)


async def page(site: Site, name: str, path: str, status: int = 200) -> str:
    answer = await site.ask("GET", path, Authorization=f"token {name}")
    assert answer.code == status, answer.body
    return answer.body.decode()


async def test_everybody_reads_ones_own_jobs_with_advice(site: Site) -> None:
    found = await get(site, "alice", "jobs")
    assert found["user"] == "alice"
    session, of_shell = found["jobs"]
    assert session["line"].startswith("1 of 4 GPUs was used, at 80 % on average.")
    assert (session["suggestion"], session["source"]) == ("Ask for 1 GPU.", "reporter")
    assert session["asked"] == {
        **{"gpus": 4, "gpu_type": "a100", "nodes": 1, "cpus": 16, "memory_mib": 65_536, "minutes": 480}
    }
    assert (of_shell["shown_id"], of_shell["source"], of_shell["used"]["gpus"]) == ("3_1", "sacct", None)
    assert "Slurm's accounting does not say" in of_shell["line"]


def test_a_job_is_compared_with_the_few_before_it_of_its_kind() -> None:
    every = [job(number, used=Used(1 + number % 4, 80.0, 9, 3.0, 10.0, 50_000, 1.0)) for number in range(1, 12)]
    every.insert(3, batch(3, name="other"))
    found = in_order(every)
    assert [each.job for each in found] == every
    assert [each.said for each in found] == [advice(each, every) for each in every]


async def test_others_jobs_are_for_those_who_may_read_everybodys(site: Site) -> None:
    assert (await get(site, "bob", "jobs?user=alice", 403))["error"] == "not-yours"
    assert [job["job_id"] for job in (await get(site, "operator", "jobs?user=bob"))["jobs"]] == [2]
    assert (await get(site, "stranger", "jobs", 403))["message"]
    assert (await get(site, "alice", "jobs?days=0", 400))["error"] == "bad-request"


async def test_what_was_not_used_is_for_administrators_and_the_accounts_owner(site: Site) -> None:
    accounts = {each["account"]: each for each in (await get(site, "root", "unused"))["accounts"]}
    assert set(accounts) == {"physics", "bio"}
    sums = accounts["physics"]["total"]
    assert (sums["jobs"], sums["gpu_hours"], sums["gpu_hours_unused"], sums["gpu_hours_unknown"]) == (2, 8.0, 3.0, 4.0)
    assert sums["gpu_busy"] == 20.0, "of the four GPU-hours that are known"
    assert [week["jobs"] for week in accounts["physics"]["weeks"]][-2:] in ([0, 2], [2, 0], [1, 1])
    assert len(accounts["physics"]["weeks"]) == 13
    owned = await get(site, "owner", "unused?weeks=4")
    assert [each["account"] for each in owned["accounts"]] == ["physics"]
    for name, path in (("alice", "unused"), ("operator", "unused"), ("owner", "unused?account=bio")):
        assert (await get(site, name, path, 403))["error"] == "not-yours"


async def test_the_page_of_ones_jobs_says_what_to_ask_for(site: Site) -> None:
    text = await page(site, "alice", "")
    assert "Ask for 1 GPU." in text
    assert "&lt;b&gt;train&lt;/b&gt;" in text
    assert "<b>train" not in text
    assert "What was not used" not in text
    assert 'href="/services/activity/mail?user=alice&amp;token=' in text
    assert "None of your jobs has ended" in await page(site, "owner", "")


async def test_the_page_of_accounts_has_what_is_not_known_in_a_column_of_its_own(site: Site) -> None:
    text = " ".join((await page(site, "root", "unused")).split())
    assert '<a href="/services/activity/unused/physics?weeks=13">physics</a>' in text
    assert "3.0 (75 %)" in text
    assert "4.0" in text
    assert 'aria-label="Unused: 75 % of the GPU time that is known"' in text
    week = " ".join((await page(site, "owner", "unused/physics?weeks=4")).split())
    assert week.count('<th scope="row"') == 4
    assert "bio" not in await page(site, "owner", "unused")


@pytest.mark.parametrize(
    ("name", "path", "status"),
    [
        ("alice", "unused", 403),
        ("operator", "unused", 403),
        ("alice", "unused/physics", 404),
        ("owner", "unused/bio", 404),
    ],
)
async def test_nobody_else_sees_it(site: Site, name: str, path: str, status: int) -> None:
    text = await page(site, name, path, status)
    assert "GPU-hours" not in text


# -- the end of the weekly mail ----------------------------------------------------------------------------------------


def link(site: Site, user: str = "alice") -> str:
    return f"mail?user={user}&token={site.service.mail_tokens.token(user)}"


async def test_a_get_of_the_link_changes_nothing_and_its_button_ends_the_mail(site: Site) -> None:
    wants = site.service.finished_jobs.wants_mail
    answer = await site.ask("GET", link(site))
    assert (answer.code, wants("alice")) == (200, True)
    assert "End the weekly mail?" in answer.body.decode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    done = await site.ask("POST", link(site), b"wanted=no", **form)
    assert (done.code, wants("alice")) == (200, False)
    assert "Get the weekly mail again" in (await site.ask("GET", link(site))).body.decode()
    await site.ask("POST", link(site), b"wanted=yes", **form)
    assert wants("alice")


async def test_a_mail_program_ends_it_with_one_click(site: Site) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = await site.ask("POST", link(site), b"List-Unsubscribe=One-Click", **form)
    assert (answer.code, site.service.finished_jobs.wants_mail("alice")) == (200, False)


async def test_the_link_of_somebody_else_or_of_nobody_does_nothing(site: Site) -> None:
    token = site.service.mail_tokens.token("bob")
    for path in (f"mail?user=alice&token={token}", "mail?user=alice", "mail", "mail?user=alice&token=%C3%A4"):
        for method, body in (("GET", None), ("POST", b"wanted=no")):
            assert (await site.ask(method, path, body)).code == 403
    assert site.service.finished_jobs.wants_mail("alice")
