"""People are told each thing once: on pages, and by webhook (JSON), mail and further channels where the site has them.

A notice is written down before it is sent: one that cannot be sent is logged, never sent twice. The database keeps all
of them, and lets each be told once, whichever service says it.
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
from carme_hub.services import mail, notice_channels
from carme_hub.services.idempotency import IdempotencyStore
from carme_hub.store.ledger.idempotency import SentNotice
from carme_hub.store.threads import in_store_thread

#: Mails that go over one connection.
_AT_ONCE = 100
#: Notices that are written in one transaction: who wants to start waits for no more of them.
_PART = 300
#: How much of what was told is remembered, so that the database is not asked again each minute.
_REMEMBERED = 200_000
#: Begins a link that leads below the hub's own prefix, in place of the service's.
HUB = "hub:"


class Notifier:
    """Writes down what is new, and sends it.

    Args:
        settings: where notices go. kept: where what was told is kept. subject: of mails.
    """

    def __init__(
        self,
        settings: CarmeQuotas,
        kept: IdempotencyStore,
        subject: str,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._settings = settings
        self._kept = kept
        self._subject = subject
        self._log = log
        self._channels = notice_channels.notice_channels(settings)
        self._known: set[str] = set()
        self._owed: asyncio.Queue[tuple[SentNotice, str]] = asyncio.Queue()
        self._sender: asyncio.Task[None] | None = None

    async def tell(self, found: Iterable[DueNotice]) -> list[SentNotice]:
        """Write down what is new of it, and owe it to the sender; return what was new."""
        due = [each for each in found if each.notice.about not in self._known]
        links = {each.notice.about: address(each.link) for each in due}
        told = []
        for at in range(0, len(due), _PART):
            part = due[at : at + _PART]

            def write(part: Sequence[DueNotice] = part) -> list[SentNotice]:
                with self._kept.store.transaction(self._kept.cluster) as writes:
                    return writes.tell([(each.notice, each.covered_by) for each in part])

            new = await in_store_thread(write)
            self._known.update(each.notice.about for each in part)
            for notice in new:
                self._owed.put_nowait((notice, links[notice.about]))
            if new and (self._sender is None or self._sender.done()):
                self._sender = asyncio.create_task(self._deliver(), name="carme-notices")
            told += new
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        return told

    async def delivered(self) -> None:
        """Wait until everything that was owed has been sent, or given up."""
        await self._owed.join()

    async def _deliver(self) -> None:
        """Send what is owed, beside the loop that settles: a receiver may take its time."""
        while True:
            some = [await self._owed.get()]
            while len(some) < _AT_ONCE and not self._owed.empty():
                some.append(self._owed.get_nowait())
            try:
                await self.send(some)
            finally:
                for _ in some:
                    self._owed.task_done()

    async def send(self, some: Sequence[tuple[SentNotice, str]]) -> None:
        """Send notices, each with its link; what cannot be sent is logged."""
        if self._settings.webhook_url_file:
            for notice, link in some:
                try:
                    await self._post(notice, link)
                except Exception as error:  # noqa: BLE001 - a receiver can fail in any way, and nothing depends on it
                    self._log.warning("A notice for %s could not be sent: %s", notice.user, mail.why(error))
        if mail.can_mail(self._settings):
            try:
                errors = await asyncio.to_thread(self._mail, some)
            except Exception as error:  # noqa: BLE001 - nor on a mail server
                errors = [error] * len(some)
            for (notice, _), wrong in zip(some, errors, strict=True):
                if wrong is not None:
                    self._log.warning("A notice for %s could not be mailed: %s", notice.user, mail.why(wrong))
        for name, channel in self._channels.items():
            for notice, link in some:
                one = notice_channels.Notice(notice.user, notice.level, notice.text, int(notice.at), link)
                try:
                    await notice_channels.send(channel, one)
                except Exception as error:  # noqa: BLE001 - another project's code
                    why = mail.why(error)
                    self._log.warning("A notice for %s could not be sent by %s: %s", notice.user, name, why)

    async def _post(self, notice: SentNotice, link: str) -> None:
        url = await asyncio.to_thread(mail.secret_line, Path(self._settings.webhook_url_file))
        said = {"user": notice.user, "level": notice.level, "text": notice.text, "at": int(notice.at), "link": link}
        body = json.dumps(said)
        headers = {"Content-Type": "application/json"}
        request = HTTPRequest(
            url, method="POST", body=body, headers=headers, request_timeout=10, follow_redirects=False
        )
        await AsyncHTTPClient(force_instance=True).fetch(request)

    def _mail(self, some: Sequence[tuple[SentNotice, str]]) -> list[Exception | None]:
        letters = [(notice.user, f"{notice.text}\n\n{link}\n" if link else notice.text) for notice, link in some]
        return mail.send(self._settings, letters, self._subject)


def address(link: str) -> str:
    """Return a link for who is not on our pages; without its host where the hub was not told its public address."""
    if not link:
        return ""
    if link.startswith(HUB):
        base = os.environ.get("JUPYTERHUB_PUBLIC_HUB_URL") or f"{os.environ.get('JUPYTERHUB_BASE_URL', '/')}hub"
        return f"{base.rstrip('/')}/{link.removeprefix(HUB)}"
    base = os.environ.get("JUPYTERHUB_PUBLIC_URL") or os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "/")
    return f"{base.rstrip('/')}/{link}"
