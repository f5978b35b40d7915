"""REST: who sees and may do what, and what an answer looks like."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from forged_rest import NOW, PREFIX, REST, Service, charge, used

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Kind
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.services.quotas.rest.operations import API, ROUTES, openapi_document

GRANT = {"account": "teaching", "gpu_hours": "2.5", "reason": "for the course"}


# -- who may ---------------------------------------------------------------------------------------------------------


async def test_who_is_not_logged_in_is_told_so_and_never_sent_to_a_page(service: Service) -> None:
    answer = await service.ask("standing")
    assert (answer.status, answer.json["error"], answer.headers["Www-Authenticate"]) == (401, "unauthorized", "Bearer")
    assert "token" in answer.json["message"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.operation.method} {route.operation.path}")
async def test_every_operation_is_closed_to_who_lacks_its_scope(service: Service, route: object) -> None:
    operation = route.operation  # type: ignore[attr-defined]
    path = "/services/quotas/" + operation.path.replace("{id}", "1")
    answer = await service.ask(path, "nobody", method=operation.method, body={} if operation.body else None)
    assert answer.status == (200 if operation.public else 403)


@pytest.mark.parametrize("path", ["anomalies", "reconciliation", "policy", "metrics"])
async def test_what_is_about_everybody_needs_a_wider_scope(service: Service, path: str) -> None:
    assert (await service.ask(path, "alice")).status == 403
    assert (await service.ask(path, "tina")).status == 403
    assert (await service.ask(path, "olga")).status == 200


async def test_reading_everything_gives_nothing_away(service: Service) -> None:
    for path, body in (("settle", {}), ("reconciliation", {}), ("anomalies/1/decision", {})):
        assert (await service.post(path, "olga", body)).status == 403
    assert (await service.post("grants", "olga", GRANT)).status == 403
    assert (await service.ask("policy", "olga", method="PUT", body={}, key="k")).status == 403


async def test_a_service_that_bears_a_users_name_is_not_that_user(service: Service) -> None:
    used(service, charge(1))
    assert (await service.ask("standing", "robot")).status == 403
    assert (await service.ask("statement", "robot")).status == 403
    assert (await service.ask("accounts", "robot")).json["accounts"] == []


# -- reading ---------------------------------------------------------------------------------------------------------


async def test_a_user_sees_the_accounts_that_may_be_charged_with_what_is_left(service: Service) -> None:
    used(service, charge(1, hours=3))
    answer = await service.ask("standing", "alice")
    assert answer.status == 200, answer.text
    teaching = next(each for each in answer.json["accounts"] if each["name"] == "teaching")
    assert teaching["balance"]["used"] == 3 * GPU_HOUR
    assert [(each["quota"], each["used"], each["left"]) for each in teaching["windows"]] == [
        ("month", 3 * GPU_HOUR, 7 * GPU_HOUR)
    ]


async def test_an_account_that_was_never_given_anything_has_nothing_left_to_tell(service: Service) -> None:
    used(service, charge(1, hours=3))
    (account,) = [
        each for each in (await service.ask("standing", "alice")).json["accounts"] if each["name"] == "teaching"
    ]
    assert (account["balance"]["limit"], account["balance"]["left"]) == (0, None)
    owned = {each["name"]: each for each in (await service.ask("accounts", "ada")).json["accounts"]}
    assert (owned["teaching"]["granted"], owned["teaching"]["used"], owned["teaching"]["left"]) == (
        0,
        3 * GPU_HOUR,
        None,
    )


async def test_a_user_reads_what_the_policy_allows_with_each_account(service: Service) -> None:
    quotas = [
        {"id": "exam", "account": "teaching", "may_book": False, "priority": 5},
        {"id": "first", "role": "teacher", "may_add_images": True, "priority": 100},
    ]
    Path(service.settings.policy_file).write_text(json.dumps({"quotas": quotas}))
    found = {each["name"]: each["may"] for each in (await service.ask("standing", "alice")).json["accounts"]}
    usual = {"extend": True, "book": True, "add_images": False, "priority": 0, "nice": 100}
    assert found == {"physics": usual, "teaching": {**usual, "book": False, "priority": 5, "nice": 95}}


async def test_a_statement_has_ones_own_lines_and_the_owner_sees_the_accounts(service: Service) -> None:
    used(service, charge(1), charge(2, "bob", "physics"), charge(3, "eve"))
    assert [each["job_id"] for each in (await service.ask("statement", "alice")).json["entries"]] == [1]
    assert [each["job_id"] for each in (await service.ask("statement?account=teaching", "alice")).json["entries"]] == [
        1
    ]
    owner = await service.ask("statement?account=teaching", "tina")
    assert [each["job_id"] for each in owner.json["entries"]] == [3, 1]
    assert (await service.ask("statement?account=physics&user=bob", "tina")).json["error"] == "not-yours"
    assert (await service.ask("statement?user=bob", "alice")).status == 403
    assert len((await service.ask("statement", "ada")).json["entries"]) == 3


async def test_pages_of_a_statement_follow_each_other_without_a_gap(service: Service) -> None:
    used(service, *(charge(job) for job in range(1, 8)))
    cursor, seen, pages = "", [], 0
    while pages == 0 or cursor:
        answer = await service.ask(f"statement?limit=3{'&cursor=' + cursor if cursor else ''}", "alice")
        seen += [each["job_id"] for each in answer.json["entries"]]
        cursor, pages = answer.json["next"], pages + 1
        used(service, charge(100 + pages))  # what comes in meanwhile moves no page
    assert (seen, pages) == ([7, 6, 5, 4, 3, 2, 1], 3)


@pytest.mark.parametrize(
    "query", ["limit=201", "limit=0", "limit=x", "cursor=-1", "nix=1", "limit=5&limit=6", "kind=x"]
)
async def test_a_query_that_makes_no_sense_is_refused_with_its_field(service: Service, query: str) -> None:
    answer = await service.ask(f"statement?{query}", "alice")
    assert (answer.status, answer.json["error"]) == (400, "bad-request")
    assert query.partition("=")[0] in answer.json["message"]


async def test_a_spreadsheet_takes_no_cell_of_a_statement_for_a_formula(service: Service) -> None:
    evil = '=HYPERLINK("http://evil","x")'
    used(service, charge(1, reason=evil, nodes="@SUM(1)"), charge(2, reason="-2+3"), charge(3, reason='say "a", b'))
    answer = await service.ask("statement.csv", "alice")
    assert answer.headers["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["reason"] for row in rows] == ['say "a", b', "'-2+3", "'" + evil]
    assert (rows[2]["nodes"], rows[2]["gpu_hours"]) == ("'@SUM(1)", "-1.000")


async def test_a_statement_longer_than_a_page_is_whole_in_csv(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.services.quotas.rest.read._PAGE", 4)
    used(service, *(charge(job) for job in range(1, 11)))
    rows = list(csv.DictReader(io.StringIO((await service.ask("statement.csv", "alice")).text)))
    assert [int(row["job_id"]) for row in rows] == list(range(10, 0, -1))


async def test_a_report_adds_up_and_costs_what_it_says(service: Service) -> None:
    refund = charge(9, key="refund:lab:1:5", kind=Kind.CORRECTION, amount=GPU_HOUR, reason="node failure")
    used(service, charge(1, hours=3), charge(2, "bob", "physics"), refund)
    answer = await service.ask("report?by=user", "ada")
    assert [(row["name"], row["jobs"], row["amount"], row["cost"]) for row in answer.json["rows"]] == [
        ("alice", 1, 2 * GPU_HOUR, "4.00"),
        ("bob", 1, GPU_HOUR, "2.00"),
    ]
    assert (answer.json["month"], answer.json["currency"]) == ("2026-11", "EUR")
    owner = (await service.ask("report?by=account", "tina")).json["rows"]
    assert [(row["name"], row["refunded"]) for row in owner] == [("teaching", GPU_HOUR)]
    assert (await service.ask("report", "alice")).status == 403
    assert (await service.ask("report?month=2026-10", "ada")).json["rows"] == []
    text = (await service.ask("report.csv?by=user", "ada")).text
    assert text.splitlines()[1] == "alice,1,2.000,1.000,4.00"


async def test_what_crosses_the_months_edge_counts_by_its_part(service: Service) -> None:
    first = 1_793_491_200  # 1 November 2026
    used(service, charge(1, hours=4, start=first - 3600, end=first + 3 * 3600))
    months = [(await service.ask(f"report?month=2026-{month}", "ada")).json["rows"] for month in (10, 11)]
    assert [rows[0]["amount"] for rows in months] == [GPU_HOUR, 3 * GPU_HOUR]


async def test_a_price_says_what_is_left_before_and_after_and_the_largest_choice(service: Service) -> None:
    used(service, charge(1, hours=8))
    asked = {"account": "teaching", "gpu_type": "a100", "gpus": 4, "minutes": 60}
    answer = (await service.ask("price", "alice", method="POST", body=asked)).json
    assert (answer["amount"], answer["left_before"], answer["left_after"]) == (
        4 * GPU_HOUR,
        2 * GPU_HOUR,
        -2 * GPU_HOUR,
    )
    assert (answer["granted"], answer["largest_gpus"], answer["largest_minutes"]) == (False, 4, 30)
    assert answer["messages"]
    other = await service.ask("price", "bob", method="POST", body=asked)
    assert (other.status, other.json["error"]) == (403, "no-account")


async def test_metrics_say_what_the_ledger_holds(service: Service) -> None:
    used(service, charge(1, hours=2))
    text = (await service.ask("metrics", "prometheus")).text
    assert 'carme_quotas_gpu_seconds{account="teaching",kind="charge"} -7200.0' in text
    assert "carme_quotas_holds_open 0.0" in text


# -- form ------------------------------------------------------------------------------------------------------------


async def test_health_needs_no_login_and_tells_nothing_else(service: Service) -> None:
    assert (await service.ask("health")).json == {"settling": False, "age": None}


async def test_a_service_that_is_not_ready_says_so(service: Service) -> None:
    service.not_ready = "The database is away."
    answer = await service.ask("standing", "alice")
    assert (answer.status, answer.json["error"]) == (503, "not-ready")


async def test_a_method_that_is_not_there_is_named_with_those_that_are(service: Service) -> None:
    answer = await service.ask("requests", "alice", method="DELETE")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, POST")


async def test_an_address_that_is_not_there_answers_json(service: Service) -> None:
    assert (await service.ask("nix", "alice")).json["error"] == "not-found"
    assert (await service.ask("requests/UPPER/decision", "ada", method="POST", body={}, key="k")).status == 404


def test_every_address_is_in_the_document_and_every_operation_has_an_address() -> None:
    said = {
        (path.removeprefix("/"), method.upper())
        for path, methods in openapi_document("/services/quotas/")["paths"].items()
        for method in methods
    }
    served = {(route.operation.path, method) for _, _, how in API for method, route in how["routes"].items()}
    assert said == served == {(route.operation.path, route.operation.method) for route in ROUTES}


def test_each_operation_of_the_document_has_a_name_of_its_own_and_known_models() -> None:
    document = openapi_document("/services/quotas/")
    names = [op["operationId"] for methods in document["paths"].values() for op in methods.values()]
    assert len(names) == len(set(names))
    text = json.dumps(document)
    for name in {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]


async def test_the_document_is_served_without_a_login(service: Service) -> None:
    document = (await service.ask("openapi.json")).json
    assert (document["openapi"], document["servers"]) == ("3.1.0", [{"url": "/services/quotas"}])


async def test_a_get_changes_nothing(service: Service) -> None:
    used(service, charge(1))
    with service._engine.connect() as connection:
        before = connection.exec_driver_sql("SELECT (SELECT count(*) FROM ledger), (SELECT count(*) FROM note)").one()
    for route in ROUTES:
        if route.operation.method == "GET":
            path = route.operation.path.removeprefix(REST.removeprefix("/services/quotas/"))
            await service.ask(f"{path}{'?session=' + '0' * 36 if path == 'remaining' else ''}", "ada")
    with service._engine.connect() as connection:
        after = connection.exec_driver_sql("SELECT (SELECT count(*) FROM ledger), (SELECT count(*) FROM note)").one()
    assert before == after


def test_every_operation_is_in_the_reference() -> None:
    page = (Path(__file__).parents[5] / "docs" / "reference" / "rest.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(("| `GET", "| `POST", "| `PUT"))]
    for route in ROUTES:
        path = route.operation.path.removeprefix("api/v1/")
        said = [row for row in rows if f"`{route.operation.method} {path}`" in row or f", `{path}`" in row]
        assert said, f"{route.operation.method} {path}"


# -- the time that is left ------------------------------------------------------------------------------------------


def running_session(service: Service) -> str:
    """Note a session of alice's that has run for a minute, and return its id."""
    used(service, charge(1, hours=4))
    request = Request("a100", "default", Gpus("a100", 2), time_limit=120, account="teaching")
    id = "0123abcd" + "-0000" * 3 + "-000000000000"
    session = Session(id, "lab", "alice", "", request, SessionState.RUNNING, NOW - 100, job_id=7, started=NOW - 60)
    service.sessions.add(session)
    return id


