"""Charges that the ledger lacks, from Slurm's accounting (``sacct -D``), by the settlement that the service runs too.

Each incarnation of a job has one key, so nothing is charged twice, however often this runs, and beside the service.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from traitlets.config import Config

from carme_hub.accounting.context import named_session
from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.accounting.settlement import SETTLED
from carme_hub.cli.base import ConfiguredApp, UsageError
from carme_hub.cli.quotas.ledger_access import LedgerAccess, open_ledger, read_time
from carme_hub.domain.cluster.tres import hosts_of
from carme_hub.domain.ledger.entries import charge_key
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.slurm.cli.queue_rows import lenient
from carme_hub.slurm.usage import UsageReader
from carme_hub.store.threads import in_store_thread

from .findings import Charges, Findings

_DAY = 86_400
#: The part of a schema's name that audit events of the ledger have.
_SCHEMA = "gpu-time"
ReportedPort = Callable[[str, str], Awaitable[int | None]]


def since_of(config: Config, since: str) -> float:
    """Return the beginning of a day of the site's zone, UTC epoch seconds; 0 for "".

    Raises:
        UsageError: it is no day, or has not come yet. ConfigError: the policy, which names the zone, is wrong.
    """
    if not since:
        return 0.0
    start = read_time(since, PolicyInForce(CarmeQuotas(config=config))().zone)
    if start > time.time():
        raise UsageError(f"--since {since} has not come yet")
    return start


async def charge_again(
    app: ConfiguredApp,
    config: Config,
    findings: Findings,
    since: float,
    reported_port: ReportedPort,
    *,
    dry_run: bool,
) -> None:
    """Charge what ended since the database's last settlement, and note what of it is uncertain.

    Args:
        since: UTC epoch seconds, 0 for a day before the last settlement.
        reported_port: returns the port that the log of a user's session names, 0 if none, None if it cannot be read.

    Raises:
        SlurmUnreachable: accounting gives no answer; then nothing is charged, and the service does it later.
    """
    if not CarmeQuotas(config=config).enabled:
        return
    async with open_ledger(app) as access:
        note = await access.ledger.note(SETTLED)
        now, settled = time.time(), note.at if note else 0.0
        start = settled - _DAY if settled else now - access.settings.full_days * _DAY
        start = since or start
        reader = UsageReader(access.slurm.commands())
        usages = await app.with_progress("reading Slurm's accounting", reader.usage(start))
        before = await access.ledger.reconcile(usages, start, now)
        keys = set(before.missing)
        missing = [each for each in usages if _key(access, each) in keys]
        rows = {each.id: each for each in await in_store_thread(access.sessions.get_all, _sessions_of(missing))}
        charges = Charges(start=start, settled=settled, missing=len(missing))
        charges.without_session = [each.shown_id for each in missing if (id := named_session(each)) and id not in rows]
        charges.seconds = sum(sum(g.count for g in each.gpus) * each.seconds(now) for each in missing)
        held = await _held(access)
        charges.at_todays_price = [each.shown_id for each in missing if named_session(each) not in held]
        charges.people = people_since(access.settings.audit_file, settled)
        for usage in missing:
            if (row := rows.get(named_session(usage))) is not None and _looks_unusable(row, usage):
                proved = await _proved(charges, row, usage, reported_port)
                if proved is not None and not dry_run:
                    await in_store_thread(access.sessions.save, proved)
        if not dry_run:
            done = await app.with_progress(
                "charging what ended", access.settlement_loop().settle(days=(now - start) / _DAY)
            )
            charges.written, charges.amount = len(done.charged), -sum(each.amount for each in done.charged)
            charges.refunded, charges.released = len(done.refunded), len(done.released)
            charges.flagged, charges.waiting = len(done.flagged), len(done.waiting)
            after = await access.ledger.reconcile(usages, start, now)
            charges.difference, charges.open_anomalies = after.difference, len(after.waiting)
        findings.charges = charges


def _looks_unusable(row: Session, usage: Usage) -> bool:
    """Return whether the settlement would take a session for one that never became usable, as its row is older."""
    same = (row.user, row.job_id) == (usage.user, usage.job_id)
    return same and not row.started and row.state is not SessionState.ENDED


async def _proved(charges: Charges, row: Session, usage: Usage, reported_port: ReportedPort) -> Session | None:
    """Return the row of a session that was usable after the copy, None where it was not, or where that is not known.

    A companion is usable as soon as its job runs; it has no server that reports.
    """
    port = 0 if row.parent else await reported_port(row.user, row.id)
    if port is None:
        charges.unproved.append(usage.shown_id)
    if not port and not row.parent:
        return None
    charges.usable.append(usage.shown_id)
    nodes: tuple[str, ...] = lenient(hosts_of, (), usage.nodes)
    proved = row.replace(state=SessionState.RUNNING, port=port, node=nodes[0] if nodes else "", started=usage.start)
    return proved.replace(submitted=usage.submitted)


async def _held(access: LedgerAccess) -> set[str]:
    """Return the sessions whose hold is in the ledger, open or not: its price is the one of their admission."""
    return await access.ledger.sessions_wanted(())


def _key(access: LedgerAccess, usage: Usage) -> str:
    return charge_key(access.ledger.context.cluster, usage.job_id, usage.submitted)


def _sessions_of(usages: list[Usage]) -> set[str]:
    return {id for each in usages if (id := named_session(each))}


def people_since(file: str, since: float) -> list[dict[str, str]]:
    """Return what people changed of GPU time after a time (UTC epoch seconds), as the audit file has it."""
    moment, found = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f"), []
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines() if file else []
    except OSError:
        return []
    for line in lines:
        try:
            event = json.loads(line)
            at, schema = str(event["__timestamp__"]), str(event["__schema__"])
        except (ValueError, KeyError, TypeError):
            continue
        if _SCHEMA in schema and at > moment:
            found.append({"at": at[:19], **{name: str(event[name]) for name in event if not name.startswith("__")}})
    return found
