"""Which sessions are in the way of maintenance, how they start again elsewhere, and what is said before that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from affected_parts import ID, OPTIONS, session, window
from booked_parts import GPU, HOUR, NOW, booking, cluster, job, node, offer, place

from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.spawners.maintenance.affected_sessions import (
    AffectedSession,
    affected_session,
    affected_sessions,
    begin_sentence,
    minutes_left,
    restart_options,
    restart_sentence,
)


def running(ends: float = 3, **more: Any) -> Job:
    return replace(job(ends=ends, **more), name=f"carme-{ID}", user="sam")


def conflict(ends: float = 3, **changes: Any) -> AffectedSession:
    return AffectedSession(session(**changes), running(ends), window())


# -- which they are ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "window"),
    [
        (running(3), window(2)),
        (running(3, nodes=("n2", "n1")), window(2)),
        (replace(running(), end=0), window(2)),  # without a time limit
        (running(3), window(-1, 3)),  # it has begun
        (running(24 * 8), window(24 * 6)),
    ],
)
def test_a_session_that_may_run_on_when_its_node_is_maintained_is_in_the_way(job: Job, window: Reservation) -> None:
    found = affected_session(session(), [job], [booking(), window], NOW)
    assert found is not None
    assert (found.maintenance, found.nodes) == (window, "n1")


@pytest.mark.parametrize(
    ("session", "job", "window"),
    [
        (session(), running(2), window(2)),  # over by then
        (session(), running(3), window(2, nodes=("n2",))),
        (session(), running(3), window(2, state=State.CANCELLED)),
        (session(), running(3), window(-3, 2)),  # that is over
        (session(), running(24 * 9), window(24 * 8)),  # nobody was told yet
        (session(), running(3), booking("9", 2, 3, (place(),))),  # what is booked there is nobody's repair
        (session(cancel_wanted=NOW - 1.0), running(3), window(2)),
        (session(state=SessionState.SUBMITTED), running(3), window(2)),
        (session(), replace(running(3), phase=Phase.WAITING), window(2)),
    ],
)
def test_any_other_session_is_not(session: Session, job: Job, window: Reservation) -> None:
    assert affected_session(session, [job], [window], NOW) is None


def test_of_several_windows_the_first_counts_and_each_session_is_found_by_its_own_jobs() -> None:
    early, late = window(1, 1), window(3, 1).replace(id="late")
    snapshot = Snapshot(0.0, 0.0, {1: running(5), 2: job(2, ends=5)})
    sessions = [session(), session(id="5f0d8f0e-0000-4000-8000-000000000002", job_id=2)]
    [found] = affected_sessions(sessions, snapshot, [late, early], NOW)
    assert (found.session.id, found.maintenance) == (ID, early)
    assert begin_sentence(found, NOW).startswith("Maintenance of n1 begins at ")
    assert begin_sentence(found, NOW + 2 * HOUR) == "Maintenance of n1 has begun: New disks."
    assert list(affected_sessions(sessions, None, [early], NOW)) == [], "Slurm was not asked yet"


# -- how they start again ---------------------------------------------------------------------------------------------


def test_it_is_the_same_choice_for_what_is_left_of_its_time() -> None:
    found = restart_options(
        offer(window()), {**OPTIONS, "working_folder": "work", "image": "base"}, conflict(2.5), NOW + 30
    )
    assert found.problem == ""
    assert found.request is not None
    assert (found.request.time_limit, found.request.gpus, found.request.image) == (149, Gpus("a100", 1), "base")
    assert found.request.working_folder == "work"
    assert found.options == {**OPTIONS, "working_folder": "work", "image": "base", "time_minutes": 149}


@pytest.mark.parametrize(
    ("time", "minutes"),
    [
        ({"max": 8, "default": 4}, 150),
        ({"choices": [1, 2, 4, 8], "default": 4}, 240),  # the next longer one
        ({"choices": [1, 2], "default": 2}, 0),  # it was extended past all of them: not even what was asked is left
        ({"min": 3, "max": 8, "default": 4}, 180),
        ({"max": 4, "min": 4, "default": 4}, 240),
    ],
)
def test_where_the_profile_does_not_give_just_that_it_is_what_it_gives(time: dict[str, Any], minutes: int) -> None:
    found = restart_options(offer(profiles=({**GPU, "time_hours": time},)), OPTIONS, conflict(2.5), NOW)
    assert (found.request.time_limit if found.request else 0) == minutes
    assert bool(found.problem) is (found.request is None)


def test_what_is_fixed_by_the_profile_stays_so() -> None:
    fixed = {**GPU, "slurm_override": {"time_minutes": 240}}
    options = {"profile": "gpu", "gpus": 1}
    found = restart_options(offer(profiles=(fixed,)), options, conflict(2.5), NOW)
    assert found.request is not None
    assert (found.request.time_limit, found.options) == (240, options)


def test_a_profile_that_is_not_offered_any_more_is_said() -> None:
    other = {**GPU, "slug": "new"}
    found = restart_options(offer(profiles=(other,)), OPTIONS, conflict(), NOW)
    assert found.request is None
    assert "The profile “gpu” is not offered to you." in found.problem


def test_out_of_a_booking_it_goes_on_outside_and_not_into_another_one() -> None:
    mine = booking(places=(place("n1", 2), place("n2", 2)))
    inside = conflict(request=replace(session().request, reservation=mine.names()[0]))
    found = restart_options(offer(mine, window()), {**OPTIONS, "reservation": f"booking:{mine.id}"}, inside, NOW)
    assert found.request is not None
    assert found.request.reservation == ""
    free = restart_options(offer(mine), OPTIONS, conflict(0.5), NOW)
    assert free.request is not None
    assert free.request.reservation != "", "who was in none goes into what fits, as with any start"


def test_a_session_without_a_limit_starts_again_for_what_it_asked() -> None:
    assert minutes_left(conflict(), NOW) == 180
    assert minutes_left(AffectedSession(session(), replace(running(), end=0), window()), NOW) == 240


# -- what is said before ----------------------------------------------------------------------------------------------


def said(*nodes: Any, jobs: tuple[Job, ...] = (), max_wait: float = 600, **more: Any) -> str:
    there = cluster(*nodes, jobs=(running(3), *jobs))
    request = Request("gpu", "base", Gpus("a100", 1), 2, 4096, 180)
    return restart_sentence(offer(window(), there=there, **more), request, NOW, max_wait)


def test_another_node_with_room_is_said() -> None:
    assert said(node(used=1), node("n2")) == "Another node has room for it, so it starts again at once."


def test_the_maintained_node_is_no_other_node_though_it_has_room() -> None:
    full = node("n2", used=4)
    other = job(2, gpus=4, nodes=("n2",), ends=1)
    waits = "No other node has room for it now: it waits in the queue, and is expected to start again at "
    soon = said(node(used=1), full, jobs=(other,), max_wait=8 * HOUR)
    after_the_maintenance = said(node(used=1), full, jobs=(replace(other, end=0),), max_wait=8 * HOUR)
    assert soon.startswith(waits)
    assert after_the_maintenance.startswith(waits)
    assert soon != after_the_maintenance


def test_what_would_wait_longer_than_a_start_may_is_said() -> None:
    other = job(2, gpus=4, nodes=("n2",), ends=1)
    words = said(node(used=1), node("n2", used=4), jobs=(other,), max_wait=600)
    assert words.startswith("No other node has room for it now: by what is known, one has at ")
    assert words.endswith("A start waits 10 minutes at most; then it fails, and you start again by the form later.")


def test_who_cannot_tell_says_so() -> None:
    silent = cluster(jobs=(running(3),))
    silent.silent_since = NOW - 60
    request = Request("gpu", "base", Gpus("a100", 1), 2, 4096, 180)
    assert "is not known now" in restart_sentence(offer(window(), there=silent), request, NOW, 600)
