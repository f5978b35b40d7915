"""What a booking costs: with all GPUs that it takes from others, and for the time in which it had them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import forged_calendar_pages
import pytest
from forged_calendar_pages import HOUR, NOW, Site, running
from forged_login import plain

from carme_hub.accounting.slots.settlement import ACCOUNTING_DELAY
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.ledger.usage import Usage

START = int(NOW) + 24 * HOUR


def begun(site: Site, one: Reservation) -> Reservation:
    """Let its time come, as the keeper does."""
    site.now = float(one.period.start)
    with site.service.calendar.store.transaction("lab") as writes:
        writes.save(one.in_state(State.ACTIVE, site.now, actor="carme-hub"))
        found = writes.get(one.id)
    assert found is not None
    return found


def ran(one: Reservation, start: float, end: float, *gpus: Gpus) -> Usage:
    """Return what Slurm says of a job in a booking; without an end it runs."""
    phase = Phase.TERMINAL if end else Phase.ACTIVE
    about = ("7", "by-hand", "tina", "teaching", "gpu", "", "COMPLETED" if end else "RUNNING", phase)
    return Usage(7, *about, start, start, end, gpus, reservation=one.names()[0])


async def settled(site: Site, *jobs: Usage) -> tuple[int, int]:
    """Settle what is over once accounting knows of it; return what is held and used, in GPU-hours."""

    async def usage(_since: float) -> Sequence[Usage]:
        return jobs

    site.now += ACCOUNTING_DELAY
    reservation_ledger = site.service.reservation_ledger
    await reservation_ledger.settle_due(site.service.calendar.store, usage, site.now)
    balance = (await site.service.balances(["teaching"]))["teaching"]
    return balance.held // GPU_HOUR, balance.used // GPU_HOUR


async def test_what_runs_on_after_a_booking_was_given_back_early_is_not_counted_as_used_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, charge="booked") as site:
        (one,) = await site.book("tina", "Class", START, 4, need=Need("a100", 4))
        one = begun(site, one)
        site.now += HOUR
        await site.service.bookings.release(site.booker("tina"), one.id)
        # Of the four GPUs that it had for an hour, one was used; what that job goes on to use is charged as its own.
        assert await settled(site, ran(one, START, 0, Gpus("a100", 1))) == (0, 3)


# -- whole nodes with several types -----------------------------------------------------------------------------------

MIXED = Node("m1", "idle", True, ("gpu",), 40, gpus={"a100": 4, "l4": 1})


@pytest.mark.parametrize(("by_node", "gpus"), [(False, 0), (True, 1)])
async def test_a_whole_node_is_paid_with_all_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_node: bool, gpus: int
) -> None:
    monkeypatch.setattr(forged_calendar_pages, "NODES", (MIXED,))
    async with running(tmp_path, monkeypatch, by_node=by_node, approval_above=9) as site:
        body = {"title": "Class", "gpu_type": "l4", "gpus": gpus, "start": START, "end": START + 2 * HOUR}
        checked = json.loads((await site.api("tina", "POST", "api/v1/check", json.dumps(body))).body)
        assert (checked["amount"], checked["total"], checked["needs_approval"]) == (10 * GPU_HOUR, 5, True)
        assert len(checked["notes"]) == 1
        assert "m1 with all its 5 GPUs (1 × l4 and 4 × a100)." in checked["notes"][0]
        (one,) = await site.book("tina", "Class", START, need=Need("l4", gpus))
        assert one.state is State.PENDING
        free = await site.service.bookings.free(one.period)
        assert {type: [level for _, level in band] for type, band in free.items()} == {"a100": [0], "l4": [0]}
        await site.service.bookings.decide(site.booker("root"), one.id, True)
        assert (await site.service.balances(["teaching"]))["teaching"].held == 10 * GPU_HOUR
        tina = site.visitor("tina")
        assert "10 GPU-hours" in plain(await tina.get(f"bookings/{one.id}"))
        (shown,) = json.loads((await site.api("bob", "GET", f"api/v1/bookings?from={START}&to={START + HOUR}")).body)[
            "bookings"
        ]
        assert (shown["total"], shown["places"][0]["also"]) == (5, {"a100": 4})
