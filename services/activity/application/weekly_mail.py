"""The weekly mail: what to ask for next time, to people who had jobs that could have asked for less.

It goes out from Monday 7:00 (the service's own time) on, about the seven days before, once a week to each user: that is
stored before it is sent, so a restart repeats none. Each mail has a link that ends them, and the headers by which mail
programs offer that as a button (RFC 2369, RFC 8058). Without an address of the hub that a mail can name
(``JupyterHub.public_url``) there is no such link, and no mail.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlencode

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.activity.tokens import MailTokens
from carme_hub.domain.activity.finished import WEEK, week_of
from carme_hub.errors import CarmeError
from carme_hub.services import mail
from carme_hub.services.activity.application.advice import Advised, advised, newest_of_each_kind
from carme_hub.store.finished_jobs import FinishedJobStore
from carme_hub.store.threads import in_store_thread

#: Seconds between two looks at the clock; hour of the day from which on mails go out; kinds of jobs in one mail.
EVERY, HOUR, MOST_KINDS = 900.0, 7, 8
SUBJECT = "What your jobs used last week"
#: The service's own address as browsers reach it, from JupyterHub; unset without ``JupyterHub.public_url``.
PUBLIC_URL = "JUPYTERHUB_PUBLIC_URL"


class WeeklyMail:
    """Sends the mail of each week."""

    def __init__(
        self,
        settings: CarmeQuotas,
        store: FinishedJobStore,
        tokens: MailTokens,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._store, self._tokens = settings, store, tokens
        self._log, self._clock = log, clock
        #: The week whose mails this process has sent, all of them.
        self._sent = 0

    @property
    def problem(self) -> str:
        """Why no mail goes out; "" = it does."""
        if not mail.can_mail(self._settings):
            return "CarmeQuotas.smtp_host and mail_domain are not set"
        if not public_url():
            return "JupyterHub.public_url is not set, and a mail needs the link that ends it"
        return ""

    async def run(self) -> None:
        """Send the mails of each week, for ever."""
        if self.problem:
            self._log.warning("The weekly mail is not sent: %s", self.problem)
            return
        while True:
            try:
                now = self._clock()
                if is_time(now) and self._sent != week_of(now):
                    await self.send()
                    self._sent = week_of(now)
            except CarmeError as error:
                self._log.warning("The weekly mail is not sent now, and will be later: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is, the next look does not depend on it
                self._log.exception("The weekly mail is not sent now, and will be later")
            await asyncio.sleep(EVERY)

    async def send(self) -> int:
        """Send the mails of the last seven days to those who have none of this week yet; return how many.

        Raises:
            StoreError: the database fails; those that were sent stay sent.
        """
        now = self._clock()
        week, since = week_of(now), now - WEEK
        count = 0
        for user in await in_store_thread(self._store.users_since, since):
            found = newest_of_each_kind(await advised(self._store, user, since))
            if not found or not await in_store_thread(self._store.claim_mail, user, week):
                continue
            link = unsubscribe_link(self._tokens, user)
            text = letter(user, found, f"{public_url()}", link)
            headers = {"List-Unsubscribe": f"<{link}>", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}
            failure = await self._mail(user, text, headers)
            if failure is not None:
                self._log.warning("The weekly mail for %s could not be sent: %s", user, mail.describe(failure))
            count += failure is None
        if count:
            self._log.info("The weekly mail was sent to %s users", count)
        return count

    async def _mail(self, user: str, text: str, headers: Mapping[str, str]) -> Exception | None:
        try:
            [failure] = await asyncio.to_thread(mail.send, self._settings, [(user, text)], SUBJECT, {user: headers})
        except Exception as error:  # noqa: BLE001 - a mail server can fail in any way; nothing depends on it
            return error
        return failure


def is_time(now: float) -> bool:
    """Return whether mails of this week may go out: from Monday morning on."""
    local = time.localtime(now)
    return local.tm_wday > 0 or local.tm_hour >= HOUR


def public_url() -> str:
    """Return the service's address for mails, with a slash at its end; "" = none is known."""
    address = os.environ.get(PUBLIC_URL, "")
    return address.rstrip("/") + "/" if address else ""


def unsubscribe_link(tokens: MailTokens, user: str, base: str | None = None) -> str:
    """Return the link of a user to the page that ends the mail.

    Args:
        base: the service's address, None = the public one.
    """
    query = urlencode({"user": user, "token": tokens.token(user)})
    return f"{public_url() if base is None else base}mail?{query}"


def letter(user: str, found: Iterable[tuple[Advised, int]], jobs_link: str, unsubscribe: str) -> str:
    """Return the text of a mail."""
    some = list(found)
    lines = [f"Hello {user},", "", "some of your jobs of the last week could ask for less next time:"]
    for each, count in some[:MOST_KINDS]:
        lines += ["", f"* {describe(each, count)}", f"  {each.said.line}", f"  {each.said.suggestion}"]
    if some[MOST_KINDS:]:
        lines += ["", f"And {len(some[MOST_KINDS:])} more kinds of jobs."]
    lines += ["", f"All your jobs: {jobs_link}", "", f"To end this weekly mail: {unsubscribe}"]
    return "\n".join(lines) + "\n"


def describe(each: Advised, count: int) -> str:
    """Return which jobs an entry is about."""
    job = each.job
    what = f"image {job.image}" if job.image else f"job {job.name}"
    where = f" in {job.folder}" if job.folder else (" in your home" if job.image else "")
    return f"{what}{where}, {'once' if count == 1 else f'{count} times'}"
