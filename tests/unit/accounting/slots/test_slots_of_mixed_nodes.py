"""A whole node with GPUs of several types is held, charged and given back with all of them, each at its price."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forged_site import ADA, HOUR, MONDAY, Site, usage
from forged_slots import SlotLedger, slot

from carme_hub.accounting.admission import admit
from carme_hub.accounting.slots.holds import Slot, price_of, slot_of
from carme_hub.accounting.slots.settlement import ACCOUNTING_DELAY, used_inside
from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Balance, Kind
from carme_hub.domain.quotas.rules import QuotaRequest

#: One l4 and four a100 for two hours: 2 GPU-hours of the one, and 8 of the other.
MIXED = replace(slot(type="l4", gpus=1), other_gpus=(Gpus("a100", 4),))
PRICES = {"l4": 500, "a100": 2000}
WHOLE = 2 * GPU_HOUR // 2 + 8 * GPU_HOUR * 2


@pytest.fixture
def site(site: Site) -> Site:
    site.prices = dict(PRICES)
    return site


async def balance(site: Site) -> Balance:
    return (await site.ledger.balances(["physics"]))["physics"]


def test_the_ledger_sees_a_reservation_with_its_gpus_of_all_types() -> None:
    place = Place("m1", "l4", 1, 1, whole=True, also=(("a100", 4),))
    one = Reservation(
        *("r1", "lab", "ada", "physics", "Deep “2”", Need("l4", 0), Period(MIXED.start, MIXED.end)),
        places=(place,),
        state=State.CONFIRMED,
        created=0.0,
    )
    assert slot_of(one) == MIXED


async def test_each_type_is_held_at_its_price_and_told_by_itself(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(WHOLE - 1)
    refused = slot_ledger.hold(MIXED)
    assert refused.message.startswith("Account physics has 17 GPU-hours left, and this needs 17.")
    assert slot_ledger.entries() == []
    await site.grant(1, key="more")
    for _ in range(2):
        assert slot_ledger.hold(MIXED).granted
    assert await balance(site) == Balance(WHOLE, 0, WHOLE)
    assert price_of(site.ledger.context, MIXED) == WHOLE
    assert [(each.gpus, each.factor, each.amount, each.end) for each in slot_ledger.entries()] == [
        ((Gpus("l4", 1),), 500, -GPU_HOUR, MIXED.end),
        ((Gpus("a100", 4),), 2000, -16 * GPU_HOUR, MIXED.end),
    ]
    assert slot_ledger.release_hold(MIXED)
    assert await balance(site) == Balance(WHOLE)
    released = slot_ledger.entries()[-1]
    assert (released.gpus, released.factor) == ((Gpus("l4", 1), Gpus("a100", 4)), 0)


async def test_it_goes_on_at_the_prices_at_which_it_was_booked(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(3 * WHOLE)
    slot_ledger.hold(MIXED)
    site.prices = {"l4": 9000, "a100": 9000, "t4": 1000}
    assert slot_ledger.change(replace(MIXED, end=MIXED.end + 2 * HOUR)).granted
    assert slot_ledger.held() == {"r1": 2 * WHOLE}
    written = len(slot_ledger.entries())
    assert slot_ledger.change(replace(MIXED, end=MIXED.end + 2 * HOUR)).granted
    assert len(slot_ledger.entries()) == written
    assert slot_ledger.change(MIXED).granted
    assert slot_ledger.held() == {"r1": WHOLE}
    assert slot_ledger.change(replace(MIXED, other_gpus=(Gpus("a100", 2), Gpus("t4", 1)))).granted
    assert slot_ledger.held() == {"r1": GPU_HOUR + 8 * GPU_HOUR + 2 * GPU_HOUR}
    assert slot_ledger.change(replace(MIXED, other_gpus=())).granted
    assert slot_ledger.held() == {"r1": GPU_HOUR}
    assert slot_ledger.change(replace(MIXED, gpus=Gpus("t4", 1), other_gpus=(Gpus("l4", 1),))).granted
    assert slot_ledger.held() == {"r1": GPU_HOUR + 2 * GPU_HOUR}
    assert sum(each.amount for each in slot_ledger.entries()) == -3 * GPU_HOUR


async def test_sessions_of_each_of_its_types_take_over_what_it_holds(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(WHOLE)
    slot_ledger.hold(MIXED)
    site.now = float(MIXED.start)
    for id, gpus, factor in (("s1", Gpus("l4", 1), 500), ("s2", Gpus("a100", 4), 2000)):
        assert admit(
            site.ledger.context, id, ADA, QuotaRequest("physics", gpus, 2 * HOUR, factor), "", "", slot="r1"
        ).granted
    assert slot_ledger.held() == {"r1": 0}
    assert (await balance(site)).held == WHOLE
    assert not admit(
        site.ledger.context, "s3", ADA, QuotaRequest("physics", Gpus("t4", 1), HOUR), "", "", slot="r1"
    ).granted


@pytest.mark.parametrize("booked", [True, False])
async def test_as_time_goes_by_what_is_not_needed_of_it_comes_back(
    site: Site, slot_ledger: SlotLedger, booked: bool
) -> None:
    await site.grant(WHOLE)
    slot_ledger.hold(MIXED)
    site.now = float(MIXED.start + HOUR)
    assert slot_ledger.lower_hold(MIXED, booked=booked) == (WHOLE if booked else WHOLE // 2)
    # Of jobs by hand nobody has told the type: the rest comes back when accounting has.
    assert slot_ledger.lower_hold(MIXED, booked=booked, unmanaged=5 * HOUR) == (
        WHOLE - 5 * GPU_HOUR // 2 if booked else WHOLE // 2
    )


async def test_of_each_type_is_charged_what_was_booked_and_not_used(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(WHOLE)
    slot_ledger.hold(MIXED)
    site.now = float(MIXED.end + ACCOUNTING_DELAY)
    for _ in range(2):
        assert slot_ledger.settle(MIXED, used={"l4": 7200, "a100": 3 * 7200 + 3600})
    assert await balance(site) == Balance(WHOLE, 2 * GPU_HOUR, 0)
    charge, freed = slot_ledger.entries()[-2:]
    assert (charge.kind, charge.gpus, charge.factor) == (Kind.CHARGE, (Gpus("a100", 4),), 2000)
    assert charge.reason == "booked and not used: 1 of 8 GPU-hours of “Deep “2””, a100"
    assert freed.kind is Kind.RELEASE


@pytest.mark.parametrize(
    ("used", "charged"),
    [
        ({}, WHOLE),
        ({"l4": 100 * HOUR}, 16 * GPU_HOUR),
        ({"a100": 8 * HOUR}, GPU_HOUR),
        # What Slurm says without a type is taken to be of its own type first.
        ({"gpu": 4 * HOUR}, 12 * GPU_HOUR),
    ],
)
async def test_one_type_that_was_used_is_not_taken_for_another(
    site: Site, slot_ledger: SlotLedger, used: dict[str, int], charged: int
) -> None:
    await site.grant(WHOLE)
    slot_ledger.hold(MIXED)
    site.now = float(MIXED.end + ACCOUNTING_DELAY)
    assert slot_ledger.settle(MIXED, used=used)
    assert await balance(site) == Balance(WHOLE, charged, 0)


async def test_time_in_which_slurm_did_not_have_it_is_that_of_all_its_gpus(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(WHOLE)
    slot_ledger.hold(MIXED)
    site.now = float(MIXED.end + ACCOUNTING_DELAY)
    assert slot_ledger.return_unusable(MIXED, 5 * HOUR) == WHOLE // 2
    assert slot_ledger.settle(MIXED, used={})
    assert await balance(site) == Balance(WHOLE, WHOLE // 2, 0)


def test_gpu_seconds_inside_are_told_by_type() -> None:
    jobs = [
        usage(1, MONDAY, MONDAY + 60, gpus=(Gpus("l4", 1), Gpus("a100", 2)), reservation="carme-1-0"),
        usage(2, MONDAY, MONDAY + 30, gpus=(Gpus("a100", 1),), reservation="carme-1-0"),
    ]
    assert used_inside(jobs, ("carme-1-0",), Period(MONDAY, MONDAY + HOUR)) == {"l4": 60, "a100": 150}


def test_a_slot_of_one_type_has_no_others() -> None:
    assert Slot("r1", "ada", "physics", Gpus("a100", 1), 0, 1, "x").other_gpus == ()
