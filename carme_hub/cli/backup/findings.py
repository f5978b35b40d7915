"""What ``carme-hub restore --from-slurm`` found, what it wrote, and what nobody can know any more: as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from carme_hub.cli.base import table
from carme_hub.cli.quotas.ledger_access import hours
from carme_hub.domain.cluster.jobs import Job
from carme_hub.domain.sessions.recovered import ServerSecrets
from carme_hub.domain.sessions.session import Session

#: Changes by people that the text lists.
_MOST = 50
_REPLACED = "a newer session of the same server runs: that one has the server, and the hub ends this one at a new start"
#: What a new database of ours does not know of the time before.
_LOST = (
    "grants, transfers, corrections, requests: carme-hub quotas grant … for each account",
    "decisions about odd records of accounting, and what was held for sessions that run",
    "bookings, and who may use them",
    "sessions that have ended: their pages, and which job was whose session in the statement",
    "messages, stops of new starts, notes of administrators; what jobs used (minutes, hours, weeks)",
)
#: What a new database of JupyterHub does not know.
_LOST_BY_HUB = (
    "cookies and API tokens of users: everybody logs in again, and makes tokens again",
    "groups and shares that were made on pages; users who have not logged in since",
)


class Act(Enum):
    """What is done about a session whose job has not ended."""

    KNOWN = "known"  # all rows are there
    MADE = "found"  # its rows are written again
    COMPLETED = "completed"  # a row was there, and what came after it is written
    LEFT = "left"  # nothing can be written


@dataclass(frozen=True, slots=True)
class Found:
    """One job of a session that waits or runs. ``row`` is the session's; ``why`` says why nothing can be written."""

    act: Act
    job: Job
    session: str
    row: Session | None = None
    doubts: Sequence[str] = ()
    why: str = ""
    server: ServerSecrets | None = field(default=None, repr=False)
    replaced: bool = False

    def left(self, why: str) -> Found:
        """Return it as one for which nothing could be written."""
        return replace(self, act=Act.LEFT, why=why)

    def with_row(self, row: Session) -> Found:
        """Return it with the row that was written."""
        return replace(self, row=row)

    def as_replaced(self) -> Found:
        """Return it as a session whose server is a newer one's: its row stays as it is, where it has one."""
        act = Act.KNOWN if self.act is Act.COMPLETED else self.act
        return replace(self, act=act, replaced=True, doubts=(*self.doubts, _REPLACED))

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        row = self.row
        return {
            **{"session": self.session, "job": self.job.id, "user": self.job.user, "act": self.act.value},
            **{"server": row.server_name if row else "", "state": row.state.value if row else ""},
            **{"doubts": list(self.doubts), "why": self.why},
        }


