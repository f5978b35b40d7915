"""Notices to users, each sent once: on pages, and by webhook (JSON), mail and further channels if the site has them.

A notice is stored before it is sent. One that cannot be sent is logged, and never sent twice. The database keeps all
notices of both services, so that none of them repeats one. Both services derive their ``Notices`` from ``Notifier``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from carme_hub.accounting.notices import DueNotice
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.entry_points import call
from carme_hub.services import mail, notice_channels
from carme_hub.services.idempotency import IdempotencyStore
from carme_hub.store.ledger.idempotency import SentNotice
from carme_hub.store.threads import in_store_thread

#: Mails that are sent over one connection.
_MAILS_PER_CONNECTION = 100
#: Notices written in one transaction. A start that needs the database waits for one transaction at most.
_BATCH = 300
#: Stored notices that are cached in memory, so that the database is not asked for them each minute.
_REMEMBERED = 200_000
#: Prefix of a link to a page of the hub instead of the service's own.
HUB = "hub:"


class Notifier:
    """Stores new notices, and sends them in a background task.

    Args:
        settings: webhook and mail. store: keeps the notices. subject: of mails.
    """

    def __init__(
        self,
        settings: CarmeQuotas,
        store: IdempotencyStore,
        subject: str,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._settings = settings
        self._store = store
        self._subject = subject
        self._log = log
        self._channels = notice_channels.notice_channels(settings)
        self._known: set[str] = set()
        self._queue: asyncio.Queue[tuple[SentNotice, str]] = asyncio.Queue()
        self._sender: asyncio.Task[None] | None = None

    async def notify(self, found: Iterable[DueNotice]) -> list[SentNotice]:
        """Store the notices that are new, put them into the queue of the sender, and return them."""
        due = [each for each in found if each.notice.about not in self._known]
        links = {each.notice.about: address(each.link) for each in due}
        stored = []
        for at in range(0, len(due), _BATCH):
            part = due[at : at + _BATCH]

            def write(part: Sequence[DueNotice] = part) -> list[SentNotice]:
                with self._store.store.transaction(self._store.cluster) as writes:
                    return writes.add_notices([(each.notice, each.covered_by) for each in part])

            new = await in_store_thread(write)
            self._known.update(each.notice.about for each in part)
            for notice in new:
                self._queue.put_nowait((notice, links[notice.about]))
            if new and (self._sender is None or self._sender.done()):
                self._sender = asyncio.create_task(self._deliver(), name="carme-notices")
            stored += new
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        return stored

    async def wait_until_delivered(self) -> None:
        """Wait until each notice in the queue has been sent or logged as failed."""
        await self._queue.join()

    async def _deliver(self) -> None:
        """Send the notices of the queue in a task of its own, since a receiver may be slow."""
        while True:
            some = [await self._queue.get()]
            while len(some) < _MAILS_PER_CONNECTION and not self._queue.empty():
                some.append(self._queue.get_nowait())
            try:
                await self.send(some)
            finally:
                for _ in some:
                    self._queue.task_done()

    async def send(self, some: Sequence[tuple[SentNotice, str]]) -> None:
        """Send notices, each with its link; log those that cannot be sent."""
        if self._settings.webhook_url_file:
            for notice, link in some:
                try:
                    await self._post(notice, link)
                except Exception as error:  # noqa: BLE001 - a receiver can fail in any way; nothing depends on it
                    self._log.warning("A notice for %s could not be sent: %s", notice.user, mail.describe(error))
        if mail.can_mail(self._settings):
            try:
                errors = await asyncio.to_thread(self._mail, some)
            except Exception as error:  # noqa: BLE001 - the same holds for a mail server
                errors = [error] * len(some)
            for (notice, _), failure in zip(some, errors, strict=True):
                if failure is not None:
                    self._log.warning("A notice for %s could not be mailed: %s", notice.user, mail.describe(failure))
        for name, channel in self._channels.items():
            for notice, link in some:
                one = notice_channels.Notice(notice.user, notice.level, notice.text, int(notice.at), link)
                try:
                    await call(channel, one)
                except Exception as error:  # noqa: BLE001 - another project's code
                    cause = mail.describe(error)
                    self._log.warning("A notice for %s could not be sent by %s: %s", notice.user, name, cause)

    async def _post(self, notice: SentNotice, link: str) -> None:
        url = await asyncio.to_thread(mail.read_secret, Path(self._settings.webhook_url_file))
        body = json.dumps(
            {"user": notice.user, "level": notice.level, "text": notice.text, "at": int(notice.at), "link": link}
        )
        headers = {"Content-Type": "application/json"}
        request = HTTPRequest(
            url, method="POST", body=body, headers=headers, request_timeout=10, follow_redirects=False
        )
        await AsyncHTTPClient(force_instance=True).fetch(request)

    def _mail(self, some: Sequence[tuple[SentNotice, str]]) -> list[Exception | None]:
        messages = [(notice.user, f"{notice.text}\n\n{link}\n" if link else notice.text) for notice, link in some]
        return mail.send(self._settings, messages, self._subject)


def address(link: str) -> str:
    """Return an absolute link for mails and webhooks; without a host if the hub has no public URL set."""
    if not link:
        return ""
    if link.startswith(HUB):
        base = os.environ.get("JUPYTERHUB_PUBLIC_HUB_URL") or f"{os.environ.get('JUPYTERHUB_BASE_URL', '/')}hub"
        return f"{base.rstrip('/')}/{link.removeprefix(HUB)}"
    base = os.environ.get("JUPYTERHUB_PUBLIC_URL") or os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "/")
    return f"{base.rstrip('/')}/{link}"
