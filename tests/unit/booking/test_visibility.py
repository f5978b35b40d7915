"""Who may see what: titles and people are for those whom a booking concerns; that GPUs are taken is for everybody."""

from __future__ import annotations

import pytest
from booking_parts import HOUR, NOW, ROOT, FrontDesk, at, who

from carme_hub.booking.messages import NO_MEMORY
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import State
from carme_hub.domain.quotas.booking_rules import BookingRule
from carme_hub.errors import Refused


async def test_titles_are_for_those_whom_it_concerns(front: FrontDesk) -> None:
    listed = await front.book(at(24), title="secret", users=frozenset({"anna"}), group="course")
    everybody = await front.book(at(30), title="all", everybody=True)
    seen = {
        "tina": who(),
        "same account": who("carl"),
        "listed": who("anna", "physics"),
        "group": who("gus", "physics", groups={"course"}),
        "admin": ROOT,
        "stranger": who("eve", "physics"),
    }
    for name, by in seen.items():
        views = await front.desk.between(by, at(20, 20))
        first = views[0]
        titles = [each.reservation.title if each.reservation else None for each in views]
        assert titles[0] == (None if name == "stranger" else "secret"), name
        assert (first.period, first.gpus, first.places) == (listed.period, 1, listed.places), name
        assert first.may_change is (name in ("tina", "admin")), name
        assert first.mine is (name in ("tina", "listed", "group")), name
        assert views[1].mine is (name in ("tina", "same account")), name
        mine = {each.id for each in await front.desk.mine(by, NOW)}
        assert (listed.id in mine, everybody.id in mine) == (first.mine, views[1].mine), name
        if name == "stranger":
            with pytest.raises(Refused, match="no such booking"):
                await front.desk.get(by, listed.id)
        else:
            assert await front.desk.get(by, listed.id) == listed


async def test_names_that_look_alike_are_not_the_same(front: FrontDesk) -> None:
    await front.book(at(24), users=frozenset({"a_b", "Ann"}))
    for name, there in (("a_b", 1), ("axb", 0), ("ann", 0), ("Ann", 1), ("%", 0)):
        assert len(await front.desk.mine(who(name, "physics"), NOW)) == there, name


async def test_what_is_not_certain_is_its_owners_alone(front: FrontDesk) -> None:
    front.rule = BookingRule(approval_above=0)
    await front.book(at(24), users=frozenset({"anna"}))
    assert len(await front.desk.mine(who(), NOW)) == 1
    assert await front.desk.mine(who("anna"), NOW) == ()


async def test_what_is_not_certain_takes_gpus_and_has_no_name_for_those_who_are_invited(front: FrontDesk) -> None:
    front.rule = BookingRule(approval_above=0)
    one = await front.book(at(24), users=frozenset({"anna"}))
    for by in (who("anna"), who("carl")):
        (view,) = await front.desk.between(by, at(20, 20))
        assert (view.state, view.gpus, view.reservation, view.mine) == (State.PENDING, 1, None, False)
        with pytest.raises(Refused, match="no such booking"):
            await front.desk.get(by, one.id)
    for by in (who(), ROOT):
        (view,) = await front.desk.between(by, at(20, 20))
        assert view.reservation == await front.desk.get(by, one.id) == one
    await front.desk.decide(ROOT, one.id, True, "yes")
    (view,) = await front.desk.between(who("anna"), at(20, 20))
    assert view.mine
    assert view.reservation == front.one(one.id)


async def test_what_holds_nothing_is_shown_to_nobody_whom_it_does_not_concern(front: FrontDesk) -> None:
    there = await front.book(at(24), gpus=4, seats=2, owner="bob", users=frozenset({"anna"}))
    waiting = await front.book(at(24), wait=True, users=frozenset({"anna"}))
    await front.desk.cancel(who("bob"), there.id)
    everything = frozenset(State)
    shown = {
        name: {view.state for view in await front.desk.between(who(name, account), at(20, 20), everything)}
        for name, account in (("tina", "x"), ("bob", "x"), ("anna", "x"), ("eve", "x"))
    }
    assert shown == {
        "tina": {waiting.state},
        "bob": {State.CANCELLED},
        "anna": {State.CANCELLED},
        "eve": set(),
    }
    assert len(await front.desk.between(ROOT, at(20, 20), everything)) == 2


async def test_what_was_given_back_is_shown_until_then(front: FrontDesk) -> None:
    one = front.begin(await front.book(at(1, 4)))
    front.now += HOUR
    await front.desk.release(who(), one.id)
    (view,) = await front.desk.between(who(), at(0, 9))
    assert view.period == at(1, 1)
    assert await front.desk.between(who(), at(3, 1)) == ()


async def test_what_is_free_is_told_by_type(front: FrontDesk) -> None:
    await front.book(at(1), gpus=3)
    free = await front.desk.free(at(0, 4), ["a100"])
    assert free == {"a100": ((at(0, 1), 8), (at(1, 2), 5), (at(3, 1), 8))}
    assert set(await front.desk.free(at(0, 4))) == {"a100", "h100"}
    with pytest.raises(Refused, match="no GPU of type 'v100'"):
        await front.desk.free(at(0, 4), ["v100"])
    with pytest.raises(Refused, match="400 days"):
        await front.desk.free(Period(0, 10**12))


async def test_what_can_be_booked_at_all(front: FrontDesk) -> None:
    front.share = 50
    facts = await front.desk.supply()
    assert [(each.type, each.total, each.seat, each.bookable) for each in facts.types] == [
        ("a100", 8, 4, 4),
        ("h100", 2, 2, 1),
    ]
    assert [(each.name, dict(each.gpus)) for each in facts.nodes] == [
        ("n1", {"a100": 4}),
        ("n2", {"a100": 4}),
        ("n3", {"h100": 2}),
    ]
    assert (facts.by_node, facts.note) == (False, NO_MEMORY)
