"""What a booking holds pays for the sessions in it: nobody is refused for GPU time that is held for them already."""

from __future__ import annotations

import time

import pytest
from booked_parts import booking
from test_hub_admission import Path, admission, request, silent, user

from carme_hub.accounting.slots import holds
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Person
from carme_hub.errors import QuotaExceeded
from carme_hub.spawners.form.cost import Cost, in_booking

BUDGET = {"id": "teaching", "account": "teaching", "gpu_time": 4, "window": "total"}


async def test_a_session_in_a_booking_takes_its_hold_from_there(tmp_path: Path) -> None:
    asked, alice = admission(tmp_path, BUDGET), user("alice")
    now = int(time.time())
    known = booking(owner="alice", group="").replace(period=Period(now - 60, now + 7140))
    context = asked.ledger.context
    with context.store.transaction("lab") as writes:
        assert holds.hold(context, writes, holds.slot_of(known), Person("alice"), "alice").granted
    one = request(gpus=2, minutes=110, account="teaching")
    cost, _ = await asked.cost(alice, one)
    assert cost is not None
    assert cost.state == "refused"
    with pytest.raises(QuotaExceeded):
        await asked.hold(alice, "s1", one, silent)
    cost, _ = await asked.cost(alice, one, slot=known.id)
    assert cost is not None
    assert (cost.state, cost.amount) == ("ok", 0)
    assert cost.sentence == "Its GPU time is already held of teaching, for the booking."
    assert (await asked.hold(alice, "s1", one, silent, slot=known.id)).account == "teaching"
    assert (await asked.ledger.balances())["teaching"].held <= 4 * GPU_HOUR


def test_what_else_is_to_be_said_of_a_cost_stays() -> None:
    for state in ("soft", "refused"):
        cost = Cost("You should use less.", state, "teaching", 5, None)
        assert in_booking(cost) is cost
