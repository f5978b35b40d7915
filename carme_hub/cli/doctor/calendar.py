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
_HEALTH = "the calendar's service"
_RUN = "run the doctor where Slurm answers"
_ANYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - where a hub listens, not where we do
_LIMIT = 5.0


@dataclass(frozen=True, slots=True)
class CalendarFacts:
    """What was found out; None where it was not.

    Attributes:
        keeps_gpus: whether Slurm reserves single GPUs. user: who asks Slurm, and level: what sacctmgr says of them.
        there: Slurm's reservations. stems: what the names of those begin with that the database knows.
        health: what the service says of itself. silence: why something is not known, by what was asked.
    """

    keeps_gpus: bool | None = None
    user: str = ""
    level: str | None = None
    slurm_user: str | None = None
    there: Sequence[SlurmReservation] | None = None
    stems: Collection[str] | None = None
    health: Mapping[str, Any] | None = None
    silence: Mapping[str, str] = field(default_factory=dict)


def judge_site(config: Config) -> Iterator[Finding]:
    """Yield what is wrong with the calendar of a site that has one."""
    try:
        settings = CarmeReservations(config=config)
        if settings.enabled:
            yield from judge(settings, asyncio.run(read_facts(config)))
    except (TraitError, CarmeError):
        return  # said already


async def read_facts(config: Config) -> CalendarFacts:
    """Ask Slurm, the database and the service; nothing is changed anywhere."""
    slurm, silence = CarmeSlurm(config=config), dict[str, str]()
    commands = slurm.commands()

    async def asked(what: str, question: Awaitable[T]) -> T | None:
        try:
            return await question
        except (CarmeError, OSError, ValueError, http.client.HTTPException) as error:
            silence[what] = str(error) or type(error).__name__
            return None

    user = pwd.getpwuid(os.geteuid()).pw_name
    url = str(CarmeStore(config=config).url)
    return CalendarFacts(
        keeps_gpus=await asked("scontrol", keeps_gpus(commands)),
        user=user,
        level=await asked("sacctmgr", _level(commands, user)),
        slurm_user=await asked("scontrol", _slurm_user(commands)),
        there=await asked("scontrol", ReservationsCli(commands).show()),
        stems=await asked("database", asyncio.to_thread(reservation_stems, url, slurm.cluster)),
        health=await asked("service", asyncio.to_thread(_health, hub_of(config))),
        silence=silence,
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
    host = "127.0.0.1" if (where.hostname or "") in _ANYWHERE else str(where.hostname)
    secure = where.scheme == "https" or bool(hub.ssl_cert)
    connection = http.client.HTTPConnection(host, where.port or 80, timeout=_LIMIT)
    if secure:
        context = ssl.create_default_context()
        # The certificate is for the name that browsers know; what is asked is no secret, and nothing is sent.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, where.port or 443, timeout=_LIMIT, context=context)
    try:
        connection.request("GET", f"{hub.base_url}services/{SERVICE}/api/v1/health")
        answer = connection.getresponse()
        said = json.loads(answer.read(100_000) or b"null") if "json" in (answer.getheader("Content-Type") or "") else {}
    finally:
        connection.close()
    if answer.status != 200 or not isinstance(said, dict):
        message = said.get("message", "") if isinstance(said, dict) else ""
        raise SlurmUnreachable(f"status {answer.status} {message}".strip())
    return said


def judge(settings: CarmeReservations, facts: CalendarFacts, now: float | None = None) -> Iterator[Finding]:
    """Yield what is wrong by these facts."""
    yield from _keep(settings, facts)
    yield from _operator(facts)
    yield from _orphans(facts, time.time() if now is None else now)
    yield from _service(facts)


def _keep(settings: CarmeReservations, facts: CalendarFacts) -> Iterator[Finding]:
    if settings.keep in ("gpus", "auto") and facts.keeps_gpus is None:
        why = f"which release of Slurm this is was not found out: {facts.silence.get('scontrol', 'not asked')}"
        yield unknown("CarmeReservations.keep", why, _RUN)
    elif settings.keep == "gpus" and not facts.keeps_gpus:
        yield unsafe(
            "CarmeReservations.keep",
            settings.keep,
            "this Slurm refuses GPUs in reservations, as all before 24.11 do: nothing that is booked would be kept",
            'c.CarmeReservations.keep = "auto", which takes whole nodes here',
        )


def _operator(facts: CalendarFacts) -> Iterator[Finding]:
    if facts.user in ("root", facts.slurm_user) or facts.level in MAY_RESERVE:
        return
    if facts.level is None:
        why = f"whether {facts.user} may make reservations was not found out: {facts.silence.get('sacctmgr', '')}"
        yield unknown("AdminLevel", why, "run the doctor as the hub's user, while slurmdbd answers")
        return
    yield unsafe(
        "AdminLevel",
        f"{facts.user}: {facts.level}",
        "only Operators make reservations: Slurm refuses all that is booked",
        f"sacctmgr -i modify user {facts.user} set adminlevel=operator; run the doctor as the hub's user",
    )


def _orphans(facts: CalendarFacts, now: float) -> Iterator[Finding]:
    if facts.there is None or facts.stems is None:
        what = "scontrol" if facts.there is None else "database"
        why = f"whether Slurm keeps GPUs for nobody was not found out: {facts.silence.get(what, 'not asked')}"
        yield unknown("Slurm's reservations", why, "run the doctor as the hub's user, where Slurm answers")
        return
    for each in facts.there:
        if each.ours and each.stem not in facts.stems and each.period.end > now:
            yield advice(
                "Slurm's reservations",
                each.name,
                "no booking in the database knows it, so nobody takes it away, and its GPUs are kept for nobody",
                f"scontrol delete ReservationName={each.name}, unless the calendar of another hub has made it",
            )


def _service(facts: CalendarFacts) -> Iterator[Finding]:
    if facts.health is None:
        why = f"it gave no answer: {facts.silence.get('service', 'not asked')}"
        yield unknown(_HEALTH, why, "run the doctor while the hub and its proxy run; the hub's log has the service's")
    elif not facts.health.get("keeping"):
        age = facts.health.get("age")
        since = "since it was started" if age is None else f"for {age} s"
        yield unsafe(
            _HEALTH,
            "not keeping",
            f"Slurm has not answered it {since}: what is booked may not be kept",
            "the hub's log says why, after “The calendar could not be compared with Slurm”",
        )
    elif not facts.health.get("equal"):
        yield advice(
            _HEALTH,
            "not equal",
            "at its last comparison Slurm had something else than what is booked, and it was put right then",
            "run the doctor again in a minute; where it stays so, the hub's log names what Slurm refuses",
        )
