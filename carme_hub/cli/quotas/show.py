"""``carme-hub quotas show | report``: balances, limits and statements, and the use of a month."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from traitlets import Bool, Enum, Integer, Unicode

from carme_hub.accounting.admission import Limit, QuotaStatus
from carme_hub.cli.base import ConfiguredApp, UsageError, positional_arguments, table
from carme_hub.domain.ledger.entries import Balance, Entry
from carme_hub.domain.quotas.rules import Person
from carme_hub.errors import SlurmError
from carme_hub.services.quotas.application.reports import BY, BadMonth, month_span, report, report_csv, this_month
from carme_hub.store.ledger.report import Sum, used_between
from carme_hub.store.ledger.writes import Filter
from carme_hub.store.threads import in_store_thread

from .ledger_access import LedgerAccess, hours, open_ledger


class ShowApp(ConfiguredApp):
    """Balances of all accounts, or balance, limits and statement of one account or user."""

    name = "carme-hub quotas show"
    description = """Show the balances of all accounts; with --account or --user also the rules that apply, with
    how much of each is used, and the newest lines of the statement."""
    examples = "carme-hub quotas show --user alice"

    user = Unicode("", help="A user: their accounts, rules and statement.").tag(config=True)
    account = Unicode("", help="An account: its rules and statement. With --user, that user within it.").tag(
        config=True
    )
    lines = Integer(20, min=0, max=10_000, help="How many lines of the statement to print.").tag(config=True)
    aliases: Any = {
        **ConfiguredApp.aliases,
        "user": "ShowApp.user",
        "account": "ShowApp.account",
        "lines": "ShowApp.lines",
    }

    async def work(self) -> int:
        """Read, and print."""
        positional_arguments(self)
        async with open_ledger(self) as access:
            if not self.user and not self.account:
                return self._all(access, await access.ledger.balances())
            await access.load_open_jobs(self)
            person = (await access.people()).get(self.user, Person(self.user))
            status = await access.ledger.quota_status(person, await self._accounts(access))
            if not self.user:  # without a user, rules about each user do not apply
                status = replace(status, limits=tuple(one for one in status.limits if one.rule.subject))
            which = Filter(account=self.account, user=self.user)
            lines = await access.ledger.statement(which, most=self.lines) if self.lines else []
            return self._one(access, status, lines)

    async def _accounts(self, access: LedgerAccess) -> Sequence[str]:
        if self.account:
            return [self.account]
        try:
            return sorted({a.account for a in await access.associations(self) if a.user == self.user})
        except SlurmError as error:
            raise UsageError(f"Slurm does not answer which accounts {self.user} has; name one. {error}") from error

    def _all(self, access: LedgerAccess, balances: dict[str, Balance]) -> int:
        if self.as_json:
            self.print_json({"cluster": access.ledger.context.cluster, "accounts": _balances(balances)})
        else:
            print(_table(balances) if balances else "The ledger is empty. Start with: carme-hub quotas grant --help")
        return 0

    def _one(self, access: LedgerAccess, status: QuotaStatus, lines: Sequence[Entry]) -> int:
        if self.as_json:
            rules = [
                {
                    **{"quota": each.rule.quota.id, "subject": each.rule.subject, "soft": each.rule.quota.soft},
                    **{
                        "window": each.rule.quota.window.value,
                        "start": int(each.taken.start),
                        "end": int(each.taken.end),
                    },
                    **{"used": each.taken.used, "held": each.taken.held, "limit": each.limit},
                }
                for each in status.limits
            ]
            entries = [_entry_document(entry) for entry in lines]
            accounts = _balances(status.balances)
            self.print_json({"user": self.user, "accounts": accounts, "limits": rules, "statement": entries})
            return 0
        print(_table(status.balances))
        if status.limits:
            print("\n" + _limits(status.limits))
        if lines:
            print(f"\nnewest first, {access.zone}\n" + _statement(access, lines))
        return 0


class ReportApp(ConfiguredApp):
    """What was used in a month."""

    name = "carme-hub quotas report"
    description = """Show what was used in a month, by account, user, group or GPU type, with its cost where
    CarmeQuotas.price_of_gpu_hour is set. A job across the end of a month counts in each month with its part. Groups are
    today's, from JupyterHub's own database: a user in several groups counts in each, and "no group" stands for users
    in none. The total, with --by group the CSV's last line, counts every job once."""
    examples = "carme-hub quotas report --month 2026-10 --by user --csv > october.csv"

    month = Unicode("", help="The month, such as 2026-10, in the policy's zone. The default is this one.").tag(
        config=True
    )
    by = Enum(
        BY, default_value="account", help="What each line stands for: user, group, account (the default) or gpu."
    ).tag(config=True)
    csv = Bool(False, help="Print CSV.").tag(config=True)
    aliases: Any = {**ConfiguredApp.aliases, "month": "ReportApp.month", "by": "ReportApp.by"}
    flags: Any = {**ConfiguredApp.flags, "csv": ({"ReportApp": {"csv": True}}, "Print CSV.")}

    async def work(self) -> int:
        """Add up, and print."""
        positional_arguments(self)
        async with open_ledger(self) as access:
            month = self.month or this_month(time.time(), access.zone)
            try:
                start, end = month_span(month, access.zone)
            except BadMonth as error:
                raise UsageError(error.message) from error
            people = await self._people(access) if self.by == "group" else {}
            sums = await self.with_progress("adding up", in_store_thread(self._sums, access, start, end))
            price, currency = access.settings.price_of_gpu_hour, access.policy().currency
            found = report(sums, self.by, price, people)
            if self.as_json:
                rows, total = [asdict(row) for row in found.rows], asdict(found.total)
                self.print_json({"month": month, "by": self.by, "currency": currency, "rows": rows, "total": total})
                return 0
            if self.csv:
                print(report_csv(found, currency), end="")
                return 0
            headers = (self.by, "jobs", "used", "refunded", currency if price else "")
            lines = (*found.rows, found.total)
            cells = [(row.name, row.jobs, hours(row.amount), hours(row.refunded), row.cost) for row in lines]
            print(f"{month}, in GPU-hours\n" + table(headers, cells, f"jobs used refunded {currency}"))
            if self.by == "group":
                print("a user in several groups counts in each; the total counts every job once")
        return 0

    @staticmethod
    async def _people(access: LedgerAccess) -> dict[str, Person]:
        """Return the groups of every user; raise ``UsageError`` where JupyterHub's database has no users."""
        people = await access.people()
        if not people:
            raise UsageError(
                "JupyterHub's database is not here or has no users, so the groups are not known. Run this on the hub's "
                "machine, or open Administration, Report, or use REST: GET api/v1/report?by=group"
            )
        return people

    @staticmethod
    def _sums(access: LedgerAccess, start: float, end: float) -> list[Sum]:
        context = access.ledger.context
        with context.store.reading(context.cluster) as reads:
            return used_between(reads, start, end)


