"""``carme-hub slo``: what became of the starts and sessions of a month."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

from traitlets import Unicode

from carme_hub.domain.sessions.service_levels import ServiceLevels, service_levels
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import StoreError
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.backup import database_file
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

from .base import ConfiguredApp, UsageError, positional_arguments, table


class SloApp(ConfiguredApp):
    """Show what became of the starts and sessions of a month."""

    name = "carme-hub slo"
    description = """Show how many starts of a month were served, how long that took, and how many sessions were lost,
    from Carme Hub's own database. A start that the policy or the form refused has no row, and is not among them; the
    time to the lab is from the click to the server's callback, with Slurm's queue in it. Companions and batch jobs have
    no server, and do not count. Run it on the hub's machine as the hub's user or as root. Nothing is changed. Exit
    status: 0 no session was lost, 1 some were, 2 the command could not run."""
    examples = "carme-hub slo --month 2026-11 --json"

    month = Unicode("", help="The month, as 2026-11, in this machine's time zone. The default is this one.").tag(
        config=True
    )
    aliases: Any = {**ConfiguredApp.aliases, "month": "SloApp.month"}

    async def work(self) -> int:
        """Add up, and print."""
        positional_arguments(self)
        since, until, name = month_of(self.month, time.time())
        config = self.configuration()
        store = CarmeStore(config=config)
        store.upgrade = False
        file = database_file(store.url)
        if file is not None and not file.is_file():
            raise StoreError(f"There is no database {file} yet: the hub makes it at its first start.")
        engine = store.open()
        try:
            rows, cluster = SessionStore(engine), CarmeSlurm(config=config).cluster
            found = await self.with_progress("adding up", in_store_thread(_levels, rows, cluster, since, until))
        finally:
            engine.dispose()
        if self.as_json:
            self.print_json(as_json(found, name))
        else:
            print(as_text(found, name))
        return 1 if found.lost else 0


def _levels(rows: SessionStore, cluster: str, since: float, until: float) -> ServiceLevels:
    begun, ran = rows.created_between(cluster, since, until), rows.ran_between(cluster, since, until)
    return service_levels(begun, ran, since, until)


def month_of(text: str, now: float) -> tuple[float, float, str]:
    """Return the beginning and the end of a month (epoch seconds), and its name; "" = the month of ``now``.

    Raises:
        UsageError: it is no month, or has not begun.
    """
    try:
        if text and not re.fullmatch(r"[0-9]{4}-[0-9]{2}", text):
            raise ValueError(text)  # fromisoformat reads 2026-11-15-01 as an hour of a day
        first = datetime.fromisoformat(f"{text}-01" if text else f"{datetime.fromtimestamp(now):%Y-%m}-01")  # noqa: DTZ006
        after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        first.timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--month is {text!r}: write it as 2026-11") from error
    if first.timestamp() > now:
        raise UsageError(f"--month is {text!r}, which has not begun")
    return first.timestamp(), after.timestamp(), f"{first:%Y-%m}"


def as_json(found: ServiceLevels, month: str) -> dict[str, Any]:
    """Return the numbers as JSON."""
    return {
        "month": month,
        "starts": found.starts,
        "served": found.served,
        "given_up": found.given_up,
        "failed": found.failed,
        "open": found.open,
        "served_percent": found.served_share,
        "time_to_lab_seconds": {"median": found.median, "p95": found.p95},
        "ended": {cause.value: count for cause, count in found.ends.items()},
        "lost": [
            {"session": each.id, "user": each.user, "ended": int(each.ended), "reason": each.end_reason}
            for each in found.lost
        ],
    }


def as_text(found: ServiceLevels, month: str) -> str:
    """Return the numbers as text."""
    rows = [
        ("month", month),
        ("starts", found.starts),
        ("served", f"{found.served}{_percent(found.served_share)}"),
        ("stopped while they waited", found.given_up),
        ("failed", found.failed),
        ("not over yet", found.open),
        ("time to the lab, median", _seconds(found.median)),
        ("time to the lab, 95 %", _seconds(found.p95)),
        *((f"ended: {cause.value}", count) for cause, count in found.ends.items()),
        ("sessions lost", len(found.lost)),
    ]
    lines = [table(("", ""), rows).lstrip("\n")]
    lines += [_line(each) for each in found.lost]
    return "\n".join(lines)


def _line(session: Session) -> str:
    at = datetime.fromtimestamp(session.ended).astimezone()
    return f"lost {at:%Y-%m-%d %H:%M}  {session.id}  {session.user}  {session.end_reason}"


def _percent(share: float | None) -> str:
    # Not rounded up to 100: one failed start of a thousand is one.
    return "" if share is None else f" ({int(share * 100) / 100:g} % of those that were not stopped)"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
