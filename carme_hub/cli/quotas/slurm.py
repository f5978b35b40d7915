"""``carme-hub quotas settle | reconcile | anomalies``: the ledger compared with Slurm's accounting."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from traitlets import Bool, Float, Integer, Unicode

from carme_hub.cli.base import YES_FLAG, ConfiguredApp, UsageError, actor, positional_arguments, table
from carme_hub.domain.quotas.durations import read_seconds
from carme_hub.services.quotas.application.settlement import as_note
from carme_hub.store.ledger.writes import Anomaly

from .ledger_access import LedgerAccess, hours, open_ledger

_DAY = 86_400
_LISTS = ("missing", "extra", "changed", "waiting", "decided")
_LIST_TEXTS = {
    "missing": "in Slurm and not charged",
    "extra": "charged and not in Slurm",
    "changed": "charged with another amount",
    "waiting": "waiting for a person (carme-hub quotas anomalies)",
    "decided": "decided by a person",
}


class SettleApp(ConfiguredApp):
    """Charge ended jobs now."""

    name = "carme-hub quotas settle"
    description = """Settle once: charge ended jobs, refund by the policy's rules, release holds, and flag records that
    look wrong. The quotas service does it every minute; both may run at the same time, and nothing is written
    twice."""
    examples = "carme-hub quotas settle --days 35"

    days = Float(0.0, min=0.0, help="How many days to go back. The default is since the last settlement.").tag(
        config=True
    )
    aliases: Any = {**ConfiguredApp.aliases, "days": "SettleApp.days"}

    async def work(self) -> int:
        """Settle, and print what was written."""
        positional_arguments(self)
        async with open_ledger(self) as access:
            loop = access.settlement_loop()
            done = await self.with_progress("settling", loop.settle(days=self.days or None))
            names = ("charged", "refunded", "released", "expired")
            sums = {name: getattr(done, name) for name in names}
            if self.as_json:
                document: dict[str, Any] = {
                    name: {"entries": len(entries), "amount": sum(e.amount for e in entries)}
                    for name, entries in sums.items()
                }
                self.print_json(
                    {**document, "flagged": [_anomaly_document(each) for each in done.flagged], "waiting": done.waiting}
                )
                return 0
            rows = [(name, len(entries), hours(sum(e.amount for e in entries))) for name, entries in sums.items()]
            print(table(("", "entries", "GPU-hours"), rows, "entries GPU-hours"))
            if done.flagged:
                print(f"{len(done.flagged)} new records look wrong: carme-hub quotas anomalies")
            if done.waiting:
                print(f"{len(done.waiting)} jobs follow with the next run: how their session ended is not known yet")
        return 0


class ReconcileApp(ConfiguredApp):
    """Compare the ledger with Slurm's accounting."""

    name = "carme-hub quotas reconcile"
    description = """Compare the ledger's charges with every incarnation of a job that ended in the last days (sacct
    -D), in GPU-seconds; nothing is charged, the result is kept for the administrator's page. Exits with 0 when they
    agree, with 1 when they differ: then run `carme-hub quotas settle --days N`, and compare again."""
    examples = "carme-hub quotas reconcile --days 35"

    days = Float(0.0, min=0.0, help="How many days back. The default is CarmeQuotas.full_days.").tag(config=True)
    lag = Integer(
        600, min=0, help="Jobs that ended in these last seconds are left out: accounting may not have them yet."
    ).tag(config=True)
    aliases: Any = {**ConfiguredApp.aliases, "days": "ReconcileApp.days", "lag": "ReconcileApp.lag"}

    async def work(self) -> int:
        """Compare, and print where they differ."""
        positional_arguments(self)
        async with open_ledger(self) as access:
            days = self.days or access.settings.full_days
            end = time.time() - self.lag
            loop = access.settlement_loop()
            found = await self.with_progress("comparing", loop.reconcile(end - days * _DAY, end, actor=actor()))
            differ = found.difference or found.missing or found.extra or found.changed
            if self.as_json:
                self.print_json(as_note(found))
                return 1 if differ else 0
            print(f"from {access.when(found.start)} to {access.when(found.end)} ({access.zone}), in GPU-seconds")
            rows = [(found.jobs, found.slurm, found.ledger, found.difference)]
            print(table(("jobs", "Slurm", "ledger", "difference"), rows, "jobs Slurm ledger difference"))
            for name in _LISTS:
                keys: Sequence[str] = getattr(found, name)
                if keys:
                    more = f"\n  and {len(keys) - 20} more" if len(keys) > 20 else ""
                    print(f"{len(keys)} {_LIST_TEXTS[name]}:\n  " + "\n  ".join(keys[:20]) + more)
        return 1 if differ else 0


