"""What could be booked instead of what is taken, as commands that one can paste."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from .times import span, command_time

Conflict = Mapping[str, Any]
#: Makes the same command with other options, by their names; "" leaves one out.
CommandWith = Callable[[Mapping[str, str]], str]


def alternatives_text(
    conflicts: Sequence[Conflict],
    zone: ZoneInfo,
    command_with: CommandWith,
    *,
    once: bool,
    alone: Mapping[str, str] | None = None,
    more: Sequence[tuple[str, str]] = (),
) -> str:
    """Return lines: which times are taken, and what else could be had.

    Args:
        once: it was asked for one time only.
        alone: what makes of the command one for a single time, where it was for several; None where nothing does.
        more: offers that are always there: in words, and the command.
    """
    taken = [] if once else ["Not free:", *(f"  {span(each['start'], each['end'], zone)}" for each in conflicts)]
    offers = [*_times(conflicts, zone, command_with, once=once, alone=alone), *_same_time(conflicts, command_with, once=once)]
    said = [line for words, command in (*offers, *more) for line in (f"  {words}", f"    {command}")]
    if not offers:
        taken.append("Nothing like it is free near that time; `carme-hub reservations free` shows what is.")
    return "\n".join([*taken, *(["What can be done instead:"] if said else []), *said])


def _times(
    conflicts: Sequence[Conflict], zone: ZoneInfo, command_with: CommandWith, *, once: bool, alone: Mapping[str, str] | None
) -> Iterator[tuple[str, str]]:
    """Yield other times: of a single one all that are offered, else the nearest for each."""
    if not once and alone is None:
        return
    for conflict in conflicts:
        for other in conflict["times"][: None if once else 1]:
            start, end = other["start"], other["end"]
            command = again({**(alone or {}), "from": command_time(start, zone), "to": command_time(end, zone), "length": ""})
            place = "" if once else f" in place of {span(conflict['start'], conflict['end'], zone)}"
            yield f"{span(start, end, zone)}{place}", command


def _same_time(conflicts: Sequence[Conflict], command_with: CommandWith, *, once: bool) -> Iterator[tuple[str, str]]:
    """Yield what could be had at all the times that are taken; a conflict that is not explained offers nothing."""
    when = "then" if once else "at all times"
    seats = min(each["seats"] for each in conflicts)
    if seats:
        yield f"{seats} seat{'' if seats == 1 else 's'} {when}", command_with({"seats": str(seats)})
    for kind in sorted(set.intersection(*(set(each["types"]) for each in conflicts))):
        yield f"{kind} {when}", command_with({"type": kind})
