"""The form says "Class now" to those it is for, with a button that starts the right thing, and warns the others."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from booked_parts import GPU, HOUR, NOW, booking, cluster, job, node, offer, place

from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.reservations import Kind
from carme_hub.spawners.form.form import live_answer, render_form
from carme_hub.spawners.form.options import options_from_form
from carme_hub.spawners.form.slot_cards import cards, lines, slots_html
from carme_hub.spawners.form.slots import CalendarView

NAME = "carme-1111111100004000-0"


class Posted(HTMLParser):
    """What the form of a card posts, and the text of its button."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fields: dict[str, list[str]] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if tag == "input":
            self.fields[values["name"]] = [values["value"]]


def text(html: str) -> str:
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", html).split()))


def sentence(page: Any, **options: Any) -> str:
    answer: Any = live_answer(page, {"profile": "gpu", **options}, NOW)
    return str(answer["profiles"]["gpu"]["sentence"])


def test_a_class_that_is_now_has_a_card_whose_button_starts_in_it() -> None:
    page = offer(booking(), virtual=True)
    html = slots_html(page, url="/hub/spawn/sam", xsrf="token")
    assert re.fullmatch(
        r"Class now: Physics 1 × virtual a100 until \d\d:\d\d \(Europe/Berlin\) charged to teaching Start in “Physics”",
        text(html),
    )
    assert 'method="post" action="/hub/spawn/sam"' in html
    fields = Posted(html).fields
    assert fields.pop("_xsrf") == ["token"]
    request = page.choose(options_from_form(fields))
    assert (request.profile, str(request.gpus), request.account) == ("gpu", "1 × a100", "teaching")
    assert (request.reservation, request.time_limit) == (NAME, 59)


def test_a_booking_of_ones_own_is_called_so_and_its_end_is_in_its_zone() -> None:
    (card,) = cards(offer(booking(group="", zone="Asia/Kolkata"), user="tina"))
    assert card.heading == "Your booking now: Physics"
    assert "(Asia/Kolkata)" in card.gives[1]
    assert ":30 " in card.gives[1], "half an hour off whole hours"


def test_the_booking_s_profile_is_chosen_or_the_first_that_gives_a_seat() -> None:
    small = {**GPU, "slug": "small", "display_name": "S", "gpus": {"types": ["a100"], "max": 1}}
    course = {**GPU, "slug": "course", "display_name": "C"}
    two = booking(need=Need("a100", 2, 1), places=(place(count=2, seats=1),))
    assert cards(offer(two, profiles=(small, GPU, course)))[0].options["profile"] == "gpu"
    assert cards(offer(two, profiles=(small, GPU, course)))[0].options["gpus"] == 2
    named = booking(profile="course")
    assert cards(offer(named, profiles=(small, GPU, course)))[0].options["profile"] == "course"


def test_who_has_not_the_account_is_told_whom_to_ask_and_finds_no_dead_button() -> None:
    page = offer(booking(), accounts=("physics",))
    (card,) = cards(page)
    assert card.options == {}
    assert "account teaching, and you are not in that account. Ask tina" in card.sentence
    assert "<button" not in slots_html(page)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (booking(profile="course"), "profile course, which is not offered to you. Ask tina"),
        (booking(need=Need("v100", 1)), "gives 1 × v100. Ask the cluster’s support"),
    ],
)
def test_why_there_is_no_button_is_said(known: Any, words: str) -> None:
    (card,) = cards(offer(known))
    assert card.options == {}
    assert words in card.sentence


def test_a_profile_that_asks_for_more_cpus_than_a_seat_has_is_asked_for_fewer() -> None:
    known = booking(places=(place(count=2, seats=2, cpus=4),))
    (card,) = cards(offer(known, profiles=({**GPU, "cpus": {"max": 16, "default": 8}},)))
    assert card.options["cpus"] == 2
    (card,) = cards(offer(known, profiles=({**GPU, "cpus": 8},)))
    assert card.options == {}
    assert "gives 2 CPUs to a session" in card.sentence


def test_a_card_says_when_all_seats_are_taken_and_what_is_wrong_with_the_booking() -> None:
    full = cluster(jobs=tuple(job(n, reservation=NAME) for n in (1, 2)))
    (card,) = cards(offer(booking(problem="Node n1 is down."), there=full))
    assert card.options
    assert card.sentence == "Node n1 is down. All its GPUs are in use now; your session waits until some are free."


def test_what_is_to_come_is_a_line_and_others_bookings_are_none() -> None:
    known = (booking("1", start=3), booking("2", start=4, group="other"), booking("3", start=5, group="", owner="sam"))
    said = lines(offer(*known))
    assert [re.sub(r"\d\d:\d\d", "HH:MM", line) for line in said] == [
        "The class “Physics” begins at HH:MM (Europe/Berlin).",
        "Your booking “Physics” begins at HH:MM (Europe/Berlin).",
    ]
    assert cards(offer(*known)) == ()


