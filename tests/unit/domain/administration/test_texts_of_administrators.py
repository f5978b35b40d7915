"""What administrators write is bounded and can be shown; messages end; rules stop what they are about."""

from __future__ import annotations

import pytest

from carme_hub.domain.administration.messages import MOST_SECONDS, Kind, Message, check_period
from carme_hub.domain.administration.start_stops import StartStop, sentence, stop_for
from carme_hub.domain.administration.texts import MOST_TEXT, BadAct, checked_reason, checked_text
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request

NOW = 1_800_000_000.0


def request(profile: str = "a100", partition: str = "") -> Request:
    return Request(profile, "base", Gpus("a100", 1), partition=partition)


def test_a_text_keeps_its_lines_and_loses_blanks() -> None:
    assert checked_text("  Save   your work.\r\n\r\nNode1 is repaired. \n") == "Save your work.\n\nNode1 is repaired."
    assert checked_reason(" a fan\n fails ") == "a fan fails"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Write a text."),
        (" \n ", "Write a text."),
        ("x" * (MOST_TEXT + 1), f"It has {MOST_TEXT + 1} characters; {MOST_TEXT} are allowed."),
        ("a\x07b", "It has a character that cannot be shown (U+0007). Leave it out."),
        ("a\u202eb", "It has a character that cannot be shown (U+202E). Leave it out."),
    ],
)
def test_a_text_that_cannot_be_shown_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadAct) as refused:
        checked_text(text)
    assert (refused.value.message, refused.value.field) == (said, "text")


def test_without_a_reason_nothing_is_done() -> None:
    with pytest.raises(BadAct, match="Say why"):
        checked_reason("  ")


@pytest.mark.parametrize(
    ("begins", "ends", "field"),
    [
        *((NOW, NOW - 1, "ends"), (NOW + 100, NOW + 50, "ends"), (NOW, NOW + MOST_SECONDS + 60, "ends")),
        *((-1e15, NOW + 60, "begins"), (float("nan"), NOW + 60, "begins"), (NOW, float("inf"), "ends")),
    ],
)
def test_a_time_that_makes_no_sense_is_refused(begins: float, ends: float, field: str) -> None:
    with pytest.raises(BadAct) as refused:
        check_period(begins, ends, NOW)
    assert refused.value.field == field


def message(kind: Kind, **more: float) -> Message:
    return Message("m", kind, NOW, "ada", "everybody", "Hello", NOW + 100, NOW + 200, **more)  # type: ignore[arg-type]


def test_an_announcement_is_shown_in_its_time_and_maintenance_from_when_it_is_known() -> None:
    shown = {kind: [message(kind).is_shown(NOW + each) for each in (0, 100, 199, 200)] for kind in Kind}
    assert shown[Kind.ANNOUNCEMENT] == [False, True, True, False]
    assert shown[Kind.MAINTENANCE] == [True, True, True, False]
    assert not message(Kind.MAINTENANCE, withdrawn=NOW + 1).is_shown(NOW + 100)


def test_what_everybody_has_seen_cannot_be_taken_back() -> None:
    assert message(Kind.MESSAGE, recipients=2, seen=1).can_be_withdrawn(NOW + 150)
    assert not message(Kind.MESSAGE, recipients=2, seen=2).can_be_withdrawn(NOW + 150)
    assert not message(Kind.MESSAGE, recipients=2, seen=1).can_be_withdrawn(NOW + 200)
    assert not message(Kind.ANNOUNCEMENT, withdrawn=NOW).can_be_withdrawn(NOW + 150)


@pytest.mark.parametrize(
    ("rule", "asked", "stopped"),
    [
        ({}, request(), True),
        ({"profile": "a100"}, request("a100"), True),
        ({"profile": "a100"}, request("cpu"), False),
        ({"partition": "gpu"}, request(partition="gpu"), True),
        ({"partition": "gpu"}, request(partition="cpu,gpu"), True),
        ({"partition": "gpu"}, request(partition="cpu"), False),
        ({"partition": "gpu"}, request(), False),
        ({"partition": "gpu", "is_default": True}, request(), True),
        ({"partition": "gpu", "is_default": True}, request(partition="cpu"), False),
        ({"profile": "a100", "partition": "gpu"}, request("a100", "cpu"), False),
        ({"until": NOW - 1}, request(), False),
        ({"lifted": NOW - 1}, request(), False),
    ],
)
def test_a_rule_stops_what_it_is_about(rule: dict[str, object], asked: Request, *, stopped: bool) -> None:
    found = stop_for(asked, [StartStop("r", NOW - 10, "ada", "New driver", **rule)], NOW)  # type: ignore[arg-type]
    assert (found is not None) is stopped


def test_the_rule_that_lasts_longest_is_told() -> None:
    rules = [StartStop("a", NOW, "ada", "Short", until=NOW + 60), StartStop("b", NOW, "ada", "Open end.")]
    found = stop_for(request(), rules, NOW)
    assert found is not None
    assert (
        sentence(found, "") == "Nothing new can be started at the moment: Open end. What runs already is not affected."
    )
    assert sentence(rules[0], "18:00").startswith("Nothing new can be started until 18:00: Short. What")
    profile = StartStop("c", NOW, "ada", "Why?", profile="a100")
    assert sentence(profile, "").startswith("Nothing new of this profile can be started at the moment: Why? What")
