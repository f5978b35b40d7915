"""Lines of GPU time and of the calendar: ledger entries, anomalies, and the booking that a session used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo

from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.domain.ledger.entries import Entry, Kind
from carme_hub.domain.wording import gpu_hours

from .lines import CALENDAR, LEDGER, Line, Rank, clock

_KINDS = {
    Kind.HOLD: "Set aside",
    Kind.RELEASE: "No longer set aside",
    Kind.CHARGE: "Charged",
    Kind.CORRECTION: "Corrected",
    Kind.GRANT: "Granted",
}


def ledger_lines(entries: Iterable[Entry]) -> Iterator[Line]:
    """Yield what the ledger has of a session."""
    for entry in entries:
        why = f": {entry.reason}" if entry.reason else "."
        amount = f"{'-' if entry.kind is Kind.CORRECTION and entry.amount < 0 else ''}{gpu_hours(abs(entry.amount))}"
        text = f"{_KINDS[entry.kind]}: {amount} of account {entry.account} (entry {entry.id}, by {entry.actor}){why}"
        rank = Rank.HELD if entry.kind is Kind.HOLD else Rank.SETTLED
        about = {"event": entry.kind.value, "entry": entry.id, "amount": entry.amount, "account": entry.account}
        yield Line(entry.at, LEDGER, text, rank, about)


def money_words(entries: Sequence[Entry] | None) -> str:
    """Return in a sentence what a session cost; None = the ledger was not read."""
    if entries is None:
        return "What it cost is not known, because the ledger was not read."
    charged = -sum(entry.amount for entry in entries if entry.kind in (Kind.CHARGE, Kind.CORRECTION))
    held = -sum(entry.amount for entry in entries if entry.kind in (Kind.HOLD, Kind.RELEASE))
    parts = []
    if any(entry.kind is Kind.CHARGE for entry in entries):
        parts.append(f"it was charged {gpu_hours(charged)}")
    if held > 0:
        parts.append(f"{gpu_hours(held)} are still set aside for it")
    if not parts:
        return "The ledger charged nothing for it." if entries else "The ledger has no entry of it."
    text = " and ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def booking_lines(bookings: Iterable[Reservation], zone: tzinfo) -> Iterator[Line]:
    """Yield the bookings that a session used: when they were made, began and ended."""
    for each in bookings:
        name, about = f"Booking “{each.title}” of {each.owner}", {"booking": each.id, "state": each.state.value}
        when = f"{clock(each.period.start, zone)} to {clock(each.period.end, zone)}"
        text = f"{name} was made: {each.need.gpus} × {each.need.type}, {when}, for account {each.account}."
        yield Line(each.created, CALENDAR, text, Rank.ASKED, {"event": "booked", **about})
        if each.used:
            yield Line(each.used, CALENDAR, f"{name} was first used.", Rank.STARTED, {"event": "booking-used", **about})
        if each.changed > each.created:
            text = f"{name} was last changed by {each.actor or 'the calendar'}; it is {each.state.value}"
            text = f"{text}{f': {each.reason}' if each.reason else '.'}"
            yield Line(each.changed, CALENDAR, text, Rank.DURING, {"event": "booking-changed", **about})
        if each.problem:
            text = f"{name} has a problem: {each.problem}"
            yield Line(each.changed or each.created, CALENDAR, text, Rank.DURING, {"event": "booking-problem", **about})


def anomaly_lines(kind: str, job: int, found: float, settled: float, by: str, decision: str) -> Iterator[Line]:
    """Yield a record of a job that looked wrong to the ledger, and what was decided."""
    about = {"job": job, "kind": kind}
    text = f"The record of job {job} looks wrong ({kind}), and waits for a person."
    yield Line(found, LEDGER, text, Rank.SETTLED, {"event": "anomaly", **about})
    if settled:
        text = f"The anomaly of job {job} was settled by {by}: {decision or 'no decision is stored.'}"
        yield Line(settled, LEDGER, text, Rank.SETTLED, {"event": "anomaly-settled", **about})
