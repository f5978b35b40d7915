"""GPU time that was given to somebody, from ``sacct -D``: every incarnation of every job, whole or not at all.

What real Slurm prints, and what is made of it (seen on 22.05 and 24.11, golden answers of both are with the tests):

* A requeued job has one record for each incarnation, with a submit time of its own. ``REQUEUED``, ``PREEMPTED`` and
  ``NODE_FAIL`` with an end are over, whatever became of the job.
* ``COMPLETED`` without an end is what slurmdbd knows while it catches up: not ended yet.
* A job that gave nodes back (``scontrol update NumNodes=``) has a record ``RESIZING`` with the old size, and a second
  one whose submit time is the moment of the change, but whose start is still the first one on 22.05. As it is, the time
  before the change would be counted twice, so a start before the submit time is moved up to it.
* A suspended job keeps its GPUs: ``Elapsed`` leaves that time out, so only start and end are used. It may end that much
  later than its time limit says.
* A job that was cancelled while it waited has no nodes: no use, whatever start and GPUs are left over from an
  incarnation before (seen on 22.05, start = end).
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

#: sacct's fields; it prints them in its header as they are.
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
#: 2000-01-01: no cluster is older, and 0 would mean "today" to sacct.
_EVER = 946684800
#: Slices get twice as long where nothing was, so that "since ever" is no 20,000 questions, and never longer than this;
_LONGEST = 64 * _DAY
#: and half as long where an answer is too long, and never shorter than this.
_SHORTEST = 600
#: Clocks of hub and controller differ; "until now" must not cut off what began a moment ago.
_AHEAD = 86400


class UsageReader:
    """Reads use from accounting, which must show this user all jobs (AdminLevel Operator where PrivateData is set).

    Args:
        commands: how commands are run.
        timeout: seconds for one question; the database may be busy, and nobody waits for the answer.
        slice_seconds: how much time one question is about. A busier time is asked for in ever smaller parts.
    """

    def __init__(self, commands: Commands, *, timeout: float = 60.0, slice_seconds: int = _DAY) -> None:
        self._commands = commands
        self._timeout = timeout
        self._slice = slice_seconds

    async def usage(
        self, start: float, end: float | None = None, *, accounts: Sequence[str] = (), running: bool = True
    ) -> tuple[Usage, ...]:
        """Return every incarnation that held GPUs at some moment from start to end, by submit time and job id.

        Args:
            start, end: epoch seconds, both included; 0 = since ever, None = now. Records are not cut at these.
            accounts: only these, () = all.
            running: also those that have not ended.

        Raises:
            SlurmUnreachable: accounting gave no answer, or one of its answers cannot be understood.
        """
        found: dict[tuple[int, float], Usage] = {}
        near = time.time() if end is None else end
        last = near + _AHEAD if end is None else end
        at, length = max(start, float(_EVER)), self._slice
        while True:
            until = at + length if at + length < near else last
            part = await self._slice_of(at, until, tuple(accounts))
            found.update(((one.job_id, one.submitted), one) for one in part)  # what was asked later knows more
            if until >= last:
                break
            at, length = until, self._slice if part else min(2 * length, _LONGEST)
        wanted = (u for u in found.values() if u.start <= last and (u.end >= start if u.end else running))
        return tuple(sorted(wanted, key=lambda u: (u.submitted, u.job_id)))

    async def _slice_of(self, start: float, end: float, accounts: tuple[str, ...]) -> tuple[Usage, ...]:
        try:
            return await self._ask(start, end, accounts)
        except AnswerTooLong:
            if end - start <= _SHORTEST:
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
            f"--starttime={_moment(start)}",
            f"--endtime={_moment(end + 1)}",  # sacct leaves its end out
            f"--format={','.join(FIELDS)}",
            timeout=self._timeout,
        )
        if answer.code != 0 or answer.complains:
            raise SlurmUnreachable(f"sacct: {answer.words}")
        return await asyncio.to_thread(read, answer.out, cut)


def read(text: str, cut: str) -> tuple[Usage, ...]:
    """Read the answer of ``sacct -D -X -p --delimiter=cut`` with FIELDS: what held GPUs, in sacct's order.

    Raises:
        SlurmUnreachable: it cannot be understood, in whole or in part.
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
    """Return the phase of an incarnation: with an end it is over, without one it is not, whatever its word says."""
    if end:
        return Phase.TERMINAL
    phase = phase_of(state)
    return Phase.ENDING if phase is Phase.TERMINAL else phase


def _seconds(minutes: str) -> int:
    """Return seconds from TimelimitRaw; ``UNLIMITED`` and ``Partition_Limit`` are none."""
    return int(minutes) * 60 if minutes.isascii() and minutes.isdigit() else 0


def _duration(text: str) -> int:
    """Return seconds from ``[[days-]hours:]minutes:seconds``; 0 where that makes no sense, so that a person looks."""
    found = _DURATION.fullmatch(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
