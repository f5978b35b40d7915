"""The report of a month: use by user, hub group, account or GPU type, with its cost, as a page and as CSV."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from tornado.web import HTTPError

from carme_hub.activity.idle.report import idle_report
from carme_hub.domain import wording
from carme_hub.domain.activity.given_back import Month
from carme_hub.services.hub_users import HUB_SILENT, PAGE_MAX_AGE
from carme_hub.services.quotas.application import reports, view
from carme_hub.services.quotas.pages.admin import AdminHandler
from carme_hub.services.quotas.pages.mine import send_csv
from carme_hub.services.quotas.scopes import READ_ALL
from carme_hub.store.ledger.report import used_between
from carme_hub.store.threads import in_store_thread

_BY = {"account": "Account", "group": "Group", "user": "User", "gpu": "GPU type"}
#: Months in the list; the query of the URL can name older ones.
MONTHS = 24


def months(now: float, zone: str, count: int = MONTHS) -> list[tuple[str, str]]:
    """Return ("2026-11", "November 2026") for this month and those before it."""
    today = datetime.fromtimestamp(now, ZoneInfo(zone))
    numbers = [today.year * 12 + today.month - 1 - back for back in range(count)]
    return [(f"{number // 12}-{number % 12 + 1:02}", month_name(number // 12, number % 12 + 1)) for number in numbers]


def month_name(year: int, month: int) -> str:
    """Return "November 2026"."""
    return wording.day(datetime(year, month, 1)).split(" ", 1)[1]  # noqa: DTZ001


class ReportHandler(AdminHandler):
    """The report as a page."""

    scopes = (READ_ALL,)

    async def _report(self) -> tuple[str, reports.Report | None]:
        """Return the month and its report; no report by group before the hub has answered."""
        month = self.get_query_argument("month", "") or reports.this_month(self.now, self.zone)
        start, end = reports.month_span(month, self.zone)
        hub_users = self.service.hub_users
        if self.by == "group":
            await hub_users.refresh(PAGE_MAX_AGE)
            if not hub_users.people:
                return month, None
        sums = await self.read(lambda reads: used_between(reads, start, end))
        return month, reports.report(sums, self.by, self.service.settings.price_of_gpu_hour, hub_users.people)

    async def _idle(self, month: str) -> str:
        """Return what rules on idle sessions did in the month; "" where they did nothing."""
        service, span = self.service, reports.month_span(month, self.zone)
        parts = service.idle_events, service.sessions, service.ledger.context.cluster, self.zone, *span
        found = await in_store_thread(idle_report, *parts)
        return idle_sentence(found.months[0]) if found.months else ""

    @property
    def by(self) -> str:
        """The column by which the report is grouped."""
        by = self.get_query_argument("by", "account")
        return by if by in _BY else "account"

    async def get(self) -> None:
        """Show the report."""
        month, found = await self._report()
        known = months(self.now, self.zone)
        name = month_name(int(month[:4]), int(month[5:]))
        self.show(
            "report.html",
            heading=f"Report of {name}",
            month=month,
            by=self.by,
            months=known if (month, name) in known else [(month, name), *known],
            kinds=list(_BY.items()),
            column=_BY[self.by],
            silent="" if found else HUB_SILENT,
            rows=[self._shown(row) for row in found.rows] if found else [],
            total=self._shown(found.total) if found else None,
            no_group=reports.NO_GROUP,
            money=bool(self.service.settings.price_of_gpu_hour),
            currency=self.service.ledger.context.policy().currency,
            zone=self.zone,
            idle=await self._idle(month),
        )

    @staticmethod
    def _shown(row: reports.Row) -> dict[str, object]:
        used, refunded = view.hours(row.amount), view.hours(row.refunded)
        return {"name": row.name, "jobs": row.jobs, "used": used, "refunded": refunded, "cost": row.cost}


def idle_sentence(month: Month) -> str:
    """Return what rules on idle sessions did in a month."""
    hours = wording.gpu_hours(1000 * month.gpu_seconds)
    return (
        f"Warned: {month.warned}. Clicks on “still here”: {month.kept}. Ended: {month.ended}, which gave back at most "
        f"{hours}. Started again within ten minutes (false alarms): {month.false_alarms}."
    )


class ReportFileHandler(ReportHandler):
    """The report as CSV."""

    async def get(self) -> None:
        """Send the file."""
        month, found = await self._report()
        if found is None:
            raise HTTPError(503, log_message=HUB_SILENT)
        currency = self.service.ledger.context.policy().currency
        send_csv(self, f"gpu-time-{month}-{found.by}.csv", reports.report_csv(found, currency))


PAGES: list[tuple[str, type[AdminHandler]]] = [
    ("administration/report", ReportHandler),
    (r"administration/report\.csv", ReportFileHandler),
]
