"""A session goes into the booking that it fits, and nobody gets into one that is not theirs or not now."""

from __future__ import annotations

from typing import Any

import pytest
from booked_parts import GPU, HOUR, NOW, booking, cluster, job, node, offer, place

from carme_hub.domain.calendar import slots
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.reservations import Kind, State
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.sessions.profile_choice import choose
from carme_hub.errors import ProfileNotAllowed
from carme_hub.spawners.form.options import checked_options

NAME = "carme-1111111100004000-0"
ONE = {"gpus": 1, "gpu_type": "a100"}


def test_a_session_that_fits_starts_in_the_booking_and_ends_before_it() -> None:
    request = offer(booking()).choose(ONE)
    assert (request.reservation, request.account, request.time_limit) == (NAME, "teaching", 59)


def test_a_shorter_session_keeps_its_time_limit() -> None:
    assert offer(booking(hours=3)).choose({**ONE, "time_minutes": 60}).time_limit == 60


def test_a_minute_before_its_start_its_time_limit_counts_from_the_start() -> None:
    assert offer(booking(start=1 / 60)).choose(ONE).time_limit == 119
    assert offer(booking(start=2 / 60)).choose(ONE).reservation == ""


@pytest.mark.parametrize(
    ("why", "known", "who", "options"),
    [
        ("not for this user", booking(), {"groups": ()}, ONE),
        ("over in a minute", booking(hours=1 + 1 / 60), {}, ONE),
        ("not approved", booking(state=State.PENDING), {}, ONE),
        ("given back", booking(state=State.RELEASED), {}, ONE),
        ("maintenance", booking(kind=Kind.MAINTENANCE), {}, ONE),
        ("not kept", booking(problem="Node n1 is down."), {}, ONE),
        ("another type", booking(), {}, {"gpus": 1, "gpu_type": "h100"}),
        ("more than a seat", booking(), {}, {"gpus": 2, "gpu_type": "a100"}),
        ("another account", booking(), {"accounts": ("physics", "teaching")}, ONE),
        ("more CPUs than a seat has", booking(), {}, {**ONE, "cpus": 9}),
        ("another profile", booking(profile="course"), {}, ONE),
        ("no GPU", booking(), {}, {"gpus": 0}),
    ],
)
def test_a_session_that_does_not_fit_starts_outside(why: str, known: Any, who: Any, options: Any) -> None:
    profiles = ({**GPU, "gpus": {**GPU["gpus"], "min": 0}},)
    request = offer(known, profiles=profiles, **who).choose(options)
    assert (request.reservation, request.time_limit) == ("", 240), why


def test_it_is_for_owner_users_group_and_everybody_of_the_account() -> None:
    for known, user, groups in (
        (booking(group=""), "tina", ()),
        (booking(group="", users=frozenset({"sam"})), "sam", ()),
        (booking(), "sam", ("class",)),
        (booking(group="", everybody=True), "sam", ()),
    ):
        assert offer(known, user=user, groups=groups).choose(ONE).reservation == NAME
    assert offer(booking(group=""), groups=("", "class")).choose(ONE).reservation == ""
    others = offer(booking(group="", everybody=True, account="other"), accounts=("teaching",))
    assert others.choose(ONE).reservation == ""


def test_somebody_who_wants_no_booking_stays_outside() -> None:
    request = offer(booking()).choose({**ONE, "reservation": "booking:none", "time_minutes": 480})
    assert (request.reservation, request.time_limit) == ("", 480)


def test_a_full_booking_is_not_taken_by_itself_but_can_be_waited_for() -> None:
    full = cluster(jobs=tuple(job(n, reservation=NAME) for n in (1, 2)))
    page = offer(booking(), there=full)
    assert page.choose(ONE).reservation == ""
    assert page.choose({**ONE, "reservation": f"booking:{booking().id}"}).reservation == NAME


def test_a_seat_for_which_somebody_waits_is_not_free() -> None:
    waiting = job(2, nodes=(), phase=Phase.WAITING, start=0, reservation=f"{NAME},other")
    assert offer(booking(), there=cluster(jobs=(job(1, reservation=NAME), waiting))).choose(ONE).reservation == ""
    assert offer(booking(), there=cluster(jobs=(job(1, reservation=NAME),))).choose(ONE).reservation == NAME


