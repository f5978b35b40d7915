"""What a session's server says it has done to put the session in order, and the sentences that its user reads.

The server runs in the user's container, so nothing of its answer is believed beyond its form: numbers within bounds,
names of a few printable characters. It decides nothing but that the session goes on, which a cell that computes would
do as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from carme_hub.domain.activity.efficiency import count
from carme_hub.domain.wording import moment

#: The most of anything that is counted, and what is named of commands and notebooks.
MOST_COUNT, MOST_COMMANDS, MOST_NAMES, MOST_CHARACTERS = 9999, 4, 3, 60
_WORK = (("kernels", "kernel"), ("terminals", "terminal"), ("runs", "run"))


@dataclass(frozen=True, slots=True)
class Command:
    """A command that ran before the end: ``status`` is None if it did not end in time, or could not be started."""

    name: str
    status: int | None
    seconds: int


@dataclass(frozen=True, slots=True)
class Order:
    """What was done before a session's end.

    Attributes:
        at_work: what is at work now, as a text; then nothing was done.
        runs, runs_ended: that were told, and that ended. kernels: that were interrupted.
        notebooks: name and time of the last save, the one saved first at first.
    """

    at_work: str = ""
    runs: int = 0
    runs_ended: int = 0
    kernels: int = 0
    commands: tuple[Command, ...] = ()
    notebooks: tuple[tuple[str, float], ...] = ()


def order_from_json(value: object) -> Order:
    """Return what a server's answer says.

    Raises:
        ValueError: it is no such answer.
    """
    data = _mapping(value)
    if "at_work" in data:
        work = _mapping(data["at_work"])
        said = [count(number, word) for name, word in _WORK if (number := _number(work.get(name)))]
        return Order(at_work=" and ".join(said) or "something")
    commands = [_mapping(each) for each in _items(data.get("commands"))][:MOST_COMMANDS]
    notebooks = [_mapping(each) for each in _items(data.get("notebooks"))]
    return Order(
        runs=_number(data.get("runs")),
        runs_ended=_number(data.get("runs_ended")),
        kernels=_number(data.get("kernels")),
        commands=tuple(
            Command(_name(each.get("name")), _status(each.get("status")), _number(each.get("seconds")))
            for each in commands
        ),
        notebooks=tuple((_name(each.get("name")), _time(each.get("saved"))) for each in notebooks),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _items(value: object) -> Iterable[object]:
    return value if isinstance(value, list) else ()


def _number(value: object) -> int:
    return min(MOST_COUNT, max(0, value)) if isinstance(value, int) and not isinstance(value, bool) else 0


def _status(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and -255 <= value <= 255 else None


def _time(value: object) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e11
    return float(value) if known else 0.0  # type: ignore[arg-type]


def _name(value: object) -> str:
    text = "".join(each for each in str(value) if each.isprintable())
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def order_sentence(order: Order | None, now: float, zone: str) -> str:
    """Return what was done as sentences with times in a zone; None = the server did not answer."""
    if order is None:
        return "Its server did not answer, so nothing could be put in order before."
    said = []
    if order.runs:
        ended = f", and {order.runs_ended} ended in time" if order.runs_ended else ", and did not end in time"
        said.append(f"{count(order.runs, 'run')} had the signal to save{ended}.")
    if order.kernels:
        were = "was" if order.kernels == 1 else "were"
        said.append(f"{count(order.kernels, 'kernel')} {were} interrupted.")
    said += [_command(each) for each in order.commands]
    named = [f"{name} {_saved(at, now, zone)}" for name, at in order.notebooks[:MOST_NAMES]]
    more = len(order.notebooks) - len(named)
    if named:
        also = f", and {count(more, 'other')} after that" if more > 0 else ""
        said.append(f"Last saved: {', '.join(named)}{also}.")
    return " ".join(said)


def _command(command: Command) -> str:
    name, took = command.name, f"{command.seconds} s"
    if command.status is None:
        return f"The command {name} did not end in {took}." if command.seconds else f"The command {name} did not start."
    if command.status:
        return f"The command {name} failed with status {command.status} after {took}."
    return f"The command {name} ran, {took}."


def _saved(at: float, now: float, zone: str) -> str:
    return moment(at, now, zone) if at else "at a time that is not known"
