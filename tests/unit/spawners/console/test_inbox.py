"""Maintenance in the calendar is announced to everybody by itself, with nodes and times, from a week before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from affected_parts import window
from booked_parts import HOUR, NOW

from carme_hub.domain.administration.messages import Kind, Message
from carme_hub.domain.calendar.reservations import State
from carme_hub.spawners.console.inbox import announced, for_session, shown_messages


def hub(*windows: Any, announcements: tuple[Message, ...] = (), messages: tuple[Message, ...] = ()) -> Any:
    ours = SimpleNamespace(announcements=lambda: announcements, messages_of=lambda _user: messages)
    return SimpleNamespace(administration=ours, slots=SimpleNamespace(latest=SimpleNamespace(known=windows)))


def test_a_window_is_announced_without_its_title() -> None:
    [found] = announced(hub(window(nodes=("n2", "n1"))), NOW)
    assert found.heading.startswith("Maintenance of n1 and n2, ")
    assert "New disks" not in found.heading + found.text
    [told] = for_session(hub(window()), "alice", NOW)["announcements"]
    assert (told["kind"], told["heading"].startswith("Maintenance of n1, ")) == ("maintenance", True)


def test_one_that_is_far_away_over_or_given_up_is_not() -> None:
    later, over = window(start=8 * 24), window(start=-5, hours=1)
    assert announced(hub(later, over, window(state=State.CANCELLED)), NOW) == []


def test_what_administrators_write_comes_first_and_messages_last() -> None:
    written = Message("a", Kind.ANNOUNCEMENT, NOW, "ada", "everybody", "Hi", NOW, NOW + HOUR)
    own = Message("m", Kind.MESSAGE, NOW, "ada", "user alice", "Hello", NOW, NOW + HOUR)
    found = shown_messages(hub(window(), announcements=(written,), messages=(own,)), "alice", NOW)
    assert [(each.text, each.seen) for each in found if each.id in "am"] == [("Hi", False), ("Hello", True)]
    assert [each.level for each in found] == ["info", "warning", "info"]


def test_a_hub_that_starts_or_has_no_calendar_shows_what_there_is() -> None:
    assert announced(None, NOW) == []
    starting = SimpleNamespace(administration=None, slots=None)
    assert shown_messages(starting, "alice", NOW) == []  # type: ignore[arg-type]
    assert for_session(starting, "alice", NOW) == {"messages": [], "announcements": []}  # type: ignore[arg-type]
