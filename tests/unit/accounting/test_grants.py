"""GPU time is given, moved, put right and expires as people said, once for each key, and nonsense is refused."""

from __future__ import annotations

import pytest
from forged_site import ADA, HOUR, MONDAY, Site, a100, usage

from carme_hub.accounting.context import Unknown
from carme_hub.accounting.grants import KeyUsed, NotEnoughLeft, NotGranted
from carme_hub.domain.ledger.credits import remaining_credits
from carme_hub.domain.ledger.entries import GPU_HOUR, Balance, Entry, Kind
from carme_hub.domain.quotas.rules import Quota, SubjectKind, Window
from carme_hub.domain.sessions.session import SessionState
from carme_hub.store.ledger.writes import Filter


async def test_a_grant_is_written_once_for_its_key_with_who_and_why(site: Site) -> None:
    first = await site.grant(5 * GPU_HOUR, reason="thesis", user="ada")
    site.now += 100
    assert await site.grant(5 * GPU_HOUR, reason="thesis", user="ada") == first
    assert (first.actor, first.reason, first.user, first.kind) == ("root", "thesis", "ada", Kind.GRANT)
    assert await site.left() == 5 * GPU_HOUR
    with pytest.raises(KeyUsed, match="Use a new key"):
        await site.grant(6 * GPU_HOUR, user="ada")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"amount": 0}, "above 0"),
        ({"amount": -5}, "write a correction"),
        ({"amount": 10**18}, "Check the number"),
        ({"account": "phisics"}, "no Slurm account 'phisics'"),
        ({"account": ""}, "Name the account"),
        ({"key": ""}, "idempotency key"),
        ({"key": "x" * 201}, "idempotency key"),
        ({"expires": float(MONDAY)}, "expired already"),
        ({"expires": MONDAY + 9.0}, "needs a reason"),
    ],
)
async def test_a_grant_that_makes_no_sense_is_refused_in_plain_words(
    site: Site, changes: dict[str, object], says: str
) -> None:
    given: dict[str, object] = {"account": "physics", "amount": 5, "key": "k", "actor": "root", **changes}
    with pytest.raises((NotGranted, Unknown), match=says):
        await site.ledger.grant(**given, accounts={"physics", "bio"})
    assert await site.ledger.balances() == {}


async def test_a_key_of_a_caller_stands_in_no_charges_way(site: Site) -> None:
    await site.grant(5, key="charge:lab:7:50")
    done = await site.settle(usage(7, MONDAY - 10, MONDAY))
    assert len(done.charged) == 1


async def test_a_transfer_moves_what_is_left_and_no_more(site: Site) -> None:
    await site.grant(5 * GPU_HOUR)
    await site.ledger.admit("s1", ADA, a100(2))
    site.running = [usage(9, site.now - HOUR)]
    with pytest.raises(NotEnoughLeft, match=r"has 2\.00 GPU-hours that can be moved; 3\.00 were requested"):
        await site.ledger.transfer("physics", "bio", 3 * GPU_HOUR, key="t", actor="root")
    for _ in range(2):
        out, into = await site.ledger.transfer("physics", "bio", 2 * GPU_HOUR, key="t", actor="root", reason="agreed")
    assert (out.amount, into.amount) == (-2 * GPU_HOUR, 2 * GPU_HOUR)
    assert (await site.left("physics"), await site.left("bio")) == (GPU_HOUR, 2 * GPU_HOUR)
    with pytest.raises(NotGranted, match="Both accounts are the same"):
        await site.ledger.transfer("bio", "bio", 5, key="u", actor="root")
    with pytest.raises(KeyUsed):
        await site.ledger.transfer("physics", "bio", 5, key="t", actor="root")


async def test_a_credit_that_expires_cannot_be_moved(site: Site) -> None:
    await site.grant(5 * GPU_HOUR, expires=MONDAY + HOUR, reason="course")
    await site.grant(GPU_HOUR, key="lasting")
    with pytest.raises(NotEnoughLeft, match=r"has 1\.00 GPU-hours"):
        await site.ledger.transfer("physics", "bio", 2 * GPU_HOUR, key="t", actor="root")
    await site.ledger.transfer("physics", "bio", GPU_HOUR, key="t", actor="root")


async def test_moving_away_what_lasts_makes_no_credit_last(site: Site) -> None:
    await site.grant(5 * GPU_HOUR, expires=MONDAY + HOUR, reason="course")
    await site.grant(3 * GPU_HOUR, key="lasting")
    await site.ledger.transfer("physics", "bio", 3 * GPU_HOUR, key="t", actor="root")
    with pytest.raises(NotEnoughLeft, match=r"has 0\.00 GPU-hours"):
        await site.ledger.transfer("physics", "bio", GPU_HOUR, key="u", actor="root")
    site.now = MONDAY + HOUR
    await site.ledger.expire()
    assert (await site.left("physics"), await site.left("bio")) == (0, 3 * GPU_HOUR)


