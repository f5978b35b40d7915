"""What becomes of a reservation, and what Slurm is to have of it."""

from __future__ import annotations

from itertools import product

import pytest

from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import (
    HOLDING,
    PROMISED,
    Kind,
    NotPossible,
    Reservation,
    State,
    jobs_past_start,
)
from carme_hub.domain.cluster.jobs import Job, Phase

BOOKED = Reservation(
    id="0f8fad5b-d9cb-469f-a165-70867728950e",
    cluster="lab",
    owner="tina",
    account="teaching",
    title="Deep learning",
    need=Need("a100", 1, 5),
    period=Period(1000, 4600),
    places=(Place("n1", "a100", 1, 1, cpus=8), Place("n2", "a100", 4, 4, cpus=32)),
    state=State.CONFIRMED,
    created=500.0,
    users=frozenset({"bob"}),
    group="course",
)


def test_each_node_is_a_reservation_in_slurm_and_jobs_in_it_are_charged_to_who_pays() -> None:
    one, two = BOOKED.slurm_reservations(["alice"])
    assert (one.name, two.name) == BOOKED.names() == ("carme-0f8fad5bd9cb469f-0", "carme-0f8fad5bd9cb469f-1")
    assert (one.nodes, one.gpus, one.cpus) == ({"n1"}, {"a100": 1}, 8)
    assert (two.nodes, two.gpus, two.cpus) == ({"n2"}, {"a100": 4}, 32)
    for each in (one, two):
        assert (each.users, each.accounts) == ({"tina", "bob", "alice"}, {"teaching"})
        assert each.period == BOOKED.period


def test_whole_nodes_are_one_reservation_for_jobs_on_several_nodes() -> None:
    places = tuple(Place(node, "a100", 4, 1, whole=True, cpus=32) for node in ("n1", "n2"))
    (one,) = BOOKED.replace(places=places, everybody=True).slurm_reservations()
    assert (one.nodes, dict(one.gpus), one.cpus) == ({"n1", "n2"}, {}, 0)
    assert (one.users, one.accounts) == (frozenset(), {"teaching"})


def test_what_is_not_promised_is_not_in_slurm_and_what_is_over_takes_nothing() -> None:
    for state in State:
        each = BOOKED.replace(state=state)
        assert bool(each.slurm_reservations()) is (state in PROMISED), state
        assert bool(each.occupied()) is (state in HOLDING), state
        assert each.names() == BOOKED.names(), "its name is known when it is to be deleted"


def test_what_is_over_stays_over() -> None:
    for before, after in product((State.ENDED, State.CANCELLED, State.RELEASED), State):
        with pytest.raises(NotPossible, match=r"“Deep learning” is .* any more"):
            BOOKED.replace(state=before).in_state(after, 2000.0, actor="tina")


def test_a_change_of_state_says_who_and_why_and_counts_the_version() -> None:
    over = BOOKED.in_state(State.ACTIVE, 1000.0, actor="carme-hub").in_state(
        State.RELEASED, 1900.0, actor="tina", reason="done"
    )
    assert (over.state, over.ended, over.actor, over.reason, over.version) == (
        State.RELEASED,
        1900.0,
        "tina",
        "done",
        3,
    )
    with pytest.raises(NotPossible):
        BOOKED.in_state(State.PENDING, 1000.0, actor="tina")


def test_its_gpu_time_is_that_of_all_its_seats() -> None:
    assert (BOOKED.gpus, BOOKED.gpu_seconds) == (5, 5 * 3600)


def test_what_it_takes_of_other_types_counts_and_is_no_licence_of_its_own() -> None:
    mixed = Place("n4", "1g.10gb", 7, 7, whole=True, also=(("3g.40gb", 2),))
    one = BOOKED.replace(need=Need("1g.10gb", 1, 8), places=(mixed, Place("n5", "1g.10gb", 1, 1)))
    assert (one.gpus, one.gpu_seconds, one.own_type_gpus) == (10, 10 * 3600, 8)
    assert [*one.by_type.items()] == [("1g.10gb", 8), ("3g.40gb", 2)]
    (by_licence,) = one.replace(license="gpu_small").slurm_reservations()
    assert by_licence.licenses == {"gpu_small": 8}


def test_maintenance_is_whole_nodes_for_root_over_whatever_is_there() -> None:
    window = BOOKED.replace(kind=Kind.MAINTENANCE, account="", group="")
    (one,) = window.slurm_reservations(["alice"])
    assert (one.name, one.nodes, one.users, one.accounts) == (window.names()[0], {"n1", "n2"}, {"root"}, frozenset())
    assert (dict(one.gpus), one.cpus, one.flags) == ({}, 0, {"MAINT", "IGNORE_JOBS"})
    assert window.names() == ("carme-0f8fad5bd9cb469f-0",)


def test_all_its_names_begin_alike_and_without_a_place_it_has_none() -> None:
    assert {name.rpartition("-")[0] for name in BOOKED.names()} == {BOOKED.stem}
    assert BOOKED.replace(places=()).slurm_reservations() == ()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, True),
        ({"end": 0.0}, True),
        ({"end": 1000.0}, False),
        ({"nodes": ("n3",)}, False),
        ({"nodes": ("n3", "n2")}, True),
        ({"name": "by-hand"}, False),
        ({"phase": Phase.WAITING}, False),
        ({"phase": Phase.TERMINAL}, False),
    ],
)
def test_sessions_that_may_run_into_it_are_in_its_way(changes: dict[str, object], found: bool) -> None:
    plain: dict[str, object] = {"phase": Phase.ACTIVE, "nodes": ("n1",), "name": "carme-s1", "end": 1001.0}
    job = Job(id=7, user="bob", state="RUNNING", **{**plain, **changes})  # type: ignore[arg-type]
    assert jobs_past_start(BOOKED, [job]) == ((job,) if found else ())
