"""The pages of what accounts had and did not use, by week: for administrators, and for each account's owners."""

from __future__ import annotations

from tornado.web import HTTPError

from carme_hub.services.activity.application import view
from carme_hub.services.activity.application.advice import unused_by_account
from carme_hub.services.activity.pages.base import ActivityPage
from carme_hub.services.activity.scopes import UNUSED

#: Weeks that a page may show, and the number without a choice.
WEEKS, USUAL = (4, 13, 26, 52), 13
NAME = r"([^/]{1,255})"


class UnusedHandler(ActivityPage):
    """Every account that the visitor may see."""

    tab = "unused"

    def weeks(self) -> int:
        """Return the number of weeks that was chosen."""
        chosen = self.number("weeks", USUAL)
        return chosen if chosen in WEEKS else USUAL

    async def get(self) -> None:
        """Show them, those with most unused GPU time first."""
        everybody = self.has_scope(UNUSED)
        if not everybody and not self.owned_accounts:
            raise HTTPError(403, log_message="Administrators see this, and owners of an account in Slurm see theirs.")
        found = await unused_by_account(self.service.finished_jobs, self.weeks(), self.now)
        shown = [each for each in found if everybody or each.account in self.owned_accounts]
        self.show(
            "unused.html",
            heading="What was not used",
            rows=[view.account_row(each) for each in shown],
            weeks=self.weeks(),
            choices=WEEKS,
            no_account=view.NO_ACCOUNT,
        )


class AccountUnusedHandler(UnusedHandler):
    """One account, week by week."""

    async def get(self, account: str) -> None:  # type: ignore[override]
        """Show it."""
        if not self.has_scope(UNUSED) and account not in self.owned_accounts:
            raise HTTPError(404, log_message="There is no such account of yours.")
        found = await unused_by_account(self.service.finished_jobs, self.weeks(), self.now, account)
        if not found:
            raise HTTPError(404, log_message=f"No job of account {account} has ended in these weeks.")
        self.show(
            "unused_account.html",
            heading=f"What account {account} did not use",
            rows=view.week_rows(found[0]),
            weeks=self.weeks(),
            choices=WEEKS,
        )


PAGES: list[tuple[str, type[ActivityPage]]] = [("unused", UnusedHandler), (f"unused/{NAME}", AccountUnusedHandler)]