def _balances(balances: dict[str, Balance]) -> dict[str, dict[str, int | None]]:
    return {
        name: {"granted": one.granted, "used": one.used, "held": one.held, "left": one.left_of_grants}
        for name, one in sorted(balances.items())
    }


def _table(balances: dict[str, Balance]) -> str:
    rows = []
    for name, one in sorted(balances.items()):
        left = "–" if one.left_of_grants is None else hours(one.left_of_grants)
        rows.append((name, *map(hours, (one.granted, one.used, one.held)), left))
    return table(("account", "granted", "used", "held", "left"), rows, "granted used held left")


def _limits(limits: Sequence[Limit]) -> str:
    rows = []
    for each in limits:
        quota, taken = each.rule.quota, each.taken
        left = hours(max(0, each.limit - taken.used - taken.held))
        window = f"{quota.days} days" if quota.days else quota.window.value
        cells = (quota.id, f"{quota.who.value} {each.rule.subject}", window, hours(taken.used), hours(taken.held))
        rows.append((*cells, hours(each.limit), left, "soft" if quota.soft else ""))
    headers = ("rule", "about", "window", "used", "held", "limit", "left", "")
    return table(headers, rows, "used held limit left")


def _statement(access: LedgerAccess, lines: Sequence[Entry]) -> str:
    headers = ("id", "written", "kind", "account", "user", "GPU-hours", "why", "by")
    rows = [
        (e.id, access.when(e.at), e.kind.value, e.account, e.user, hours(e.amount), e.reason, e.actor) for e in lines
    ]
    return table(headers, rows, "id GPU-hours")


def _entry_document(entry: Entry) -> dict[str, Any]:
    numbers = {"at": int(entry.at), "start": int(entry.start), "end": int(entry.end), "expires": int(entry.expires)}
    same = ("id", "key", "account", "user", "amount", "session", "job_id", "factor", "nodes", "reason", "actor")
    gpus = {each.type: each.count for each in entry.gpus}
    return {"kind": entry.kind.value, **{name: getattr(entry, name) for name in same}, **numbers, "gpus": gpus}
