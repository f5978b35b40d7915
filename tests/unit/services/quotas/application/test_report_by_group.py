"""The report by group: who is in several counts in each, and the total is that of the entries, behind every door."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from forged_login import Site, running

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.rules import Person

PEOPLE = {
    "alice": Person("alice", frozenset({"course", "=staff"})),
    "bob": Person("bob", frozenset({"course"})),
    "tina": Person("tina"),
}
PAGE, FILE = "administration/report?by=group", "administration/report.csv?by=group"
REST = "api/v1/report?by=group"


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, "currency: EUR\n", price_of_gpu_hour="0.50") as found:
        found.service.hub_users.people = dict(PEOPLE)
        hours = {"alice": 3, "bob": 2, "tina": 1, "outside": 4}
        jobs = [job(found, number, user, spent) for number, (user, spent) in enumerate(hours.items(), 1)]
        await found.ledger.settle([*jobs, job(found, 9, "bob", 1, state="NODE_FAIL")], sessions=[])
        yield found


def job(site: Site, number: int, user: str, hours: int, state: str = "COMPLETED") -> Usage:
    """A job outside the hub with one GPU; a node's failure gives it back."""
    end = site.now - number * 60
    return Usage(
        *(number, str(number), "train", user, "physics", "gpu", "normal", state, Phase.TERMINAL),
        *(end - hours * 3600 - 5, end - hours * 3600, end, (Gpus("a100", 1),), "node1", 86400),
    )


async def rest(site: Site, who: str = "root", path: str = REST) -> Any:
    answer = await site.api(who, "GET", path)
    return answer.code, json.loads(answer.body)


async def test_who_is_in_several_groups_counts_in_each_and_once_in_the_total(site: Site) -> None:
    page = await site.visitor("root").text(PAGE)
    assert "Group Jobs GPU time Refunded Cost, EUR course 3 5 h 1 h 2.50 no group 2 5 h 0 h 2.50" in page
    assert "=staff 1 3 h 0 h 1.50 All 5 10 h 1 h 5.00" in page
    assert "A user of several groups counts in each, so they may add up to more than All" in page
    assert "Groups are those of today." in page
    assert "Who is in several" not in await site.visitor("root").text("administration/report?by=user")


async def test_page_file_and_rest_say_the_same_numbers(site: Site) -> None:
    status, said = await rest(site)
    assert (status, said["by"]) == (200, "group")
    rows = {row["name"]: (row["jobs"], row["amount"], row["refunded"], row["cost"]) for row in said["rows"]}
    assert rows == {
        "course": (3, 5 * GPU_HOUR, GPU_HOUR, "2.50"),
        "no group": (2, 5 * GPU_HOUR, 0, "2.50"),
        "=staff": (1, 3 * GPU_HOUR, 0, "1.50"),
    }
    total = said["total"]
    assert (total["name"], total["jobs"], total["amount"], total["refunded"], total["cost"]) == (
        *("total", 5, 10 * GPU_HOUR, GPU_HOUR),
        "5.00",
    )
    for file in (FILE, "api/v1/report.csv?by=group"):
        text = (await site.api("root", "GET", file)).body.decode()
        lines = list(csv.DictReader(io.StringIO(text)))
        assert {
            line["group"]: (line["jobs"], Decimal(line["gpu_hours"]) * GPU_HOUR, line["cost_eur"]) for line in lines
        } == {
            **{name.replace("=", "'="): (str(jobs), amount, cost) for name, (jobs, amount, _, cost) in rows.items()},
            "total": ("5", 10 * GPU_HOUR, "5.00"),
        }
        assert lines[-1]["group"] == "total"


async def test_the_total_is_the_same_whatever_the_report_is_by(site: Site) -> None:
    totals = [(await rest(site, path=f"api/v1/report?by={by}"))[1]["total"] for by in ("user", "account", "gpu")]
    assert totals == [(await rest(site))[1]["total"]] * 3


async def test_while_the_hub_is_silent_nobody_is_said_to_be_in_no_group(site: Site) -> None:
    site.service.hub_users.people = {}
    root = site.visitor("root")
    page = await root.text(PAGE)
    assert "The hub does not say who is in which group. Try again in a moment." in page
    assert "no group" not in page
    assert (await root.get(FILE)).code == 503
    status, said = await rest(site)
    assert (status, "who is in which group" in said["message"]) == (503, True)
    assert "bob 2 2 h" in await root.text("administration/report?by=user"), "the others need no hub"


async def test_an_accounts_owner_is_not_told_who_is_in_which_group(site: Site) -> None:
    status, said = await rest(site, "tina")
    assert (status, said["error"]) == (403, "not-yours")
    assert "Take the report by user." in said["message"]
    assert (await rest(site, "tina", "api/v1/report?by=user"))[0] == 200


async def test_a_month_without_use_has_no_line_in_the_file(site: Site) -> None:
    text = (await site.api("root", "GET", f"{FILE}&month=2026-01")).body.decode()
    assert text.splitlines() == ["group,jobs,gpu_hours,refunded_gpu_hours,cost_eur"]


async def test_who_came_after_the_hub_had_named_nobody_is_known_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [{}, dict(PEOPLE), {}]
    hub_users = site.service.hub_users
    hub_users.people = {}

    async def ask() -> dict[str, Person]:
        return answers.pop(0)

    monkeypatch.setattr(hub_users, "_ask", ask)
    root = site.visitor("root")
    assert "The hub does not say" in await root.text(PAGE)
    for _ in range(2):
        assert "course 3 5 h" in await root.text(PAGE), "and what is known is not asked for at each look"