async def moved_and_expired_by_the_earlier_rule(site: Site) -> None:
    """As ledgers have it from before: the transfer took from the credit, of which nothing was left at its expiry."""
    await site.grant(3 * GPU_HOUR, expires=MONDAY + HOUR, reason="course")
    await site.grant(3 * GPU_HOUR, key="lasting")
    await site.ledger.transfer("physics", "bio", 2 * GPU_HOUR, key="t", actor="root")
    site.now = MONDAY + HOUR
    gone = Entry("expiry:grant:g", Kind.CORRECTION, "lab", "physics", -GPU_HOUR, site.now, reason="the credit expired")
    with site.store.transaction("lab") as writes:
        writes.append([gone])


async def test_a_credit_that_expired_by_the_earlier_rule_is_not_charged_again(site: Site) -> None:
    await moved_and_expired_by_the_earlier_rule(site)
    assert await site.ledger.expire() == []
    assert (await site.ledger.admit("s1", ADA, a100(3))).granted, "what was left is theirs still"
    site.now += 30 * 86400
    assert await site.ledger.expire() == []
    assert await site.left() == 0


async def test_a_late_charge_puts_no_more_right_of_it_than_it_used(site: Site) -> None:
    await moved_and_expired_by_the_earlier_rule(site)
    done = await site.settle(usage(7, MONDAY + 1, MONDAY + 601))
    assert [entry.amount for entry in done.expired] == [600_000]
    assert (await site.ledger.expire(), await site.left()) == ([], 3 * GPU_HOUR)
    done = await site.settle(usage(8, MONDAY + 1, MONDAY + 61))
    assert [entry.amount for entry in done.expired] == [60_000]
    assert await site.left() == 3 * GPU_HOUR


async def test_what_is_moved_after_it_makes_no_credit_last(site: Site) -> None:
    await moved_and_expired_by_the_earlier_rule(site)
    await site.grant(5 * GPU_HOUR, key="next", expires=MONDAY + 2 * HOUR, reason="course")
    await site.ledger.transfer("physics", "bio", 3 * GPU_HOUR, key="u", actor="root")
    with pytest.raises(NotEnoughLeft, match=r"has 0\.00 GPU-hours"):
        await site.ledger.transfer("physics", "bio", GPU_HOUR, key="v", actor="root")
    site.now = MONDAY + 2 * HOUR
    [gone] = await site.ledger.expire()
    assert (gone.amount, await site.left(), await site.ledger.expire()) == (-5 * GPU_HOUR, 0, [])


async def test_a_credit_that_expired_by_todays_rule_is_looked_at_by_it_again(site: Site) -> None:
    await site.grant(3 * GPU_HOUR, expires=MONDAY + HOUR, reason="course")
    await site.grant(3 * GPU_HOUR, key="lasting")
    await site.ledger.transfer("physics", "bio", 2 * GPU_HOUR, key="t", actor="root")
    assert (await site.ledger.admit("s1", ADA, a100(1))).granted
    site.now = MONDAY + HOUR
    [gone] = await site.ledger.expire()
    assert (gone.amount, await site.ledger.expire()) == (-2 * GPU_HOUR, [])
    assert await site.ledger.release("s1", "it never got a job")
    [gone] = await site.ledger.expire()
    assert (gone.amount, await site.ledger.expire(), await site.left()) == (-GPU_HOUR, [], GPU_HOUR)