@dataclass(slots=True)
class Charges:
    """What the ledger lacked, and what was done. ``seconds``: GPU-seconds that it lacked; ``amount``: charged, in
    milli-GPU-seconds.

    Attributes:
        start: since when accounting was read. settled: the database's last settlement, 0 = none.
        without_session: jobs that were sessions whose rows are lost. at_todays_price: jobs without a hold.
        usable: sessions that a copy has as starting, and that were usable by their logs; unproved: those without a log.
        people: what the audit file says people changed since the last settlement.
        difference: GPU-seconds between accounting and ledger afterwards.
    """

    start: float
    settled: float
    missing: int = 0
    seconds: int = 0
    written: int = 0
    amount: int = 0
    refunded: int = 0
    released: int = 0
    flagged: int = 0
    waiting: int = 0
    open_anomalies: int = 0
    difference: int = 0
    without_session: list[str] = field(default_factory=list)
    at_todays_price: list[str] = field(default_factory=list)
    usable: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    people: list[dict[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class Findings:
    """Everything that was found.

    Attributes:
        bookings: names of Slurm's reservations that no booking has any more.
        problem: why nothing could be charged, "" if it could. bookings_problem: why ``bookings`` is not known.
    """

    dry_run: bool
    new_database: bool
    new_hub_database: bool = False
    measures: bool = False
    sessions: list[Found] = field(default_factory=list)
    charges: Charges | None = None
    bookings: list[str] = field(default_factory=list)
    problem: str = ""
    bookings_problem: str = ""

    def of(self, *acts: Act) -> list[Found]:
        """Return the sessions about which that is done."""
        return [each for each in self.sessions if each.act in acts]

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            **{"dry_run": self.dry_run, "new_database": self.new_database, "new_hub_database": self.new_hub_database},
            "sessions": [each.document() for each in self.sessions],
            "charges": asdict(self.charges) if self.charges is not None else None,
            **{"bookings": self.bookings, "uncertain": list(uncertain(self))},
            **{"problem": self.problem, "bookings_problem": self.bookings_problem},
        }


def print_findings(findings: Findings) -> None:
    """Print what was found: first what is certain, then what is not."""
    would = "would be " if findings.dry_run else ""
    count = {act: len(findings.of(act)) for act in Act}
    print(f"Sessions whose jobs wait or run: {len(findings.sessions)}")
    print(f"  {count[Act.KNOWN]} known to the databases, and left as they are")
    print(f"  {count[Act.MADE]} not known: their rows {would or 'are '}written again")
    print(
        f"  {count[Act.COMPLETED]} known in part: completed" if not would else f"  {count[Act.COMPLETED]} to complete"
    )
    print(f"  {count[Act.LEFT]} left: nothing can be written for them")
    rows = [
        (each.session, each.job.id, each.job.user, each.row.server_name if each.row else "", each.act.value)
        for each in findings.of(Act.MADE, Act.COMPLETED, Act.LEFT)
    ]
    if rows:
        print("\n" + table(("session", "job", "user", "server", ""), rows, "job"))
    charges = findings.charges
    if charges is not None:
        print(f"\nLedger: it lacked {charges.missing} jobs of accounting, {charges.seconds / 3600:.3f} GPU-hours")
        if not findings.dry_run:
            print(
                f"  charged {charges.written} jobs, {hours(charges.amount)} GPU-hours at their price; "
                f"refunded {charges.refunded}, released {charges.released} holds"
            )
            print(f"  now ledger and accounting differ by {charges.difference} GPU-seconds")
    doubts = list(uncertain(findings))
    print("\nUncertain:" if doubts else "\nNothing is uncertain.")
    for text in doubts:
        print(f"- {text}")


def uncertain(findings: Findings) -> Iterator[str]:
    """Yield what is not certain, and what nobody can know, as sentences."""
    for each in findings.of(Act.LEFT):
        yield (
            f"job {each.job.id} of {each.job.user}: {each.why}. It is not touched, and charged as any job; tell "
            f"its user, or end it with scancel {each.job.id}"
        )
    for each in findings.of(Act.MADE, Act.COMPLETED):
        if each.doubts:
            yield f"session {each.session} of {each.job.user} (job {each.job.id}): {'; '.join(each.doubts)}"
    if made := findings.of(Act.MADE):
        yield f"{len(made)} sessions hold no GPU time while they run: what they have used counts, and is charged"
    if findings.problem:
        yield f"nothing is charged now, the quotas service does it once that is mended: {findings.problem}"
    yield from _charges(findings.charges) if findings.charges is not None else ()
    if findings.bookings_problem:
        why = findings.bookings_problem
        yield f"whether bookings are lost is not known, as Slurm's reservations were not read: {why}"
    for name in findings.bookings:
        yield (
            f"Slurm's reservation {name} belongs to no booking: who booked it is lost. Book it again, then "
            f"scontrol delete ReservationName={name}"
        )
    if findings.new_database:
        yield from (f"lost with the database: {each}" for each in _LOST)
        if findings.measures and findings.sessions:
            yield "what sessions that run now use is not measured until they end: the key of their reports is lost"
    if findings.new_hub_database:
        yield from (f"lost with JupyterHub's database: {each}" for each in _LOST_BY_HUB)


def _charges(charges: Charges) -> Iterator[str]:
    if charges.without_session:
        yield (
            f"{len(charges.without_session)} jobs were sessions whose rows are lost: whether they became usable "
            f"is not known, so none is refunded for that ({_some(charges.without_session)})"
        )
    if charges.unproved:
        yield (
            f"{len(charges.unproved)} jobs were sessions that the copy has as starting, and their logs cannot be read: "
            "whether they became usable is not known, and they are refunded where the policy refunds failed starts "
            f"({_some(charges.unproved)})"
        )
    if charges.at_todays_price:
        yield (
            f"{len(charges.at_todays_price)} jobs are charged at today's prices: those of their start are not known "
            f"({_some(charges.at_todays_price)})"
        )
    if charges.open_anomalies or charges.flagged:
        yield f"{charges.open_anomalies} records of accounting look wrong and wait: carme-hub quotas anomalies"
    if charges.waiting:
        yield f"{charges.waiting} jobs ended just now, and follow with the next settlement"
    if not charges.settled:
        yield "the ledger was empty: jobs that ended before the first of these days are charged with --since only"
    for each in charges.people[-_MOST:]:
        said = ", ".join(
            f"{name} {value}" for name, value in each.items() if name not in ("at", "action", "actor", "door")
        )
        yield f"{each['at']} {each.get('actor', '')} wrote {each.get('action', '')} ({said}): is it in the ledger?"
    if len(charges.people) > _MOST:
        yield f"the audit file has {len(charges.people) - _MOST} more lines of that time (--json prints them)"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:10]) + (f" and {len(ids) - 10} more" if len(ids) > 10 else "")