class AnomaliesApp(ConfiguredApp):
    """Accounting records that look wrong and wait for a person."""

    name = "carme-hub quotas anomalies"
    description = """List the records of Slurm's accounting that look wrong and so were not charged, or decide one of
    them: --decide ID with --charge TIME (the time for which its GPUs are charged in all) or --nothing (earlier charges,
    if any, stay), and --reason. A decision is final. Listing exits with 1 while something waits."""
    examples = """carme-hub quotas anomalies
    carme-hub quotas anomalies --decide 7 --charge "2h 5min" --reason "the node's clock stepped" """

    decided = Bool(False, help="List those that are decided.").tag(config=True)
    decide = Integer(0, min=0, help="The number of the anomaly to decide on.").tag(config=True)
    charge = Unicode("", help="Charge its GPUs for this time, such as 2h or 90min.").tag(config=True)
    nothing = Bool(False, help="Charge nothing.").tag(config=True)
    reason = Unicode("", help="Why; the statement shows it. Required for a decision.").tag(config=True)
    aliases: Any = {
        **ConfiguredApp.aliases,
        **{name: f"AnomaliesApp.{name}" for name in ("decide", "charge", "reason")},
    }
    flags: Any = {
        **ConfiguredApp.flags,
        **YES_FLAG,
        "decided": ({"AnomaliesApp": {"decided": True}}, "List those that are decided."),
        "nothing": ({"AnomaliesApp": {"nothing": True}}, "Charge nothing."),
    }

    async def work(self) -> int:
        """List, or decide."""
        positional_arguments(self)
        async with open_ledger(self) as access:
            if self.decide:
                return await self._decide(access)
            if self.charge or self.nothing:
                raise UsageError("name the anomaly with --decide ID")
            found = await access.ledger.anomalies(settled=self.decided)
            if self.as_json:
                self.print_json({"anomalies": [_anomaly_document(each) for each in found]})
            elif found:
                print(_table(access, found))
            else:
                print("None is decided yet." if self.decided else "No anomaly waits for a person.")
            return 1 if found and not self.decided else 0

    async def _decide(self, access: LedgerAccess) -> int:
        seconds = self._seconds()
        if not self.reason.strip():
            raise UsageError("give a reason with --reason")
        what = "nothing" if seconds is None else f"{seconds} s"
        self.confirm(f"Charge {what} for anomaly {self.decide}? This is final.")
        entry = await access.ledger.decide_anomaly(
            self.decide, actor=actor(), decision=self.reason.strip(), seconds=seconds
        )
        if self.as_json:
            self.print_json({"key": entry.key, "amount": entry.amount} if entry else {"key": "", "amount": 0})
        elif entry is None:
            print("nothing was charged")
        else:
            print(f"wrote {hours(entry.amount)} GPU-hours for {entry.user} in {entry.account} ({entry.kind.value})")
        return 0

    def _seconds(self) -> int | None:
        if bool(self.charge) == self.nothing:
            raise UsageError("give either --charge TIME or --nothing")
        if self.nothing:
            return None
        seconds = read_seconds(self.charge)
        if seconds is None or seconds.denominator != 1:
            raise UsageError(f'{self.charge!r} is not a time in whole seconds; write "2h 5min" or "7500s"')
        return int(seconds)


def _table(access: LedgerAccess, found: Sequence[Anomaly]) -> str:
    rows = []
    for each in found:
        seen = each.seen
        ran = f"{access.when(seen.get('start', 0))} to {access.when(seen.get('end', 0))}"
        decision = f"{each.settled_by}: {each.decision}" if each.settled else "-"
        job = seen.get("job", each.job_id or "-")
        rows.append((each.id, each.kind, job, each.user, each.account, seen.get("gpus", ""), ran, decision))
    return table(("id", "what", "job", "user", "account", "GPUs", f"ran ({access.zone})", "decided"), rows, "id")


def _anomaly_document(each: Anomaly) -> dict[str, Any]:
    same = ("id", "key", "kind", "job_id", "account", "user", "settled_by", "decision")
    at = {"found": int(each.found), "settled": int(each.settled)}
    return {**{name: getattr(each, name) for name in same}, **at, "seen": dict(each.seen)}
