"""What a session outside of bookings waits for where Slurm counts GPUs: their number, and not their nodes."""

from __future__ import annotations

from booked_parts import HOUR, NOW, booking, cluster, job, node, place

from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.conflicts import ReservationTimetable
from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.domain.calendar.slots import GRACE_SECONDS
from carme_hub.domain.cluster.jobs import Job
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request

EIGHT = (node(), node("n2"))


def counted(id: str, start: float, gpus: int, hours: float = 2) -> Reservation:
    """Return a booking of so many GPUs that was planned on the first node."""
    need, places = Need("a100", 1, gpus), (place("n1", gpus, gpus),)
    return booking(id, start, hours, places, need=need, license="gpu_a100")


def asked(gpus: int, hours: float = 1) -> Request:
    return Request("gpu", "default", gpus=Gpus("a100", gpus), time_limit=int(hours * 60), partition="gpu")


def table(*known: Reservation, jobs: tuple[Job, ...] = ()) -> ReservationTimetable:
    return ReservationTimetable(cluster(*EIGHT, jobs=jobs), known, NOW)


def test_as_many_as_are_left_start_now_on_whichever_node() -> None:
    now = table(counted("1", -1, 4))
    assert now.conflict(asked(4)) is None, "also on the node on which it was planned"
    found = now.conflict(asked(5))
    assert found is not None
    assert (found.longest, found.at, found.all_booked, found.expected) == (0, NOW, False, NOW + HOUR)
    assert [each.id[0] for each in found.causes] == ["1"]


def test_what_begins_later_leaves_time_until_then() -> None:
    found = table(counted("1", 2, 6)).conflict(asked(3, hours=4))
    assert found is not None
    assert (found.longest, found.at) == ((2 * HOUR - GRACE_SECONDS) // 60, NOW + 2 * HOUR)
    assert table(counted("1", 2, 6)).conflict(asked(3, hours=2)) is None


def test_slurm_adds_up_what_is_never_at_the_same_moment() -> None:
    two = counted("1", 1, 4, 1), counted("2", 3, 4, 1)
    assert table(*two).conflict(asked(4, hours=2)) is None
    found = table(*two).conflict(asked(4, hours=4))
    assert found is not None
    assert found.at == NOW + 3 * HOUR


def test_jobs_count_where_they_are_in_no_booking() -> None:
    booked = counted("1", -1, 4)
    (name,) = booked.names()
    inside, outside = job(1, 4, nodes=("n2",), reservation=name), job(2, 2, nodes=("n1",), ends=1)
    assert table(booked, jobs=(inside,)).conflict(asked(4)) is None
    found = table(booked, jobs=(inside, outside)).conflict(asked(4))
    assert found is not None
    assert found.expected == NOW + HOUR
    full = tuple(job(number, 4, nodes=(f"n{number}",), ends=3) for number in (1, 2))
    assert table(counted("1", -1, 4), jobs=full).conflict(asked(1)) is None, "they are in the way, and no booking is"


def test_a_session_is_not_made_longer_into_what_is_booked() -> None:
    mine, other = job(1, 4, nodes=("n2",), ends=1), job(2, 2, nodes=("n1",), ends=9)
    booked = counted("1", 2, 4)
    assert table(booked, jobs=(mine,)).extension_conflict(mine, NOW + 3 * HOUR) is None
    assert table(booked, jobs=(mine, other)).extension_conflict(mine, NOW + 3 * HOUR) is booked
    assert table(booked, jobs=(mine, other)).extension_conflict(mine, NOW + 2 * HOUR) is None
