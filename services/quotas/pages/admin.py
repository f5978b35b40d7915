"""Administration pages: all accounts, anomalies that wait for a decision, and the reconciliation with Slurm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from carme_hub.accounting.anomalies import detection
from carme_hub.domain import wording
from carme_hub.domain.ledger.entries import Balance
from carme_hub.domain.quotas.rules import DAY
from carme_hub.services.quotas.application import view
from carme_hub.services.quotas.application.settlement import RECONCILED
from carme_hub.services.quotas.pages.base import BadForm, PageHandler
from carme_hub.services.quotas.scopes import GRANT, POLICY, READ_ALL
from carme_hub.store.ledger.writes import Anomaly, LedgerReads

_COLUMNS: dict[str, tuple[str, Callable[[str, Balance], Any]]] = {
    "account": ("Account", lambda name, _balance: name),
    "granted": ("Granted", lambda _name, balance: -balance.granted),
    "used": ("Used", lambda _name, balance: -balance.used),
    "held": ("Held", lambda _name, balance: -balance.held),
    "left": ("Left", lambda _name, balance: balance.left),
}
MAX_ACCOUNTS = 500
#: Open and decided anomalies on one page.
MAX_OPEN, MAX_DECIDED = 50, 20
_KINDS = {
    detection.NEGATIVE: "The end lies before the start: a clock stepped back.",
    detection.LONG: "It ran longer than its time limit allows, or ends in the future: a clock may have stepped.",
    detection.RUNAWAY: "Accounting says that it runs, but the controller knows no such job.",
    detection.REUSED: "Two records of one job id overlap in time.",
    detection.MISSING: "A session ran, and accounting has no record of its job.",
    detection.CHANGED: "Slurm’s record differs from what was charged for it.",
}
_LABELS = {
    **{"job": "Job", "name": "Name", "state": "State", "start": "From", "end": "To", "time_limit": "Time limit"},
    **{"gpus": "GPUs", "nodes": "Nodes", "partition": "Partition", "qos": "QOS", "held_from": "Held from"},
}


class AdminHandler(PageHandler):
    """A page of the administration."""

    tab = "administration"
    scopes: tuple[str, ...] = (READ_ALL, GRANT, POLICY)


class AllAccountsHandler(AdminHandler):
    """Every account and its balance."""

    async def get(self) -> None:
        """Show the accounts that match the search, sorted."""
        await self.service.associations.refresh()
        balances: dict[str, Balance] = dict.fromkeys(self.service.associations.accounts(), Balance())
        balances |= await self.service.ledger.balances()
        search = self.get_query_argument("q", "").strip()[:64]
        sort = self.get_query_argument("sort", "account")
        sort = sort if sort in _COLUMNS else "account"
        order = _COLUMNS[sort][1]
        found = [(name, each) for name, each in balances.items() if search.casefold() in name.casefold()]
        found.sort(key=lambda item: (order(*item), item[0]))
        self.show(
            "all_accounts.html",
            heading="All accounts",
            search=search,
            sort=sort,
            columns=[
                {"name": label, "sort": key, "href": f"?{urlencode({'q': search, 'sort': key})}"}
                for key, (label, _order) in _COLUMNS.items()
            ],
            accounts=[
                {
                    "name": name,
                    "granted": view.hours(each.granted),
                    "used": view.hours(each.used),
                    "held": view.hours(each.held),
                    "left": view.hours(each.left) if each.granted else "–",
                    "over": each.granted > 0 and each.left <= 0,
                }
                for name, each in found[:MAX_ACCOUNTS]
            ],
            count=len(found),
            total=len(balances),
        )


# -- anomalies --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnomalyRow:
    """An anomaly as the page shows it. ``seconds``: how long it ran according to Slurm, 0 if that is not plausible."""

    id: int
    title: str
    why: str
    found: str
    account: str
    user: str
    facts: tuple[tuple[str, str], ...]
    seconds: int
    length: str
    chargeable: bool
    decision: str


def shown(found: Anomaly, zone: str) -> AnomalyRow:
    """Return an anomaly as the page shows it."""
    seen: Mapping[str, Any] = found.seen
    seconds = max(0, int(seen.get("end") or 0) - int(seen.get("start") or 0)) if seen.get("end") else 0
    what = f"Job {seen.get('job') or found.job_id}" if found.job_id else "A session"
    settled = f"{found.settled_by}, {view.clock(found.settled, zone)}: {found.decision}" if found.settled else ""
    return AnomalyRow(
        found.id,
        f"{what}: {found.kind.replace('-', ' ')}",
        _KINDS.get(found.kind, ""),
        view.clock(found.found, zone),
        found.account,
        found.user,
        tuple(_seen(seen, zone)),
        seconds,
        wording.duration(seconds),
        bool(found.submitted),
        settled,
    )


def _seen(seen: Mapping[str, Any], zone: str) -> Any:
    for key, label in _LABELS.items():
        value = seen.get(key)
        if not value:
            continue
        if key in ("start", "end", "held_from"):
            value = view.clock(float(value), zone, seconds=True)
        elif key == "time_limit":
            value = wording.duration(int(value))
        yield label, str(value)
    charged = seen.get("charged")
    if charged:
        words = (
            view.clock(charged["start"], zone, seconds=True),
            view.clock(charged["end"], zone, seconds=True),
        )
        yield (
            "Charged before",
            f"{charged['gpus']}, {words[0]} to {words[1]}, {view.hours(-charged['amount'])}",
        )


class AnomaliesHandler(AdminHandler):
    """The records that are not charged because they look wrong."""

    async def get(self) -> None:
        """Show a page of open anomalies, the oldest first, and one of decided anomalies, the newest first."""
        after, before = self.number("after"), self.number("before")

        def ask(reads: LedgerReads) -> tuple[int, list[Anomaly], list[Anomaly]]:
            # If all of a page were decided in the meantime, the oldest open ones are shown.
            waiting = reads.anomalies_waiting(after, MAX_OPEN + 1) or reads.anomalies_waiting(0, MAX_OPEN + 1)
            return reads.count_waiting(), waiting, reads.anomalies(settled=True, before=before, most=MAX_DECIDED + 1)

        count, waiting, decided = await self.read(ask)
        self.show(
            "anomalies.html",
            heading="Anomalies",
            count=count,
            waiting=[shown(each, self.zone) for each in waiting[:MAX_OPEN]],
            after=after,
            newer=waiting[MAX_OPEN - 1].id if len(waiting) > MAX_OPEN else 0,
            decided=[shown(each, self.zone) for each in decided[:MAX_DECIDED]],
            before=before,
            older=decided[MAX_DECIDED - 1].id if len(decided) > MAX_DECIDED else 0,
        )


class AnomalyDecisionHandler(AdminHandler):
    """The form that settles an anomaly."""

    write_scopes = (GRANT,)

    async def post(self, id: str) -> None:
        """Ask once more, then decide."""
        decision, reason = (
            self.text("decision", "The decision", max_length=20),
            self.text("reason", "The reason", max_length=300),
        )
        found = await self.read(lambda reads: reads.anomaly(int(id)))
        if found is None or found.settled:
            raise BadForm("Somebody has decided on this already. Open the list again.")
        row = shown(found, self.zone)
        match decision:
            case "charge":
                seconds: int | None = row.seconds
                if not row.chargeable or not seconds:
                    raise BadForm("Slurm's record has no plausible time. Say how long to charge, or charge nothing.")
            case "charge-seconds":
                said = self.text("minutes", "The number of minutes", max_length=9)
                if not said.isascii() or not said.isdigit():
                    raise BadForm("Give the minutes as a whole number.")
                seconds = int(said) * 60
            case "ignore":
                seconds = None
            case _:
                raise BadForm("Choose what to charge.")
        if not self.confirmed:
            what = "Nothing is charged." if seconds is None else f"{wording.duration(seconds)} of its GPUs are charged."
            points = [f"{row.title}, {found.user or 'nobody'} in account {found.account or '–'}.", what]
            points += [f"Reason: {reason}", "This cannot be decided a second time."]
            self.confirm("Settle this anomaly?", points, "Settle it", back="administration/anomalies")
            return
        await self.service.ledger.decide_anomaly(int(id), actor=self.visitor.name, decision=reason, seconds=seconds)
        self.log_write("settled anomaly %s (%s): %s", id, decision, reason)
        self.done(f"Settled: {row.title}.", "administration/anomalies")


# -- health -----------------------------------------------------------------------------------------------------------


class HealthHandler(AdminHandler):
    """The state of the settlement, and of the reconciliation with Slurm."""

    async def get(self) -> None:
        """Show the last settlement and the last reconciliation."""
        service, now, zone = self.service, self.now, self.zone
        at, note = await service.ledger.last_settled(), await service.ledger.note(RECONCILED)
        fresh = service.settings.fresh_for
        self.show(
            "health.html",
            heading="Settling",
            problem=service.settlement.problem,
            settled=view.clock(at, zone, seconds=True) if at else "",
            age=f"{wording.duration(max(1, int(now - at)))} ago" if at else "",
            old=not at or now - at > fresh,
            fresh=wording.duration(int(fresh)),
            closed=service.settings.when_service_down == "closed",
            interval=wording.duration(int(service.settings.interval)),
            running=len(service.settlement.running),
            waiting=await self.read(lambda reads: reads.count_waiting()),
            policy_problem=service.policy.problem,
            reconciled=comparison(note.value, note.at, zone) if note else None,
            days=service.settings.full_days,
        )


def comparison(value: Mapping[str, Any], at: float, zone: str) -> dict[str, Any]:
    """Return a reconciliation as the page shows it; its sums are GPU-seconds without prices."""
    lists = ("missing", "extra", "changed", "waiting", "decided")
    counts = value.get("counts") or {name: len(value.get(name, ())) for name in lists}
    return {
        "at": view.clock(at, zone, seconds=True),
        "span": f"{view.clock(value['start'], zone)} to {view.clock(value['end'], zone)}",
        "jobs": value["jobs"],
        "ledger": f"{value['ledger']:,}",
        "slurm": f"{value['slurm']:,}",
        "difference": value["difference"],
        "difference_words": f"{value['difference']:+,}",
        "lists": [(name, counts.get(name, 0), value.get(name, ())) for name in lists if counts.get(name)],
    }


class ReconcileHandler(AdminHandler):
    """The form that starts a reconciliation."""

    write_scopes = (GRANT,)

    async def post(self) -> None:
        """Settle, reconcile, and show the result."""
        said = self.text("days", "The number of days", max_length=4)
        if not said.isascii() or not said.isdigit() or not 1 <= int(said) <= 400:
            raise BadForm("Compare from 1 to 400 days.")
        await self.service.settlement.settle(days=int(said))
        end = self.now
        found = await self.service.settlement.reconcile(end - int(said) * DAY, end, actor=self.visitor.actor)
        self.log_write("reconciled %s days: the difference is %s GPU-seconds", said, found.difference)
        same = "The ledger and Slurm agree to the second."
        words = same if not found.difference else f"They differ by {found.difference:,} GPU-seconds."
        jobs = f"{found.jobs} job{'' if found.jobs == 1 else 's'} compared."
        self.done(f"{jobs} {words}", "administration/health", "success" if not found.difference else "danger")


PAGES: list[tuple[str, type[PageHandler]]] = [
    ("administration", AllAccountsHandler),
    ("administration/anomalies", AnomaliesHandler),
    (r"administration/anomalies/([0-9]{1,18})", AnomalyDecisionHandler),
    ("administration/health", HealthHandler),
    ("administration/reconcile", ReconcileHandler),
]
