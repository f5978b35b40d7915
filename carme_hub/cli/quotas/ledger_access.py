"""What the ``carme-hub quotas`` commands share: the ledger of a configuration, its Slurm, its users, and parsing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from traitlets.config import Config

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.cli.base import ConfiguredApp, UsageError
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.durations import read_seconds
from carme_hub.domain.quotas.group_names import person_in
from carme_hub.domain.quotas.rules import Person
from carme_hub.domain.quotas.windows import midnight
from carme_hub.errors import SlurmError, StoreError
from carme_hub.services.quotas.application.audit import Audit
from carme_hub.services.quotas.application.settlement import SettlementLoop
from carme_hub.services.slurm_by_hub import SlurmByHub
from carme_hub.slurm.client import Association, SlurmClient
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.spawners.hub.admission import running
from carme_hub.store.backup import database_file
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore

_SILENT_LOG = logging.Logger("carme-hub quotas", logging.CRITICAL)


@dataclass
class LedgerAccess:
    """One site's open ledger, its Slurm and its users. ``load_open_jobs`` fills ``jobs``: the open jobs with GPUs.

    ``engine``: of the database, for further tables.
    """

    config: Config
    settings: CarmeQuotas
    slurm: CarmeSlurm
    client: SlurmClient
    policy: PolicyInForce
    prices: PriceList
    ledger: Ledger
    sessions: SessionStore
    jobs: list[Usage] = field(default_factory=list)
    engine: Any = None

    @property
    def zone(self) -> str:
        """Return the time zone in which times are shown."""
        return self.policy().zone

    def when(self, at: float) -> str:
        """Return a time in the policy's zone, "-" for none."""
        return f"{datetime.fromtimestamp(at, ZoneInfo(self.zone)):%Y-%m-%d %H:%M}" if at else "-"

    async def load_open_jobs(self, app: ConfiguredApp) -> None:
        """Load the jobs that run outside the hub, too; print a note where Slurm does not answer."""
        try:
            self.jobs[:] = running(await app.with_progress("asking Slurm for open jobs", self.client.snapshot()))
        except SlurmError as error:
            app.note(f"Slurm does not answer, so jobs that run now are left out: {error}")

    async def associations(self, app: ConfiguredApp) -> tuple[Association, ...]:
        """Return all associations of the cluster; raise ``SlurmError`` while Slurm does not answer."""
        return await app.with_progress("asking Slurm for accounts", self.client.associations())

    def settlement_loop(self) -> SettlementLoop:
        """Return the settlement loop of this ledger; it logs nothing, its results say everything."""
        commands, slurm = self.slurm.commands(), SlurmByHub(self.client, ask=None, log=_SILENT_LOG)
        return SettlementLoop(self.settings, commands, slurm, self.ledger, self.sessions, self.prices, _SILENT_LOG)

    async def people(self) -> dict[str, Person]:
        """Return groups and roles of every user of the hub."""
        return await asyncio.to_thread(_people, self.config)


@contextlib.asynccontextmanager
async def open_ledger(app: ConfiguredApp) -> AsyncIterator[LedgerAccess]:
    """Open the ledger that the configuration names, without upgrading its schema."""
    config = app.configuration()
    store = CarmeStore(config=config)
    store.upgrade = False
    file = database_file(store.url)
    if file is not None and not file.is_file():
        raise StoreError(f"There is no database {file} yet: the hub makes it at its first start.")
    settings, slurm = CarmeQuotas(config=config), CarmeSlurm(config=config)
    policy, prices = PolicyInForce(settings), PriceList(settings)
    if not settings.enabled:
        app.note("CarmeQuotas.enabled is off: nothing is held or charged. configure(c, quotas=True) switches it on.")
    engine = store.open()
    jobs: list[Usage] = []
    ledger = Ledger(
        LedgerStore(engine, Audit(config, settings, app.log, "command-line")),
        slurm.cluster,
        policy=policy,
        factor=prices.factor,
        clock=time.time,
        running=lambda: jobs,
    )
    try:
        await prices.load(ledger)
        parts = config, settings, slurm, slurm.client(), policy, prices, ledger, SessionStore(engine), jobs
        yield LedgerAccess(*parts, engine)
    finally:
        engine.dispose()


def hours(amount: int) -> str:
    """Return GPU-hours with at most three decimals, as on every page; the JSON output has the exact amount."""
    found = (Decimal(amount) / GPU_HOUR).quantize(Decimal("0.001"), ROUND_HALF_UP).normalize()
    return f"{found:f}" if found else "0"


def read_amount(text: str) -> int:
    """Return milli-GPU-seconds from "100h", "90 min", or a number of GPU-hours, exactly."""
    seconds = read_seconds(text)
    if seconds is None:
        try:
            number = Decimal(text)
        except InvalidOperation:
            number = Decimal("NaN")
        if number.is_finite() and abs(number) < 10**12:
            amount = number * GPU_HOUR
            if amount == int(amount) and -number.as_tuple().exponent <= 3:  # type: ignore[operator]
                return int(amount)
            raise UsageError(f"{text} GPU-hours: give at most three decimals")
        raise UsageError(f'{text!r} is no GPU time; write "100h", "1.5", or "90 min"')
    if (seconds * 1000).denominator != 1:
        raise UsageError(f"{text!r} is finer than a thousandth of a GPU-second")
    return int(seconds * 1000)


def read_time(text: str, zone: str, *, after: int = 0) -> float:
    """Return epoch seconds from a date or a time in the zone.

    Args:
        after: 1 where the day itself is included (``--expires``, ``--to``): the end of the day, not its start.
    """
    try:
        if len(text) == 10:
            return midnight(date.fromisoformat(text) + timedelta(days=after), zone)
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=ZoneInfo(zone))).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is no time; write 2027-03-31, or 2027-03-31T18:00") from None


def _people(config: Config) -> dict[str, Person]:
    """Read users and groups from JupyterHub's own database; {} where there is none."""
    from jupyterhub import orm

    from carme_hub.cli.hub_config import hub_of

    hub: Any = hub_of(config)
    file = database_file(hub.db_url)
    if file is not None and not Path(file).is_file():
        return {}
    try:
        session = orm.new_session_factory(hub.db_url, **hub.db_kwargs)()
    except orm.DatabaseSchemaMismatch as error:
        raise StoreError(f"JupyterHub's database is of another release: {error}") from error
    try:
        return {
            user.name: person_in(user.name, (group.name for group in user.groups), admin=user.admin)
            for user in session.query(orm.User)
        }
    finally:
        session.close()
        session.get_bind().dispose()
