"""The ledger as pages show it: entries as sentences, limits as bars, a forecast, days of a chart. Pure functions.

They take milli-GPU-seconds and return hours with at most two decimals, and times in the policy's time zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from urllib.parse import quote
from zoneinfo import ZoneInfo

from carme_hub.domain import wording
from carme_hub.domain.ledger.entries import GPU_HOUR, ONE, SLOT_PREFIX, Balance, Entry, Kind, slot_charge_key
from carme_hub.domain.quotas import messages as sentences
from carme_hub.domain.quotas.rules import DAY, Quota, SubjectKind, Window
from carme_hub.domain.quotas.windows import midnight

#: A forecast takes the use of so many days, and looks ahead so many.
RECENT_DAYS, FORECAST_DAYS = 14, 365
_SMALLEST = GPU_HOUR // 200  # the smallest amount that two decimals can show
_MINUS = "−"
#: Keeps a number and its unit on one line.
_NO_BREAK_SPACE = "\u00a0"


def hours(amount: int) -> str:
    """Return "1.25 h", or seconds for less than two decimals can show; with a minus sign (U+2212) if negative."""
    sign = _MINUS if amount < 0 else ""
    if 0 < abs(amount) < _SMALLEST:
        return f"{sign}{abs(amount) / 1000:g}{_NO_BREAK_SPACE}s"
    return f"{sign}{wording.hours(abs(amount))}{_NO_BREAK_SPACE}h"


def signed(amount: int) -> str:
    """Return an amount with its sign: "+1.25 h"."""
    return f"+{hours(amount)}" if amount > 0 else hours(amount)


def clock(at: float, zone: str, *, seconds: bool = False) -> str:
    """Return "21 Nov 2026, 14:05" in a zone."""
    when = datetime.fromtimestamp(at, ZoneInfo(zone))
    month = wording.day(when).split(" ")[1][:3]
    return f"{when.day} {month} {when.year}, {when:{'%H:%M:%S' if seconds else '%H:%M'}}"


def iso(at: float) -> str:
    """Return a moment for the ``datetime`` attribute."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def day_field(at: float, zone: str) -> str:
    """Return "2026-11-21", the format of a form's date field."""
    return datetime.fromtimestamp(at, ZoneInfo(zone)).date().isoformat()


def end_of_day(text: str, zone: str) -> float | None:
    """Return the end of the day in a form's date field, None if it is no date."""
    try:
        return midnight(date.fromisoformat(text) + timedelta(days=1), zone)
    except (ValueError, OverflowError):
        return None


# -- statement --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a statement.

    Attributes:
        text: a sentence that says why. facts: GPUs, where, from, to, factor; the day of a corrected use.
    """

    id: int
    kind: str
    when: str
    iso: str
    text: str
    facts: tuple[str, ...]
    amount: str
    plus: bool
    account: str
    user: str
    session: str


#: Slurm's job states in plain English.
_STATES = {
    "completed": "completed",
    "cancelled": "was cancelled",
    "timeout": "reached its time limit",
    "failed": "failed",
    "out of memory": "ran out of memory",
    "node fail": "ended because a node failed",
    "boot fail": "ended because a node did not start",
    "preempted": "made room for another job",
    "requeued": "was put back into the queue",
    "deadline": "reached its deadline",
}
_NAMES = {Kind.HOLD: "hold", Kind.CHARGE: "charge", Kind.RELEASE: "release", Kind.GRANT: "grant"}


def rows(entries: Iterable[Entry], zone: str) -> list[Row]:
    """Return a statement's lines in the order of the entries."""
    return [
        Row(
            entry.id,
            "refund" if is_refund(entry) else _NAMES.get(entry.kind, "correction"),
            clock(entry.at, zone),
            iso(entry.at),
            sentence(entry, zone),
            facts(entry, zone),
            signed(entry.amount),
            entry.amount > 0,
            entry.account,
            entry.user,
            quote(entry.session, safe=""),
        )
        for entry in entries
    ]


def _is_of_slot(entry: Entry) -> bool:
    """Return whether the entry is about a reservation itself and not about a job in it."""
    return not entry.job_id and entry.key.startswith((SLOT_PREFIX, slot_charge_key("")))


def is_refund(entry: Entry) -> bool:
    """Return whether the entry is a refund by a rule."""
    return entry.key.startswith("refund:")


