"""Alternatives to a booking that conflicts with others, as commands that a user can paste."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from .times import command_time, span

Conflict = Mapping[str, Any]
#: Returns the same command with other options, by their names; "" leaves an option out.
CommandWith = Callable[[Mapping[str, str]], str]


def alternatives_text(
    conflicts: Sequence[Conflict],
    zone: ZoneInfo,
    command_with: CommandWith,
    *,
    once: bool,
    single_options: Mapping[str, str] | None = None,
    more: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the times that are taken, and the alternatives, as lines.

    Args:
        once: the booking is for one time only.
        alone: the options that turn a command for several times into one for a single time; None where none do.
        more: alternatives that are always possible: a description, and the command.
    """
    taken = [] if once else ["Not free:", *(f"  {span(each['start'], each['end'], zone)}" for each in conflicts)]
    offers = [
        *_times(conflicts, zone, command_with, once=once, single_options=single_options),
        *_same_time(conflicts, command_with, once=once),
    ]
    lines = [line for description, command in (*offers, *more) for line in (f"  {description}", f"    {command}")]
    if not offers:
        taken.append("Nothing similar is free near that time; `carme-hub reservations free` shows what is free.")
    return "\n".join([*taken, *(["What can be done instead:"] if lines else []), *lines])


def _times(
    conflicts: Sequence[Conflict],
    zone: ZoneInfo,
    command_with: CommandWith,
    *,
    once: bool,
    single_options: Mapping[str, str] | None,
) -> Iterator[tuple[str, str]]:
    """Yield other times: for a single booking all that are offered, else the nearest one for each."""
    if not once and single_options is None:
        return
    for conflict in conflicts:
        for other in conflict["times"][: None if once else 1]:
            start, end = other["start"], other["end"]
            command = command_with(
                {
                    **(single_options or {}),
                    "from": command_time(start, zone),
                    "to": command_time(end, zone),
                    "length": "",
                }
            )
            place = "" if once else f" in place of {span(conflict['start'], conflict['end'], zone)}"
            yield f"{span(start, end, zone)}{place}", command


def _same_time(conflicts: Sequence[Conflict], command_with: CommandWith, *, once: bool) -> Iterator[tuple[str, str]]:
    """Yield what is free at all the times that are taken; a conflict without an explanation offers nothing."""
    when = "then" if once else "at all times"
    seats = min(each["seats"] for each in conflicts)
    if seats:
        yield f"{seats} seat{'' if seats == 1 else 's'} {when}", command_with({"seats": str(seats)})
    for kind in sorted(set.intersection(*(set(each["types"]) for each in conflicts))):
        yield f"{kind} {when}", command_with({"type": kind})
