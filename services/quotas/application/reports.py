"""Use of one calendar month by user, hub group, account or GPU type, with its cost; as rows and as CSV.

A month is in the policy's time zone. A job that crosses its edge counts by its part, so months add up to the whole use.
Groups are those of today, and a user of several groups counts in each: so the total is the sum of entries, not of rows.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from zoneinfo import ZoneInfo

from carme_hub.domain.ledger.entries import GPU_HOUR, Entry
from carme_hub.domain.quotas.rules import Person
from carme_hub.domain.quotas.windows import midnight
from carme_hub.errors import Refused
from carme_hub.store.ledger.report import Sum

#: The columns by which a report can be grouped.
BY = ("user", "group", "account", "gpu")
#: The row of users without a group, or unknown to the hub.
NO_GROUP = "no group"
_MONTH = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])", re.ASCII)
#: A spreadsheet reads a cell that starts with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_CENT = Decimal("0.01")


class BadMonth(Refused):
    """The text is not a month."""

    reason = "bad-month"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a report. Amounts are milli-GPU-seconds.

    Attributes:
        amount: use less refunds. cost: in the policy's currency, "" if GPU time has no price.
    """

    name: str
    jobs: int
    amount: int
    refunded: int
    cost: str


@dataclass(frozen=True, slots=True)
class Report:
    """The use of a month, the largest rows first. ``total`` counts every job once, also if ``rows`` overlap."""

    by: str
    rows: tuple[Row, ...]
    total: Row


def this_month(now: float, zone: str) -> str:
    """Return "2026-11"."""
    return f"{datetime.fromtimestamp(now, ZoneInfo(zone)):%Y-%m}"


def month_span(month: str, zone: str) -> tuple[float, float]:
    """Return the start and end of a month; raise ``BadMonth`` if it is not written like 2026-11."""
    found = _MONTH.fullmatch(month)
    if found is None:
        raise BadMonth(f"{month!r} is not a month. Write it like 2026-11.")
    year, number = int(found[1]), int(found[2])
    after = date(year + number // 12, number % 12 + 1, 1)
    return midnight(date(year, number, 1), zone), midnight(after, zone)


def report(sums: Iterable[Sum], by: str, price: str = "", people: Mapping[str, Person] | None = None) -> Report:
    """Add up by user, group, account or GPU type, the largest first.

    Args:
        price: of a GPU-hour at factor 1, "" for none. A job with several GPU types has its own row ("a100+h100").
        people: groups of each user; only for a report by group.
    """
    found: dict[str, list[Sum]] = {}
    every = list(sums)
    for each in every:
        for name in _names(each, by, people or {}):
            found.setdefault(name, []).append(each)
    rows = sorted((_row(name, some, price) for name, some in found.items()), key=lambda row: (-row.amount, row.name))
    return Report(by, tuple(rows), _row("total", every, price))


def _names(each: Sum, by: str, people: Mapping[str, Person]) -> Iterable[str]:
    """Return the rows in which this use counts."""
    if by == "group":
        return people.get(each.user, Person(each.user)).groups or (NO_GROUP,)
    types = "+".join(sorted({gpus.type for gpus in each.gpus})) or "no GPU type"
    return ({"user": each.user, "account": each.account, "gpu": types}[by],)


def _row(name: str, some: Sequence[Sum], price: str) -> Row:
    amount = sum(each.charged - each.refunded for each in some)
    jobs, refunded = sum(each.jobs for each in some), sum(each.refunded for each in some)
    return Row(name, jobs, amount, refunded, cost(amount, price))


def cost(amount: int, price: str) -> str:
    """Return the cost of milli-GPU-seconds, rounded to the cent."""
    if not price:
        return ""
    exact = Decimal(amount) / GPU_HOUR * Decimal(price)
    return str(exact.quantize(_CENT, ROUND_HALF_EVEN))


def hours(amount: int) -> str:
    """Return GPU-hours with three decimals for a table."""
    return f"{Decimal(amount) / GPU_HOUR:.3f}"


def safe(value: object) -> str:
    """Return a cell's text so that a spreadsheet does not read it as a formula; people chose the text."""
    text = str(value)
    return "'" + text if text.startswith(_FORMULA) else text


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV (RFC 4180), with texts made safe; numbers stay numbers."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    if header:
        writer.writerow(header)
    for row in rows:
        writer.writerow([value if isinstance(value, (int, Decimal)) else safe(value) for value in row])
    return stream.getvalue()


def report_csv(found: Report, currency: str) -> str:
    """Return a report as CSV; by group its last line is the total, since the rows may add up to more."""
    header = [found.by, "jobs", "gpu_hours", "refunded_gpu_hours", f"cost_{currency.lower()}"]
    rows = (*found.rows, found.total) if found.by == "group" and found.rows else found.rows
    return table(
        header,
        (
            [row.name, row.jobs, Decimal(hours(row.amount)), Decimal(hours(row.refunded)), _number(row.cost)]
            for row in rows
        ),
    )


def statement_csv(entries: Iterable[Entry], *, header: bool = True) -> str:
    """Return a statement as CSV, in the order of the entries; pages after the first have no header."""
    names = "id kind at account user gpu_hours session job_id start end gpus factor partition qos nodes reason actor"
    return table(
        names.split() if header else (),
        (
            [
                each.id,
                each.kind.value,
                moment(each.at),
                each.account,
                each.user,
                Decimal(hours(each.amount)),
                each.session,
                each.job_id or "",
                moment(each.start),
                moment(each.end),
                " ".join(f"{gpus.type}:{gpus.count}" for gpus in each.gpus),
                Decimal(each.factor) / 1000,
                each.partition,
                each.qos,
                each.nodes,
                each.reason,
                each.actor,
            ]
            for each in entries
        ),
    )


def moment(at: float) -> str:
    """Return "2026-11-21T14:05:00Z", "" for none."""
    return f"{datetime.fromtimestamp(int(at), ZoneInfo('UTC')):%Y-%m-%dT%H:%M:%SZ}" if at else ""


def _number(text: str) -> Decimal | str:
    return Decimal(text) if text else ""
