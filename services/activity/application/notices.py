"""Mails to users whose session is idle: each warning, that nothing happens where a rule only tells, and the end.

The hub stores what happens to idle sessions (``carme_hub.activity.idle_watch``); this looks for what is new and sends
it by the channels of all notices: mail, webhook, further ones. A notice is stored before it is sent, with the event's
number, so neither a restart of the hub nor one of this service sends it twice. An end is told of a session that has the
end's own reason, and once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carme_hub.accounting.notices import DueNotice
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.quotas.idle.rules import Action
from carme_hub.domain.sessions.session import Session
from carme_hub.domain.wording import moment
from carme_hub.errors import StoreError
from carme_hub.services.notifications import HUB, Notifier
from carme_hub.store.idle import ENDED, TOLD, WARNED, IdleEvent, IdleStore
from carme_hub.store.ledger.idempotency import SentNotice
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

#: Seconds between two looks. Seconds after which an event is no news any more, as after a long outage.
INTERVAL, NEWS_SECONDS = 15.0, 3600.0
_HOME = "home"


@dataclass(frozen=True, slots=True)
class NoticeStores:
    """The store of notices, as ``IdempotencyStore`` has it."""

    store: LedgerStore
    cluster: str
    clock: Callable[[], float] = time.time


class IdleNotices(Notifier):
    """Sends the notices about idle sessions.

    Args:
        zone: in which times are given.
    """

    def __init__(
        self,
        settings: CarmeQuotas,
        stores: NoticeStores,
        events: IdleStore,
        sessions: SessionStore,
        zone: Callable[[], str],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        super().__init__(settings, stores, "Your session is idle", log)
        self._events, self._sessions, self._zone = events, sessions, zone
        self._handled: set[int] = set()

    async def run(self) -> None:
        """Look for what is new, for ever."""
        while True:
            try:
                await self.look()
            except StoreError as error:
                self._log.warning("Users of idle sessions are not notified now: %s", error)
            except Exception:  # noqa: BLE001  a look that fails does not end the loop
                self._log.exception("Users of idle sessions were not notified")
            await asyncio.sleep(INTERVAL)

    async def look(self) -> list[SentNotice]:
        """Send what is new, and return it."""
        now = self._store.clock()
        recent = await in_store_thread(self._events.between, now - NEWS_SECONDS, now + NEWS_SECONDS)
        self._handled &= {event.id for event in recent}
        new = [event for event in recent if event.kind in (WARNED, TOLD, ENDED) and event.id not in self._handled]
        if not new:
            return []
        found = await in_store_thread(self._sessions.get_all, {event.session for event in new})
        rows = {session.id: session for session in found}
        due = []
        for event in new:
            session = rows.get(event.session)
            notice = self._notice(event, session, now) if session is not None else None
            if event.kind == ENDED and session is not None and not _end_reason(session):
                continue  # its end is stored a moment after the event
            self._handled.add(event.id)
            due += [notice] if notice is not None else []
        return await self.notify(due)

    def _notice(self, event: IdleEvent, session: Session, now: float) -> DueNotice | None:
        text = notice_text(event, session, now, self._zone())
        if not text:
            return None
        # A session ends once, whatever hub has stored it: a hub that was killed in between may have done so as well.
        number = "ended" if event.kind == ENDED else event.id
        about = f"idle/{self._store.cluster}/{event.session}/{number}"
        level = {WARNED: "warning", ENDED: "danger"}.get(event.kind, "info")
        return DueNotice(SentNotice(about, session.user, level, text, event.at), link=f"{HUB}{_HOME}")


def notice_text(event: IdleEvent, session: Session, now: float, zone: str) -> str:
    """Return what a user is told; "" for what needs no notice."""
    which = f"Your session “{session.server_name}”" if session.server_name else "Your session"
    which += f" on {session.node}" if session.node else ""
    about: Mapping[str, object] = event.about
    since = _time(about.get("since"))
    idle = f"{which} has been idle since {moment(since, now, zone)}." if since else f"{which} is idle."
    if event.kind == WARNED and about.get("action") != Action.TELL.value:
        if session.ended or session.is_ending:
            return ""
        end = moment(_time(about.get("deadline")) or event.at + event.seconds, now, zone)
        return (
            f"{idle} It is stopped {end} if nothing is at work in it until then. If you need it, work in it, or say on "
            "your page of the hub or in JupyterLab that you are still here. Save what is open in a browser."
        )
    if event.kind == TOLD:
        return f"{idle} Nothing happens to it, but its GPUs are held: stop it if you do not need it."
    return f"{which} was stopped. {event.reason}" if event.has_ended(session) else ""


def _end_reason(session: Session) -> str:
    return session.end_reason or session.cancel_reason


def _time(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
