"""What jobs had on nodes in a time that is over, and when nodes were out of service or reserved: sacct and sacctmgr.

``carme_hub.activity.earlier_starts`` asks whether a smaller job could have started sooner. Of a job on several nodes
accounting has the sum; each of its nodes is taken to have had an equal part, rounded up.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

from carme_hub.domain.activity.vacancy import Room, Taken
from carme_hub.domain.cluster.resources import SHARD
from carme_hub.domain.cluster.tres import ANY_TYPE, hosts_of, time_of, typed_gpus_of_tres
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.cli import parse
from carme_hub.slurm.cli.amounts import mib, tres_of

from .command import Commands

JOB_FIELDS = ("JobIDRaw", "Submit", "Start", "End", "NodeList", "AllocTRES")


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that had something: until ``end``, infinity = it still has. ``gpus``: by type."""

    job_id: int
    submitted: float
    start: float
    end: float
    nodes: tuple[str, ...]
    gpus: Mapping[str, int]
    cpus: int
    memory_mib: float

    def taken(self, gpu_type: str) -> list[Taken]:
        """Return what it had on each node; GPUs of this type, "" = GPUs do not matter."""
        count = len(self.nodes)
        # A site that does not account for types names none: then they may be of any type.
        counted = (gpu_type, ANY_TYPE, SHARD) if gpu_type else ()
        gpus = sum(number for type, number in self.gpus.items() if type in counted)
        room = Room(*(math.ceil(each / count) for each in (gpus, self.cpus, self.memory_mib)))
        return [Taken(node, self.start, self.end, room) for node in self.nodes]


class PastUseReader:
    """Reads what was taken in a time that is over; every method raises ``SlurmUnreachable``."""

    def __init__(self, commands: Commands, *, timeout: float = 60.0) -> None:
        self._commands, self._timeout = commands, timeout

    async def jobs(self, since: float, until: float) -> tuple[PastJob, ...]:
        """Return every job that had nodes at some moment of the time."""
        cut = parse.separator()
        text = await self._ask(
            *("sacct", "--duplicates", "--allocations", "--allusers", "--parsable", f"--delimiter={cut}"),
            *(f"--starttime={parse.moment(since)}", f"--endtime={parse.moment(until + 1)}"),
            f"--format={','.join(JOB_FIELDS)}",
        )
        return await asyncio.to_thread(read_jobs, text, cut)

    async def out_of_service(self, since: float, until: float) -> tuple[Taken, ...]:
        """Return when nodes were down, drained or reserved."""
        period = f"start={parse.moment(since)}", f"end={parse.moment(until)}"
        events = await self._ask(
            "sacctmgr", "--noheader", "--parsable2", "show", "event", *period, "format=NodeName,TimeStart,TimeEnd"
        )
        reserved = await self._ask(
            "sacctmgr", "--noheader", "--parsable2", "show", "reservation", *period, "format=NodeNames,Start,End"
        )
        return (*read_periods(events), *read_periods(reserved))

    async def _ask(self, name: str, *args: str) -> str:
        answer = await self._commands.query(name, *args, timeout=self._timeout)
        if answer.code != 0 or answer.reports_error:
            raise SlurmUnreachable(f"{name}: {answer.message}")
        return answer.out


def read_jobs(text: str, cut: str) -> tuple[PastJob, ...]:
    """Parse the output of ``sacct -X -p --delimiter=cut`` with JOB_FIELDS: jobs that had nodes."""
    try:
        found = (_job(row) for row in parse.rows(text, cut, JOB_FIELDS, "sacct"))
        return tuple(job for job in found if job is not None)
    except (ValueError, KeyError) as error:
        raise SlurmUnreachable(f"sacct: the answer cannot be understood: {error}") from error


def _job(row: Mapping[str, str]) -> PastJob | None:
    start, end = time_of(row["Start"]), time_of(row["End"])
    nodes = () if row["NodeList"] in ("", "None assigned") else hosts_of(row["NodeList"])
    if not start or not nodes:
        return None
    tres = tres_of(row["AllocTRES"])
    return PastJob(
        job_id=int(row["JobIDRaw"]),
        submitted=time_of(row["Submit"]),
        start=start,
        end=end or math.inf,
        nodes=nodes,
        gpus={gpus.type: gpus.count for gpus in typed_gpus_of_tres(row["AllocTRES"])},
        cpus=int(tres.get("cpu", 0)),
        memory_mib=mib(tres.get("mem", "0")) or 0.0,
    )


def read_periods(text: str) -> tuple[Taken, ...]:
    """Parse ``nodes|start|end`` of sacctmgr: times in which nodes were out of service.

    An event of the whole cluster has no node, and is left out.
    """
    found = []
    try:
        for line in text.split("\n"):
            if not line:
                continue
            nodes, start, end = line.split("|")
            for node in hosts_of(nodes):
                found.append(Taken(node, time_of(start), time_of(end) or math.inf, None))
    except ValueError as error:
        raise SlurmUnreachable(f"sacctmgr: the answer cannot be understood: {error}") from error
    return tuple(found)
