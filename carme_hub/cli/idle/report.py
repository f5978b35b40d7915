"""``carme-hub idle report``: what rules on idle sessions have given back, by month."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from traitlets import Integer

from carme_hub.activity.idle.report import IdleReport, idle_report
from carme_hub.cli.base import ConfiguredApp, positional_arguments, table
from carme_hub.cli.quotas.ledger_access import hours, open_ledger, read_time
from carme_hub.store.idle import IdleStore
from carme_hub.store.threads import in_store_thread


class ReportApp(ConfiguredApp):
    """What rules on idle sessions have given back."""

    name = "carme-hub idle report"
    description = """Show by month how many sessions were ended because they were idle, how much GPU time that gave back
    (their GPUs for the rest of their time limit: at most that, since a user might have stopped one earlier), how many
    of those users started another session with GPUs within ten minutes (false alarms), how many sessions were warned,
    and how often somebody said to be still there."""
    examples = "carme-hub idle report --months 6 --json"

    months = Integer(12, min=1, max=120, help="How many months, this one included.").tag(config=True)
    aliases: Any = {**ConfiguredApp.aliases, "months": "ReportApp.months"}

    async def work(self) -> int:
        """Add up, and print."""
        positional_arguments(self)
        async with open_ledger(self) as access:
            since = read_time(_first_day(time.time(), access.zone, self.months), access.zone)
            cluster = access.slurm.cluster
            parts = IdleStore(access.engine, cluster), access.sessions, cluster, access.zone, since, time.time()
            return self._print(await self.with_progress("adding up", in_store_thread(idle_report, *parts)))

    def _print(self, found: IdleReport) -> int:
        if self.as_json:
            ends = [
                {
                    **{"session": each.session.id, "user": each.session.user, "at": int(each.at)},
                    **{"given_back": each.gpu_seconds, "started_again": int(each.again)},
                }
                for each in found.ends
            ]
            self.print_json({"months": [asdict(month) for month in found.months], "ends": ends})
            return 0
        rows = [
            (one.month, one.ended, hours(1000 * one.gpu_seconds), one.false_alarms, one.warned, one.kept)
            for one in found.months
        ]
        headers = ("month", "ended", "GPU-hours given back", "false alarms", "warned", "still here")
        print(
            table(headers, rows, "ended GPU-hours_given_back false_alarms warned still_here")
            if rows
            else "No session was idle for as long as a rule says."
        )
        return 0


def _first_day(now: float, zone: str, months: int) -> str:
    today = datetime.fromtimestamp(now, UTC).astimezone(ZoneInfo(zone))
    number = today.year * 12 + today.month - months
    return f"{number // 12:04}-{number % 12 + 1:02}-01"
