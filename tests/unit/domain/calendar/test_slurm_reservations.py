"""From any state of Slurm's reservations the plan leads to those that were booked, and touches no other."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.slurm_reservations import (
    OWN_MAINTENANCE_FLAGS,
    Change,
    Create,
    Delete,
    SlurmReservation,
    Step,
    plan,
)

NOW = 1000
BOOKED = SlurmReservation(
    "carme-a1", Period(2000, 5600), frozenset({"node1"}), {"a100": 2}, 8, frozenset({"alice", "bob"})
)


def seen(reservation: SlurmReservation, **changes: object) -> SlurmReservation:
    """Return it as Slurm shows it once it has it."""
    return replace(reservation, state="INACTIVE", flags=frozenset({"SPEC_NODES"}), **changes)


def carried_out(steps: tuple[Step, ...], there: dict[str, SlurmReservation]) -> dict[str, SlurmReservation]:
    """Return what Slurm has after the steps, by its own rules: no second one of a name, nothing from the past."""
    found = dict(there)
    for step in steps:
        match step:
            case Create(wanted):
                assert wanted.name not in found
                assert wanted.period.start >= NOW
                found[wanted.name] = seen(wanted)
            case Delete(name):
                del found[name]
            case Change(name, period, users, accounts, licenses):
                have = replace(found[name], licenses=licenses or found[name].licenses)
                assert period is None or period.start >= NOW or period.start == have.period.start
                who = {"users": users, "accounts": accounts} if users or accounts else {}
                found[name] = replace(have, period=period or have.period, **who)
    return found


def test_what_is_not_there_is_made_and_what_is_there_is_left() -> None:
    assert plan([BOOKED], [], obsolete=(), now=NOW) == (Create(BOOKED),)
    assert plan([BOOKED], [seen(BOOKED)], obsolete=(), now=NOW) == ()
    assert plan([BOOKED], [seen(BOOKED, cpus=9, period=Period(2001, 5600))], obsolete=(), now=NOW) == ()


def test_licences_are_changed_where_they_are_and_come_in_place_of_nodes() -> None:
    flags = frozenset({"ANY_NODES"})
    counted = replace(BOOKED, nodes=frozenset(), gpus={}, cpus=0, flags=flags, licenses={"gpu_a100": 2})
    have = replace(counted, state="ACTIVE")
    assert plan([counted], [have], obsolete=(), now=NOW) == ()
    more = replace(counted, licenses={"gpu_a100": 4})
    assert plan([more], [have], obsolete=(), now=NOW) == (Change("carme-a1", licenses={"gpu_a100": 4}),)
    for want, there in ((counted, seen(BOOKED)), (BOOKED, have)):
        assert plan([want], [there], obsolete=(), now=NOW) == (Delete("carme-a1"), Create(want))


def test_what_was_deleted_by_hand_in_its_slot_is_made_for_the_rest_of_it() -> None:
    (step,) = plan([BOOKED], [], obsolete=(), now=3000)
    assert step == Create(replace(BOOKED, period=Period(3000, 5600)))
    assert plan([BOOKED], [], obsolete=(), now=5600) == (), "it is over"


def test_times_and_people_are_changed_and_places_made_anew() -> None:
    later = replace(BOOKED, period=Period(2500, 6000))
    assert plan([later], [seen(BOOKED)], obsolete=(), now=NOW) == (Change("carme-a1", Period(2500, 6000)),)
    exclusive = replace(BOOKED, users=frozenset({"alice"}))
    assert plan([exclusive], [seen(BOOKED)], obsolete=(), now=NOW) == (Change("carme-a1", None, frozenset({"alice"})),)
    for other in (replace(BOOKED, nodes=frozenset({"node2"})), replace(BOOKED, gpus={"a100": 3})):
        assert plan([other], [seen(BOOKED)], obsolete=(), now=NOW) == (Delete("carme-a1"), Create(other))


def test_one_that_has_begun_is_made_longer_and_keeps_its_start() -> None:
    longer = replace(BOOKED, period=Period(2000, 9000))
    have = seen(BOOKED, period=Period(2100, 5600))  # made late, and so from then on
    assert plan([longer], [have], obsolete=(), now=3000) == (Change("carme-a1", Period(2100, 9000)),)
    assert plan([BOOKED], [have], obsolete=(), now=3000) == ()


def test_one_that_began_too_early_is_made_anew() -> None:
    """A controller that crashed brings back what was deleted under the same name; Slurm moves none that has begun."""
    have = seen(BOOKED, period=Period(500, 4000))
    assert plan([BOOKED], [have], obsolete=(), now=NOW) == (Delete("carme-a1"), Create(BOOKED))


def test_one_that_was_moved_away_by_hand_in_its_slot_begins_now() -> None:
    have = seen(BOOKED, period=Period(4000, 5600))
    assert plan([BOOKED], [have], obsolete=(), now=3000) == (Change("carme-a1", Period(3000, 5600)),)


def test_what_is_not_wanted_is_deleted_and_strangers_are_left_alone() -> None:
    stranger = replace(seen(BOOKED), name="carme-of-another-hub")
    by_hand = replace(seen(BOOKED), name="root_1")
    assert plan([], [seen(BOOKED), stranger, by_hand], obsolete={"carme-a1", "carme-old"}, now=NOW) == (
        Delete("carme-a1"),
    )


def test_flags_that_slurm_adds_are_no_difference_and_one_that_it_lacks_is() -> None:
    window = replace(BOOKED, gpus={}, cpus=0, users=frozenset({"root"}), flags=OWN_MAINTENANCE_FLAGS)
    shown = replace(window, cpus=64, flags=frozenset({"MAINT", "IGNORE_JOBS", "SPEC_NODES"}))
    assert plan([window], [shown], obsolete=(), now=NOW) == ()
    lacking = replace(shown, flags=frozenset({"SPEC_NODES", "IGNORE_JOBS"}))
    assert plan([window], [lacking], obsolete=(), now=NOW) == (Delete("carme-a1"), Create(window))
    late = replace(window, period=Period(3000, 5600))
    assert plan([window], [], obsolete=(), now=3000) == (Create(late),), "also of what is left of it"


NAMES = [f"carme-{n}" for n in range(5)]


@st.composite
def reservations(draw: st.DrawFn, names: list[str]) -> dict[str, SlurmReservation]:
    found = {}
    for name in draw(st.sets(st.sampled_from(names))):
        start = draw(st.integers(NOW - 500, NOW + 2000))
        found[name] = SlurmReservation(
            name,
            Period(start, start + draw(st.integers(1, 2000))),
            draw(st.sampled_from([frozenset({"n1"}), frozenset({"n1"}), frozenset({"n1", "n2"})])),
            draw(st.sampled_from([{"a100": 1}, {"a100": 1}, {}])),
            draw(st.integers(0, 1)),
            frozenset(draw(st.sets(st.sampled_from(["alice", "bob"]), min_size=1))),
            frozenset(draw(st.sets(st.just("physics")))),
        )
    return found


@given(reservations(NAMES), reservations([*NAMES, "root_1"]))
def test_after_the_steps_nothing_is_left_to_do(
    wanted: dict[str, SlurmReservation], there: dict[str, SlurmReservation]
) -> None:
    shown = {name: seen(each) for name, each in there.items()}
    gone = [name for name in NAMES if name not in wanted]
    after = carried_out(plan(wanted.values(), shown.values(), obsolete=gone, now=NOW), shown)
    assert plan(wanted.values(), after.values(), obsolete=gone, now=NOW) == ()
    assert after.get("root_1") == shown.get("root_1")
    for name, want in wanted.items():
        if want.period.end > NOW:
            have = after[name]
            assert (have.nodes, dict(have.gpus), have.users) == (want.nodes, dict(want.gpus), want.users)
            assert abs(have.period.end - want.period.end) <= 1
    assert {name for name in after if name.startswith("carme-")} <= wanted.keys()