async def test_a_correction_of_the_balance_and_one_of_use_are_told_apart(site: Site) -> None:
    site.quotas = (Quota("day", SubjectKind.ACCOUNT, gpu_time=GPU_HOUR, window=Window.DAY),)
    site.now = MONDAY + 600.0
    for _ in range(2):
        await site.ledger.correct("physics", -500, key="a", actor="root", reason="counted twice")
        await site.ledger.correct("physics", -7000, key="b", actor="root", reason="lost record", used_at=MONDAY + 60)
    assert (await site.ledger.balances())["physics"] == Balance(granted=-500, used=7000)
    [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
    assert limit.taken.used == 7000
    with pytest.raises(NotGranted, match="Say what was wrong"):
        await site.ledger.correct("physics", 5, key="c", actor="root", reason=" ")
    with pytest.raises(NotGranted, match="above 0"):
        await site.ledger.correct("physics", 0, key="c", actor="root", reason="x")


async def test_what_is_left_of_a_credit_goes_when_it_expires_and_lasting_time_stays(site: Site) -> None:
    await site.grant(4 * GPU_HOUR, expires=MONDAY + 10 * HOUR, reason="course")
    await site.grant(2 * GPU_HOUR, key="lasting")
    site.now += 2 * HOUR
    await site.settle(usage(7, MONDAY + 1, MONDAY + HOUR + 1))
    assert await site.left() == 5 * GPU_HOUR
    site.now = MONDAY + 10 * HOUR
    [gone] = await site.ledger.expire()
    assert (gone.key, gone.amount, gone.reason) == ("expiry:grant:g", -3 * GPU_HOUR, "the credit expired")
    assert await site.ledger.expire() == []
    assert await site.left() == 2 * GPU_HOUR


async def test_nobody_is_admitted_on_a_credit_a_moment_after_it_expired(site: Site) -> None:
    await site.grant(4 * GPU_HOUR, expires=MONDAY + HOUR, reason="course")
    site.now = MONDAY + HOUR - 1.0
    assert (await site.ledger.admit("s1", ADA, a100())).granted
    site.now += 1
    assert not (await site.ledger.admit("s2", ADA, a100())).granted
    [gone, _, _] = await site.ledger.statement(Filter())
    assert gone.amount == -3 * GPU_HOUR


async def test_what_was_held_in_time_may_be_used_later_and_what_comes_back_of_it_expires(site: Site) -> None:
    await site.grant(2 * GPU_HOUR, expires=MONDAY + HOUR, reason="course")
    site.now = MONDAY + HOUR - 60.0
    await site.ledger.admit("s1", ADA, a100(2))
    site.session("s1")
    site.session("s1", job_id=7, started=site.now, state=SessionState.RUNNING)
    job = site.usage_of(start=MONDAY + HOUR, end=MONDAY + HOUR + 600)
    site.now = MONDAY + HOUR + 700.0
    done = await site.settle(job)
    assert [entry.amount for entry in done.expired] == [-(2 * GPU_HOUR - 600_000)]
    assert (await site.ledger.balances())["physics"] == Balance(600_000, 600_000, 0)


async def held_over_the_expiry_and_given_back(site: Site) -> None:
    await site.grant(GPU_HOUR, expires=MONDAY + HOUR, reason="course")
    site.now = MONDAY + HOUR - 60.0
    assert (await site.ledger.admit("s1", ADA, a100())).granted
    site.now = MONDAY + HOUR + 60.0
    [nothing] = await site.ledger.expire()
    assert nothing.amount == 0
    assert await site.ledger.release("s1", "it never got a job")


async def test_nobody_is_admitted_on_what_a_session_gives_back_of_an_expired_credit(site: Site) -> None:
    await held_over_the_expiry_and_given_back(site)
    assert not (await site.ledger.admit("s2", ADA, a100(seconds=HOUR // 2))).granted
    assert (await site.left(), await site.ledger.expire()) == (0, [])


async def test_what_a_session_gives_back_of_an_expired_credit_cannot_be_moved_away(site: Site) -> None:
    await held_over_the_expiry_and_given_back(site)
    with pytest.raises(NotEnoughLeft, match=r"has 0\.00 GPU-hours"):
        await site.ledger.transfer("physics", "bio", GPU_HOUR // 2, key="t", actor="root")
    await site.ledger.expire()
    assert (await site.left("physics"), await site.left("bio")) == (0, 0)


async def test_nothing_is_put_right_twice_at_an_admission_after_an_expiry(site: Site) -> None:
    await held_over_the_expiry_and_given_back(site)
    await site.grant(5 * GPU_HOUR, key="lasting")
    for session in ("s2", "s3"):
        assert (await site.ledger.admit(session, ADA, a100())).granted
    entries = await site.ledger.statement(Filter(kind=Kind.CORRECTION))
    assert [entry.amount for entry in entries] == [-GPU_HOUR, 0]


async def test_a_late_charge_from_before_the_expiry_gives_back_what_expired_too_much(site: Site) -> None:
    await site.grant(2 * GPU_HOUR, expires=MONDAY + HOUR, reason="course")
    site.now = MONDAY + 2.0 * HOUR
    await site.ledger.expire()
    assert await site.left() == 0
    done = await site.settle(usage(7, MONDAY + 1, MONDAY + 601))
    assert [entry.amount for entry in done.expired] == [600_000]
    assert await site.left() == 0
    assert not await site.settle(usage(7, MONDAY + 1, MONDAY + 601))


def test_use_is_drawn_from_what_expires_first_and_debts_from_what_comes_next() -> None:
    def given(key: str, amount: int, at: int, expires: int = 0) -> Entry:
        return Entry(key, Kind.GRANT, "lab", "physics", amount, at, expires=expires)

    late, soon, lasting = given("late", 100, 0, 90), given("soon", 50, 0, 30), given("lasting", 10, 0)
    assert remaining_credits([late, soon, lasting], [(10, 60), (40, 20)], 100) == {"soon": 0, "late": 70}
    assert remaining_credits([late, soon, lasting], [(10, 20)], 20) == {"soon": 30, "late": 100}
    assert remaining_credits([given("next", 100, 20, 90)], [(10, 60)], 50) == {"next": 40}
    assert remaining_credits([late, given("moved", -30, 5), given("expiry:late", -9, 6)], [], 50) == {"late": 70}
