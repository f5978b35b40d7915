"""The page that ends the weekly mail of a user, or has it sent again. Whoever has the link of a mail needs no login.

GET asks and changes nothing: mail scanners open links. A POST without a form's field is the one that mail programs send
for their button (RFC 8058).
"""

from __future__ import annotations

import time

from tornado.web import HTTPError

from carme_hub.services.handlers import Handler
from carme_hub.store.threads import in_store_thread


class MailHandler(Handler):
    """Whether one user gets the weekly mail. The token of the link fits that user, and does nothing else."""

    def check_xsrf_cookie(self) -> None:
        """Skip the XSRF check, since cookies do not count here: a mail program has none."""

    async def authenticate(self) -> None:
        """Skip the login: only the link's token counts."""
        self.current_user = None

    async def get(self) -> None:
        """Ask."""
        user = self._user()
        wanted = await in_store_thread(self.service.finished_jobs.wants_mail, user)
        self._show(user, "End the weekly mail?" if wanted else "Get the weekly mail again?", wanted=wanted)

    async def post(self) -> None:
        """End it, or have it sent again."""
        user, wanted = self._user(), self.get_body_argument("wanted", "no") == "yes"
        store = self.service.finished_jobs
        await in_store_thread(lambda: store.set_mail(user, wanted=wanted, now=time.time()))
        self.service.log.info("The weekly mail of %s is %s", user, "wanted again" if wanted else "ended by its link")
        done = "You get the weekly mail again." if wanted else "You get no weekly mail any more."
        self._show(user, done, wanted=wanted, done=True)

    def _user(self) -> str:
        user, token = self.get_query_argument("user", ""), self.get_query_argument("token", "")
        if not user or not self.service.mail_tokens.fits(user, token):
            raise HTTPError(403, log_message="This link is not complete, or is not from a mail of this hub.")
        return user

    def _show(self, user: str, heading: str, *, wanted: bool, done: bool = False) -> None:
        page = self.page(
            "activity/mail.html", heading=heading, wanted=wanted, done=done, of=user, action=self.request.uri
        )
        self.finish(page)


PAGES: list[tuple[str, type[Handler]]] = [("mail", MailHandler)]
