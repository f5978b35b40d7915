"""The booking form, for people who cannot drag in the calendar: fields, a preview, and the booking itself.

It works without JavaScript. Each step is a POST of the same fields: preview, take an alternative, change, book, wait.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from carme_hub.booking.bookings import BookingPreview
from carme_hub.booking.calendar import SlotTaken
from carme_hub.domain import wording
from carme_hub.domain.calendar.periods import Period
from carme_hub.errors import Refused
from carme_hub.services.reservations.application import wording as view
from carme_hub.services.reservations.pages.base import Choices, ReservationPage
from carme_hub.services.reservations.pages.form import Form, alternatives

#: Times of one booking that are listed; the rest is only counted, except times with a note or conflict.
MAX_LISTED = 60


@dataclass(frozen=True, slots=True)
class Row:
    """One time of the preview. ``note``: the effect of a clock change."""

    when: str
    note: str
    free: bool


class BookHandler(ReservationPage):
    """The form, its preview, and the booking."""

    tab = "book"

    async def get(self) -> None:
        """Show the form, filled in from the query."""
        choices = await self.choices()
        usual = await self.default_type(choices.types)
        form = Form.empty(self.now, self.zone, type=usual, account=_first_account(choices))
        said = {
            name: value for name, value in Form.read(self.get_query_argument, self.get_query_arguments).pairs() if value
        }
        known = {name for name in self.request.query_arguments if name in said}
        days = tuple(self.get_query_arguments("days"))
        given = {name: said[name] for name in known if name not in ("days", "without", "key")}
        self._show_form(replace(form, **given, days=days), choices)  # type: ignore[arg-type]

    async def post(self) -> None:
        """Take a step of the form."""
        form = Form.read(self.get_body_argument, self.get_body_arguments)
        choices = await self.choices()
        step = self.get_body_argument("step", "look")
        try:
            if take := self.get_body_argument("take", ""):
                form = replace(form.take(take), key="")
            if step == "change":
                self._show_form(form, choices)
            elif step in ("book", "wait"):
                await self._book(form, choices, wait=step == "wait")
            else:
                await self._look(form, choices)
        except Refused as refused:
            self.set_status(409)
            self._show_form(form, choices, refused.message)

    async def _book(self, form: Form, choices: Choices, *, wait: bool) -> None:
        request, recurrence = form.request(self.visitor.name), form.recurrence()
        try:
            found = await self.service.bookings.book(self.booker, request, recurrence, key=form.key, wait=wait)
        except SlotTaken as taken:
            self.set_status(409)
            await self._look(form, choices, meanwhile=taken.message)
            return
        self.log_write("booked %s (%s)", found[0].id, request.account)
        one = found[0]
        self.done(
            f"“{one.title}”: {_booked_sentence(len(found))} {view.state_sentence(one, self.zone, self.now)}",
            f"bookings/{one.id}",
        )

    async def _look(self, form: Form, choices: Choices, *, meanwhile: str = "") -> None:
        request, recurrence = form.request(self.visitor.name), form.recurrence()
        checked: BookingPreview = await self.service.bookings.check(self.booker, request, recurrence)
        zone, now = form.zone, self.now
        taken = {each.time.period for each in checked.conflicts}
        rows = [Row(view.span(each.period, zone, now), each.note, each.period not in taken) for each in checked.times]
        say: Callable[[Period], str] = lambda period: view.short_span(period, zone, now)  # noqa: E731
        left = next((each.left for each in choices.accounts if each.name == form.account), None)
        charged = self.service.charged and bool(checked.price)
        self.show(
            "look.html",
            heading="Book this?",
            form=replace(form, key=form.key or secrets.token_urlsafe(16)),
            request=request,
            rows=[each for number, each in enumerate(rows) if number < MAX_LISTED or each.note or not each.free],
            count=len(rows),
            taken=len(checked.conflicts),
            alternatives=alternatives(form, checked.conflicts, say, len(rows)),
            refusal=checked.refusal,
            meanwhile=meanwhile,
            approval=checked.needs_approval,
            notes=checked.notes,
            cost=wording.gpu_hours(checked.price) if charged else "",
            left=wording.gpu_hours(left) if charged and left is not None else "",
            after=wording.gpu_hours(max(0, left - checked.price)) if charged and left is not None else "",
            ok=checked.ok,
            waits=bool(checked.conflicts) and len(rows) == 1 and not checked.refusal,
            for_whom=_whom(form),
        )

    def _show_form(self, form: Form, choices: Choices, problem: str = "") -> None:
        self.show(
            "book.html",
            heading="Book GPUs",
            values=form,
            choices=choices,
            problem=problem,
            refused=self.refusal(),
            data=page_data(choices),
        )


def page_data(choices: Choices) -> dict[str, object]:
    """Return the data embedded for the pages' scripts."""
    return {"left": {each.name: each.left for each in choices.accounts}}


def _first_account(choices: Choices) -> str:
    return choices.accounts[0].name if choices.accounts else ""


def _booked_sentence(count: int) -> str:
    return "booked." if count == 1 else f"booked {count} times."


def _whom(form: Form) -> str:
    if form.whom == "group":
        return f"you and the members of {form.group}"
    if form.whom == "everybody":
        return f"everybody of the account {form.account}"
    return f"you and {form.users}" if form.whom == "users" else "you alone"


PAGES: list[tuple[str, type[ReservationPage]]] = [("book", BookHandler)]
