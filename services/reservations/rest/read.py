"""REST operations that read the calendar: bookings, free GPUs, the supply, feeds, the next hours in sentences."""

from __future__ import annotations

import os

from carme_hub.booking.bookings import Booker, SupplySummary, Unknown
from carme_hub.domain.calendar.bookable_nodes import is_unavailable
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, Reservation, State
from carme_hub.errors import Refused
from carme_hub.services.hub_users import HUB_SILENT
from carme_hub.services.reservations.application import ical, summary
from carme_hub.services.reservations.application.metrics import metrics
from carme_hub.services.reservations.application.slurm_view import Offer
from carme_hub.services.reservations.rest import models, queries
from carme_hub.services.reservations.rest.base import Call
from carme_hub.services.reservations.rest.parse import zone_of
from carme_hub.services.reservations.rest.representation import Viewer
from carme_hub.services.reservations.scopes import WRITE
from carme_hub.services.rest import Text, Unprocessable

_DAY = 86_400
#: Days of a query without an end, and of the longest one.
DEFAULT_DAYS, MAX_DAYS = 31, 400
#: Past days in a feed, so that calendar programs also get cancellations.
FEED_PAST_DAYS = 30


class HubSilent(Refused):
    """The hub's users are not known now."""

    reason = "silent"


async def viewer_of(call: Call) -> Viewer:
    """Return the visitor as a viewer of bookings."""
    service = call.service
    price = service.bookings.price if service.charged else None
    return Viewer(await call.reader(), call.handler.has_scope(WRITE), decides=call.admin, price=price)


async def bookings(call: Call) -> models.BookingsOut:
    """Return the bookings of a time; with ``mine`` those that the visitor owns or is invited to."""
    query: queries.BookingsQuery = call.query
    period, viewer = _period(query, call.now), await viewer_of(call)
    states = {State(query.state)} if query.state else None
    if query.mine == "true":
        call.need_user()
        found = await call.service.bookings.mine(viewer.who, period.start)
        there = [each for each in found if each.period.start < period.end and each.state in (states or {each.state})]
        return models.BookingsOut(at=int(call.now), bookings=viewer.bookings(there))
    views = await call.service.bookings.between(viewer.who, period, states or HOLDING)
    return models.BookingsOut(at=int(call.now), bookings=[viewer.view(each) for each in views])


async def booking(call: Call) -> models.BookingOut:
    """Return one booking that the visitor may see in full."""
    viewer = await viewer_of(call)
    return viewer.booking(await call.service.bookings.get(viewer.who, call.path_parameters["id"]))


async def booking_file(call: Call) -> Text:
    """Return one booking as an iCalendar file."""
    one: Reservation = await call.service.bookings.get(await call.reader(), call.path_parameters["id"])
    return Text(ical.MEDIA, ical.text([one], name=one.title, link=link(call)), f"booking-{one.id[:8]}.ics")


async def free(call: Call) -> models.FreeOut:
    """Return the number of free GPUs over time."""
    query: queries.FreeQuery = call.query
    period = _period(query, call.now)
    facts = await call.service.bookings.supply()
    totals = {each.type: each.total for each in facts.types}
    if query.type and query.type not in totals:
        raise Unprocessable(f"There are no GPUs of the type {query.type}. There are: {', '.join(totals) or 'none'}.")
    found = await call.service.bookings.free(period, (query.type,) if query.type else ())
    return models.FreeOut(
        start=period.start,
        end=period.end,
        types=[
            models.BandOut(
                gpu_type=type,
                total=totals.get(type, 0),
                parts=[models.PartOut(start=part.start, end=part.end, free=level) for part, level in band],
            )
            for type, band in sorted(found.items())
        ],
    )


