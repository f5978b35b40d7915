"""``carme-hub reservations``: looking at what is booked and free, and changing it."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from rig.forged_calendar import ID, ForgedCalendar, at, booking, calendar, commands, conflict, run, taken

from carme_hub.cli.reservations.change import ApproveApp, CancelApp, DenyApp, MaintenanceApp, MoveApp, ReleaseApp
from carme_hub.cli.reservations.show import FreeApp, ListApp, ShowApp

__all__ = ["calendar"]

# -- look --------------------------------------------------------------------------------------------------------------


def test_the_list_is_of_ones_own_from_now_on(calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]) -> None:
    calendar.answer_with("GET", "bookings")
    assert run(ListApp) == 0
    assert capsys.readouterr().out.startswith("You have booked nothing, ")
    query = calendar.requests[-1][2]
    assert query["mine"] == "true"
    assert int(query["to"]) - int(query["from"]) == 366 * 86_400
    late = booking(end=at("2026-12-02 01:00"), problem="node1 is down.")
    calendar.answer_with("GET", "bookings", booking(state="pending"), late, booking(waits=True, state="draft", gpus=0))
    assert run(ListApp, "--from", "2026-12-01", "--to", "2026-12-02") == 0
    query = calendar.requests[-1][2]
    assert (int(query["from"]), int(query["to"])) == (at("2026-12-01 00:00"), at("2026-12-03 00:00"))
    head, *rows, problem = capsys.readouterr().out.splitlines()
    assert "owner" not in head
    assert [state for row in rows for state in ("waits for approval", "waitlist") if state in row] == [
        *("waits for approval", "waitlist")
    ]
    assert "4 whole a100 nodes" in rows[2]
    assert rows[1].startswith("Tue 2026-12-01 09:00 to Wed 2026-12-02 01:00 ")
    assert problem == "ML class, Tue 2026-12-01 09:00 to Wed 2026-12-02 01:00: node1 is down."


def test_everybodys_bookings_are_listed_with_owners_and_what_is_hidden_stays_so(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = {"id": "", "title": "", "owner": "", "account": "", "gpus": 0, "seats": 0, "total": 6, "hidden": True}
    mends = booking(kind="maintenance", title="Drivers", owner="ada", gpus=0, seats=1)
    calendar.answer_with("GET", "bookings", booking(**nobody), mends)
    assert run(ListApp, "--all") == 0
    head, hidden, maintenance = capsys.readouterr().out.splitlines()
    assert head.split()[3] == "owner"
    assert "6 a100" in hidden
    assert "(somebody's)" in hidden
    assert "1 whole node " in maintenance
    assert run(ListApp, "--pending", "--json") == 0
    query = calendar.requests[-1][2]
    assert (query["mine"], query["state"]) == ("false", "pending")
    assert len(json.loads(capsys.readouterr().out)["bookings"]) == 2


def test_what_is_free_is_a_table_of_parts(calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [
        {"start": at("2026-12-01 08:00"), "end": at("2026-12-01 09:00"), "free": 8},
        {"start": at("2026-12-01 09:00"), "end": at("2026-12-01 18:00"), "free": 4},
    ]
    found = {"start": 0, "end": 1, "types": [{"gpu_type": "a100", "total": 8, "parts": parts}]}
    calendar.answers["GET", "free"] = (200, found)
    assert run(FreeApp, "--type", "a100", "--from", "2026-12-01 8:00", "--to", "18:00") == 0
    query = {"from": str(at("2026-12-01 08:00")), "to": str(at("2026-12-01 18:00")), "type": "a100"}
    assert calendar.requests[-1][2] == query
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["GPU", "when", "(Europe/Berlin)", "free", "of"]
    assert first.split()[-2:] == ["8", "8"]
    assert second.split() == ["a100", "Tue", "2026-12-01", "09:00", "to", "18:00", "4", "8"]
    calendar.answers["GET", "free"] = (200, {**found, "types": []})
    assert run(FreeApp) == 0
    assert "There are no GPUs that could be booked." in capsys.readouterr().out
    query = calendar.requests[-1][2]
    assert int(query["to"]) - int(query["from"]) == 86_400


def test_one_booking_is_shown_with_what_one_may_do(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]
) -> None:
    calendar.answers["GET", f"bookings/{ID}"] = (200, booking())
    assert run(ShowApp, ID) == 0
    said = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    found = {head.strip(): value.strip() for head, value in said.items()}
    assert found["when"] == "Tue 2026-12-01 09:00 to 11:00 (Europe/Berlin)"
    assert found["also for"] == "the group course-ml"
    assert found["where"] == "gpu1 (4 a100)"
    assert found["GPU time"] == "8 GPU-hours"
    assert found["you may"] == "move, cancel"
    assert "problem" not in found
    assert run(ShowApp, ID.replace("0", "1")) == 1
    assert capsys.readouterr().err == "carme-hub reservations show: There is no such booking.\n"
    assert run(ShowApp, "no such/id") == 2
    assert "'no such/id' is not the id of a booking; `carme-hub reservations list` shows" in capsys.readouterr().err
    assert len(calendar.requests) == 2


# -- change ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "start", "end"),
    [
        (("--from", "2026-12-03 18:00"), "2026-12-03 18:00", "2026-12-03 20:00"),
        (("--to", "12:30"), "2026-12-01 09:00", "2026-12-01 12:30"),
        (("--length", "30min"), "2026-12-01 09:00", "2026-12-01 09:30"),
        (("--from", "2026-12-01 23:00", "--to", "2026-12-02 01:00"), "2026-12-01 23:00", "2026-12-02 01:00"),
    ],
)
def test_a_move_keeps_what_is_not_said_and_names_the_version_that_was_seen(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], start: str, end: str
) -> None:
    calendar.answers["GET", f"bookings/{ID}"] = (200, booking())
    calendar.answer_with("PATCH", f"bookings/{ID}", booking())
    assert run(MoveApp, ID, *argv) == 0
    assert calendar.last_body == {"version": 3, "series": "one", "start": at(start), "end": at(end)}
    assert capsys.readouterr().out.startswith("Changed.\n")


def test_a_move_changes_size_and_title_of_all_times(calendar: ForgedCalendar) -> None:
    calendar.answers["GET", f"bookings/{ID}"] = (200, booking())
    calendar.answer_with("PATCH", f"bookings/{ID}", booking())
    assert run(MoveApp, ID, "--seats", "2", "--gpus", "0", "--type", "v100", "--title", "Lab", "--series", "all") == 0
    changes = {"seats": 2, "gpus": 0, "gpu_type": "v100", "title": "Lab"}
    assert calendar.last_body == {"version": 3, "series": "all", **changes}
    assert run(MoveApp, ID) == 2
    assert run(MoveApp, ID, "--series", "some", "--seats", "2") == 2
    assert [method for method, *_ in calendar.requests].count("PATCH") == 1


def test_a_move_to_what_is_taken_is_answered_with_commands(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]
) -> None:
    calendar.answers["GET", f"bookings/{ID}"] = (200, booking())
    other = {"start": at("2026-12-03 20:00"), "end": at("2026-12-03 22:00")}
    calendar.answers["PATCH", f"bookings/{ID}"] = taken(conflict("2026-12-03", times=[other], seats=1))
    assert run(MoveApp, ID, "--from", "2026-12-03 18:00", "--length", "2h") == 1
    first, fewer = commands(capsys.readouterr().err).values()
    assert first == shlex.split(f"carme-hub reservations move {ID} --from '2026-12-03 20:00' --to '2026-12-03 22:00'")
    assert fewer[fewer.index("--seats") + 1] == "1"
    assert fewer[fewer.index("--length") + 1] == "2h"
    assert run(MoveApp, ID, "--from", "2026-12-03 18:00", "--series", "later") == 1
    assert [*commands(capsys.readouterr().err)] == ["1 seat at all times"]


@pytest.mark.parametrize(
    ("app", "argv", "verb", "body"),
    [
        (CancelApp, ("--series", "later", "--reason", "Ill"), "cancel", {"series": "later", "reason": "Ill"}),
        (ReleaseApp, (), "release", {"reason": ""}),
        (DenyApp, ("--reason", "Too much"), "decision", {"decision": "deny", "reason": "Too much"}),
    ],
)
def test_what_takes_a_booking_away_asks_first(
    calendar: ForgedCalendar,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    app: Any,
    argv: tuple[str, ...],
    verb: str,
    body: dict[str, str],
) -> None:
    calendar.answers["GET", f"bookings/{ID}"] = (200, booking())
    calendar.answer_with("POST", f"bookings/{ID}/{verb}", booking(state="cancelled"))
    assert run(app, ID, *argv) == 2, "nobody can be asked here"
    assert "“ML class”, Tue 2026-12-01 09:00 to 11:00 (Europe/Berlin)" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert run(app, ID, *argv) == 1
    assert {method for method, *_ in calendar.requests} == {"GET"}, "nothing was done"
    assert run(app, ID, *argv, "--yes") == 0
    assert calendar.last_body == body
    assert "cancelled" in capsys.readouterr().out


def test_an_approval_needs_no_question_and_a_denial_a_reason(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]
) -> None:
    calendar.answer_with("POST", f"bookings/{ID}/decision", booking())
    assert run(ApproveApp, ID) == 0
    assert calendar.last_body == {"decision": "approve", "reason": ""}
    assert run(DenyApp, ID, "--yes") == 2
    assert "give a reason with --reason" in capsys.readouterr().err
    assert len(calendar.requests) == 1


def test_a_maintenance_window_says_over_what_it_lies(
    calendar: ForgedCalendar, capsys: pytest.CaptureFixture[str]
) -> None:
    there = [booking(), booking(places=[]), booking(kind="maintenance")]
    calendar.answer_with("GET", "bookings", *there)
    argv = ("Drivers", "--nodes", "gpu[1-2]", "--from", "2026-12-01 08:00", "--length", "4h")
    assert run(MaintenanceApp, *argv) == 2
    assert "It overlaps 1 booking, whose owner is notified. Keep gpu1, gpu2 free of jobs" in capsys.readouterr().err
    mends = booking(kind="maintenance", title="Drivers")
    answer = {"at": 0, "maintenance": mends, "changed": [booking(problem="gpu1 is maintained.")]}
    calendar.answers["POST", "maintenance"] = (200, answer)
    assert run(MaintenanceApp, *argv, "--yes") == 0
    assert calendar.last_body == {
        **{"nodes": ["gpu1", "gpu2"], "title": "Drivers", "zone": "Europe/Berlin"},
        **{"start": "2026-12-01T08:00:00", "end": "2026-12-01T12:00:00"},
    }
    said = capsys.readouterr().out
    assert said.startswith("Set.\n")
    assert "gpu1 is maintained." in said
    for nodes in ("", "gpu[1"):
        assert run(MaintenanceApp, "Drivers", "--nodes", nodes, *argv[3:], "--yes") == 2
