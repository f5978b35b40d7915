"""Whether Slurm can keep the calendar as it is configured, and whether it does.

``read_facts`` asks Slurm, the database and the reservations service; ``check`` is pure.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import pwd
import ssl
import time
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from traitlets import TraitError
from traitlets.config import Config

from carme_hub.booking.hub_access import SERVICE
from carme_hub.booking.settings import CarmeReservations
from carme_hub.cli.hub_config import hub_of
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation
from carme_hub.errors import CarmeError, SlurmUnreachable
from carme_hub.slurm.command import Commands
from carme_hub.slurm.reservations import ReservationsCli, reserves_gpus
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.check import reservation_stems
from carme_hub.store.engine import CarmeStore

from .findings import Finding, advice, unknown, unsafe

T = TypeVar("T")

#: AdminLevels that may make reservations (sacctmgr(1)).
MAY_RESERVE = ("operator", "administrator")
_HEALTH_SETTING = "the calendar's service"
_RUN_WHERE_SLURM_ANSWERS = "run the doctor where Slurm answers"
_WILDCARD_HOSTS = ("", "0.0.0.0", "::")  # noqa: S104 - where a hub listens, not where we do
_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class CalendarFacts:
    """The facts on which the findings rest; None where one is not known.

    Attributes:
        reserves_gpus: whether Slurm reserves single GPUs.
        user: the user who asks Slurm. level: the user's AdminLevel, as sacctmgr shows it.
        reservations: Slurm's reservations. stems: the stems of the names that the database knows.
        health: the service's answer about its health. errors: why a fact is not known, by its source.
    """

    reserves_gpus: bool | None = None
    user: str = ""
    level: str | None = None
    slurm_user: str | None = None
    reservations: Sequence[SlurmReservation] | None = None
    stems: Collection[str] | None = None
    health: Mapping[str, Any] | None = None
    errors: Mapping[str, str] = field(default_factory=dict)


def check_site(config: Config) -> Iterator[Finding]:
    """Yield the findings about the calendar of a site that has one."""
    try:
        settings = CarmeReservations(config=config)
        if settings.enabled:
            yield from check(settings, asyncio.run(read_facts(config)))
    except (TraitError, CarmeError):
        return  # reported already


async def read_facts(config: Config) -> CalendarFacts:
    """Ask Slurm, the database and the service; change nothing."""
    slurm, errors = CarmeSlurm(config=config), dict[str, str]()
    commands = slurm.commands()

    async def ask_or_none(what: str, question: Awaitable[T]) -> T | None:
        try:
            return await question
        except (CarmeError, OSError, ValueError, http.client.HTTPException) as error:
            errors[what] = str(error) or type(error).__name__
            return None

    user = pwd.getpwuid(os.geteuid()).pw_name
    url = str(CarmeStore(config=config).url)
    return CalendarFacts(
        reserves_gpus=await ask_or_none("scontrol", reserves_gpus(commands)),
        user=user,
        level=await ask_or_none("sacctmgr", _level(commands, user)),
        slurm_user=await ask_or_none("scontrol", _slurm_user(commands)),
        reservations=await ask_or_none("scontrol", ReservationsCli(commands).show()),
        stems=await ask_or_none("database", asyncio.to_thread(reservation_stems, url, slurm.cluster)),
        health=await ask_or_none("service", asyncio.to_thread(_health, hub_of(config))),
        errors=errors,
    )


async def _level(commands: Commands, user: str) -> str:
    argv = ("sacctmgr", "-n", "-P", "show", "user", f"name={user}", "format=AdminLevel")
    answer = await commands.query(*argv)
    if answer.code != 0 or answer.reports_error:
        raise SlurmUnreachable(f"sacctmgr: {answer.message}")
    return answer.out.strip().lower() or "none"


async def _slurm_user(commands: Commands) -> str:
    answer = await commands.query("scontrol", "show", "config")
    for line in answer.out.splitlines() if answer.code == 0 else ():
        name, _, value = line.partition("=")
        if name.strip() == "SlurmUser":
            return value.strip().partition("(")[0]
    raise SlurmUnreachable(f"scontrol: {answer.message}")


def _health(hub: Any) -> dict[str, Any]:
    """Ask the service through the hub's proxy, on this machine."""
    where = urlsplit(str(hub.bind_url))
    host = "127.0.0.1" if (where.hostname or "") in _WILDCARD_HOSTS else str(where.hostname)
    secure = where.scheme == "https" or bool(hub.ssl_cert)
    connection = http.client.HTTPConnection(host, where.port or 80, timeout=_TIMEOUT)
    if secure:
        context = ssl.create_default_context()
        # The certificate is for the name that browsers use; the answer is not secret, and no secret is sent.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, where.port or 443, timeout=_TIMEOUT, context=context)
    try:
        connection.request("GET", f"{hub.base_url}services/{SERVICE}/api/v1/health")
        answer = connection.getresponse()
        body = json.loads(answer.read(100_000) or b"null") if "json" in (answer.getheader("Content-Type") or "") else {}
    finally:
        connection.close()
    if answer.status != 200 or not isinstance(body, dict):
        message = body.get("message", "") if isinstance(body, dict) else ""
        raise SlurmUnreachable(f"status {answer.status} {message}".strip())
    return body


