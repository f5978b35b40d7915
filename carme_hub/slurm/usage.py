"""Read GPU usage from ``sacct -D``: every incarnation of every job, completely or not at all.

What Slurm prints and how it is treated (seen on 22.05 and 24.11; the tests have recorded answers of both):

* A requeued job has one record for each incarnation, with a submit time of its own. Incarnations ``REQUEUED``,
  ``PREEMPTED`` and ``NODE_FAIL`` with an end have ended, whatever happens to the job.
* ``COMPLETED`` without an end has not ended yet: slurmdbd still catches up.
* A job that released nodes (``scontrol update NumNodes=``) has a record ``RESIZING`` with the old size, and a second
  one whose submit time is the moment of the change, but on 22.05 with the first start. That would count the time before
  the change twice, so a start before the submit time is replaced by the submit time.
* A suspended job keeps its GPUs: ``Elapsed`` excludes that time, so only start and end are used. The job may end later
  than its time limit by that time.
* A job that was cancelled while it waited has no nodes: no usage, even if start and GPUs of an earlier incarnation are
  left over (seen on 22.05, start = end).

``carme_hub.accounting.settlement`` charges what is read here.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.tres import exit_of, phase_of, time_of, typed_gpus_of_tres
from carme_hub.domain.ledger.usage import Usage
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.cli import parse

from .command import AnswerTooLong, Commands

#: sacct's fields; it prints them in its header unchanged.
FIELDS = (
    "JobIDRaw",
    "JobID",
    "User",
    "Account",
    "Partition",
    "QOS",
    "State",
    "Submit",
    "Start",
    "End",
    "AllocTRES",
    "NodeList",
    "TimelimitRaw",
    "Suspended",
    "ExitCode",
    "Reservation",
    "JobName",
)
_DURATION = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?", re.ASCII)
_DAY = 86400
#: 2000-01-01: no cluster is older, and sacct treats 0 as "today".
_EARLIEST = 946684800
#: Slices double after an empty one, up to this length, so that a query from the beginning does not need 20,000 queries;
_MAX_SLICE = 64 * _DAY
#: and halve if an answer is too long, down to this length.
_MIN_SLICE = 600
#: Clocks of hub and controller differ; "until now" must include jobs that began a moment ago.
_CLOCK_MARGIN = 86400


class UsageReader:
    """Reads usage from accounting, which must show this user all jobs (AdminLevel Operator if PrivateData is set).

    Args:
        commands: how commands are run.
        timeout: seconds for one query; the database may be busy, and no user waits for the answer.
        slice_seconds: the time span of one query. Times with many jobs are queried in smaller parts.
    """

    def __init__(self, commands: Commands, *, timeout: float = 60.0, slice_seconds: int = _DAY) -> None:
        self._commands = commands
        self._timeout = timeout
        self._slice = slice_seconds

    async def usage(
        self, start: float, end: float | None = None, *, accounts: Sequence[str] = (), running: bool = True
    ) -> tuple[Usage, ...]:
        """Return every incarnation that had GPUs at some moment from start to end, by submit time and job id.

        Args:
            start, end: epoch seconds, both included; 0 = from the beginning, None = now. Records are not cut at these.
            accounts: only these, () = all.
            running: include incarnations that have not ended.

        Raises:
            SlurmUnreachable: accounting gave no answer, or one that cannot be parsed.
        """
        found: dict[tuple[int, float], Usage] = {}
        near = time.time() if end is None else end
        last = near + _CLOCK_MARGIN if end is None else end
        at, length = max(start, float(_EARLIEST)), self._slice
        while True:
            until = at + length if at + length < near else last
            part = await self._slice_of(at, until, tuple(accounts))
            found.update(((one.job_id, one.submitted), one) for one in part)  # a later query has newer data
            if until >= last:
                break
            at, length = until, self._slice if part else min(2 * length, _MAX_SLICE)
        wanted = (u for u in found.values() if u.start <= last and (u.end >= start if u.end else running))
        return tuple(sorted(wanted, key=lambda u: (u.submitted, u.job_id)))

    async def _slice_of(self, start: float, end: float, accounts: tuple[str, ...]) -> tuple[Usage, ...]:
        try:
            return await self._ask(start, end, accounts)
        except AnswerTooLong:
            if end - start <= _MIN_SLICE:
                raise
        middle = (start + end) // 2
        return (*await self._slice_of(start, middle, accounts), *await self._slice_of(middle, end, accounts))

    async def _ask(self, start: float, end: float, accounts: tuple[str, ...]) -> tuple[Usage, ...]:
        cut = parse.separator()
        answer = await self._commands.query(
            "sacct",
            "--duplicates",
            "--allocations",
            "--allusers",
            "--parsable",
            f"--delimiter={cut}",
            *((f"--accounts={','.join(accounts)}",) if accounts else ()),
            f"--starttime={parse.moment(start)}",
            f"--endtime={parse.moment(end + 1)}",  # sacct excludes the end
            f"--format={','.join(FIELDS)}",
            timeout=self._timeout,
        )
        if answer.code != 0 or answer.reports_error:
            raise SlurmUnreachable(f"sacct: {answer.message}")
        return await asyncio.to_thread(read, answer.out, cut)


def read(text: str, cut: str) -> tuple[Usage, ...]:
    """Parse the output of ``sacct -D -X -p --delimiter=cut`` with FIELDS: incarnations with GPUs, in sacct's order.

    Raises:
        SlurmUnreachable: any part of it cannot be parsed.
    """
    try:
        rows = tuple(parse.rows(text, cut, FIELDS, "sacct"))
        return tuple(one for row in rows if (one := _usage(row)) is not None)
    except (ValueError, KeyError) as error:
        raise SlurmUnreachable(f"sacct: the answer cannot be understood: {error}") from error


def _usage(row: Mapping[str, str]) -> Usage | None:
    job_id, submitted = int(row["JobIDRaw"]), time_of(row["Submit"])
    start, end = time_of(row["Start"]), time_of(row["End"])
    gpus = typed_gpus_of_tres(row["AllocTRES"])
    if not gpus or not start or row["NodeList"] in ("", "None assigned"):
        return None
    if not submitted:
        raise ValueError(f"job {job_id} was never submitted")
    return Usage(
        job_id=job_id,
        shown_id=row["JobID"],
        name=row["JobName"],
        user=row["User"],
        account=row["Account"],
        partition=row["Partition"],
        qos=row["QOS"],
        state=row["State"],
        phase=_phase(row["State"], end),
        submitted=submitted,
        start=max(start, submitted),
        end=end,
        gpus=gpus,
        nodes=row["NodeList"],
        time_limit=_seconds(row["TimelimitRaw"]),
        exit_code=exit_of(row["ExitCode"]),
        suspended=_duration(row["Suspended"]),
        reservation=row["Reservation"],
    )


def _phase(state: str, end: float) -> Phase:
    """Return the phase of an incarnation: with an end it is terminal, without one it is not, whatever its state is."""
    if end:
        return Phase.TERMINAL
    phase = phase_of(state)
    return Phase.ENDING if phase is Phase.TERMINAL else phase


def _seconds(minutes: str) -> int:
    """Return seconds from TimelimitRaw; 0 for ``UNLIMITED`` and ``Partition_Limit``."""
    return int(minutes) * 60 if minutes.isascii() and minutes.isdigit() else 0


def _duration(text: str) -> int:
    """Return seconds from ``[[days-]hours:]minutes:seconds``; 0 if invalid, so that the record becomes an anomaly."""
    found = _DURATION.fullmatch(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
