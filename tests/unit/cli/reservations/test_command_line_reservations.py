"""``carme-hub reservations book``: what it asks of the calendar, what it prints, and with which exit status."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from rig.forged_calendar import ID, ForgedCalendar, at, booking, calendar, commands, conflict, run, taken

from carme_hub.cli.app import CarmeHubApp
from carme_hub.cli.hub_client import service_address
from carme_hub.cli.reservations.book import BookApp
from carme_hub.cli.reservations.change import ApproveApp, CancelApp, DenyApp, MaintenanceApp, MoveApp, ReleaseApp
from carme_hub.cli.reservations.command import ReservationsApp
from carme_hub.cli.reservations.show import FreeApp, ListApp, ShowApp

__all__ = ["calendar"]

APPS = (ListApp, FreeApp, ShowApp, BookApp, MoveApp, CancelApp, ReleaseApp, ApproveApp, DenyApp, MaintenanceApp)
CLASS = ("ML class", "--type", "a100", "--seats", "4", "--from", "2026-12-01 09:00", "--to", "11:00")
WEEKLY = (*CLASS, "--rule", "FREQ=WEEKLY;BYDAY=TU;COUNT=12")


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)
def test_every_command_says_how_it_is_used_and_takes_no_token(app: Any) -> None:
    assert f"{app.__module__}.{app.__name__}" in [each[0] for each in ReservationsApp.subcommands.values()]
    assert app.examples.startswith(app.name)
    assert app.name.split()[-1] in ReservationsApp.subcommands
    names = app.class_traits(config=True)
    assert not [name for name in names if "token" in name and name != "token_file"]


@pytest.mark.parametrize(("word", "hint"), [("bok", "Did you mean book?"), ("x", "--help lists them.")])
def test_a_command_that_there_is_not_is_said(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ReservationsApp, word) == 2
    assert capsys.readouterr() == ("", f"carme-hub reservations: there is no command '{word}'. {hint}\n")


def test_the_calendar_is_one_of_the_commands() -> None:
    assert CarmeHubApp.subcommands["reservations"][0] == "carme_hub.cli.reservations.command.ReservationsApp"
    assert service_address("https://a.org/jupyter/hub/", "reservations") == (
        "https://a.org/jupyter/services/reservations/api/v1"
    )


# -- book --------------------------------------------------------------------------------------------------------------


def test_a_booking_asks_for_what_was_said_on_the_wall_of_the_zone(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]
) -> None:
    calendar.answer_with("POST", "bookings", booking())
    options = ("--account", "physics", "--group", "course-ml", "--users", "bob, carl", "--profile", "a100")
    assert run(BookApp, *WEEKLY, *options, "--without", "2026-12-22T09:00") == 0
    assert calendar.last_body == {
        **{"title": "ML class", "account": "physics", "gpu_type": "a100", "gpus": 1, "seats": 4},
        **{"start": "2026-12-01T09:00:00", "end": "2026-12-01T11:00:00", "zone": "Europe/Berlin"},
        **{"rule": "FREQ=WEEKLY;BYDAY=TU;COUNT=12", "without": ["2026-12-22T09:00"]},
        **{"users": ["bob", "carl"], "group": "course-ml", "profile": "a100"},
    }
    first, head, row = capsys.readouterr().out.splitlines()
    assert first == "Booked. It holds 8 GPU-hours of GPU time."
    assert head.startswith("when (Europe/Berlin)")
    assert row.split("  ")[0] == "Tue 2026-12-01 09:00 to 11:00"
    assert "4 × 1 a100" in row
    assert row.endswith(ID)


def test_a_length_a_zone_and_an_offset_say_when_too(calendar: ForgedCalendar) -> None:
    calendar.answer_with("POST", "bookings", booking())
    start = ("ML class", "--type", "a100", "--from")
    assert run(BookApp, *start, "2026-12-01 22:30", "--length", "1h 45min", "--zone", "America/New_York") == 0
    times = ("start", "end", "zone")
    assert [calendar.last_body[name] for name in times] == [
        "2026-12-01T22:30:00",
        "2026-12-02T00:15:00",
        "America/New_York",
    ]
    assert run(BookApp, *start, "2026-12-01 09:00+00:00", "--length", "1h", "--gpus", "0") == 0
    assert calendar.last_body["end"] - calendar.last_body["start"] == 3600
    assert calendar.last_body["start"] == at("2026-12-01 10:00")
    assert calendar.last_body["gpus"] == 0


def test_each_booking_is_a_new_one_unless_it_has_the_same_key(calendar: ForgedCalendar) -> None:
    calendar.answer_with("POST", "bookings", booking())
    for argv in ((), (), ("--key", "term-1")):
        assert run(BookApp, *CLASS, *argv) == 0
    first, second, third = calendar.keys
    assert first != second
    assert first
    assert third == "term-1"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "pending"}, "It waits for an administrator's approval; the GPUs are kept meanwhile."),
        ({"state": "draft", "waits": True}, "It is on the waitlist, and is booked automatically"),
        ({"amount": None}, "Booked.\n"),
    ],
)
def test_what_became_of_a_booking_is_said(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    calendar.answer_with("POST", "bookings", booking(**changes))
    assert run(BookApp, *CLASS, "--wait", "--everybody") == 0
    assert (calendar.last_body["wait"], calendar.last_body["everybody"]) == (True, True)
    assert words in capsys.readouterr().out


def test_a_slot_that_is_taken_is_answered_with_commands_for_what_is_not(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"start": at("2026-12-01 11:00"), "end": at("2026-12-01 13:00")}
    calendar.answers["POST", "bookings"] = taken(conflict(times=[other], seats=2, types=["v100"]))
    options = ("--everybody", "--key", "k1", "--hub", calendar.address)
    assert run(BookApp, *CLASS, *options) == 1
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert lines[0] == ("carme-hub reservations book: These GPUs are not free at that time. Nothing was booked.")
    found = commands(said.err)
    assert [*found] == ["Tue 2026-12-01 11:00 to 13:00", "2 seats then", "v100 then", "wait until it is free"]
    calendar.answer_with("POST", "bookings", booking())
    sent = []
    for words in found.values():
        assert words[:3] == ["carme-hub", "reservations", "book"]
        assert run(BookApp, *words[3:]) == 0
        sent.append(calendar.last_body)
    asked = {
        **{"title": "ML class", "gpu_type": "a100", "gpus": 1, "seats": 4, "everybody": True, "zone": "Europe/Berlin"},
        **{"start": "2026-12-01T09:00:00", "end": "2026-12-01T11:00:00"},
    }
    assert sent == [
        {**asked, "start": "2026-12-01T11:00:00", "end": "2026-12-01T13:00:00"},
        {**asked, "seats": 2},
        {**asked, "gpu_type": "v100"},
        {**asked, "wait": True},
    ]
    assert "k1" not in calendar.keys[1:], "another booking under the same key would be refused"


def test_a_class_of_which_some_times_are_taken_can_be_booked_without_them(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]
) -> None:
    other = [{"start": at(f"2026-12-08 {hour}:00"), "end": at(f"2026-12-08 {hour + 2}:00")} for hour in (11, 13)]
    calendar.answers["POST", "bookings"] = taken(
        conflict("2026-12-08", times=other, seats=3, types=["v100", "h100"]),
        conflict("2026-12-15", seats=2, types=["h100"]),
    )
    assert run(BookApp, *WEEKLY, "--without", "2026-12-22T09:00") == 1
    said = capsys.readouterr().err
    assert "Not free:\n  Tue 2026-12-08 09:00 to 11:00\n  Tue 2026-12-15 09:00 to 11:00\n" in said
    found = commands(said)
    assert [*found] == [
        "Tue 2026-12-08 11:00 to 13:00 in place of Tue 2026-12-08 09:00 to 11:00",
        *("2 seats at all times", "h100 at all times", "all other times"),
    ]
    once, fewer, _, others = found.values()
    assert "--rule" not in once
    assert "--without" not in once
    assert once[once.index("--from") + 1] == "2026-12-08 11:00"
    assert fewer[fewer.index("--without") + 1] == "2026-12-22T09:00"
    assert others[others.index("--without") + 1] == "2026-12-22T09:00,2026-12-08T09:00:00,2026-12-15T09:00:00"


def test_where_nothing_is_near_that_is_said(calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]) -> None:
    calendar.answers["POST", "bookings"] = taken(conflict())
    assert run(BookApp, *CLASS) == 1
    said = capsys.readouterr().err
    assert "Nothing similar is free near that time" in said
    assert [*commands(said)] == ["wait until it is free"]


def test_a_refusal_is_given_whole_as_json(calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]) -> None:
    calendar.answers["POST", "bookings"] = taken(conflict(seats=2))
    assert run(BookApp, *CLASS, "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["error"], said["conflicts"][0]["seats"]) == ("slot-taken", 2)
    message = "You may book 14 d ahead: the latest start is on Saturday 5 December at 10:00."
    calendar.answers["POST", "bookings"] = (409, {"error": "too-far", "message": message})
    assert run(BookApp, *CLASS) == 1
    assert capsys.readouterr().err == f"carme-hub reservations book: {message}\n"


def test_an_answer_that_is_lost_says_how_to_ask_for_the_same_once(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]
) -> None:
    calendar.answers["POST", "bookings"] = (502, "<html>Bad Gateway</html>")
    assert run(BookApp, *CLASS[:-4], "--from", "now", "--length", "2h", "--wait") == 2
    said = capsys.readouterr().err
    assert "It may be booked nevertheless; this books it once:" in said
    sent, key = calendar.last_body, calendar.keys[-1]
    calendar.answer_with("POST", "bookings", booking())
    assert run(BookApp, *shlex.split(said.splitlines()[-1])[3:]) == 0
    assert (calendar.last_body, calendar.keys[-1]) == (sent, key)


def check(**changes: Any) -> dict[str, Any]:
    day = {"start": at("2027-03-28 02:30"), "end": at("2027-03-28 05:00"), "occurrence": ""}
    note = {"note": "Clocks skip 02:30 on that day; it starts at 03:30."}
    known = {"granted": True, "refusal": "", "needs_approval": False, "amount": 8 * 3_600_000}
    return {**known, "times": [{**day, **note}], "conflicts": [], "notes": [], **changes}


def test_a_dry_run_says_what_would_become_of_it_and_books_nothing(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "Slurm here keeps whole nodes: 4 seats take node1."
    calendar.answers["POST", "check"] = (200, check(needs_approval=True, notes=[note]))
    assert run(BookApp, *CLASS, "--dry-run") == 0
    said = capsys.readouterr().out
    assert said.startswith("It could be booked now.\n")
    for words in ("it starts at 03:30.", "would have to approve", "It would hold 8 GPU-hours of GPU time.", note):
        assert words in said
    calendar.answers["POST", "check"] = (200, check(granted=False, conflicts=[conflict(types=["v100"])]))
    assert run(BookApp, *CLASS, "--dry-run") == 1
    said = capsys.readouterr().out
    assert said.startswith("These GPUs are not free")
    assert "v100 then" in commands(said)
    calendar.answers["POST", "check"] = (200, check(granted=False, refusal="You may not book."))
    assert run(BookApp, *CLASS, "--dry-run", "--json") == 1
    assert json.loads(capsys.readouterr().out)["refusal"] == "You may not book."
    assert {path for _, path, _, _ in calendar.requests} == {"check"}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (CLASS[1:], "usage: carme-hub reservations book TITLE"),
        (("x", "--from", "9:00", "--to", "11:00"), "name the GPUs with --type"),
        (CLASS[:-2], "either the end with --to or the length with --length"),
        ((*CLASS, "--length", "2h"), "either the end with --to or the length with --length"),
        ((*CLASS[:-1], "08:00"), "the end is before the start; give its day too"),
        ((*CLASS[:-1], "noon"), "'noon' is no time; write 2026-12-01 09:00"),
        ((*CLASS[:-2], "--length", "long"), "'long' is not a length; write 2h"),
        ((*CLASS, "--zone", "Berlin"), "'Berlin' is not a time zone; zones have names such as Europe/Berlin"),
        ((*CLASS, "--repeat", "weekly"), "there is no option --repeat"),
    ],
)
def test_words_that_mean_nothing_are_an_error(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], words: str
) -> None:
    assert run(BookApp, *argv) == 2
    assert words in capsys.readouterr().err
    assert calendar.requests == []


# -- the hub -----------------------------------------------------------------------------------------------------------


def test_within_a_session_the_hub_is_asked_where_browsers_ask_it(
    calendar: ForgedCalendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    calendar.answer_with("GET", "bookings")
    monkeypatch.setenv("JUPYTERHUB_API_URL", "http://127.0.0.1:9/hub/api")
    assert run(ListApp) == 2
    monkeypatch.setenv("JUPYTERHUB_PUBLIC_HUB_URL", f"{calendar.address}/hub/")
    assert run(ListApp) == 0
    assert run(ListApp, "--hub", "http://127.0.0.1:9") == 2


def test_what_is_no_calendar_and_what_is_no_token_is_said(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calendar.answers["GET", "bookings"] = (302, "")
    assert run(ListApp) == 2
    assert "has the hub a service reservations, and is this its address in a browser?" in capsys.readouterr().err
    calendar.answers["GET", "bookings"] = (200, "<html>hello</html>")
    assert run(ListApp) == 2
    assert "does not answer as a calendar does" in capsys.readouterr().err
    calendar.answers["GET", "bookings"] = (503, {"error": "not-ready", "message": "The service is starting."})
    assert run(ListApp) == 2
    assert "answers 503: The service is starting." in capsys.readouterr().err
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "old")
    assert run(ListApp, "--json") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "/hub/token makes a new one" in said.err
