"""Pages of the administration: pending bookings, all bookings, and maintenance."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from carme_hub.booking.messages import listed
from carme_hub.domain import wording
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, Kind, Reservation, State
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase
from carme_hub.errors import Refused
from carme_hub.services.pages import BadForm
from carme_hub.services.reservations.application import wording as view
from carme_hub.services.reservations.pages.base import ReservationPage, zones
from carme_hub.services.reservations.pages.booking import request_of
from carme_hub.services.reservations.pages.form import Form
from carme_hub.services.reservations.pages.mine import group_by_series
from carme_hub.services.reservations.rest.models import ID
from carme_hub.services.reservations.scopes import ADMIN

_DAY = 86_400
_UUID = ID.strip("^$")
#: Most rows of the table of bookings, its days by default, and its most days.
MAX_ROWS, DEFAULT_DAYS, MAX_DAYS = 500, 31, 366
#: Times of one booking that are listed in the queue.
MAX_LISTED = 12
#: Times of the whole queue that one page checks again: each needs a query of the database.
MAX_CHECKED = 60
_STATES = tuple(state.value for state in State)


class AdminPage(ReservationPage):
    """A page for administrators of the calendar."""

    tab = "administration"
    scopes = write_scopes = (ADMIN,)


@dataclass(frozen=True, slots=True)
class PendingBooking:
    """A pending booking: its times, their total cost, and what the account has left."""

    first: Reservation
    times: Sequence[Reservation]
    cost: str
    left: str
    conflicts: Sequence[str]


class QueueHandler(AdminPage):
    """The page of pending bookings."""

    async def get(self) -> None:
        """Show them by start."""
        found = group_by_series(await self.service.bookings.pending(self.booker))
        accounts = sorted({group.first.account for group in found})
        balances = await self.service.balances(accounts) if self.service.charged else {}
        waiting, left = [], MAX_CHECKED
        for group in found:
            looked = min(left, MAX_LISTED, len(group.times))
            left -= looked
            cost, balance = self.cost(group.times), balances.get(group.first.account)
            waiting.append(
                PendingBooking(
                    group.first,
                    group.times,
                    wording.gpu_hours(cost) if cost else "",
                    wording.gpu_hours(max(0, balance.left)) if balance is not None and balance.granted > 0 else "",
                    await self._conflicts(group.times[:MAX_LISTED], looked),
                )
            )
        self.show("queue.html", heading="Waiting for approval", waiting=waiting, listed=MAX_LISTED, unchecked=not left)

    async def _conflicts(self, times: Sequence[Reservation], looked: int) -> list[str]:
        """Return the times with a conflict now: they have their places, but nodes may be unavailable.

        Args:
            looked: number of times that are checked; of the others only known problems are returned.
        """
        said, bookings = [], self.service.bookings
        for number, each in enumerate(times):
            if gone := number < looked and not each.problem:
                checked = await bookings.check(self.booker, request_of(each, each.period), instead_of=each.id)
                gone = bool(checked.conflicts)
            if gone or each.problem:
                why = each.problem or "some of these GPUs are not available any more."
                said.append(f"{view.span(each.period, self.zone, self.now)}: {why}")
        return said


class DecisionHandler(AdminPage):
    """The decision on a pending booking."""

    async def post(self, id: str) -> None:
        """Approve it or deny it, with all its times."""
        decision = self.text("decision", "The decision", max_length=10)
        reason = self.text("reason", "The reason", required=False)
        if decision not in ("approve", "deny"):
            raise BadForm("Approve it or deny it.")
        if decision == "deny" and not reason:
            raise BadForm("Give a reason for the denial: its owner reads it.")
        found = await self.service.bookings.decide(self.booker, id, decision == "approve", reason)
        self.log_write("decided on booking %s: %s", id, decision)
        word = "approved" if decision == "approve" else "denied"
        times = f" at {len(found)} times" if len(found) > 1 else ""
        self.done(f"“{found[0].title}” of {found[0].owner} is {word}{times}.", "administration")


class TableHandler(AdminPage):
    """The table of all bookings."""

    async def get(self) -> None:
        """Show it, from a given day on."""
        zone, now = self.zone, self.now
        start_date = self.get_query_argument("from", "") or view.local(now, zone).date().isoformat()
        days = min(max(1, self.number("days", DEFAULT_DAYS)), MAX_DAYS)
        state = self.get_query_argument("state", "")
        states = {State(state)} if state in _STATES else HOLDING
        problem, found = "", []
        try:
            start = int(view.local_midnight(start_date, zone))
            found = await self.service.bookings.between(self.booker, Period(start, start + days * _DAY), states)
        except ValueError:
            problem = f"{start_date} is not a day. Write it like 2026-11-24."
        rows = [each.reservation for each in found if each.reservation is not None]
        self.show(
            "all_bookings.html",
            heading="Everything booked",
            rows=rows[:MAX_ROWS],
            more=max(0, len(rows) - MAX_ROWS),
            start=start_date,
            days=days,
            state=state,
            states=_STATES,
            problem=problem,
        )


@dataclass(frozen=True, slots=True)
class AffectedSessions:
    """A planned maintenance with the sessions that it affects: a summary, and each with its end."""

    one: Reservation
    summary: str
    sessions: Sequence[str]


class MaintenanceHandler(AdminPage):
    """The page of maintenance."""

    async def get(self) -> None:
        """Show the form and planned maintenance."""
        tomorrow = view.local(self.now + _DAY, self.zone).replace(tzinfo=None)
        start, end = tomorrow.replace(hour=8, minute=0), tomorrow.replace(hour=18, minute=0)
        await self._show_form(Form(title="Maintenance", zone=self.zone).at(start, end), ())

    async def post(self) -> None:
        """Show whom the maintenance affects and ask for a confirmation; then plan it."""
        form = Form.read(self.get_body_argument, self.get_body_arguments)
        nodes = tuple(dict.fromkeys(self.get_body_arguments("nodes")))
        try:
            if not nodes:
                raise BadForm("Choose at least one node.")
            period = form.once()
            if not self.confirmed:
                await self._confirm(form, nodes, period)
                return
            title = form.title or "Maintenance"
            it, changed = await self.service.bookings.maintain(self.booker, nodes, period, title, key=form.key)
        except Refused as refused:
            self.set_status(409)
            await self._show_form(form, nodes, refused.message)
            return
        self.log_write("planned maintenance %s of %s", it.id, ", ".join(nodes))
        told = sum(bool(each.problem) for each in changed)
        elsewhere = len(changed) - told
        said = [f"Maintenance is planned: {view.span(period, self.zone, self.now)}."]
        said += [f"{_bookings(elsewhere)} other places."] if elsewhere else []
        said += [f"{_bookings(told)} a problem now, and their owners are notified."] if told else []
        affected = affected_sessions_sentence(affected_jobs_of(self._jobs(nodes) or (), nodes, period))
        said += [f"{affected} They are notified from a week before."] if affected else []
        self.done(" ".join(said), "administration/maintenance")

    async def _confirm(self, form: Form, nodes: Sequence[str], period: Period) -> None:
        affected, jobs = await self._affected_bookings(nodes, period), self._jobs(nodes)
        points = [f"Nodes: {', '.join(nodes)}.", f"{view.span(period, form.zone, self.now)} ({view.length(period)})."]
        for one in affected:
            points.append(
                f"Booked there: “{one.title}” of {one.owner}, {view.need(one.need)}, "
                f"{view.span(one.period, form.zone, self.now)}. It gets other GPUs if there are any; otherwise "
                "its owner is notified."
            )
        if not affected:
            points.append("Nothing is booked there in this time.")
        affected_jobs = affected_jobs_of(jobs or (), nodes, period)
        if summary := affected_sessions_sentence(affected_jobs):
            points.append(
                f"{summary} They are notified from a week before, and can move or stop them on their home page."
            )
        for each in (jobs or ())[:MAX_LISTED]:
            what = "A session" if each.name.startswith(JOB_NAME_PREFIX) else f"Job {each.id}"
            into = " It may run into the maintenance." if each in affected_jobs else ""
            points.append(
                f"Running on {', '.join(each.nodes)}: {what} of {each.user}, {self._until(each, form.zone)}.{into}"
            )
        if more := len((jobs or ())[MAX_LISTED:]):
            points.append(f"And {more} more job{'' if more == 1 else 's'} there.")
        if not jobs:
            points.append(
                "The jobs there are not known now: Slurm does not answer." if jobs is None else "No job runs there now."
            )
        self.confirm(
            "Plan this maintenance?",
            points,
            "Plan it",
            back="administration/maintenance",
            danger=bool(affected or jobs),
            fixed={"key": form.key or secrets.token_urlsafe(16)},
        )

    async def _affected_bookings(self, nodes: Sequence[str], period: Period) -> list[Reservation]:
        found = await self.service.bookings.between(self.booker, period, HOLDING)
        there = (each.reservation for each in found if each.kind is Kind.BOOKING and each.reservation is not None)
        return [one for one in there if any(place.node in nodes for place in one.places)]

    def _jobs(self, nodes: Sequence[str]) -> list[Job] | None:
        """Return the jobs that run on these nodes, None if Slurm does not answer."""
        seen = self.service.slurm_view.jobs
        if seen is None:
            return None
        there = (each for each in seen.jobs.values() if each.phase is Phase.ACTIVE and set(each.nodes) & set(nodes))
        return sorted(there, key=lambda each: (-(each.end or inf), each.user, each.id))

    def _until(self, job: Job, zone: str) -> str:
        end = view.clock(job.end, zone, self.now).removeprefix("on ") if job.end else ""
        return f"at the latest until {end}" if end else "without a time limit"

    def _affected_sessions(self, one: Reservation) -> AffectedSessions:
        """Return the sessions that a planned maintenance affects, in the newest snapshot of Slurm."""
        jobs = self._jobs(sorted(one.nodes))
        there = affected_jobs_of(jobs or (), one.nodes, one.period)
        affected = [each for each in there if each.name.startswith(JOB_NAME_PREFIX)]
        lines = [
            f"{each.user} on {', '.join(each.nodes)}, {self._until(each, self.zone)}" for each in affected[:MAX_LISTED]
        ]
        lines += [f"and {len(affected) - MAX_LISTED} more"] if len(affected) > MAX_LISTED else []
        none = "The affected sessions are not known now: Slurm does not answer."
        return AffectedSessions(one, none if jobs is None else affected_sessions_sentence(affected), lines)

    async def _show_form(self, form: Form, chosen: Sequence[str], problem: str = "") -> None:
        facts = await self.facts()
        now = int(self.now)
        found = await self.service.bookings.between(self.booker, Period(now, now + MAX_DAYS * _DAY), HOLDING)
        planned = [each.reservation for each in found if each.kind is Kind.MAINTENANCE and each.reservation]
        self.show(
            "maintenance.html",
            heading="Maintenance",
            values=form,
            chosen=chosen,
            nodes=facts.nodes,
            zones=zones(),
            planned=[self._affected_sessions(one) for one in planned],
            problem=problem,
        )


def affected_jobs_of(jobs: Sequence[Job], nodes: Collection[str], period: Period) -> list[Job]:
    """Return which of some jobs run on these nodes and may still do so when a maintenance begins."""
    there = (each for each in jobs if not set(nodes).isdisjoint(each.nodes))
    return [each for each in there if each.end > period.start or not each.end]


def affected_sessions_sentence(jobs: Sequence[Job]) -> str:
    """Return a sentence with the number of sessions among jobs and their users, "" for none."""
    sessions = [each for each in jobs if each.name.startswith(JOB_NAME_PREFIX)]
    if not sessions:
        return ""
    users = listed(sorted({each.user for each in sessions}))
    return f"Affected: {len(sessions)} session{'' if len(sessions) == 1 else 's'} of {users}."


def _bookings(count: int) -> str:
    return "1 booking has" if count == 1 else f"{count} bookings have"


PAGES: list[tuple[str, type[ReservationPage]]] = [
    ("administration", QueueHandler),
    (rf"administration/decide/({_UUID})", DecisionHandler),
    ("administration/bookings", TableHandler),
    ("administration/maintenance", MaintenanceHandler),
]