def test_a_profile_with_a_reservation_of_its_own_keeps_it() -> None:
    page = offer(booking(), profiles=({**GPU, "reservation": "course"},))
    assert page.choose(ONE).reservation == "course"
    with pytest.raises(ProfileNotAllowed, match="starts in course only"):
        page.choose({**ONE, "reservation": f"booking:{booking().id}"})


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (offer(booking(), groups=()), "not yours, or it is not its time now"),
        (offer(booking(start=1)), "not yours, or it is not its time now"),
        (offer(booking(start=-3)), "not yours, or it is not its time now"),
        (offer(), "not yours, or it is not its time now"),
        (offer(booking(), accounts=("physics",)), "“Physics” is charged to the account teaching"),
        (offer(booking(need=Need("h100", 1))), "“Physics” has h100"),
    ],
)
def test_a_booking_that_is_named_is_checked(page: Any, words: str) -> None:
    with pytest.raises(ProfileNotAllowed, match=words):
        page.choose(checked_options({**ONE, "reservation": f"booking:{booking().id}"}))


def test_names_in_slurm_can_be_given_by_nobody() -> None:
    for named in (NAME, f"{NAME},{NAME}", "a,b"):
        with pytest.raises(ProfileNotAllowed, match="not a reservation you may use here"):
            offer(booking()).choose({**ONE, "reservation": named})


def test_a_hub_without_a_calendar_knows_no_bookings() -> None:
    page = offer(booking())
    with pytest.raises(ProfileNotAllowed, match="not a reservation you may use here"):
        choose(page.profiles, {"reservation": "booking:none"}, accounts=page.accounts, images=("base",))


def test_a_booking_on_nodes_outside_the_profiles_partition_is_not_taken() -> None:
    page = offer(booking(), profiles=({**GPU, "partition": "other"},), there=cluster(node(partitions=("gpu",))))
    assert page.choose(ONE).reservation == ""


def test_a_site_without_accounts_charges_the_booking_to_its_own() -> None:
    assert offer(booking(), accounts=None).choose(ONE).account == "teaching"


def test_nodes_with_room_are_named_first() -> None:
    two = booking(places=(place("n1", 2, 2), place("n2", 3, 3)))
    names = list(two.names())
    assert slots.names_for(two, 1, ()).split(",") == [names[1], names[0]]
    on_n2 = [job(n, nodes=("n2",), reservation=",".join(names)) for n in (1, 2)]
    assert slots.names_for(two, 1, on_n2).split(",") == names
    assert slots.has_room(two, 2, on_n2)
    assert not slots.has_room(two, 3, on_n2)


def test_a_list_is_never_longer_than_slurm_takes() -> None:
    many = booking(places=tuple(place(f"n{n}", 1, 1) for n in range(200)))
    listed = slots.names_for(many, 1, ())
    assert 900 < len(listed) <= slots.MAX_NAMES_LENGTH
    assert set(listed.split(",")) < set(many.names())


def test_whole_nodes_are_one_name_and_a_session_may_have_a_node() -> None:
    whole = booking(need=Need("a100", 0, 2), places=tuple(place(n, 4, 1, whole=True) for n in ("n1", "n2")), group="")
    request = offer(whole, user="tina").choose({"gpus": 4, "gpu_type": "a100"})
    assert request.reservation == NAME
    busy = tuple(job(n, 4, nodes=(f"n{n}",), reservation=NAME) for n in (1, 2))
    assert offer(whole, user="tina", there=cluster(jobs=busy)).choose(ONE).reservation == ""


def test_gpus_that_are_counted_are_one_name_and_may_be_anywhere() -> None:
    two = booking(places=(place("n1", 2, 2), place("n2", 2, 2)), license="gpu_a100")
    assert two.names() == (NAME,)
    elsewhere = cluster(node(), node("n3", partitions=("other",)), jobs=(job(1, 3, nodes=("n3",), reservation=NAME),))
    assert offer(two, there=elsewhere).choose(ONE).reservation == NAME
    assert slots.has_room(two, 1, elsewhere.jobs)
    assert not slots.has_room(two, 2, elsewhere.jobs)
    only = cluster(node("n9", partitions=("gpu",)))  # on none of the nodes on which it was planned
    assert offer(two, there=only).choose(ONE).reservation == NAME
    assert offer(two.replace(license=""), there=only).choose(ONE).reservation == ""


def test_a_booking_is_found_by_any_of_its_names() -> None:
    two = booking(places=(place("n1"), place("n2")))
    assert slots.reservation_named([booking("2"), two], f"{NAME[:-1]}1,x") is two
    assert slots.reservation_named([two], "") is None
    assert slots.reservation_named([two], "by-hand") is None


def test_what_ends_first_comes_first_and_what_begins_within_a_day_is_to_come() -> None:
    long, short = booking("1", hours=3), booking("2", hours=2)
    assert slots.usable_now([long, short], "sam", ["class"], [], NOW) == (short, long)
    soon, late = booking("3", start=2), booking("4", start=25)
    assert slots.upcoming([late, soon, long], "sam", ["class"], [], NOW) == (soon,)
    assert slots.upcoming([soon], "eve", [], [], NOW) == ()
    assert slots.minutes_left(long, NOW + 9 * HOUR) == 0
