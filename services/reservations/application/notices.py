"""Notices about bookings: decisions, changes, reminders, problems and maintenance.

``check_changes`` runs after each pass of the reconciler. It reads what was changed since its last run and what begins
soon, so its cost grows with the number of changes. A notice is stored before it is sent, so a restart sends none twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from carme_hub.accounting.notices import DueNotice
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.booking import messages
from carme_hub.booking.maintenance import NOTICE
from carme_hub.domain.calendar.reservations import HOLDING, PROMISED, Kind, Reservation, State, jobs_past_start
from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.services.idempotency import IdempotencyStore
from carme_hub.services.notifications import HUB, Notifier
from carme_hub.services.reservations.application.last_notified import LastNotified
from carme_hub.store.ledger.idempotency import SentNotice, already_notified, digest
from carme_hub.store.reservations import ReservationReads
from carme_hub.store.threads import in_store_thread

#: Seconds after which a change is not notified any more.
NEWS_PERIOD = 86_400
#: Seconds by which two runs overlap, so that a change written during the start of one is not missed.
OVERLAP = 60
_WEEK = 7 * 86_400


@dataclass(frozen=True, slots=True)
class PendingNotice:
    """A notice for a user. ``after``: a notice that must have been sent before, "" = none."""

    due: DueNotice
    after: str = ""


class Notices(Notifier):
    """Finds and sends the notices about the calendar.

    Args:
        read: runs a query in a consistent read of the calendar. people: returns a booking's users besides its owner.
        administrators: returns the users who decide on pending bookings. remind: seconds before a booking's start at
            which its users are reminded, 0 = never. refunds: returns whether GPU time is refunded to users who stop a
            session for maintenance.
    """

    def __init__(
        self,
        settings: CarmeQuotas,
        store: IdempotencyStore,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        *,
        read: Callable[[Callable[[ReservationReads], list[Reservation]]], list[Reservation]],
        people: Callable[[Reservation], Collection[str]],
        administrators: Callable[[], Collection[str]],
        jobs: Callable[[], Snapshot | None],
        remind: int,
        refunds: Callable[[], bool],
    ) -> None:
        super().__init__(settings, store, "Your booking", log)
        self._read, self._people, self._administrators = read, people, administrators
        self._jobs, self._remind, self._refunds = jobs, remind, refunds
        self._last: float | None = None  # the time of the last round
        self._last_notified = LastNotified(store)

    async def check_changes(self) -> list[SentNotice]:
        """Tell what is new since the last round; return it."""
        now = self._store.clock()
        since = max(now - NEWS_PERIOD, self._last - OVERLAP if self._last is not None else 0.0)
        known = await in_store_thread(self._read, lambda reads: reads.changed_since(now - NEWS_PERIOD))
        news = [each for each in known if each.changed >= since]
        before = await self._last_notified.before(known)
        found = [
            *self.state_notices(news, now),
            *self.change_notices(known, before, now),
            *self.reminder_notices(known, now),
        ]
        reported = await self.notify(await self._after_earlier([*found, *self.maintenance_notices(known, now)]))
        await self._last_notified.keep(known)
        self._last = now
        return reported

    async def open_for(self, user: str) -> list[dict[str, str]]:
        """Return the notices that a page shows a user: warnings, without confirmations."""
        now = self._store.clock()
        known = await in_store_thread(self._read, lambda reads: reads.changed_since(now - _WEEK))
        news = [each for each in known if each.changed >= now - _WEEK or each.problem]
        found = [*self.state_notices(news, now), *self.maintenance_notices(known, now)]
        return [
            {"level": each.notice.level, "text": each.notice.text, "link": each.link, "link_words": each.link_words}
            for each in await self._after_earlier(found)
            if each.notice.user == user and each.notice.level in ("warning", "danger")
        ]

    # -- the notices --------------------------------------------------------------------------------------------------

    def state_notices(self, news: Sequence[Reservation], now: float) -> Iterator[PendingNotice]:
        """Yield the notices about the states and problems of changed reservations."""
        for booking, whole in _by_booking(news).items():
            for state in State:
                there = sorted((each for each in whole if each.state is state), key=lambda each: each.period)
                if there:
                    yield from self._state_notices(f"booking/{booking}", there, now)
            for each in whole:
                if each.problem and each.state in HOLDING:
                    about = f"booking/{each.id}/problem/{digest(each.problem)[:16]}"
                    yield _notice(about, each, each.owner, "danger", messages.problem(each, now), now)

    def _state_notices(self, booking: str, there: Sequence[Reservation], now: float) -> Iterator[PendingNotice]:
        """Yield the notices about those times of one booking that are in the same state."""
        one = there[0]
        others = sorted(set(self._people(one)) - {one.owner})
        changed = int(max(each.changed for each in there))
        if one.state is State.PENDING:
            for user in sorted(set(self._administrators()) - {one.owner}):
                about, text = f"{booking}/pending/{changed}/{user}", messages.waits(there, now)
                yield _notice(about, one, user, "warning", text, now, link=("administration", "Approve or deny"))
        elif one.state is State.CONFIRMED:
            yield _notice(f"{booking}/confirmed", one, one.owner, "success", messages.confirmed(there, now), now)
            for user in others:
                text = messages.invited(there, now)
                yield _notice(f"{booking}/invited/{user}", one, user, "info", text, now)
        elif one.state is State.CANCELLED:
            text, about = messages.cancelled(there, now), f"{booking}/cancelled/{changed}"
            if one.actor != one.owner:
                yield _notice(about, one, one.owner, "warning", text, now)
            for user in others:
                after = f"{booking}/invited/{user}"
                yield _notice(f"{about}/{user}", one, user, "warning", text, now, after=after)
        elif one.state is State.RELEASED:
            for each in there:
                if each.actor != each.owner:
                    text = messages.released(each, now)
                    yield _notice(f"booking/{each.id}/released", each, each.owner, "warning", text, now)

    def change_notices(
        self, known: Iterable[Reservation], before: Mapping[str, Reservation], now: float
    ) -> Iterator[PendingNotice]:
        """Yield the notices about changes by others than the owner since the last run: another time, other nodes.

        A booking's other users are notified of another time, whoever changed it.

        Args:
            before: bookings at the last notification, by id.
        """
        for each in known:
            if each.kind is not Kind.BOOKING or each.state not in HOLDING:
                continue
            old = before.get(each.id, each)
            if each.version == old.version:
                continue
            about, by_other = f"booking/{each.id}/version/{each.version}", each.actor != each.owner
            if old.state is State.PENDING and each.state is State.CONFIRMED and by_other:
                # The first approval has the notice of a confirmation; this is the approval of a change.
                again = f"booking/{each.series or each.id}"
                text, changed = messages.confirmed([each], now), int(each.changed)
                yield _notice(f"{again}/again/{changed}", each, each.owner, "success", text, now, f"{again}/confirmed")
            elif old.period != each.period and each.state in PROMISED:
                text = messages.moved(each, now)
                if by_other:
                    yield _notice(about, each, each.owner, "warning", text, now)
                for user in sorted(set(self._people(each)) - {each.owner}):
                    yield _notice(f"{about}/{user}", each, user, "warning", text, now)
            elif _nodes(old) != _nodes(each) and each.state in PROMISED and by_other:
                yield _notice(about, each, each.owner, "warning", messages.other_nodes(each, old, now), now)

    def reminder_notices(self, known: Iterable[Reservation], now: float) -> Iterator[PendingNotice]:
        """Yield the reminders of bookings that begin soon."""
        for each in known:
            if each.kind is not Kind.BOOKING or each.state is not State.CONFIRMED or each.problem:
                continue
            if 0 < each.period.start - now <= self._remind:
                for user in sorted({each.owner, *self._people(each)}):
                    about = f"booking/{each.id}/soon/{each.period.start}/{user}"
                    yield _notice(about, each, user, "info", messages.soon(each, now), now)

    def maintenance_notices(self, known: Iterable[Reservation], now: float) -> Iterator[PendingNotice]:
        """Yield the notices for users whose sessions are affected by maintenance."""
        jobs, refunds = self._jobs(), self._refunds()
        for each in known:
            if jobs is None or each.kind is not Kind.MAINTENANCE or each.state not in PROMISED:
                continue
            if each.period.start - now <= NOTICE and each.period.end > now:
                for job in jobs_past_start(each, jobs.jobs.values()):
                    about = f"maintenance/{each.id}/{each.period.start}/{job.id}"
                    text = messages.maintenance(each, job, now, refunds=refunds)
                    reported = SentNotice(about, job.user, "danger", text, now)
                    yield PendingNotice(DueNotice(reported, link=f"{HUB}home", link_words="Move it or stop it"))

    async def _after_earlier(self, found: Sequence[PendingNotice]) -> list[DueNotice]:
        """Leave out notices whose required earlier notice was not sent before this run."""
        wanted = {each.after for each in found if each.after}

        def ask() -> set[str]:
            with self._store.store.reading(self._store.cluster) as reads:
                return already_notified(reads, wanted)

        said = await in_store_thread(ask) if wanted else set()
        return [each.due for each in found if not each.after or each.after in said]


def _by_booking(found: Iterable[Reservation]) -> Mapping[str, list[Reservation]]:
    whole: dict[str, list[Reservation]] = {}
    for each in found:
        if each.kind is Kind.BOOKING:
            whole.setdefault(each.series or each.id, []).append(each)
    return whole


def _nodes(one: Reservation) -> list[str]:
    return [place.node for place in one.places if not one.license]  # with licenses the nodes do not matter


def _notice(
    about: str,
    one: Reservation,
    user: str,
    level: str,
    text: str,
    now: float,
    after: str = "",
    link: tuple[str, str] = ("", ""),
) -> PendingNotice:
    where, words = link
    reported = SentNotice(about, user, level, text, now)
    return PendingNotice(
        DueNotice(reported, link=where or f"bookings/{one.id}", link_words=words or "The booking"), after
    )
