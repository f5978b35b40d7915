"""Mistakes are put right over REST, by granters, once for each key."""

from __future__ import annotations

from forged_rest import NOW, Service

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.store.ledger.writes import Subject

FIX = {"account": "teaching", "direction": "take", "gpu_hours": "2.5", "reason": "typed twice"}


async def test_a_correction_changes_the_balance_once(service: Service) -> None:
    for _ in range(2):
        answer = await service.post("corrections", "ada", FIX)
        assert answer.status == 200, answer.text
    (entry,) = answer.json["entries"]
    assert (entry["kind"], entry["amount"], entry["actor"]) == ("correction", -9_000_000, "ada")
    assert (await service.ledger.balances(["teaching"]))["teaching"].left == -9_000_000


async def test_a_correction_of_use_counts_at_its_moment(service: Service) -> None:
    body = {**FIX, "user": "alice", "used_at": int(NOW) - 3600}
    assert (await service.post("corrections", "ada", body)).status == 200
    with service.ledger.context.store.reading("lab") as reads:
        assert reads.used(Subject(users=frozenset({"alice"})), NOW - 7200, NOW).amount == 2.5 * GPU_HOUR


async def test_a_correction_is_refused_without_the_scope_or_without_sense(service: Service) -> None:
    for token in ("tina", "olga", "alice"):
        assert (await service.post("corrections", token, FIX)).status == 403
    for wrong, status in (
        ({"account": "nix"}, 404),
        ({"user": "bob"}, 409),
        ({"used_at": int(NOW) + 60}, 409),
        ({"direction": "both"}, 400),
        ({"gpu_hours": 0}, 400),
        ({"reason": " "}, 400),
    ):
        answer = await service.post("corrections", "ada", {**FIX, **wrong})
        assert answer.status == status, (wrong, answer.text)
    assert (await service.ledger.balances(["teaching"]))["teaching"].left == 0