def check(settings: CarmeReservations, facts: CalendarFacts, now: float | None = None) -> Iterator[Finding]:
    """Yield the findings that follow from these facts."""
    yield from _check_keep(settings, facts)
    yield from _check_operator(facts)
    yield from _check_orphans(facts, time.time() if now is None else now)
    yield from _check_service(facts)


def _check_keep(settings: CarmeReservations, facts: CalendarFacts) -> Iterator[Finding]:
    if settings.keep in ("gpus", "auto") and facts.reserves_gpus is None:
        why = f"the release of this Slurm is not known: {facts.errors.get('scontrol', 'not asked')}"
        yield unknown("CarmeReservations.keep", why, _RUN_WHERE_SLURM_ANSWERS)
    elif settings.keep == "gpus" and not facts.reserves_gpus:
        yield unsafe(
            "CarmeReservations.keep",
            settings.keep,
            "this Slurm refuses GPUs in reservations, as all before 24.11 do: it would keep nothing that is booked",
            'c.CarmeReservations.keep = "auto", which takes whole nodes here',
        )


def _check_operator(facts: CalendarFacts) -> Iterator[Finding]:
    if facts.user in ("root", facts.slurm_user) or facts.level in MAY_RESERVE:
        return
    if facts.level is None:
        why = f"whether {facts.user} may make reservations is not known: {facts.errors.get('sacctmgr', '')}"
        yield unknown("AdminLevel", why, "run the doctor as the hub's user, while slurmdbd answers")
        return
    yield unsafe(
        "AdminLevel",
        f"{facts.user}: {facts.level}",
        "only Operators may make reservations: Slurm refuses everything that is booked",
        f"sacctmgr -i modify user {facts.user} set adminlevel=operator; run the doctor as the hub's user",
    )


def _check_orphans(facts: CalendarFacts, now: float) -> Iterator[Finding]:
    if facts.reservations is None or facts.stems is None:
        what = "scontrol" if facts.reservations is None else "database"
        why = f"whether Slurm keeps GPUs for no booking is not known: {facts.errors.get(what, 'not asked')}"
        yield unknown("Slurm's reservations", why, "run the doctor as the hub's user, where Slurm answers")
        return
    for each in facts.reservations:
        if each.ours and each.stem not in facts.stems and each.period.end > now:
            yield advice(
                "Slurm's reservations",
                each.name,
                "no booking in the database belongs to it, so nothing removes it, and its GPUs stay unused",
                f"scontrol delete ReservationName={each.name}, unless the calendar of another hub made it",
            )


def _check_service(facts: CalendarFacts) -> Iterator[Finding]:
    if facts.health is None:
        why = f"it gave no answer: {facts.errors.get('service', 'not asked')}"
        yield unknown(
            _HEALTH_SETTING, why, "run the doctor while the hub and its proxy run; the hub's log has the service's"
        )
    elif not facts.health.get("keeping"):
        age = facts.health.get("age")
        since = "since it was started" if age is None else f"for {age} s"
        yield unsafe(
            _HEALTH_SETTING,
            "not keeping",
            f"Slurm has not answered it {since}: what is booked may not be kept",
            "the hub's log says why, after “The calendar could not be compared with Slurm”",
        )
    elif not facts.health.get("equal"):
        yield advice(
            _HEALTH_SETTING,
            "not equal",
            "at its last comparison Slurm differed from the bookings, and was corrected then",
            "run the doctor again in a minute; if it still differs, the hub's log names what Slurm refuses",
        )
