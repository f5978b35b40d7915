"""Slurm's reservations: what is there now, and the steps that an Operator may take (scontrol(1), RESERVATIONS).

What scontrol says of a step is for people. Whether it was taken is seen at the next look, so a step that was broken off
is simply planned again.
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
#: The first release that was seen to reserve single GPUs; 22.05 was seen to refuse them.
FIRST_WITH_GPUS = (24, 11)


async def keeps_gpus(commands: Commands) -> bool:
    """Return whether Slurm reserves single GPUs, and not only whole nodes.

    By the release of scontrol: it is scontrol that reads ``TRES=gres/gpu``, and no controller need answer. A client of
    another release than the controller is for the site's trait to set right.

    Raises:
        SlurmUnreachable: no answer, or none that can be understood.
    """
    answer = await commands.query("scontrol", "--version")
    found = _VERSION.search(answer.out)
    if answer.code != 0 or found is None:
        raise SlurmUnreachable(f"scontrol --version: {answer.words}")
    return (int(found[1]), int(found[2])) >= FIRST_WITH_GPUS


async def licenses_in_slurm(commands: Commands) -> dict[str, int]:
    """Return how many of each licence Slurm has, by name; those of a license server, with their ``@SERVER``.

    Raises:
        SlurmUnreachable: no answer, or none that can be understood.
    """
    answer = await commands.query("scontrol", "show", "licenses", "--oneliner")
    if answer.code != 0 or answer.complains:
        raise SlurmUnreachable(f"scontrol show licenses: {answer.words}")
    return read_licenses(answer.out)


def read_licenses(text: str) -> dict[str, int]:
    """Read the answer of ``scontrol show licenses --oneliner``; Slurm without any says so in words."""
    return {name: int(total) for name, total in _LICENSE.findall(text)}


async def default_partition(commands: Commands) -> str:
    """Return the partition of jobs that name none, "" where Slurm has no such.

    Raises:
        SlurmUnreachable: no answer, or none that can be understood.
    """
    answer = await commands.query("scontrol", "show", "partition", "--oneliner")
    if answer.code != 0 or answer.complains:
        raise SlurmUnreachable(f"scontrol show partition: {answer.words}")
    lines = (dict(_WORD.findall(line)) for line in answer.out.splitlines())
    return next((words.get("PartitionName", "") for words in lines if words.get("Default") == "YES"), "")


class ReservationsCli:
    """Reads and writes reservations through scontrol, whose user is an Operator of Slurm or root."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def show(self) -> tuple[SlurmReservation, ...]:
        """Return all reservations.

        Raises:
            SlurmUnreachable: no answer, or one that cannot be understood in whole.
        """
        answer = await self._commands.query("scontrol", "show", "reservation", "--oneliner")
        if answer.code != 0 or answer.complains:
            raise SlurmUnreachable(f"scontrol: {answer.words}")
        return read(answer.out)

    async def take(self, step: Step) -> str:
        """Take one step; return Slurm's words where it refused, "" otherwise.

        Raises:
            SlurmUnreachable: no answer; the step may have been taken.
        """
        answer = await self._commands.query("scontrol", *argv(step))
        return "" if answer.code == 0 and not answer.complains else answer.words

    async def close(self) -> None:
        """Give back what is held open for it, which is nothing here."""


def argv(step: Step) -> list[str]:
    """Return what scontrol is told. Times are UTC, as the command's own zone is."""
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
    """Read the answer of ``scontrol show reservation --oneliner`` with times as epoch seconds.

    Raises:
        SlurmUnreachable: it cannot be understood, in whole or in part.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if [line.strip() for line in lines] == [_NONE]:
        return ()
    if not lines:
        raise SlurmUnreachable("scontrol: an empty answer where reservations were asked for")
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
