"""A service of the hub may bear the name of a user; it is not that user, and nothing of theirs is its own."""

from __future__ import annotations

import pytest
from forged_rest import PREFIX, Service, charge, used

from carme_hub.domain.ledger.entries import GPU_HOUR

GRANT = {"account": "teaching", "gpu_hours": "2.5", "reason": "for the course"}


async def test_a_service_does_not_own_the_accounts_of_the_user_of_its_name(service: Service) -> None:
    await service.ledger.grant("teaching", 9_000_000, key="g", actor="ada")
    move = {"source": "teaching", "target": "physics", "gpu_hours": "1", "reason": "x"}
    answer = await service.post("transfers", "namesake", move)
    assert (answer.status, answer.json["error"]) == (403, "not-yours")
    assert (await service.ledger.balances(["teaching"]))["teaching"].granted == 9_000_000
    assert (await service.post("transfers", "tina", move)).status == 200


async def test_what_a_service_gives_does_not_bear_a_users_name(service: Service) -> None:
    answer = await service.post("grants", "giver", GRANT)
    assert (answer.status, answer.json["entries"][0]["actor"]) == (200, "service:tina")


async def test_a_service_and_a_user_of_one_name_have_keys_of_their_own(service: Service) -> None:
    await service.ledger.grant("teaching", 9_000_000, key="g", actor="ada")
    move = {"source": "teaching", "target": "physics", "gpu_hours": "1", "reason": "x"}
    for who in ("giver", "tina"):
        assert (await service.post("transfers", who, move, "same")).status == 200
    assert (await service.ledger.balances(["physics"]))["physics"].granted == 2 * GPU_HOUR


async def test_a_service_asks_for_no_gpu_time_in_a_users_name(service: Service) -> None:
    body = {"account": "teaching", "gpu_hours": "1", "reason": "mine"}
    assert (await service.post("requests", "namesake", body)).status == 403
    assert (await service.ask("requests", "tina")).json["requests"] == []


@pytest.mark.parametrize("path", ["", "statement.csv", "accounts", "accounts/teaching", "administration"])
async def test_pages_are_for_people(service: Service, path: str) -> None:
    used(service, charge(1, user="tina"))
    answer = await service.ask(PREFIX + path, "giver")
    assert answer.status == 403
    assert "Pages are for people" in answer.text