async def test_what_is_left_of_a_session_is_for_its_user_and_the_accounts_owner(service: Service) -> None:
    id = running_session(service)
    answer = (await service.ask(f"remaining?session={id}", "alice")).json
    assert (answer["account"], answer["state"], answer["seconds"]) == ("teaching", "running", 120 * 60 - 60)
    assert (answer["left"], answer["budget_seconds"]) == (6 * GPU_HOUR, 3 * 3600)
    # Slurm knows better: the session was extended.
    times, gpus = (NOW - 90, NOW - 60, 0.0), (Gpus("a100", 2),)
    job = Usage(7, "7", "n", "alice", "teaching", "gpu", "", "RUNNING", Phase.ACTIVE, *times, gpus, time_limit=9000)
    service.settlement.running = (job,)
    assert (await service.ask(f"remaining?session={id}", "tina")).json["seconds"] == 9000 - 60
    assert (await service.ask(f"remaining?session={id}", "bob")).status == 403
    assert (await service.ask(f"remaining?session={'0' * 36}", "alice")).json["error"] == "not-yours"


async def test_a_sessions_own_token_learns_what_is_left_of_its_users_sessions_and_nothing_else(
    service: Service,
) -> None:
    id = running_session(service)
    answer = await service.ask(f"remaining?session={id}", "alices-session")
    assert (answer.status, answer.json["seconds"], answer.json["left"]) == (200, 120 * 60 - 60, 6 * GPU_HOUR)
    # Tina owns the account; her session's token does not speak for an owner.
    assert (await service.ask(f"remaining?session={id}", "tina")).status == 200
    assert (await service.ask(f"remaining?session={id}", "tinas-session")).status == 403
    for route in ROUTES:
        operation, path = route.operation, route.operation.path.removeprefix("api/v1/")
        if path == "remaining" or operation.public:
            continue
        body = {} if operation.body else None
        path = path.replace("{id}", "1")
        found = await service.ask(path, "alices-session", method=operation.method, body=body, key="k1")
        assert found.status in (403, 404), f"{operation.method} {path}"
    for page in ("", "accounts", "administration"):
        assert (await service.ask(PREFIX + page, "alices-session")).status == 403
