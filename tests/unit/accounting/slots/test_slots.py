"""GPU time is held for a booking in the windows of its time, decided again when it changes, and given back."""

from __future__ import annotations

import pytest
from forged_site import ADA, BOB, DAY, GRANTED_ONLY, HOUR, MONDAY, Site, a100, usage
from forged_slots import SlotLedger, slot

from carme_hub.accounting.admission import release, undo_extension
from carme_hub.accounting.context import Unknown
from carme_hub.accounting.settlement import sessions_wanted
from carme_hub.accounting.slots.holds import Slot, SlotClosed, hold_all
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Balance, Kind
from carme_hub.domain.quotas.rules import Quota, SubjectKind, Window
from carme_hub.store.ledger.report import holds_open

WEEK = 7 * DAY


async def balance(site: Site) -> Balance:
    return (await site.ledger.balances(["physics"]))["physics"]


# -- booking ----------------------------------------------------------------------------------------------------------


async def test_a_booking_holds_gpus_times_its_time_times_price_and_once(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(20 * GPU_HOUR)
    site.prices = {"a100": 1500}
    for _ in range(2):
        assert slot_ledger.hold(slot()).granted
    assert await balance(site) == Balance(20 * GPU_HOUR, 0, 12 * GPU_HOUR)
    [entry] = slot_ledger.entries()
    assert (entry.kind, entry.key, entry.user, entry.actor, entry.factor) == (Kind.HOLD, "slot:r1", "ada", "ada", 1500)
    assert (entry.start, entry.end, entry.gpus) == (MONDAY + HOUR, MONDAY + 3 * HOUR, (Gpus("a100", 4),))
    assert entry.reason == "held for the booking “Deep “2””"
    assert slot_ledger.held() == {"r1": 12 * GPU_HOUR}


async def test_more_than_is_left_is_refused_in_words_and_nothing_is_written(
    site: Site, slot_ledger: SlotLedger
) -> None:
    await site.grant(7 * GPU_HOUR)
    refused = slot_ledger.hold(slot())
    assert not refused.granted
    assert refused.message.startswith("Account physics has 7 GPU-hours left, and this needs 8.")
    assert slot_ledger.entries() == []
    assert await site.left() == 7 * GPU_HOUR


async def test_rules_on_sessions_and_numbers_are_not_about_bookings_and_types_are(
    site: Site, slot_ledger: SlotLedger
) -> None:
    few = Quota(
        "few", SubjectKind.USER, concurrent_gpus=1, session_gpus=1, sessions=0, sessions_per_day=0, time_limit=60
    )
    site.quotas = (few, Quota("types", SubjectKind.USER, gpu_types=("a100",)))
    assert slot_ledger.hold(slot()).granted
    assert [each.reason for each in slot_ledger.hold(slot("r2", type="h100")).refusals] == ["gpu-types"]


async def test_what_a_booking_holds_is_no_session(site: Site, slot_ledger: SlotLedger) -> None:
    site.quotas = (Quota("one", SubjectKind.USER, concurrent_gpus=1, sessions=1, sessions_per_day=1),)
    assert slot_ledger.hold(slot(start=MONDAY)).granted
    with site.store.reading("lab") as reads:
        assert (reads.open_holds(), holds_open(reads), sessions_wanted(reads, [])) == ({}, 0, set())
        assert [(each.session, each.is_slot, each.amount) for each in reads.held()] == [("r1", True, 8 * GPU_HOUR)]
    assert (await site.ledger.admit("s1", ADA, a100())).granted
    assert not release(site.ledger.context, "r1", "over", "root")
    assert not undo_extension(site.ledger.context, "r1", "over")
    with pytest.raises(Unknown):
        await site.ledger.extend("r1", HOUR)
    site.now += DAY
    await site.settle()  # long after it was written, and there is no session of that id
    assert slot_ledger.held() == {"r1": 8 * GPU_HOUR}


@pytest.mark.parametrize("window", [Window.DAY, Window.WEEK, Window.MONTH])
async def test_a_booking_counts_in_the_window_of_its_time_and_in_no_other(
    site: Site, slot_ledger: SlotLedger, window: Window
) -> None:
    site.quotas = (Quota("window", SubjectKind.USER, gpu_time=8 * GPU_HOUR, window=window),)
    far = MONDAY + 40 * DAY
    assert slot_ledger.hold(slot(start=far)).granted
    assert not slot_ledger.hold(slot("r2", start=far + 2 * HOUR, gpus=1)).granted
    assert slot_ledger.hold(slot("r3", start=far + 40 * DAY)).granted
    [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
    assert (limit.taken.used, limit.taken.held) == (0, 0)
    assert (await site.ledger.admit("s1", ADA, a100(4, 2 * HOUR))).granted
    assert not (await site.ledger.admit("s2", ADA, a100(1, 60))).granted
    site.now = float(far)
    [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
    assert limit.taken.held == 16 * GPU_HOUR  # the booking, and the session that nobody has settled
    assert (await site.ledger.quota_status(BOB, ["physics"])).limits[0].taken.held == 0


async def test_a_booking_over_midnight_counts_whole_on_both_days(site: Site, slot_ledger: SlotLedger) -> None:
    site.quotas = (Quota("day", SubjectKind.USER, gpu_time=8 * GPU_HOUR, window=Window.DAY),)
    assert slot_ledger.hold(slot(start=MONDAY + DAY - HOUR)).granted
    assert not slot_ledger.hold(slot("r2", start=MONDAY + HOUR, gpus=1)).granted
    refused = slot_ledger.hold(slot("r3", start=MONDAY + DAY + 5 * HOUR, gpus=1))
    assert refused.message.startswith("User ada may use 8 GPU-hours a day; 8 are used or held, and this needs 2.")
    assert slot_ledger.hold(slot("r4", start=MONDAY + 2 * DAY, gpus=1)).granted
    assert not slot_ledger.hold(slot("r5", start=MONDAY + 2 * DAY - HOUR, gpus=2)).granted, (
        "it would end on a day that is full"
    )


async def test_a_rolling_window_holds_every_pair_of_bookings_that_can_lie_in_it(
    site: Site, slot_ledger: SlotLedger
) -> None:
    site.quotas = (Quota("week", SubjectKind.USER, gpu_time=8 * GPU_HOUR, window=Window.ROLLING, days=7),)
    assert slot_ledger.hold(slot(start=MONDAY + 10 * DAY)).granted
    for day in (4, 9, 16):
        assert not slot_ledger.hold(slot("r2", start=MONDAY + day * DAY, gpus=1)).granted
    for number, day in enumerate((2, 18)):
        assert slot_ledger.hold(slot(f"n{number}", start=MONDAY + day * DAY)).granted
    assert not (await site.ledger.admit("s1", ADA, a100())).granted, "the booking two days from now is within a week"


async def test_a_term_counts_where_the_booking_begins_in_it_and_jobs_from_outside_only_up_to_now(
    site: Site, slot_ledger: SlotLedger
) -> None:
    start, end = MONDAY + WEEK, MONDAY + 2 * WEEK
    term = Quota("term", SubjectKind.USER, gpu_time=8 * GPU_HOUR, window=Window.TERM, start=start, end=end)
    site.quotas = (term, Quota("month", SubjectKind.USER, gpu_time=100 * GPU_HOUR, window=Window.MONTH))
    site.now = MONDAY + HOUR
    site.running = [usage(start=MONDAY, time_limit=30 * DAY)]
    assert slot_ledger.hold(slot(gpus=20)).granted, "the term has not begun"
    assert slot_ledger.hold(slot("r2", start=start)).granted
    assert not slot_ledger.hold(slot("r3", start=end - 2 * HOUR, gpus=1)).granted
    assert not slot_ledger.hold(slot("r5", start=start - HOUR, gpus=1)).granted, "it would end in a term that is full"
    assert slot_ledger.hold(slot("r4", start=end)).granted


async def test_a_session_that_would_run_into_a_full_week_is_refused(site: Site, slot_ledger: SlotLedger) -> None:
    site.quotas = (Quota("week", SubjectKind.USER, gpu_time=8 * GPU_HOUR, window=Window.WEEK),)
    assert slot_ledger.hold(slot(start=MONDAY + WEEK, gpus=4)).granted
    site.now = float(MONDAY + WEEK - HOUR)
    assert not (await site.ledger.admit("s1", ADA, a100(1, 2 * HOUR))).granted
    assert (await site.ledger.admit("s2", ADA, a100(1, HOUR))).granted
    assert not (await site.ledger.extend("s2", HOUR)).granted


async def test_members_of_a_group_share_its_limit_with_what_they_book(site: Site, slot_ledger: SlotLedger) -> None:
    site.quotas = (Quota("course", SubjectKind.GROUP, "course", together=True, gpu_time=8 * GPU_HOUR),)
    site.members = {"course": ("ada", "bob")}
    assert slot_ledger.hold(slot()).granted
    assert not slot_ledger.hold(slot("r2", user="bob", gpus=1), BOB).granted
    assert not (await site.ledger.admit("s1", BOB, a100())).granted


async def test_a_credit_pays_only_for_what_ends_before_it_expires(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(8 * GPU_HOUR, key="c", expires=MONDAY + DAY, reason="course")
    late = slot(start=MONDAY + DAY - HOUR)
    assert not slot_ledger.hold(late).granted
    assert slot_ledger.hold(slot()).granted
    assert not slot_ledger.change(late).granted, "nor when it is moved there"
    await site.grant(8 * GPU_HOUR)
    assert slot_ledger.hold(slot("r2", start=MONDAY + 2 * DAY)).granted
    assert await site.ledger.movable("physics") == 0
    site.now = float(MONDAY + 2 * DAY)
    assert slot_ledger.release_hold(slot())
    await site.ledger.expire()
    assert (await balance(site)).left == 0


async def test_what_a_session_paid_from_a_credit_is_not_promised_for_after_its_expiry(
    site: Site, slot_ledger: SlotLedger
) -> None:
    await site.grant(8 * GPU_HOUR)
    await site.grant(8 * GPU_HOUR, key="c", expires=MONDAY + 2 * HOUR, reason="course")
    assert slot_ledger.hold(slot()).granted
    assert not slot_ledger.hold(slot("r2", start=MONDAY + DAY)).granted
    site.now = float(MONDAY + HOUR)
    assert slot_ledger.start("s1", 4, 2 * HOUR)
    assert slot_ledger.hold(slot("r2", start=MONDAY + DAY)).granted, (
        "what lasts is free, since the session draws on the credit"
    )
    site.now += 900
    await slot_ledger.end("s1", MONDAY + HOUR, 4)
    assert slot_ledger.held() == {"r1": 0, "r2": 8 * GPU_HOUR}
    assert await site.left() == 7 * GPU_HOUR
    site.now = float(MONDAY + 2 * HOUR)
    await site.ledger.expire()
    assert await site.left() == 0


@pytest.mark.parametrize("window", [Window.DAY, Window.WEEK, Window.ROLLING, Window.TOTAL])
async def test_a_series_is_decided_as_its_times_one_after_the_other_and_held_whole_or_not_at_all(
    site: Site, slot_ledger: SlotLedger, window: Window
) -> None:
    site.quotas = (GRANTED_ONLY, Quota("some", SubjectKind.ACCOUNT, gpu_time=50 * GPU_HOUR, window=window, days=5))
    for account in ("physics", "bio"):
        await site.grant(70 * GPU_HOUR, key=account, account=account)
        await site.grant(40 * GPU_HOUR, key=f"{account} course", account=account, expires=MONDAY + 6 * DAY, reason="c")

    def times(account: str) -> list[Slot]:
        return [slot(f"{account}{n}", MONDAY + n * 9 * HOUR, account=account) for n in range(20)]

    alone = [slot_ledger.hold(each) for each in times("physics")]
    fits = next((at for at, each in enumerate(alone) if not each.granted), 20)
    assert 0 < fits < 20
    with slot_ledger.open() as writes:
        whole = hold_all(site.ledger.context, writes, times("bio")[: fits + 1], ADA, "ada")
    assert whole.message == alone[fits].message.replace("physics", "bio")
    assert not [id for id in slot_ledger.held() if id.startswith("bio")]
    for _ in range(2):  # again, it is held already
        with slot_ledger.open() as writes:
            assert hold_all(site.ledger.context, writes, times("bio")[:fits], ADA, "ada").granted
    assert len([id for id in slot_ledger.held() if id.startswith("bio")]) == fits
    assert await site.left("bio") == (110 - 8 * fits) * GPU_HOUR


# -- changed and cancelled --------------------------------------------------------------------------------------------


async def test_a_booking_that_is_cancelled_gives_all_back_and_holds_nothing_more(
    site: Site, slot_ledger: SlotLedger
) -> None:
    await site.grant(8 * GPU_HOUR)
    slot_ledger.hold(slot())
    assert slot_ledger.release_hold(slot())
    assert not slot_ledger.release_hold(slot())
    assert await balance(site) == Balance(8 * GPU_HOUR)
    assert [each.key for each in slot_ledger.entries()] == ["slot:r1", "release:r1"]
    assert (slot_ledger.held(), slot_ledger.lower_hold(slot())) == ({}, 0)
    with pytest.raises(SlotClosed, match="Book a new one"):
        slot_ledger.hold(slot())


async def test_a_longer_or_later_booking_is_decided_and_a_smaller_one_is_not(
    site: Site, slot_ledger: SlotLedger
) -> None:
    site.quotas = (GRANTED_ONLY, Quota("day", SubjectKind.USER, gpu_time=8 * GPU_HOUR, window=Window.DAY))
    await site.grant(10 * GPU_HOUR)
    slot_ledger.hold(slot())
    site.prices = {"a100": 9000}
    assert not slot_ledger.change(slot(length=3 * HOUR)).granted
    assert slot_ledger.held() == {"r1": 8 * GPU_HOUR}
    assert slot_ledger.change(slot(start=MONDAY + DAY)).granted
    [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
    assert (limit.taken.held, slot_ledger.held()) == (0, {"r1": 8 * GPU_HOUR})
    site.quotas = (Quota("none", SubjectKind.USER, gpu_time=0),)
    assert slot_ledger.change(slot(start=MONDAY + DAY, gpus=2)).granted
    assert not slot_ledger.change(slot(start=MONDAY + 2 * DAY, gpus=2)).granted
    assert slot_ledger.held() == {"r1": 4 * GPU_HOUR}
    written = len(slot_ledger.entries())
    assert slot_ledger.change(slot(start=MONDAY + DAY, gpus=2)).granted
    assert len(slot_ledger.entries()) == written
    assert slot_ledger.release_hold(slot())
    assert await site.left() == 10 * GPU_HOUR


async def test_a_booking_that_held_nothing_yet_is_held_when_it_changes(site: Site, slot_ledger: SlotLedger) -> None:
    await site.grant(8 * GPU_HOUR)
    assert not slot_ledger.change(slot(gpus=5)).granted
    assert slot_ledger.change(slot()).granted
    assert slot_ledger.held() == {"r1": 8 * GPU_HOUR}
