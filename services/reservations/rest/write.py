"""REST operations that change the calendar: book, move, cancel, release, decide, maintenance, the feed's secret."""

from __future__ import annotations

from carme_hub.booking.bookings import BookingPreview
from carme_hub.domain.calendar.capacity import Need
from carme_hub.errors import NoAccount
from carme_hub.services.reservations.rest import models
from carme_hub.services.reservations.rest.base import Call
from carme_hub.services.reservations.rest.parse import period_of, request_of
from carme_hub.services.reservations.rest.read import link, viewer_of
from carme_hub.services.reservations.rest.representation import conflict
from carme_hub.services.rest import NotOwner, Unprocessable


async def book(call: Call) -> models.BookingsOut:
    """Book all requested times, or none."""
    asked: models.BookIn = call.body
    owner, account = await _owner_and_account(call, asked)
    request, recurrence = request_of(asked, owner, account)
    done = await call.service.bookings.book(await call.booker(), request, recurrence, key=call.key, wait=asked.wait)
    return await _bookings(call, done)


async def check(call: Call) -> models.CheckOut:
    """Return the preview of a booking; write nothing."""
    asked: models.CheckIn = call.body
    owner, account = await _owner_and_account(call, asked)
    request, recurrence = request_of(asked, owner, account)
    found: BookingPreview = await call.service.bookings.check(
        await call.booker(), request, recurrence, instead_of=asked.instead_of
    )
    return checked(found, charged=call.service.charged)


def checked(found: BookingPreview, *, charged: bool) -> models.CheckOut:
    """Return the representation of a preview."""
    return models.CheckOut(
        granted=found.ok,
        refusal=found.refusal,
        reason=found.reason,
        needs_approval=found.needs_approval,
        amount=found.price if charged else None,
        total=found.gpus,
        times=[
            models.TimeOut(start=each.period.start, end=each.period.end, occurrence=each.occurrence, note=each.note)
            for each in found.times
        ],
        conflicts=[conflict(each) for each in found.conflicts],
        notes=list(found.notes),
    )


async def move(call: Call) -> models.BookingsOut:
    """Change time, size or title of a booking."""
    asked: models.MoveIn = call.body
    who = await call.booker()
    one = await call.service.bookings.get(who, call.path_parameters["id"])
    period = need = None
    if (asked.start is None) != (asked.end is None):
        raise Unprocessable("Give both start and end, or neither.")
    if asked.start is not None and asked.end is not None:
        period = period_of(asked.start, asked.end, asked.zone or one.zone)
    if (asked.gpu_type, asked.gpus, asked.seats) != (None, None, None):
        need = Need(
            one.need.type if asked.gpu_type is None else asked.gpu_type,
            one.need.gpus if asked.gpus is None else asked.gpus,
            one.need.seats if asked.seats is None else asked.seats,
        )
    title = None if asked.title is None else asked.title.strip()
    if (period, need, title) == (None, None, None):
        raise Unprocessable("Give at least one change: start and end, gpu_type, gpus, seats or title.")
    done = await call.service.bookings.move(
        who, one.id, asked.version, period=period, need=need, title=title, series=asked.series
    )
    return await _bookings(call, done)


async def cancel(call: Call) -> models.BookingsOut:
    """Cancel a booking before it starts."""
    said: models.CancelIn = call.body
    done = await call.service.bookings.cancel(
        await call.booker(), call.path_parameters["id"], reason=said.reason.strip(), series=said.series
    )
    return await _bookings(call, done)


async def release(call: Call) -> models.BookingsOut:
    """Release an active booking."""
    said: models.ReleaseIn = call.body
    done = await call.service.bookings.release(
        await call.booker(), call.path_parameters["id"], reason=said.reason.strip()
    )
    return await _bookings(call, (done,))


async def decide(call: Call) -> models.BookingsOut:
    """Approve or deny all times of a pending booking."""
    said: models.DecisionIn = call.body
    done = await call.service.bookings.decide(
        await call.booker(), call.path_parameters["id"], said.decision == "approve", said.reason.strip()
    )
    return await _bookings(call, done)


async def maintain(call: Call) -> models.MaintenanceOut:
    """Reserve nodes for maintenance, also if they are booked."""
    asked: models.MaintenanceIn = call.body
    period = period_of(asked.start, asked.end, asked.zone)
    nodes = tuple(dict.fromkeys(asked.nodes))
    who, title = await call.booker(), asked.title.strip()
    done, changed = await call.service.bookings.maintain(who, nodes, period, title, key=call.key)
    viewer = await viewer_of(call)
    return models.MaintenanceOut(at=int(call.now), maintenance=viewer.booking(done), changed=viewer.bookings(changed))


async def make_feed(call: Call) -> models.FeedOut:
    """Return a new secret address; the previous one becomes invalid."""
    call.need_user()
    secret = await call.service.feeds.make(call.visitor.name)
    made = await call.service.feeds.made(call.visitor.name)
    return models.FeedOut(made=made, address=f"{link(call)}api/v1/feed/{secret}.ics")


async def revoke_feed(call: Call) -> models.FeedOut:
    """Revoke the visitor's feed."""
    call.need_user()
    await call.service.feeds.revoke(call.visitor.name)
    return models.FeedOut(made=0, address="")


async def _bookings(call: Call, done: tuple[object, ...]) -> models.BookingsOut:
    viewer = await viewer_of(call)
    return models.BookingsOut(at=int(call.now), bookings=viewer.bookings(done))  # type: ignore[arg-type]


async def _owner_and_account(call: Call, asked: models.AskIn) -> tuple[str, str]:
    """Return the owner and the charged account of a booking."""
    owner = asked.owner or ""
    if owner and owner != call.visitor.name and not call.admin:
        raise NotOwner(
            "Only administrators book for others. Leave out owner, and name further people in users or group."
        )
    if not owner:
        call.need_user()
        owner = call.visitor.name
    if asked.account is not None:
        return owner, asked.account
    mine = call.visitor.is_user and owner == call.visitor.name
    accounts = await call.service.accounts(call.visitor) if mine else call.service.associations.accounts_of(owner)
    if not accounts:
        raise NoAccount(f"{owner} has no Slurm account that could be charged. Ask an administrator for one.")
    return owner, accounts[0]
