"""What a server says it has done is said in words; what does not have the form is not believed."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.activity.idle.order import Command, Order, order_from_json, order_sentence

NOW = 1_800_000_000.0


def said(value: Any) -> str:
    return order_sentence(order_from_json(value), NOW, "UTC")


def test_what_was_done_is_said_in_words() -> None:
    value = {
        **{"runs": 2, "runs_ended": 1, "kernels": 1},
        "commands": [{"name": "before-end", "status": 0, "seconds": 3}],
        "notebooks": [{"name": "train.ipynb", "saved": NOW - 600}, {"name": "b.ipynb", "saved": NOW - 60}],
    }
    assert said(value) == (
        "2 runs had the signal to save, and 1 ended in time. 1 kernel was interrupted. "
        "The command before-end ran, 3 s. Last saved: train.ipynb today at 07:50, b.ipynb today at 07:59."
    )


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (Command("save", 2, 1), "The command save failed with status 2 after 1 s."),
        (Command("save", None, 60), "The command save did not end in 60 s."),
        (Command("save", None, 0), "The command save did not start."),
    ],
)
def test_a_command_that_failed_is_said_to_have_failed(command: Command, text: str) -> None:
    assert order_sentence(Order(commands=(command,)), NOW, "UTC") == text


def test_many_notebooks_are_counted() -> None:
    books = [{"name": f"{number}.ipynb", "saved": NOW - 60} for number in range(6)]
    assert said({"notebooks": books}).endswith(", and 3 others after that.")


def test_nothing_was_done_or_nobody_answered() -> None:
    assert said({}) == ""
    assert order_sentence(None, NOW, "UTC") == "Its server did not answer, so nothing could be put in order before."


def test_what_is_at_work_is_named() -> None:
    assert order_from_json({"at_work": {"kernels": 1, "runs": 2}}).at_work == "1 kernel and 2 runs"
    assert order_from_json({"at_work": {}}).at_work == "something"


def test_nothing_of_an_answer_is_believed_beyond_its_form() -> None:
    name = "a\n\x1b[31m" + "b" * 500
    found = order_from_json(
        {
            **{"kernels": 10**30, "runs": -4, "runs_ended": "3", "more": [1]},
            "commands": [{"name": name, "status": 10**9, "seconds": True}] * 100,
            "notebooks": [{"name": None, "saved": "x"}, {"saved": 1e300}],
        }
    )
    assert (found.kernels, found.runs, found.runs_ended) == (9999, 0, 0)
    assert len(found.commands) == 4
    assert len(found.commands[0].name) == 60
    assert found.commands[0].name.isprintable()
    assert found.notebooks == (("None", 0.0), ("None", 0.0))


@pytest.mark.parametrize("value", [[], "x", None, 3, {"at_work": [1]}, {"commands": ["x"]}])
def test_an_answer_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        order_from_json(value)