def test_a_calendar_that_is_not_read_is_said_with_its_time() -> None:
    look = CalendarView((booking(),), silent_since=NOW - 60, was_read=True)
    assert re.fullmatch(
        r"Bookings cannot be read since \d\d:\d\d; this page shows their state of then\.",
        lines(offer(look=look))[-1],
    )
    assert cards(offer(look=look)), "what was known still counts"
    assert "they are not known" in lines(offer(look=CalendarView(silent_since=NOW)))[0]


def test_where_nobody_books_nothing_is_said() -> None:
    page = offer()
    assert slots_html(page) == ""
    assert "slots" not in live_answer(page, {}, NOW)


def test_texts_of_bookings_are_escaped() -> None:
    evil = "<img src=x onerror=alert(1)>"
    known = (booking("1", title=evil, problem=evil), booking("2", start=3, title=evil))
    html = slots_html(offer(*known), url='"><script>')
    assert "<img" not in html
    assert "<script" not in html
    assert "<img" not in render_form(offer(*known), now=NOW)


def test_the_choice_below_says_that_it_starts_in_the_booking() -> None:
    said = sentence(offer(booking()), gpus=1)
    assert re.fullmatch(
        r"In your booking “Physics”: starts now, for 59 minutes, until it ends at \d\d:\d\d \(Europe/Berlin\)", said
    )
    outside = sentence(offer(booking()), gpus=1, reservation="booking:none")
    assert "starts now" in outside
    assert "Physics" not in outside


def test_a_choice_that_does_not_fit_the_booking_says_why_it_starts_outside() -> None:
    assert sentence(offer(booking()), gpus=2).startswith(
        "Outside your booking “Physics”, which gives 1 × a100 to a session: "
    )


def test_bookings_can_be_chosen_or_left_in_the_list_of_reservations() -> None:
    html = render_form(offer(booking()), now=NOW)
    assert f'value="booking:{booking().id}"' in html
    assert 'value="booking:none"' in html
    assert "booking:" not in render_form(offer(booking(start=3)), now=NOW)


def test_a_session_that_would_run_into_a_class_is_warned_with_what_would_not() -> None:
    soon = booking(start=2, places=(place(count=4), place("n2", 4)))
    answer: Any = live_answer(offer(soon, groups=(), accounts=("teaching",)), {"profile": "gpu"}, NOW)
    seen = answer["profiles"]["gpu"]
    assert re.fullmatch(
        r"8 of 8 a100 free\. From \d\d:\d\d all a100 are booked \(Physics\): "
        r"take 1 hour 55 minutes or less to start now",
        seen["sentence"],
    )
    assert (seen["state"], seen["expected"]) == ("wait", NOW + 4 * HOUR)
    assert seen["suggestion"] == {"options": {"time_minutes": 115}, "what": "1 hour 55 minutes"}
    shorter: Any = live_answer(offer(soon, groups=()), {"profile": "gpu", "time_minutes": 115}, NOW)
    assert shorter["profiles"]["gpu"]["sentence"] == "8 of 8 a100 free; starts now"


def test_who_may_not_know_the_title_is_not_told_it_and_maintenance_is_named() -> None:
    places = (place(count=4), place("n2", 4))
    said = sentence(offer(booking(start=2, places=places), groups=(), accounts=("physics",)))
    assert "all a100 are booked: take" in said
    window = booking(start=2, places=places, kind=Kind.MAINTENANCE, title="New disks")
    assert "there is maintenance (New disks): take" in sentence(offer(window, groups=(), accounts=("physics",)))


def test_gpus_that_are_free_but_booked_now_do_not_start_now() -> None:
    known = booking(places=(place(count=4), place("n2", 4)))
    answer: Any = live_answer(offer(known, groups=(), accounts=("physics",)), {"profile": "gpu"}, NOW)
    seen = answer["profiles"]["gpu"]
    assert re.fullmatch(r"8 of 8 a100 free; expected start \d\d:\d\d, after what is booked", seen["sentence"])
    assert (seen["state"], seen["expected"]) == ("wait", NOW + HOUR)


def test_a_profile_whose_shortest_time_is_too_long_gets_no_suggestion() -> None:
    soon = booking(start=0.5, places=(place(count=4), place("n2", 4)))
    answer: Any = live_answer(offer(soon, groups=()), {"profile": "gpu"}, NOW)
    assert answer["profiles"]["gpu"]["suggestion"] is None
    assert answer["profiles"]["gpu"]["sentence"].endswith("(Physics): this waits until after that")


def test_an_outage_of_slurm_says_nothing_of_when_it_starts() -> None:
    quiet = cluster(node())
    quiet.silent_since = NOW
    assert "starts now" not in sentence(offer(booking(), there=quiet), gpus=1)