def sentence(entry: Entry, zone: str) -> str:
    """Return a sentence that says why an entry was written."""
    why = entry.reason.strip()
    match entry.kind:
        case Kind.HOLD | Kind.CHARGE if _is_of_slot(entry):
            return f"{why[:1].upper()}{why[1:]}."
        case Kind.HOLD if entry.amount > 0:
            return f"A part of the hold was released: {why}." if why else "A part of the hold was released."
        case Kind.HOLD if entry.key.count(":") > 1:
            return "Held for a longer time limit; what is not used is released when the session ends."
        case Kind.HOLD:
            return "Held for the whole time limit; what is not used is released when the session ends."
        case Kind.CHARGE:
            return _charge(why)
        case Kind.RELEASE:
            return f"The hold was released: {why}." if why else "The hold was released."
        case Kind.GRANT:
            return _grant(entry, why, zone)
    if is_refund(entry):
        return f"{why[:1].upper()}{why[1:]}." if why else "Refunded."
    if entry.key.startswith("expiry:"):
        return f"Expired: {why}." if why else "A credit expired."
    return f"Corrected by {entry.actor}: {why}" if why else f"Corrected by {entry.actor}"


def _charge(why: str) -> str:
    """Return "Used by job 7, which was cancelled." for "job 7: cancelled by 999"; a reason typed by people stays."""
    job, _, state = why.partition(": ")
    if not job.startswith("job "):
        return f"Used: {why}." if why else "Used."
    text = next((text for name, text in _STATES.items() if state == name or state.startswith(f"{name} by ")), "")
    return f"Used by {job}, which {text}." if text else f"Used by {job}: {state.rstrip('.')}."


def _grant(entry: Entry, why: str, zone: str) -> str:
    for_whom = f" for {entry.user}" if entry.user else ""
    if entry.key.startswith("transfer:"):
        text = f"Moved {'here' if entry.amount > 0 else 'to another account'} by {entry.actor}"
    else:
        text = f"Granted{for_whom} by {entry.actor}"
    until = f" It expires on {clock(entry.expires, zone)}." if entry.expires else ""
    return f"{text}: {why.rstrip('.')}.{until}" if why else f"{text}.{until}"


def facts(entry: Entry, zone: str) -> tuple[str, ...]:
    """Return GPUs, duration and price factor, start and end, and nodes; for a correction, the day of the use."""
    if entry.kind is Kind.CHARGE and _is_of_slot(entry):
        return ()
    if entry.kind is Kind.CORRECTION and entry.end and (not entry.gpus or entry.start == entry.end):
        return (f"use of {wording.day(datetime.fromtimestamp(entry.end, ZoneInfo(zone)))}",)
    if not entry.end or not entry.gpus or entry.kind is Kind.RELEASE:
        return ()
    gpus = " + ".join(str(each) for each in entry.gpus)
    length = int(entry.end - entry.start)
    factor = f" × factor {entry.factor / ONE:g}" if entry.factor not in (ONE, 0) else ""
    if not entry.factor:
        factor = ", at a factor for each type"
    found = [f"{gpus} for {wording.duration(length)}{factor}", _from_to(entry.start, entry.end, zone)]
    if entry.nodes:
        found.append(f"on {entry.nodes}")
    return tuple(found)


def _from_to(start: float, end: float, zone: str) -> str:
    first, last = (clock(at, zone, seconds=True) for at in (start, end))
    day, _, time = last.partition(", ")
    return f"{first} to {time if first.startswith(day + ',') else last}"


# -- bars -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """Used, held and left of a limit. Percentages are of the limit, and together at most 100."""

    title: str
    subtitle: str
    used: str
    held: str
    left: str
    limit: str
    used_percent: float
    held_percent: float
    over: bool
    notes: tuple[str, ...] = ()


def bar(
    title: str, subtitle: str, used: int, held: int, limit: int, *, soft: bool = False, notes: Iterable[str] = ()
) -> Bar:
    """Return the bar of a limit and its use (milli-GPU-seconds); a soft limit may have a negative rest."""
    whole = max(limit, 1)
    used_part = min(100.0, max(0.0, 100 * used / whole))
    held_part = min(100.0 - used_part, max(0.0, 100 * held / whole))
    left = limit - used - held
    return Bar(
        title,
        subtitle,
        hours(max(0, used)),
        hours(max(0, held)),
        hours(left if soft else max(0, left)),
        hours(limit),
        round(used_part, 2),
        round(held_part, 2),
        left <= 0 and used + held > 0,
        tuple(note for note in notes if note),
    )


