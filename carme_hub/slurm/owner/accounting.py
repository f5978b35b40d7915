"""What sacct says of a user's jobs and of their steps, which have what was used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from carme_hub.domain.cluster.own_jobs.ended import Asked, EndedJob
from carme_hub.domain.cluster.resources import NO_GPUS
from carme_hub.domain.cluster.tres import exit_of, gpus_of_tres, hosts_of, phase_of, time_of
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.cli.amounts import mib, seconds_of, tres_of
from carme_hub.slurm.cli.parse import rows
from carme_hub.slurm.cli.queue_rows import lenient

#: sacct's fields of 22.05 and later; it prints them in its header unchanged.
FIELDS = (
    "JobID",
    "JobIDRaw",
    "User",
    "JobName",
    "State",
    "Submit",
    "Start",
    "End",
    "TimelimitRaw",
    "NNodes",
    "NTasks",
    "AllocTRES",
    "ReqTRES",
    "TotalCPU",
    "MaxRSS",
    "ExitCode",
    "NodeList",
    "Account",
    "Partition",
    "QOS",
    "Reservation",
    "Constraints",
    "WorkDir",
    "SubmitLine",
)
#: … and of newer releases.
OUTPUT_FIELDS = ("StdOut", "StdErr")
_ARRAY = re.compile(r"(\d+)_(\d+|\[.*\])", re.ASCII)


def read(text: str, cut: str, user: str, fields: tuple[str, ...] = FIELDS) -> tuple[EndedJob, ...]:
    """Return a user's jobs in the output of ``sacct -p --delimiter=cut`` with fields, in its order, with their steps.

    Raises:
        SlurmUnreachable: the answer cannot be parsed.
    """
    found: list[EndedJob] = []
    try:
        for row in rows(text, cut, fields, "sacct"):
            if "." not in row["JobIDRaw"]:
                if row["User"] == user:
                    found.append(_job(row))
            elif found and row["JobIDRaw"].startswith(f"{found[-1].id}."):
                found[-1] = _with_step(found[-1], row)
    except (ValueError, KeyError) as error:
        raise SlurmUnreachable(f"sacct: the answer cannot be understood: {error}") from error
    return tuple(found)


def _job(row: Mapping[str, str]) -> EndedJob:
    array = _ARRAY.fullmatch(row["JobID"])
    given, asked = row["AllocTRES"] or row["ReqTRES"], row["ReqTRES"]
    return EndedJob(
        id=int(row["JobIDRaw"]),
        name=row["JobName"],
        user=row["User"],
        state=row["State"],
        phase=phase_of(row["State"]),
        submitted=time_of(row["Submit"]),
        start=time_of(row["Start"]),
        end=time_of(row["End"]),
        array=int(array[1]) if array else 0,
        task=array[2].strip("[]") if array else "",
        exit_code=lenient(exit_of, None, row["ExitCode"]),
        nodes=() if row["NodeList"] == "None assigned" else lenient(hosts_of, (), row["NodeList"]),
        node_count=max(1, lenient(int, 1, row["NNodes"])),
        gpus=lenient(gpus_of_tres, NO_GPUS, given),
        cpus=_cpus(given),
        memory_mib=_memory(given),
        asked=Asked(_cpus(asked), _memory(asked), lenient(gpus_of_tres, NO_GPUS, asked)) if asked else None,
        minutes=lenient(int, 0, row["TimelimitRaw"]),
        account=row["Account"],
        partition=row["Partition"],
        qos=row["QOS"],
        reservation=row["Reservation"],
        constraint=row["Constraints"],
        folder=row["WorkDir"],
        output=row.get("StdOut", ""),
        error=row.get("StdErr", ""),
        submit_line=row["SubmitLine"],
        cpu_seconds=seconds_of(row["TotalCPU"]) or None,
    )


def _with_step(job: EndedJob, row: Mapping[str, str]) -> EndedJob:
    """Return a job with what one of its steps used; a step of several tasks on a node tells only its largest task."""
    peak = mib(row["MaxRSS"])
    several = lenient(int, 1, row["NTasks"]) > max(1, lenient(int, 1, row["NNodes"]))
    if peak is None or several:
        return job
    return replace(job, peak_mib=max(round(peak), job.peak_mib or 0))


def _cpus(tres: str) -> int:
    return lenient(int, 0, tres_of(tres).get("cpu", ""))


def _memory(tres: str) -> int:
    return round(mib(tres_of(tres).get("mem", "")) or 0.0)
