"""What accounting has of one job, by its name or its number: every incarnation, with its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from carme_hub.domain.cluster.history import PastJob, PastStep
from carme_hub.domain.cluster.jobs import JobRecord
from carme_hub.domain.cluster.resources import NO_GPUS
from carme_hub.domain.cluster.tres import exit_of, gpus_of_tres, hosts_of, phase_of, time_of
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.command import Commands

from . import parse
from .queue_rows import lenient

#: sacct's fields of 22.05 and later; it prints them in its header unchanged.
FIELDS = (
    *("JobIDRaw", "JobName", "User", "State", "Submit", "Start", "End", "Account", "Partition", "QOS"),
    *("TimelimitRaw", "NodeList", "AllocTRES", "ExitCode"),
)
#: Clocks of hub and database differ; a name is unique, so a wide window does no harm.
_DAY = 86_400.0


async def history(commands: Commands, *, name: str = "", job: int = 0, since: float = 0.0) -> tuple[PastJob, ...]:
    """Return every incarnation of the jobs of a name, or of a number, oldest first.

    Args:
        name: the job's name, which for a session's is unique; "" = by number. since: UTC epoch seconds.

    Raises:
        SlurmUnreachable: accounting gave no answer, or one that cannot be parsed.
    """
    cut = parse.separator()
    which = (f"--name={name}",) if name else (f"--jobs={job}",)
    answer = await commands.query(
        *("sacct", "--duplicates", "--allusers", "--parsable", f"--delimiter={cut}", *which),
        f"--starttime={parse.moment(max(0.0, since - _DAY))}",
        f"--format={','.join(FIELDS)}",
    )
    if answer.code != 0 or answer.reports_error:
        raise SlurmUnreachable(f"sacct: {answer.message}")
    found = await asyncio.to_thread(read, answer.out, cut)
    return tuple(each for each in found if (each.record.name == name if name else each.record.id == job))


def read(text: str, cut: str) -> tuple[PastJob, ...]:
    """Parse the output of ``sacct -D -p --delimiter=cut`` with FIELDS: each job is followed by its steps.

    Raises:
        SlurmUnreachable: the answer cannot be parsed.
    """
    found: list[PastJob] = []
    try:
        for row in parse.rows(text, cut, FIELDS, "sacct"):
            job, dot, step = row["JobIDRaw"].partition(".")
            if not dot:
                found.append(_job(row))
            elif found and found[-1].record.id == int(job):
                found[-1] = replace(found[-1], steps=(*found[-1].steps, _step(step, row)))
    except (ValueError, KeyError) as error:
        raise SlurmUnreachable(f"sacct: the answer cannot be understood: {error}") from error
    return tuple(sorted(found, key=lambda each: (each.record.submitted, each.record.start, each.record.id)))


def _job(row: Mapping[str, str]) -> PastJob:
    record = JobRecord(
        id=int(row["JobIDRaw"]),
        name=row["JobName"],
        user=row["User"],
        state=row["State"],
        phase=phase_of(row["State"]),
        submitted=time_of(row["Submit"]),
        start=time_of(row["Start"]),
        end=time_of(row["End"]),
        nodes=_nodes(row),
        account=row["Account"],
        gpus=lenient(gpus_of_tres, NO_GPUS, row["AllocTRES"]),
        exit_code=lenient(exit_of, None, row["ExitCode"]),
    )
    return PastJob(record, row["Partition"], row["QOS"], lenient(int, 0, row["TimelimitRaw"]))


def _step(id: str, row: Mapping[str, str]) -> PastStep:
    return PastStep(
        id=id,
        name=row["JobName"],
        state=row["State"],
        start=lenient(time_of, 0.0, row["Start"]),
        end=lenient(time_of, 0.0, row["End"]),
        nodes=_nodes(row),
        exit_code=lenient(exit_of, None, row["ExitCode"]),
    )


def _nodes(row: Mapping[str, str]) -> tuple[str, ...]:
    return () if row["NodeList"] == "None assigned" else lenient(hosts_of, (), row["NodeList"])
