"""Pages of one booking: its details, how to use it, its history, and the forms to move, cancel and release it."""

from __future__ import annotations

from collections.abc import Sequence

from tornado.web import HTTPError

from carme_hub.booking.bookings import BookingPreview, SeriesScope, Unknown
from carme_hub.booking.calendar import BookingRequest, RequestedTime
from carme_hub.domain import wording
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation
from carme_hub.errors import Refused
from carme_hub.services.pages import BadForm
from carme_hub.services.reservations.application import wording as view
from carme_hub.services.reservations.pages.base import ReservationPage
from carme_hub.services.reservations.pages.form import Alternative, Form, alternatives
from carme_hub.services.reservations.pages.mine import PAST_DAYS
from carme_hub.services.reservations.rest.models import ID
from carme_hub.services.reservations.rest.representation import may

_UUID = ID.strip("^$")
#: Scopes of a change of a recurring booking, with their labels.
SCOPES: tuple[tuple[SeriesScope, str], ...] = (
    ("one", "only this one"),
    ("later", "this and all later ones"),
    ("all", "all of them"),
)


class BookingPage(ReservationPage):
    """A page about one booking."""

    tab = "mine"

    async def one(self, id: str) -> Reservation:
        """Return the booking; raise 404 if there is none, or the visitor may not see it."""
        try:
            return await self.service.bookings.get(self.reader, id)
        except Unknown as unknown:
            raise HTTPError(404, log_message=unknown.message) from unknown

    def show_one(
        self,
        one: Reservation,
        *,
        times: Sequence[Reservation] = (),
        problem: str = "",
        alternatives_found: Sequence[Alternative] = (),
        form: Form | None = None,
    ) -> None:
        """Show the booking, with the result of a form."""
        zone, now = self.zone, self.now
        if one.owner != self.visitor.name and not one.concerns(
            self.visitor.name, self.booker.accounts, self.booker.person.groups
        ):
            self.tab = "administration" if self.booker.admin else ""
        mine = one.owner == self.visitor.name
        start, end = (view.local(at, zone).replace(tzinfo=None) for at in (one.period.start, one.period.end))
        cost = self.cost([one]) if one.kind is Kind.BOOKING else None
        self.show(
            "booking.html",
            heading=one.title,
            one=one,
            times=times,
            may=may(one, mine=mine, admin=self.booker.admin) if self.has_scope(*self.write_scopes) else [],
            mine=mine,
            history=view.history(one, zone, now),
            cost=wording.gpu_hours(cost) if cost else "",
            commands=commands(one),
            scopes=SCOPES if one.series else (),
            values=form or Form(zone=zone).at(start, end),
            problem=problem,
            alternatives=alternatives_found,
        )

    @property
    def which(self) -> SeriesScope:
        """The scope that the form selects."""
        said = self.get_body_argument("series", "one")
        for scope, _ in SCOPES:
            if scope == said:
                return scope
        raise BadForm("Choose which of its times you mean.")


class BookingHandler(BookingPage):
    """The page of a booking."""

    async def get(self, id: str) -> None:
        """Show it, with its other times if it is recurring."""
        one = await self.one(id)
        known = await self.service.bookings.mine(self.booker, self.now - PAST_DAYS * 86_400) if one.series else ()
        self.show_one(one, times=[each for each in known if each.series == one.series and each.id != id])


class MoveHandler(BookingPage):
    """The move of a booking, with a preview."""

    async def post(self, id: str) -> None:
        """Show the preview and ask for a confirmation; then move it."""
        one = await self.one(id)
        form = Form.read(self.get_body_argument, self.get_body_arguments)
        alternatives_found: list[Alternative] = []
        try:
            if take := self.get_body_argument("take", ""):
                form = form.take(take)
            version = int(self.text("version", "The version", max_length=9))
            period = keep_seconds(one.period, form.once())
            if period == one.period:
                raise BadForm("It has this time already. Give another start or end.")
            checked: BookingPreview = await self.service.bookings.check(
                self.booker, request_of(one, period), instead_of=id
            )
            alternatives_found = alternatives(form, checked.conflicts, self._say)[:3] if checked.conflicts else []
            alternatives_found = [each for each in alternatives_found if each.take.startswith("time:")]
            if not checked.ok:
                raise BadForm(checked.refusal or "These GPUs are not free then. The booking was not changed.")
            if not self.confirmed:
                self._confirm(one, form, period, checked)
                return
            await self.service.bookings.move(self.booker, id, version, period=period, series=self.which)
        except ValueError as error:
            raise BadForm("This form is not valid. Open the page again.") from error
        except Refused as refused:
            self.set_status(409)
            self.show_one(one, problem=refused.message, alternatives_found=alternatives_found, form=form)
            return
        self.log_write("moved booking %s", id)
        self.done(f"Moved to {view.span(period, self.zone, self.now)}.", f"bookings/{id}")

    def _say(self, period: Period) -> str:
        return view.short_span(period, self.zone, self.now)

    def _confirm(self, one: Reservation, form: Form, period: Period, checked: BookingPreview) -> None:
        points = [
            f"Now: {view.span(one.period, self.zone, self.now)}.",
            f"Then: {view.span(period, self.zone, self.now)} ({view.length(period)}).",
            *(each.note for each in checked.times if each.note),
            *checked.notes,
        ]
        if one.series and self.which != "one":
            points.append(f"This moves {dict(SCOPES)[self.which]} by as much, on the wall clock of {one.zone}.")
        if self.service.charged and checked.price:
            points.append(f"It holds {wording.gpu_hours(checked.price)} then.")
        if checked.needs_approval:
            points.append("An administrator has to approve it again.")
        shown = {name: value for name, value in form.pairs() if name in _WHEN}
        self.confirm(f"Move “{one.title}”?", points, "Move", back=f"bookings/{one.id}", fixed=shown | {"take": ""})


