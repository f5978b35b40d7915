"""GPU time of a reservation and of the sessions in it is held once, charged once, and what is left comes back."""

from __future__ import annotations

import time

import pytest
from forged_site import ADA, BOB, DAY, GRANTED_ONLY, HOUR, MONDAY, Site, a100, usage
from forged_slots import SlotLedger, slot
from sqlalchemy import Engine

from carme_hub.accounting.admission import admit, extend, preview, release, undo_extension
from carme_hub.accounting.slots.holds import slot_of
from carme_hub.accounting.slots.settlement import ACCOUNTING_DELAY, used_inside
from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Balance, Kind
from carme_hub.domain.quotas.rules import Quota, SubjectKind, Window
from carme_hub.store.check import check
from carme_hub.store.ledger.report import used_between
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore


async def balance(site: Site) -> Balance:
    return (await site.ledger.balances(["physics"]))["physics"]


# -- sessions in it ---------------------------------------------------------------------------------------------------


async def test_a_session_takes_over_what_the_booking_holds_for_it(site: Site, slot_ledger: SlotLedger) -> None:
    site.quotas = (GRANTED_ONLY, Quota("day", SubjectKind.USER, gpu_time=8 * GPU_HOUR, window=Window.DAY))
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now += HOUR
    assert not slot_ledger.start("s0", 4, 2 * HOUR, within="")
    asks = [a100(4, 2 * HOUR), a100(4, 3 * HOUR)]
    assert [each.granted for each in preview(site.ledger.context, ADA, asks, "", "", slot="r1")] == [True, False]
    assert slot_ledger.start("s1", 4, 2 * HOUR)
    assert await balance(site) == Balance(8 * GPU_HOUR, 0, 8 * GPU_HOUR)
    assert slot_ledger.held() == {"r1": 0}
    assert [each.key for each in slot_ledger.entries()] == ["slot:r1", "slot:r1:1:s1"]
    assert slot_ledger.start("s1", 4, 2 * HOUR), "asked again it is granted, and takes nothing more"
    assert len(slot_ledger.entries()) == 2
    [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
    assert limit.taken.held == 8 * GPU_HOUR


async def test_what_was_granted_with_the_booking_is_not_asked_again_but_for_other_people(
    site: Site, slot_ledger: SlotLedger
) -> None:
    site.quotas = (Quota("each", SubjectKind.USER, gpu_time=8 * GPU_HOUR, window=Window.DAY),)
    slot_ledger.hold(slot())
    site.now += HOUR
    site.quotas = (Quota("each", SubjectKind.USER, gpu_time=HOUR * 500, window=Window.DAY), GRANTED_ONLY)
    assert slot_ledger.start("s1"), "rules that came later do not break a promise"
    assert not slot_ledger.start("s2", person=BOB), "whose own limit it is was not asked"
    assert slot_ledger.start("s3", 1, 500, person=BOB)
    assert slot_ledger.held() == {"r1": 7 * GPU_HOUR - 500_000}


async def test_a_refused_session_writes_nothing(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now += HOUR
    site.quotas = (*site.quotas, Quota("one", SubjectKind.USER, sessions=1))
    assert slot_ledger.start("s1")
    before = slot_ledger.entries()
    refused = admit(site.ledger.context, "s2", ADA, a100(), "gpu", "normal", slot="r1")
    assert [each.reason for each in refused.refusals] == ["sessions"]
    assert not slot_ledger.start("s3", 1, 10 * DAY)
    assert (slot_ledger.entries(), slot_ledger.entries("s2"), slot_ledger.entries("s3")) == (before, [], [])


@pytest.mark.parametrize("within", ["r1", "r2", "unknown"])
async def test_a_booking_of_another_account_or_type_or_one_that_is_over_is_none(
    site: Site, slot_ledger: SlotLedger, within: str
) -> None:
    await site.grant(20 * GPU_HOUR)
    await site.grant(20 * GPU_HOUR, key="b", account="bio")
    slot_ledger.hold(slot(account="bio"))
    slot_ledger.hold(slot("r2", type="h100"))
    site.now += HOUR
    assert slot_ledger.start("s1", within=within)
    assert slot_ledger.held() == {"r1": 8 * GPU_HOUR, "r2": 8 * GPU_HOUR}
    assert (await balance(site)).held == 9 * GPU_HOUR


async def test_what_a_session_did_not_use_goes_back_to_the_booking_when_it_is_settled(
    site: Site, slot_ledger: SlotLedger
) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now = float(MONDAY + HOUR)
    assert slot_ledger.start("s1", 4, 2 * HOUR)
    site.now += HOUR / 2
    await slot_ledger.end("s1", MONDAY + HOUR, 4)
    assert await balance(site) == Balance(8 * GPU_HOUR, 2 * GPU_HOUR, 6 * GPU_HOUR)
    assert slot_ledger.held() == {"r1": 6 * GPU_HOUR}
    assert not slot_ledger.start("s2", within="")
    assert slot_ledger.start("s3", 4, 1.5 * HOUR)
    assert release(site.ledger.context, "s3", "sbatch refused it", "carme-hub") is True
    assert slot_ledger.held() == {"r1": 6 * GPU_HOUR}


async def test_only_the_time_within_the_booking_is_taken_over(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(20 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now = float(MONDAY + HOUR)
    assert slot_ledger.start("s1", 1, 8 * HOUR)
    assert slot_ledger.held() == {"r1": 6 * GPU_HOUR}
    assert (await balance(site)).held == 14 * GPU_HOUR
    site.now += 5 * HOUR
    await slot_ledger.end("s1", MONDAY + HOUR)
    assert slot_ledger.held() == {"r1": 6 * GPU_HOUR}, "it has used more than it took over"


async def test_to_a_booking_that_was_made_shorter_no_more_comes_back_than_it_may_hold(
    site: Site, slot_ledger: SlotLedger
) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now = float(MONDAY + HOUR)
    assert slot_ledger.start("s1", 4, 2 * HOUR)
    assert slot_ledger.change(slot(length=HOUR)).granted
    site.now += 900
    await slot_ledger.end("s1", MONDAY + HOUR, 4)
    assert slot_ledger.held() == {"r1": 3 * GPU_HOUR}
    assert await balance(site) == Balance(8 * GPU_HOUR, GPU_HOUR, 3 * GPU_HOUR)


async def test_an_extension_within_the_booking_is_taken_over_and_undone(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now = float(MONDAY + HOUR)
    assert slot_ledger.start("s1", 4, HOUR)
    assert extend(site.ledger.context, "s1", HOUR, ADA, 1).granted
    assert slot_ledger.held() == {"r1": 0}
    assert not extend(site.ledger.context, "s1", HOUR, ADA, 2).granted, "the booking is over then"
    assert undo_extension(site.ledger.context, "s1", "Slurm refused it")
    assert slot_ledger.held() == {"r1": 4 * GPU_HOUR}
    assert await balance(site) == Balance(8 * GPU_HOUR, 0, 8 * GPU_HOUR)
    site.now += HOUR / 2
    await slot_ledger.end("s1", MONDAY + HOUR, 4)
    assert await balance(site) == Balance(8 * GPU_HOUR, 2 * GPU_HOUR, 6 * GPU_HOUR)


# -- levelled ---------------------------------------------------------------------------------------------------------


async def test_an_unused_booking_gives_back_what_has_passed_in_a_few_entries(
    site: Site, slot_ledger: SlotLedger
) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    assert slot_ledger.lower_hold(slot()) == 8 * GPU_HOUR
    site.now = float(MONDAY + HOUR)
    while site.now < MONDAY + 3 * HOUR:
        site.now += 30
        left = slot_ledger.lower_hold(slot())
        assert 0 <= left - 4 * (MONDAY + 3 * HOUR - site.now) * 1000 < GPU_HOUR
    assert len(slot_ledger.entries()) <= 1 + 8
    assert (await balance(site)).held == left
    assert slot_ledger.settle(slot(), booked=False)
    assert await balance(site) == Balance(8 * GPU_HOUR)


async def test_where_booked_time_is_charged_only_what_jobs_used_is_given_back(
    site: Site, slot_ledger: SlotLedger
) -> None:
    await site.grant(9 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now = float(MONDAY + 2 * HOUR)
    assert slot_ledger.lower_hold(slot(), booked=True) == 8 * GPU_HOUR
    assert slot_ledger.lower_hold(slot(), booked=True, unmanaged=2 * 3600) == 6 * GPU_HOUR
    assert slot_ledger.lower_hold(slot(), booked=True, unmanaged=2 * 3600) == 6 * GPU_HOUR


async def test_a_session_that_took_nothing_over_does_when_it_is_levelled(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(12 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now = float(MONDAY + HOUR)
    assert slot_ledger.start("s1", 2, 2 * HOUR, within="")
    assert (await balance(site)).held == 12 * GPU_HOUR
    assert slot_ledger.lower_hold(slot(), "s1") == 4 * GPU_HOUR
    assert (await balance(site)).held == 8 * GPU_HOUR
    assert slot_ledger.lower_hold(slot(), "s1") == 4 * GPU_HOUR
    site.now += HOUR
    assert slot_ledger.lower_hold(slot(), "s1") == 2 * GPU_HOUR, "the other two GPUs were idle for an hour"
    await slot_ledger.end("s1", MONDAY + HOUR, 2)
    assert slot_ledger.held() == {"r1": 4 * GPU_HOUR}
    assert slot_ledger.lower_hold(slot()) == 4 * GPU_HOUR
    assert await balance(site) == Balance(12 * GPU_HOUR, 2 * GPU_HOUR, 4 * GPU_HOUR)


# -- its end ----------------------------------------------------------------------------------------------------------


async def test_booked_time_is_charged_less_what_jobs_used_and_once(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now = float(MONDAY + HOUR)
    assert slot_ledger.start("s1", 4, HOUR)
    site.now = float(MONDAY + 2 * HOUR)
    await slot_ledger.end("s1", MONDAY + HOUR, 4)
    site.now = float(MONDAY + 3 * HOUR + ACCOUNTING_DELAY - 1)
    assert not slot_ledger.settle(slot(), used=0), "accounting may not know yet of what ran in it"
    site.now += 1
    for _ in range(2):
        assert slot_ledger.settle(slot(), used=4 * 3600)
    assert await balance(site) == Balance(8 * GPU_HOUR, 8 * GPU_HOUR, 0)
    charge, freed = slot_ledger.entries()[-2:]
    assert (charge.key, charge.job_id, charge.amount, charge.user) == ("charge:slot:r1", 0, -4 * GPU_HOUR, "ada")
    assert charge.reason == "booked and not used: 4 of 8 GPU-hours of “Deep “2””"
    assert (freed.key, freed.kind, freed.amount) == ("release:r1", Kind.RELEASE, 4 * GPU_HOUR)
    assert slot_ledger.held() == {}


async def test_used_time_is_charged_by_its_jobs_alone(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now = float(MONDAY + 3 * HOUR)
    assert slot_ledger.settle(slot(), booked=False, used=3600)
    assert await balance(site) == Balance(8 * GPU_HOUR)


async def test_of_a_booking_that_was_given_back_early_the_time_up_to_then_is_charged(
    site: Site, slot_ledger: SlotLedger
) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now = float(MONDAY + HOUR + 900)
    ended = site.now
    assert not slot_ledger.settle(slot(), ended=ended)
    site.now += ACCOUNTING_DELAY
    assert slot_ledger.settle(slot(), ended=ended)
    assert await balance(site) == Balance(8 * GPU_HOUR, GPU_HOUR, 0)


async def test_it_waits_for_its_sessions_to_be_settled_and_not_for_ever(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    slot_ledger.hold(slot("r2", start=MONDAY + 5 * HOUR, gpus=0))
    site.now = float(MONDAY + HOUR)
    assert slot_ledger.start("s1", 3, 2 * HOUR)
    site.now = float(MONDAY + 3 * HOUR)
    assert not slot_ledger.settle(slot(), used=3 * 7200)
    site.now += 600
    assert slot_ledger.settle(slot(), used=3 * 3600)
    # It held no more than the two hours of the fourth GPU; the others are the session's, and not over the budget.
    assert await balance(site) == Balance(8 * GPU_HOUR, 2 * GPU_HOUR, 6 * GPU_HOUR)
    assert slot_ledger.settle(slot("r2"))


async def test_the_time_in_which_nobody_could_use_it_is_not_charged(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.now = float(MONDAY + 1.5 * HOUR)
    assert slot_ledger.return_unusable(slot(), 3600) == GPU_HOUR
    assert await balance(site) == Balance(8 * GPU_HOUR, 0, 7 * GPU_HOUR)
    assert slot_ledger.return_unusable(slot(), 0, least=3000) == GPU_HOUR, "what was written counts towards it"
    assert slot_ledger.return_unusable(slot(), 0, least=7200) == 2 * GPU_HOUR
    assert slot_ledger.start("s1", 1, 1.5 * HOUR)
    slot_ledger.lower_hold(slot(), "s1", booked=True, unmanaged=1800)
    assert slot_ledger.held() == {"r1": 6 * GPU_HOUR - 3 * GPU_HOUR // 2}
    site.now = float(MONDAY + 3 * HOUR)
    await slot_ledger.end("s1", MONDAY + 1.5 * HOUR)
    site.now += ACCOUNTING_DELAY
    assert slot_ledger.settle(slot(), used=int(1.5 * HOUR) + 1800)
    # 1.5 of the session, and of the other 6.5 neither the two that lapsed nor the half that was used by hand.
    assert await balance(site) == Balance(8 * GPU_HOUR, int(5.5 * GPU_HOUR), 0)
    assert [each.reason for each in slot_ledger.entries() if each.key.endswith(":lapsed")] == [
        "nobody could use the booking “Deep “2””"
    ] * 2


@pytest.mark.parametrize(
    ("lapsed", "charged"), [(4 * 7200, 0), (4 * 7200 - 4 * 59, 0), (4 * 7200 - 4 * 61, 4 * 61_000)]
)
async def test_what_could_be_used_for_less_than_a_minute_could_not_be_used(
    site: Site, slot_ledger: SlotLedger, lapsed: int, charged: int
) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    slot_ledger.return_unusable(slot("none"), 5)
    slot_ledger.return_unusable(slot(), lapsed)
    site.now = float(MONDAY + 3 * HOUR + ACCOUNTING_DELAY)
    assert slot_ledger.settle(slot())
    assert await balance(site) == Balance(8 * GPU_HOUR, charged, 0)


async def test_its_charge_counts_in_windows_and_reports_and_is_no_job(site: Site, slot_ledger: SlotLedger) -> None:
    site.quotas = (Quota("day", SubjectKind.USER, gpu_time=20 * GPU_HOUR, window=Window.DAY),)
    slot_ledger.hold(slot(start=MONDAY + DAY - 2 * HOUR))
    site.now = float(MONDAY + DAY + ACCOUNTING_DELAY)
    slot_ledger.settle(slot(start=MONDAY + DAY - 2 * HOUR))
    [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
    assert limit.taken.used == 0, "it was over with the day before"
    site.now -= ACCOUNTING_DELAY + 1
    [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
    assert limit.taken.used == 8 * GPU_HOUR
    job = usage(7, MONDAY + HOUR, MONDAY + 2 * HOUR)
    site.now = float(MONDAY + DAY + HOUR)
    await site.settle(job)
    with site.store.reading("lab") as reads:
        found = {each.gpus: (each.jobs, each.charged) for each in used_between(reads, MONDAY, MONDAY + 2 * DAY)}
    assert found == {(Gpus("a100", 4),): (0, 8 * GPU_HOUR), (Gpus("a100", 1),): (1, GPU_HOUR)}
    report = await site.ledger.reconcile([job], MONDAY, MONDAY + 2 * DAY)
    assert (report.jobs, report.difference, report.missing, report.extra, report.changed) == (1, 0, (), (), ())


def test_gpu_seconds_inside_are_those_of_its_jobs_in_its_time() -> None:
    during = Period(MONDAY, MONDAY + HOUR)
    ours = {"reservation": "carme-1-0"}
    jobs = [
        usage(1, MONDAY - 60, MONDAY + 60, **ours),
        usage(2, MONDAY + 60, MONDAY + 90, gpus=(Gpus("a100", 4),), reservation="other,carme-1-1"),
        usage(3, MONDAY + HOUR - 10, **ours),
        usage(4, MONDAY, MONDAY + HOUR),
        usage(5, MONDAY, MONDAY + HOUR, reservation="carme-10-0"),
        usage(6, MONDAY, MONDAY + HOUR, gpus=(Gpus("shard", 4),), **ours),
        usage(7, **ours),
    ]
    assert used_inside(jobs, ("carme-1-0", "carme-1-1"), during) == {"a100": 60 + 4 * 30 + 10, "shard": 0}
    assert used_inside(jobs, (), during) == {}


# -- the database -----------------------------------------------------------------------------------------------------


def booked(id: str, state: State, changed: float = 0.0) -> Reservation:
    return Reservation(
        *(id, "lab", "ada", "physics", "Deep “2”", Need("a100", 2, 2), Period(MONDAY + HOUR, MONDAY + 3 * HOUR)),
        places=(Place("n1", "a100", 4, 2),),
        state=state,
        created=0.0,
        changed=changed,
    )


def test_the_ledger_sees_a_reservation_with_all_its_gpus() -> None:
    assert slot_of(booked("r1", State.CONFIRMED)) == slot()


async def test_db_check_names_what_holds_and_is_no_reservation_any_more(
    site: Site, slot_ledger: SlotLedger, store: LedgerStore, engine: Engine, database_url: str
) -> None:
    states = {"r1": State.PENDING, "r2": State.CONFIRMED, "r3": State.ACTIVE, "r4": State.CANCELLED, "r6": State.ENDED}
    site.quotas = ()
    for id in ("r5", *states):
        assert slot_ledger.hold(slot(id)).granted
    with ReservationStore(store).transaction("lab") as writes:
        writes.add([booked(id, state, time.time() if id == "r6" else 0.0) for id, state in states.items()])
    engine.dispose()
    looked = {each.name: each for each in check(database_url).results}
    assert [name for name, each in looked.items() if not each.passed] == ["reservations"]
    assert looked["reservations"].text == "reservations that are over or unknown and hold GPU time: r4, r5"
    for id in ("r4", "r5"):
        slot_ledger.release_hold(slot(id))
    assert check(database_url).passed
