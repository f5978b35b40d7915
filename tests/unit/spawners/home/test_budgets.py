"""Who asks each minute what is left gets an answer of the last minutes, so that the database is asked seldom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from carme_hub.errors import StoreError
from carme_hub.spawners.form.cost import RemainingBudget
from carme_hub.spawners.home.budgets import Budgets

SAM, BEA = SimpleNamespace(name="sam"), SimpleNamespace(name="bea")


class Ledger:
    """Answers, or is away."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = False

    async def cost(self, user: Any, request: Any) -> tuple[None, dict[str, RemainingBudget]]:
        assert request is None
        self.asked.append(user.name)
        if self.away:
            raise StoreError("away")
        return None, {"physics": RemainingBudget(f"{10 - len(self.asked)} h left", 1)}


async def test_it_is_read_once_in_five_minutes_for_each_user() -> None:
    now, ledger = [0.0], Ledger()
    budgets, hub = Budgets(lambda: now[0]), SimpleNamespace(admission=ledger)
    assert [await budgets.left(hub, SAM, "physics") for _ in range(3)] == ["9 h left"] * 3  # type: ignore[arg-type]
    assert await budgets.left(hub, BEA, "physics") == "8 h left"  # type: ignore[arg-type]
    now[0] = 301
    assert await budgets.left(hub, SAM, "physics") == "7 h left"  # type: ignore[arg-type]
    assert await budgets.left(hub, SAM, "other") == ""  # type: ignore[arg-type]
    assert ledger.asked == ["sam", "bea", "sam"]


async def test_what_is_not_known_is_left_out() -> None:
    ledger = Ledger()
    ledger.away = True
    assert await Budgets().left(SimpleNamespace(admission=ledger), SAM, "physics") == ""  # type: ignore[arg-type]
    assert await Budgets().left(SimpleNamespace(admission=None), SAM, "physics") == ""  # type: ignore[arg-type]
