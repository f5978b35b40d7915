"""Read and change Slurm's reservations through scontrol, as an Operator (scontrol(1), RESERVATIONS).

scontrol's messages are only for people. The next reading shows whether a step succeeded, so an interrupted step is
planned again. The calendar's reconciler, the doctor and the reservations service call this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.slurm_reservations import Change, Create, Delete, SlurmReservation, Step
from carme_hub.domain.cluster.tres import hosts_of, time_of, typed_gpus_of_tres
from carme_hub.errors import SlurmUnreachable

from .command import Commands

_NONE = "No reservations in the system"
_WORD = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S*)")
_CPUS = re.compile(r"(?:^|,)cpu=(\d+)")
_EMPTY = frozenset({"", "(null)"})
_VERSION = re.compile(r"slurm\S* (\d+)\.(\d+)")
_LICENSE = re.compile(r"LicenseName=(\S+) Total=(\d+)\b")
#: The first release that reserves single GPUs; 22.05 refuses them (both seen).
FIRST_WITH_GPUS = (24, 11)


async def reserves_gpus(commands: Commands) -> bool:
    """Return whether Slurm reserves single GPUs, and not only whole nodes.

    The release of scontrol decides: scontrol parses ``TRES=gres/gpu``, and the controller need not answer. If the
    client has another release than the controller, the site's trait overrides this.

    Raises:
        SlurmUnreachable: no answer, or one that cannot be parsed.
    """
    answer = await commands.query("scontrol", "--version")
    found = _VERSION.search(answer.out)
    if answer.code != 0 or found is None:
        raise SlurmUnreachable(f"scontrol --version: {answer.message}")
    return (int(found[1]), int(found[2])) >= FIRST_WITH_GPUS


async def licenses_in_slurm(commands: Commands) -> dict[str, int]:
    """Return Slurm's number of each licence by name; names from a license server include ``@SERVER``.

    Raises:
        SlurmUnreachable: no answer, or one that cannot be parsed.
    """
    answer = await commands.query("scontrol", "show", "licenses", "--oneliner")
    if answer.code != 0 or answer.reports_error:
        raise SlurmUnreachable(f"scontrol show licenses: {answer.message}")
    return read_licenses(answer.out)


def read_licenses(text: str) -> dict[str, int]:
    """Parse the output of ``scontrol show licenses --oneliner``, which is a sentence if there are none."""
    return {name: int(total) for name, total in _LICENSE.findall(text)}


async def default_partition(commands: Commands) -> str:
    """Return Slurm's default partition, "" if it has none.

    Raises:
        SlurmUnreachable: no answer, or one that cannot be parsed.
    """
    answer = await commands.query("scontrol", "show", "partition", "--oneliner")
    if answer.code != 0 or answer.reports_error:
        raise SlurmUnreachable(f"scontrol show partition: {answer.message}")
    lines = (dict(_WORD.findall(line)) for line in answer.out.splitlines())
    return next((words.get("PartitionName", "") for words in lines if words.get("Default") == "YES"), "")


class ReservationsCli:
    """Reads and writes reservations through scontrol; the user must be an Operator of Slurm or root."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def show(self) -> tuple[SlurmReservation, ...]:
        """Return all reservations.

        Raises:
            SlurmUnreachable: no answer, or one that cannot be parsed completely.
        """
        answer = await self._commands.query("scontrol", "show", "reservation", "--oneliner")
        if answer.code != 0 or answer.reports_error:
            raise SlurmUnreachable(f"scontrol: {answer.message}")
        return read(answer.out)

    async def take(self, step: Step) -> str:
        """Take one step; return Slurm's message if it refused, "" otherwise.

        Raises:
            SlurmUnreachable: no answer; the step may have been taken.
        """
        answer = await self._commands.query("scontrol", *argv(step))
        return "" if answer.code == 0 and not answer.reports_error else answer.message

    async def close(self) -> None:
        """Do nothing: no connection is kept open."""


def argv(step: Step) -> list[str]:
    """Return the arguments for scontrol. Times are UTC, as the command's TZ is UTC."""
    match step:
        case Delete(name):
            return ["delete", f"ReservationName={name}"]
        case Change(name, period, users, accounts, licenses):
            words = ["update", f"ReservationName={name}", *_times(period)]
            if users or accounts:
                words += [f"Users={_list(users)}", f"Accounts={_list(accounts)}"]
            return words + _licenses(licenses)
        case Create(wanted):
            words = ["create", "reservation", f"ReservationName={wanted.name}", *_times(wanted.period)]
            words += [f"Nodes={_list(wanted.nodes)}"] if wanted.nodes else []
            if wanted.gpus:
                gpus = [f"gres/gpu:{type}={count}" for type, count in sorted(wanted.gpus.items())]
                words.append(f"TRES={','.join([f'cpu={wanted.cpus}', *gpus])}")
            words += _licenses(wanted.licenses)
            words += [f"Users={_list(wanted.users)}"] if wanted.users else []
            words += [f"Accounts={_list(wanted.accounts)}"] if wanted.accounts else []
            words += [f"Flags={_list(wanted.flags)}"] if wanted.flags else []
            return words


def _times(period: Period | None) -> list[str]:
    if period is None:
        return []
    start, end = (datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S") for at in (period.start, period.end))
    return [f"StartTime={start}", f"EndTime={end}"]


def _licenses(licenses: Mapping[str, int]) -> list[str]:
    counts = ",".join(f"{name}:{count}" for name, count in sorted(licenses.items()))
    return [f"Licenses={counts}"] if counts else []


def _list(names: frozenset[str]) -> str:
    return ",".join(sorted(names))


def read(text: str) -> tuple[SlurmReservation, ...]:
    """Parse the output of ``scontrol show reservation --oneliner`` with times as epoch seconds.

    Raises:
        SlurmUnreachable: any part of it cannot be parsed.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if [line.strip() for line in lines] == [_NONE]:
        return ()
    if not lines:
        raise SlurmUnreachable("scontrol: the answer about reservations is empty")
    try:
        return tuple(_reservation(line) for line in lines)
    except (KeyError, ValueError) as error:
        raise SlurmUnreachable(f"scontrol: a reservation cannot be understood: {error}") from error


def _reservation(line: str) -> SlurmReservation:
    words: dict[str, str] = {}
    for name, value in _WORD.findall(line):
        words.setdefault(name, value)
    tres = words["TRES"]
    cpus = _CPUS.search(tres)
    return SlurmReservation(
        name=words["ReservationName"],
        period=Period(int(time_of(words["StartTime"])), int(time_of(words["EndTime"]))),
        nodes=frozenset(hosts_of(words["Nodes"])),
        gpus={gpus.type: gpus.count for gpus in typed_gpus_of_tres(tres)},
        cpus=int(cpus[1]) if cpus else 0,
        users=_names(words["Users"]),
        accounts=_names(words["Accounts"]),
        flags=frozenset(flag.partition("=")[0] for flag in _names(words["Flags"])),
        state=words["State"],
        licenses=dict(map(license_of, _names(words.get("Licenses", "")))),
    )


def license_of(item: str) -> tuple[str, int]:
    """Return name and count of ``gpu_a100:4``."""
    name, _, count = item.partition(":")
    return name, int(count or 1)


def _names(text: str) -> frozenset[str]:
    return frozenset() if text in _EMPTY else frozenset(text.split(","))