def balance_bar(balance: Balance, *notes: str) -> Bar:
    """Return the bar of an account's balance."""
    subtitle = "Granted to the account, and shared by its members."
    nothing = "" if balance.granted > 0 else "It has no granted GPU time, so no session can use it."
    return bar("Balance", subtitle, balance.used, balance.held, max(0, balance.granted), notes=[nothing, *notes])


def window_title(quota: Quota, start: float, zone: str) -> str:
    """Return the title of a window: "This week", "November 2026", "Last 30 days"."""
    match quota.window:
        case Window.DAY:
            return "Today"
        case Window.WEEK:
            return "This week"
        case Window.MONTH:
            return wording.day(datetime.fromtimestamp(max(start, 0), ZoneInfo(zone))).split(" ", 1)[1]
        case Window.ROLLING:
            return f"Last {quota.days} days" if quota.days != 1 else "Last 24 hours"
        case Window.TERM:
            text = sentences.window(quota, zone)
            return text[:1].upper() + text[1:]
    return "In total"


def subject_text(quota: Quota, subject: str, me: str) -> str:
    """Return a sentence that says to whom a limit applies; ``me`` is the reader."""
    if quota.who is SubjectKind.ACCOUNT:
        return f"Shared by the members of account {subject}."
    if quota.together:
        return f"Shared by {quota.who.value} {subject}."
    return "Yours, in all accounts." if subject == me else f"For {subject}, in all accounts."


def resets(quota: Quota, end: float, now: float, zone: str) -> str:
    """Return a sentence that says when a window starts again; "" for one that never does."""
    match quota.window:
        case Window.DAY | Window.WEEK | Window.MONTH:
            return f"Starts again {wording.moment(end, now, zone)}."
        case Window.TERM:
            return f"Ends {wording.moment(end, now, zone)}."
        case Window.ROLLING:
            return f"Use counts for {f'{quota.days} days' if quota.days != 1 else '24 hours'}."
    return ""


def empty_at(left: int, recent_use: int, now: float, end: float = 0.0) -> float:
    """Return when the rest is used up at the rate of the last ``RECENT_DAYS``; 0 = not before the window ends.

    Args:
        recent_use: milli-GPU-seconds used in these days. end: of the window, 0 = none.
    """
    if recent_use <= 0 or left <= 0:
        return 0.0
    at = now + left * RECENT_DAYS * DAY / recent_use
    if (end and at >= end) or at > now + FORECAST_DAYS * DAY:
        return 0.0
    return at


def forecast(at: float, now: float, zone: str) -> str:
    """Return "Used up on 24 November at the present rate."; "" without a time."""
    if not at:
        return ""
    when, today = (datetime.fromtimestamp(t, ZoneInfo(zone)) for t in (at, now))
    if when.date() == today.date():
        return "Used up today at the present rate."
    day = wording.day(when)
    return f"Used up on {day if when.year != today.year else day[:-5]} at the present rate."


# -- chart ------------------------------------------------------------------------------------------------------------


def days(now: float, count: int, zone: str) -> list[tuple[float, float]]:
    """Return (midnight, next midnight) of the last days, today the last; 23 or 25 hours long where clocks change."""
    today = datetime.fromtimestamp(now, ZoneInfo(zone)).date()
    dates = [today - timedelta(days=back) for back in range(count - 1, -2, -1)]
    starts = [midnight(day, zone) for day in dates]
    return list(pairwise(starts))


def chart(spans: Sequence[tuple[float, float]], used: Sequence[int], zone: str) -> dict[str, object]:
    """Return the chart's data: noon of each day (epoch seconds), GPU-hours rounded for the screen, and the zone."""
    times = [int((start + end) / 2) for start, end in spans]
    return {"zone": zone, "data": [times, [round(each / GPU_HOUR, 4) for each in used]]}


def used_days(spans: Sequence[tuple[float, float]], used: Sequence[int], zone: str) -> list[tuple[str, str]]:
    """Return the days with their use, newest first: the chart as a table, for screen readers."""
    found = [
        (wording.day(datetime.fromtimestamp(start, ZoneInfo(zone))), hours(amount))
        for (start, _end), amount in zip(spans, used, strict=True)
        if amount
    ]
    return found[::-1]
