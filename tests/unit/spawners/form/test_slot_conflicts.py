"""What would run into a booking or maintenance is known before it starts, and what would not is known too."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from booked_parts import HOUR, NOW, booking, job, node, place

from carme_hub.domain.calendar.conflicts import ReservationConflict, ReservationTimetable
from carme_hub.domain.calendar.reservations import Kind, Reservation, State
from carme_hub.domain.cluster.jobs import Job
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus, Node
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.session import Request


def request(gpus: int = 1, minutes: int = 240, **more: object) -> Request:
    asked = Request("gpu", "base", Gpus("a100", gpus) if gpus else NO_GPUS, 1, 1024, minutes)
    return replace(asked, **more)  # type: ignore[arg-type]


def conflict(
    nodes: Sequence[Node], jobs: Sequence[Job], known: Sequence[Reservation], asked: Request, now: float
) -> ReservationConflict | None:
    return ReservationTimetable(Cluster(nodes, jobs, seen=now), known, now).conflict(asked)


def longer(
    mine: Job, nodes: Sequence[Node], jobs: Sequence[Job], known: Sequence[Reservation], end: float
) -> Reservation | None:
    return ReservationTimetable(Cluster(nodes, jobs, seen=NOW), known, NOW).extension_conflict(mine, end)


def test_nothing_is_in_the_way_where_there_is_room_to_the_end() -> None:
    soon = booking(start=2, places=(place(count=3),))
    assert conflict([node()], [], [soon], request(1), NOW) is None
    assert conflict([node()], [], [soon], request(2, minutes=120), NOW) is None, "that they touch is no crossing"
    assert conflict([node(), node("n2")], [], [soon], request(4), NOW) is None, "the other node is free"
    assert conflict([node()], [], [], request(4), NOW) is None


def test_the_longest_session_ends_a_minute_before_the_booking() -> None:
    found = conflict([node()], [], [booking(start=2, places=(place(count=3),))], request(2), NOW)
    assert found is not None
    assert (found.longest, found.at, found.all_booked) == (119, NOW + 2 * HOUR, False)
    assert found.expected == NOW + 4 * HOUR
    assert [each.title for each in found.causes] == ["Physics"]


def test_that_all_are_booked_is_said_only_then() -> None:
    soon = booking(start=2, places=(place(count=4), place("n2", 4)))
    found = conflict([node(), node("n2")], [], [soon], request(), NOW)
    assert found is not None
    assert found.all_booked


def test_of_several_the_first_that_is_in_the_way_counts() -> None:
    known = [booking("1", start=3, places=(place(count=4),)), booking("2", start=1, places=(place(count=2),))]
    small, large = (conflict([node()], [], known, request(gpus), NOW) for gpus in (1, 3))
    assert small is not None
    assert large is not None
    assert (small.longest, large.longest) == (179, 59)
    assert (small.causes[0].id[0], large.causes[0].id[0]) == ("1", "2")


def test_what_is_booked_now_starts_later() -> None:
    found = conflict([node()], [], [booking(places=(place(count=4),))], request(), NOW)
    assert found is not None
    assert (found.longest, found.expected) == (0, NOW + HOUR)


def test_jobs_inside_a_booking_are_not_counted_twice() -> None:
    known = booking(hours=12, places=(place(count=2),))
    inside = [job(n, ends=9, reservation=f"{known.names()[0]},other") for n in (1, 2)]
    assert conflict([node(used=2)], inside, [known], request(2), NOW) is None
    outside = [job(n, ends=9) for n in (1, 2)]
    assert conflict([node(used=2)], outside, [known], request(2), NOW) is not None


def test_only_what_is_promised_is_in_the_way() -> None:
    for state in (State.DRAFT, State.PENDING, State.CANCELLED, State.ENDED):
        assert conflict([node()], [], [booking(start=1, places=(place(count=4),), state=state)], request(), NOW) is None


def test_maintenance_keeps_everybody_off_a_node_also_without_gpus() -> None:
    window = booking(start=1, places=(place(count=4, whole=True),), kind=Kind.MAINTENANCE)
    found = conflict([node()], [], [window], request(0), NOW)
    assert found is not None
    assert (found.longest, found.expected) == (59, NOW + 3 * HOUR)
    assert conflict([node()], [], [booking(start=1)], request(0), NOW) is None, "a booking of GPUs does not"


def test_who_waits_for_running_jobs_alone_is_not_told_of_bookings() -> None:
    busy = [job(1, 4, ends=1)]
    soon = booking(start=6, places=(place(count=4),))
    assert conflict([node(used=4)], busy, [soon], request(minutes=120), NOW) is None
    found = conflict([node(used=4)], busy, [soon], request(minutes=360), NOW)
    assert found is not None
    assert (found.longest, found.expected) == (0, NOW + 8 * HOUR)


def fits(
    node: Node, jobs: Collection[Job], known: Collection[Reservation], asked: Request, start: int, end: int
) -> bool:
    """Whether a node has room at each minute, counted one by one."""
    names = {name for each in known for name in each.names()}
    for at in range(start, end, 60):
        free = node.gpus["a100"]
        for each in jobs:
            if node.name in each.nodes and at < max(each.end, NOW + 1) and not names & set(each.reservations):
                free -= each.gpus.count
        for one in known:
            if one.period.start <= at < one.period.end:
                free -= sum(4 if there.whole else there.count for there in one.places if there.node == node.name)
        if free < asked.gpus.count:
            return False
    return True


@pytest.mark.parametrize("seed", range(200))
def test_any_cluster_says_the_same_as_counting_minute_by_minute(seed: int) -> None:
    chance = random.Random(seed)
    names = ("n1", "n2", "n3")
    known = [
        booking(
            str(n),
            start=chance.randrange(-2, 8) / 2,
            hours=chance.randrange(1, 6),
            places=(place(chance.choice(names), chance.randrange(1, 5), whole=chance.random() < 0.2),),
        )
        for n in range(1, chance.randrange(2, 6))
    ]
    known = [each for each in known if each.period.end > NOW]
    jobs: list[Job] = []
    used = dict.fromkeys(names, 0)
    for n in range(chance.randrange(4)):
        name = chance.choice(names)
        if used[name] < 4:
            jobs.append(job(n, 1, (name,), ends=chance.randrange(1, 12) / 2))
            used[name] += 1
    nodes = [node(name, used[name]) for name in names]
    asked = request(chance.randrange(1, 5), minutes=30 * chance.randrange(1, 16))
    can: Sequence[Node] = [each for each in nodes if each.free_gpus("a100") >= asked.gpus.count]
    end = NOW + 60 * asked.time_limit
    found = conflict(nodes, jobs, known, asked, NOW)
    if any(fits(each, jobs, known, asked, NOW, end) for each in can):
        assert found is None
        return
    if found is None:
        assert not can or not any(each.period.start < end for each in known)
        return
    if found.longest:
        assert any(fits(each, jobs, known, asked, NOW, NOW + 60 * found.longest) for each in can)
        assert not any(fits(each, jobs, known, asked, NOW, int(found.at) + 60) for each in can)
    length = 60 * asked.time_limit
    starts = range(NOW, NOW + 24 * HOUR, 1800)
    first = next(at for at in starts if any(fits(each, jobs, known, asked, at, at + length) for each in nodes))
    assert found.expected == first


def test_more_time_that_runs_into_a_booking_is_seen() -> None:
    mine = job(1, 2, ends=1)
    soon = booking(start=2, places=(place(count=3),))
    assert longer(mine, [node()], [mine], [soon], NOW + 2 * HOUR) is None
    assert longer(mine, [node()], [mine], [soon], NOW + 2 * HOUR + 60) is soon
    assert longer(mine, [node(gpus={"a100": 5})], [mine], [soon], NOW + 4 * HOUR) is None
    elsewhere = booking(start=2, places=(place("n2", count=4),))
    assert longer(mine, [node()], [mine], [elsewhere], NOW + 4 * HOUR) is None
    beside = job(2, 1, ends=9)
    assert longer(mine, [node(gpus={"a100": 5})], [mine, beside], [soon], NOW + 4 * HOUR) is soon
    gone = job(3, 2, ends=0.5)
    assert longer(mine, [node(gpus={"a100": 5})], [mine, gone], [soon], NOW + 4 * HOUR) is None


def test_less_time_and_jobs_without_gpus_run_into_nothing() -> None:
    soon = booking(start=-1, hours=9, places=(place(count=4),))
    assert longer(job(1, 2, ends=1), [node()], [], [soon], NOW + HOUR) is None
    assert longer(replace(job(1), gpus=NO_GPUS), [node()], [], [soon], NOW + 9e3) is None
