"""Whether this Slurm can keep a calendar as it is configured, and whether it does. Reading asks; judging is pure."""

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
from carme_hub.slurm.reservations import ReservationsCli, keeps_gpus
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
    """What was found out; None where it was not.

    Attributes:
        keeps_gpus: whether Slurm reserves single GPUs. user: who asks Slurm, and level: what sacctmgr says of them.
        there: Slurm's reservations. stems: what the names of those begin with that the database knows.
        health: what the service says of itself. errors: why something is not known, by what was asked.
    """

    keeps_gpus: bool | None = None
    user: str = ""
    level: str | None = None
    slurm_user: str | None = None
    reservations: Sequence[SlurmReservation] | None = None
    stems: Collection[str] | None = None
    health: Mapping[str, Any] | None = None
    errors: Mapping[str, str] = field(default_factory=dict)


def check_site(config: Config) -> Iterator[Finding]:
    """Yield what is wrong with the calendar of a site that has one."""
    try:
        settings = CarmeReservations(config=config)
        if settings.enabled:
            yield from check(settings, asyncio.run(read_facts(config)))
    except (TraitError, CarmeError):
        return  # said already


async def read_facts(config: Config) -> CalendarFacts:
    """Ask Slurm, the database and the service; nothing is changed anywhere."""
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
        keeps_gpus=await ask_or_none("scontrol", keeps_gpus(commands)),
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
    if answer.code != 0 or answer.complains:
        raise SlurmUnreachable(f"sacctmgr: {answer.words}")
    return answer.out.strip().lower() or "none"


async def _slurm_user(commands: Commands) -> str:
    answer = await commands.query("scontrol", "show", "config")
    for line in answer.out.splitlines() if answer.code == 0 else ():
        name, _, value = line.partition("=")
        if name.strip() == "SlurmUser":
            return value.strip().partition("(")[0]
    raise SlurmUnreachable(f"scontrol: {answer.words}")


def _health(hub: Any) -> dict[str, Any]:
    """Ask the service through the hub's proxy, on this machine."""
    where = urlsplit(str(hub.bind_url))
    host = "127.0.0.1" if (where.hostname or "") in _WILDCARD_HOSTS else str(where.hostname)
    secure = where.scheme == "https" or bool(hub.ssl_cert)
    connection = http.client.HTTPConnection(host, where.port or 80, timeout=_TIMEOUT)
    if secure:
        context = ssl.create_default_context()
        # The certificate is for the name that browsers know; what is asked is no secret, and nothing is sent.
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
    """Yield what is wrong by these facts."""
    yield from _check_keep(settings, facts)
    yield from _check_operator(facts)
    yield from _check_orphans(facts, time.time() if now is None else now)
    yield from _check_service(facts)


def _check_keep(settings: CarmeReservations, facts: CalendarFacts) -> Iterator[Finding]:
    if settings.keep in ("gpus", "auto") and facts.keeps_gpus is None:
        why = f"which release of Slurm this is was not found out: {facts.errors.get('scontrol', 'not asked')}"
        yield unknown("CarmeReservations.keep", why, _RUN_WHERE_SLURM_ANSWERS)
    elif settings.keep == "gpus" and not facts.keeps_gpus:
        yield unsafe(
            "CarmeReservations.keep",
            settings.keep,
            "this Slurm refuses GPUs in reservations, as all before 24.11 do: nothing that is booked would be kept",
            'c.CarmeReservations.keep = "auto", which takes whole nodes here',
        )


def _check_operator(facts: CalendarFacts) -> Iterator[Finding]:
    if facts.user in ("root", facts.slurm_user) or facts.level in MAY_RESERVE:
        return
    if facts.level is None:
        why = f"whether {facts.user} may make reservations was not found out: {facts.errors.get('sacctmgr', '')}"
        yield unknown("AdminLevel", why, "run the doctor as the hub's user, while slurmdbd answers")
        return
    yield unsafe(
        "AdminLevel",
        f"{facts.user}: {facts.level}",
        "only Operators make reservations: Slurm refuses all that is booked",
        f"sacctmgr -i modify user {facts.user} set adminlevel=operator; run the doctor as the hub's user",
    )


def _check_orphans(facts: CalendarFacts, now: float) -> Iterator[Finding]:
    if facts.reservations is None or facts.stems is None:
        what = "scontrol" if facts.reservations is None else "database"
        why = f"whether Slurm keeps GPUs for nobody was not found out: {facts.errors.get(what, 'not asked')}"
        yield unknown("Slurm's reservations", why, "run the doctor as the hub's user, where Slurm answers")
        return
    for each in facts.reservations:
        if each.ours and each.stem not in facts.stems and each.period.end > now:
            yield advice(
                "Slurm's reservations",
                each.name,
                "no booking in the database knows it, so nobody takes it away, and its GPUs are kept for nobody",
                f"scontrol delete ReservationName={each.name}, unless the calendar of another hub has made it",
            )


def _check_service(facts: CalendarFacts) -> Iterator[Finding]:
    if facts.health is None:
        why = f"it gave no answer: {facts.errors.get('service', 'not asked')}"
        yield unknown(_HEALTH_SETTING, why, "run the doctor while the hub and its proxy run; the hub's log has the service's")
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
            "at its last comparison Slurm had something else than what is booked, and it was put right then",
            "run the doctor again in a minute; where it stays so, the hub's log names what Slurm refuses",
        )