class CancelHandler(BookingPage):
    """The cancellation of a booking."""

    async def post(self, id: str) -> None:
        """Ask for a confirmation, then cancel it."""
        one, which = await self.one(id), self.which
        reason = self.text("reason", "The reason", required=False)
        if not self.confirmed:
            points = [f"{view.need(one.need).capitalize()}, {view.span(one.period, self.zone, self.now)}."]
            if one.series:
                points.append(f"This cancels {dict(SCOPES)[which]}.")
            points.append("Its GPUs become free for others. The GPU time that it holds is given back.")
            self.confirm(f"Cancel “{one.title}”?", points, "Cancel it", back=f"bookings/{id}", danger=True)
            return
        found = await self.service.bookings.cancel(self.booker, id, reason=reason, series=which)
        self.log_write("cancelled booking %s (%s of them)", id, len(found))
        times = f" at {len(found)} times" if len(found) > 1 else ""
        self.done(f"“{one.title}” is cancelled{times}.", "mine" if one.owner == self.visitor.name else "administration")


class ReleaseHandler(BookingPage):
    """The release of an active booking."""

    async def post(self, id: str) -> None:
        """Ask for a confirmation, then release it."""
        one = await self.one(id)
        if not self.confirmed:
            points = [
                f"It is yours until {view.clock(one.period.end, self.zone, self.now)}.",
                "Its GPUs become free for others now. The GPU time that the rest holds is given back.",
                "Sessions in it continue as long as Slurm lets them; stop them on the hub’s home page when done.",
            ]
            self.confirm(f"Give back “{one.title}”?", points, "Give it back", back=f"bookings/{id}", danger=True)
            return
        await self.service.bookings.release(self.booker, id, reason=self.text("reason", "The reason", required=False))
        self.log_write("gave back booking %s", id)
        self.done(f"“{one.title}” is given back.", "mine" if one.owner == self.visitor.name else "administration")


_WHEN = ("start_date", "start_time", "end_date", "end_time", "zone")


def keep_seconds(old: Period, new: Period) -> Period:
    """Return the new period with the seconds of the old one if the minute is the same.

    A booking for now begins at some second of a minute, and the fields of a form have no seconds.
    """
    edges = ((old.start, new.start), (old.end, new.end))
    return Period(*(was if was // 60 == typed // 60 else typed for was, typed in edges))


def request_of(one: Reservation, period: Period) -> BookingRequest:
    """Return the request for a booking at another time."""
    return BookingRequest(
        owner=one.owner,
        account=one.account,
        title=one.title,
        need=one.need,
        times=(RequestedTime(period, one.occurrence),),
        users=one.users,
        group=one.group,
        everybody=one.everybody,
        profile=one.profile,
        zone=one.zone,
    )


def commands(one: Reservation) -> list[str]:
    """Return sbatch's options to use it; none if Slurm has no reservation for it."""
    if one.state not in PROMISED or one.kind is not Kind.BOOKING:
        return []
    gpus = f"--gres=gpu:{one.need.type}:{one.need.gpus}" if one.need.gpus else "--exclusive"
    return [f"--reservation={','.join(one.names())}", f"--account={one.account}", gpus]


PAGES: list[tuple[str, type[ReservationPage]]] = [
    (rf"bookings/({_UUID})", BookingHandler),
    (rf"bookings/({_UUID})/move", MoveHandler),
    (rf"bookings/({_UUID})/cancel", CancelHandler),
    (rf"bookings/({_UUID})/release", ReleaseHandler),
]