async def supply(call: Call) -> models.SupplyOut:
    """Return the GPUs that can be booked, and whether the visitor may book."""
    slurm_view = call.service.slurm_view
    facts = await call.service.bookings.supply() if slurm_view.known else _nothing(slurm_view.offer)
    states = {node.name: node for node in slurm_view.nodes}
    accounts = await call.service.accounts(call.visitor)
    return models.SupplyOut(
        at=int(slurm_view.at),
        known=slurm_view.known,
        keeps="licenses" if facts.by_license else "nodes" if facts.by_node else "gpus",
        notes=[facts.note] if facts.note else [],
        types=[
            models.TypeOut(gpu_type=each.type, total=each.total, largest=each.seat, bookable=each.bookable)
            for each in facts.types
        ],
        nodes=[
            models.NodeOut(
                name=each.name,
                state=states[each.name].state if each.name in states else "",
                out=each.name in states and is_unavailable(states[each.name]),
                gpus=dict(each.gpus),
            )
            for each in facts.nodes
        ],
        may_book=any(call.service.rules(call.visitor.person, account).may_book for account in accounts),
        accounts=list(accounts),
    )


async def sentences(call: Call) -> models.WordsOut:
    """Return the next 24 hours in sentences."""
    query: queries.WordsQuery = call.query
    zone_of(query.zone)
    now, bookings = call.now, call.service.bookings
    period = Period(int(now), int(now) + _DAY)
    facts = await bookings.supply()
    told = summary.sentences(
        await bookings.between(await call.reader(), period, HOLDING),
        await bookings.free(period),
        {each.type: each.total for each in facts.types},
        now,
        query.zone,
    )
    return models.WordsOut(at=int(now), sentences=told)


async def feed(call: Call) -> Text:
    """Return the bookings of the user of this secret, without a login, which calendar programs do not support."""
    service, secret = call.service, call.path_parameters["secret"]
    user = await service.feeds.user_of(secret)
    if user:
        await service.hub_users.refresh()
        await service.associations.refresh()
        if not service.hub_users.people:
            call.handler.set_header("Retry-After", "60")
            raise HubSilent(HUB_SILENT)
    if user not in service.hub_users.people:  # also a user who has left: their bookings are not published any more
        raise Unknown("There is no such feed. Make a new address on the page of your bookings.")
    person = service.hub_users.person(user)
    found = await service.bookings.mine(
        Booker(person, service.associations.accounts_of(user)), call.now - FEED_PAST_DAYS * _DAY
    )
    return Text(ical.MEDIA, ical.text(found, name="GPU bookings", link=link(call)), "bookings.ics")


async def has_feed(call: Call) -> models.FeedOut:
    """Return whether the visitor has a feed; its address is given only when it is created."""
    call.need_user()
    return models.FeedOut(made=await call.service.feeds.made(call.visitor.name), address="")


async def prometheus(call: Call) -> Text:
    """Return metrics."""
    return Text("text/plain; version=0.0.4; charset=utf-8", (await metrics(call.service)).text())


async def health(call: Call) -> models.HealthOut:
    """Return whether Slurm is equal to the calendar; Slurm's own messages are in the log only."""
    health = call.service.health
    age = None if health.answered is None else max(0, int(call.now - health.answered))
    faults = list(call.service.licenses.faults)
    return models.HealthOut(keeping=health.keeping(call.now), age=age, equal=health.equal, faults=faults)


def _nothing(offer: Offer) -> SupplySummary:
    """Return an empty supply, while Slurm has never answered."""
    return SupplySummary((), (), offer.by_node, 0, "", by_license=bool(offer.licenses))


def link(call: Call) -> str:
    """Return the URL of the service's pages, with a host if the hub's public URL is set."""
    return str(os.environ.get("JUPYTERHUB_PUBLIC_URL") or call.service.prefix).rstrip("/") + "/"


def _period(query: queries.PeriodQuery, now: float) -> Period:
    """Return the queried period."""
    start = query.begin if query.begin is not None else int(now)
    end = query.end if query.end is not None else start + DEFAULT_DAYS * _DAY
    if end <= start:
        raise Unprocessable("It ends before it starts: give a later time in to.")
    if end - start > MAX_DAYS * _DAY:
        raise Unprocessable(f"The time is longer than {MAX_DAYS} days. Query less at once.")
    return Period(start, end)
