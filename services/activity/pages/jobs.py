"""The page of a user's jobs that have ended: what each asked for and used, and what to ask for next time."""

from __future__ import annotations

from carme_hub.services.activity.application import view
from carme_hub.services.activity.application.advice import DAY, advised
from carme_hub.services.activity.application.weekly_mail import unsubscribe_link
from carme_hub.services.activity.pages.base import ActivityPage
from carme_hub.store.threads import in_store_thread

#: Days that the page shows, and jobs at most.
DAYS, MOST = 30, 200


class JobsHandler(ActivityPage):
    """The visitor's own jobs."""

    async def get(self) -> None:
        """Show them, the newest first."""
        me, store = self.visitor.name, self.service.finished_jobs
        found = await advised(store, me, self.now - DAYS * DAY)
        self.show(
            "jobs.html",
            heading="My jobs that have ended",
            rows=[view.job_row(each) for each in found[:MOST]],
            more=max(0, len(found) - MOST),
            days=DAYS,
            mails=self.service.settings.weekly_mail,
            wants_mail=await in_store_thread(store.wants_mail, me),
            mail_link=unsubscribe_link(self.service.mail_tokens, me, self.service.prefix),
        )


PAGES: list[tuple[str, type[ActivityPage]]] = [("", JobsHandler)]
