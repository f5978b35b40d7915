"""REST gives lists in pages, as it gives a statement: nothing is left out, and nothing comes twice."""

from __future__ import annotations

from typing import Any

import pytest
from forged_rest import Service, charge, used

from carme_hub.accounting.requests import Requests
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.services.quotas.rest.operations import openapi_document
from carme_hub.store.ledger.writes import Anomaly, LedgerReads

LISTS = ("statement", "requests", "accounts", "anomalies")


def flag(service: Service, *jobs: int) -> None:
    with service.ledger.context.store.transaction("lab") as writes:
        for job in jobs:
            writes.add_anomalies([Anomaly(f"long:lab:{job}:5", "long", "lab", 1.0, job, 5, "physics", "bob")])


async def settled(service: Service, job: int) -> None:
    (found,) = [each for each in await service.ledger.anomalies() if each.job_id == job]
    await service.ledger.decide_anomaly(found.id, actor="ada", decision="no")


async def asked(service: Service, user: str, account: str = "teaching", key: str = "1") -> str:
    return (await Requests(service.ledger).ask(account, user, GPU_HOUR, "x", key=key)).id


async def pages(service: Service, path: str, who: str, limit: int, field: str) -> list[list[Any]]:
    """Return this field of every page, as ``next`` leads from one to the other."""
    found, cursor, mark = [], "", "&" if "?" in path else "?"
    while not found or cursor:
        answer = await service.ask(f"{path}{mark}limit={limit}" + (f"&cursor={cursor}" if cursor else ""), who)
        assert answer.status == 200, answer.text
        found.append([each[field] for each in answer.json[path.partition("?")[0]]])
        cursor = answer.json["next"]
    return found


async def test_requests_come_in_pages_of_what_one_may_see(service: Service) -> None:
    mine = [await asked(service, "alice", key=str(number)) for number in range(5)]
    other = await asked(service, "bob", "physics")
    assert await pages(service, "requests", "alice", 2, "id") == [mine[:2:-1], mine[2:0:-1], mine[:1]]
    assert await pages(service, "requests", "ada", 6, "id") == [[other, *reversed(mine)]]
    assert await pages(service, "requests", "tina", 3, "id") == [mine[:1:-1], mine[1::-1]], "she owns the account"
    await Requests(service.ledger).decide(mine[3], actor="ada", approve=False, answer="no")
    waiting = [mine[4], mine[2], mine[1], mine[0]]
    assert await pages(service, "requests?state=open", "alice", 3, "id") == [waiting[:3], waiting[3:]]
    assert await pages(service, "requests?account=physics", "alice", 3, "id") == [[]]
    assert await pages(service, "requests", "robot", 3, "id") == [[]]


async def test_what_is_asked_and_answered_meanwhile_moves_no_page(service: Service) -> None:
    mine = [await asked(service, "alice", key=str(number)) for number in range(4)]
    first = (await service.ask("requests?limit=2", "alice")).json
    await Requests(service.ledger).decide(mine[0], actor="ada", approve=False, answer="no")
    await asked(service, "alice", key="new")
    second = (await service.ask(f"requests?limit=2&cursor={first['next']}", "alice")).json
    assert [each["id"] for each in second["requests"]] == [mine[1], mine[0]]
    assert (second["requests"][1]["state"], second["next"]) == ("denied", "")


async def test_accounts_come_in_pages_by_name(service: Service) -> None:
    used(service, charge(1, account="Äpfel"), charge(2, account="chem"), charge(3, user="bob", account="physics"))
    assert await pages(service, "accounts", "ada", 2, "name") == [["chem", "physics"], ["teaching", "Äpfel"]]
    assert await pages(service, "accounts", "ada", 4, "name") == [["chem", "physics", "teaching", "Äpfel"]]
    assert await pages(service, "accounts", "tina", 1, "name") == [["teaching"]]
    page = (await service.ask("accounts?limit=1&cursor=chem", "ada")).json
    assert [(each["name"], each["used"], page["next"]) for each in page["accounts"]] == [
        ("physics", GPU_HOUR, "physics")
    ]
    bob = next(each for each in page["accounts"][0]["members"] if each["user"] == "bob")
    assert bob["used"] == GPU_HOUR


async def test_a_page_of_accounts_sums_up_those_on_it_and_no_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(service, *(charge(number, account=f"a{number}") for number in range(5)))
    summed: list[Any] = []
    balances = LedgerReads.balances

    def note(reads: LedgerReads, accounts: Any = None) -> Any:
        summed.append(accounts)
        return balances(reads, accounts)

    monkeypatch.setattr(LedgerReads, "balances", note)
    found = await pages(service, "accounts", "ada", 3, "used")
    assert found == [[GPU_HOUR] * 3, [GPU_HOUR, GPU_HOUR, 0], [0]]
    assert summed == [["a0", "a1", "a2"], ["a3", "a4", "physics"], ["teaching"]]


async def test_anomalies_come_in_pages_also_more_than_a_thousand(service: Service) -> None:
    flag(service, *range(1, 1203))
    found = await pages(service, "anomalies", "ada", 200, "job_id")
    assert [job for page in found for job in page] == list(range(1202, 0, -1))
    for job in (3, 2, 1):
        await settled(service, job)
    decided = await pages(service, "anomalies?settled=true", "ada", 2, "job_id")
    assert sorted(job for page in decided for job in page) == [1, 2, 3]


@pytest.mark.parametrize("path", LISTS)
async def test_a_page_that_makes_no_sense_is_refused_and_an_empty_list_has_one_page(
    service: Service, path: str
) -> None:
    for query in ("limit=0", "limit=201", "limit=x", f"cursor={'9' * 300}"):
        answer = await service.ask(f"{path}?{query}", "ada")
        assert (answer.status, answer.json["error"]) == (400, "bad-request"), query
    answer = await service.ask(f"{path}?cursor=1&limit=200", "ada")
    assert (answer.status, answer.json["next"]) == (200, "")


@pytest.mark.parametrize("path", LISTS)
def test_the_document_says_how_to_page_on(path: str) -> None:
    document = openapi_document("/services/quotas/")
    operation = document["paths"][f"/api/v1/{path}"]["get"]
    assert {"limit", "cursor"} <= {each["name"] for each in operation["parameters"]}
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert document["components"]["schemas"][schema]["properties"]["next"] == {"title": "Next", "type": "string"}
