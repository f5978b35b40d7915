"""Mails administrators' messages, and sends them by webhook and notice channels, as the services' own notices.

A message is sent once to each user, whichever of the services sees it first: the database keeps what was sent. Who has
seen it by then gets none.
"""

from __future__ import annotations

import logging
from typing import Any

from carme_hub.accounting.notices import DueNotice
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.errors import StoreError
from carme_hub.services.idempotency import IdempotencyStore
from carme_hub.services.notifications import HUB, Notifier
from carme_hub.store.administration.store import AdministrationStore
from carme_hub.store.ledger.idempotency import SentNotice
from carme_hub.store.threads import in_store_thread

SUBJECT = "A message from the cluster's administrators"


class MessagesByMail:
    """Sends the messages that are to be mailed; a service calls ``deliver`` after each of its passes."""

    def __init__(
        self,
        settings: CarmeQuotas,
        store: IdempotencyStore,
        engine: Any,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._clock, self._log = store.clock, log
        self._messages = AdministrationStore(engine, store.cluster)
        self.notifier = Notifier(settings, store, SUBJECT, log)

    async def deliver(self) -> None:
        """Hand what is due to the sender of notices; if the database fails, it is repeated after the next pass."""
        try:
            now = self._clock()
            for message, users in await in_store_thread(self._messages.to_mail, now):
                text = f"{message.actor} writes to {message.target}:\n\n{message.text}"
                notices = [SentNotice(f"message/{message.id}/{user}", user, "info", text, now) for user in users]
                await self.notifier.notify(DueNotice(each, (), f"{HUB}home", "Your page") for each in notices)
                await in_store_thread(self._messages.mark_mailed, message.id, now)
        except StoreError as error:
            self._log.warning("Messages are not mailed yet; the service tries again: %s", error)
