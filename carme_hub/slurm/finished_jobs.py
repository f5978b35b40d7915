"""Read jobs that have ended, with what each asked for and used, from ``sacct``: jobs with their steps.

What Slurm's accounting says, and how it is treated:

* A step has the most memory of all its processes together (``TRESUsageInTot``; ``MaxRSS`` is that of one task). Steps
  that ran at the same time add up, so the memory of a job is the most that its steps had together at one moment. Memory
  that processes share is counted for each of them (``jobacct_gather/linux``): it may be more than was used, never less,
  but for what came and went between two samples.
* Of a step on several nodes it is not known how much was on which. Programs that were started by ssh on further nodes
  are seen in the step ``extern`` only (PrologFlags=contain): without it, a job whose steps were not on all of its nodes
  may have used more, so nothing of it is known.
* ``TotalCPU`` leaves out processes that a job did not wait for; ``TRESUsageInTot`` has them, as of the last sample. The
  larger one counts.
* Zero is what Slurm says where nothing was sampled; no program uses no memory, so that is not known.
* Nothing is said of GPUs (``gres/gpuutil`` comes only where slurmd was built with NVML, and is the last sample).

``carme_hub.activity.finished_jobs`` stores what is read here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carme_hub.domain.activity.efficiency import Asked, Used
from carme_hub.domain.activity.finished import SACCT, FinishedJob
from carme_hub.domain.cluster.resources import NO_GPUS
from carme_hub.domain.cluster.tres import exit_of, gpus_of_tres, hosts_of, time_of
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.cli import parse
from carme_hub.slurm.cli.amounts import mib, seconds_of, tres_of
from carme_hub.slurm.cli.queue_rows import lenient

from .command import AnswerTooLong, Commands

#: sacct's fields; it prints them in its header unchanged.
FIELDS = (
    *("JobIDRaw", "JobID", "User", "Account", "Partition", "State", "Submit", "Eligible", "Start", "End"),
    *("TimelimitRaw", "NNodes", "NodeList", "AllocTRES", "TotalCPU", "MaxRSS", "NTasks", "TRESUsageInTot"),
    *("ExitCode", "Reason", "Constraints", "WorkDir", "JobName"),
)
#: States of jobs that have ended; of a requeued one, an incarnation has.
STATES = "CD,F,TO,OOM,CA,NF,PR,BF,DL,RQ"
#: What an ``extern`` step has that nobody logged in to.
_EXTERN_MIB, _EXTERN_CPU = 100, 60.0
#: Parts of the time into which a query is divided where its answer is too long; not below so many seconds.
_LEAST = 600


@dataclass(frozen=True, slots=True)
class Accounted:
    """A job that has ended, as accounting has it.

    Attributes:
        nodes: on which it was. eligible: since when it could have started but for priority and resources.
        held_back: whether something else kept it waiting, as a limit; constrained: whether it asked for features.
    """

    job: FinishedJob
    nodes: tuple[str, ...] = ()
    eligible: float = 0.0
    held_back: bool = False
    constrained: bool = False


class FinishedJobsReader:
    """Reads jobs that have ended; accounting must show this user all jobs, with their use.

    Args:
        timeout: seconds for one query; no user waits for the answer.
    """

    def __init__(self, commands: Commands, *, timeout: float = 60.0) -> None:
        self._commands, self._timeout = commands, timeout

    async def ended(self, since: float, until: float) -> tuple[Accounted, ...]:
        """Return every job that ended from one moment to another, UTC epoch seconds, and had begun.

        Raises:
            SlurmUnreachable: accounting gave no answer, or one that cannot be parsed.
        """
        try:
            found = await self._ask(since, until)
        except AnswerTooLong:
            if until - since <= _LEAST:
                raise
            middle = (since + until) // 2
            found = (*await self.ended(since, middle), *await self.ended(middle, until))
        known = {(each.job.job_id, each.job.submitted): each for each in found if since <= each.job.ended <= until}
        return tuple(known.values())

    async def _ask(self, since: float, until: float) -> tuple[Accounted, ...]:
        cut = parse.separator()
        answer = await self._commands.query(
            *("sacct", "--duplicates", "--allusers", "--parsable", f"--delimiter={cut}", f"--state={STATES}"),
            f"--starttime={parse.moment(since)}",
            f"--endtime={parse.moment(until + 1)}",  # sacct excludes the end
            f"--format={','.join(FIELDS)}",
            timeout=self._timeout,
        )
        if answer.code != 0 or answer.reports_error:
            raise SlurmUnreachable(f"sacct: {answer.message}")
        return await asyncio.to_thread(read, answer.out, cut)


def read(text: str, cut: str) -> tuple[Accounted, ...]:
    """Parse the output of ``sacct -D -p --delimiter=cut`` with FIELDS: jobs that have begun and ended.

    Raises:
        SlurmUnreachable: any part of it cannot be parsed.
    """
    jobs: list[tuple[Mapping[str, str], list[Mapping[str, str]]]] = []
    for row in parse.rows(text, cut, FIELDS, "sacct"):
        if "." not in row["JobIDRaw"]:
            jobs.append((row, []))
        elif jobs and row["JobIDRaw"].split(".")[0] == jobs[-1][0]["JobIDRaw"]:
            jobs[-1][1].append(row)
    try:
        return tuple(one for row, steps in jobs if (one := _accounted(row, steps)) is not None)
    except (ValueError, KeyError) as error:
        raise SlurmUnreachable(f"sacct: the answer cannot be understood: {error}") from error


def _accounted(row: Mapping[str, str], steps: Sequence[Mapping[str, str]]) -> Accounted | None:
    start, end, submitted = (time_of(row[name]) for name in ("Start", "End", "Submit"))
    hosts = _hosts(row["NodeList"])
    if not start or not end or not submitted or not hosts:
        return None
    nodes, tres = max(1, len(hosts)), tres_of(row["AllocTRES"])
    gpus = lenient(gpus_of_tres, NO_GPUS, row["AllocTRES"])
    cpus, memory = lenient(int, 0, tres.get("cpu", "0")), mib(tres.get("mem", "0")) or 0.0
    start = max(start, submitted)  # see ``usage``: a job that was resized
    seconds = end - start
    use = Use.of(steps, nodes, seconds, row["TotalCPU"])
    job = FinishedJob(
        job_id=int(row["JobIDRaw"]),
        user=row["User"],
        account=row["Account"],
        partition=row["Partition"],
        state=row["State"].split(" ", 1)[0],
        submitted=submitted,
        started=start,
        ended=end,
        asked=Asked(gpus.whole, cpus // nodes, round(memory / nodes), lenient(int, 0, row["TimelimitRaw"])),
        used=Used(
            cpus=None if use.cpu is None or seconds <= 0 else use.cpu / seconds / nodes,
            memory=round(use.memory) if use.memory is not None and use.nodes == 1 else None,
            measured=1.0 if use.seen else 0.0,
        ),
        source=SACCT,
        nodes=nodes,
        nodes_used=use.nodes,
        cpu_seconds=use.cpu,
        memory=None if use.memory is None else round(use.memory),
        gpu_type=gpus.type if gpus.whole else "",
        name=row["JobName"],
        shown_id=row["JobID"],
        folder=row["WorkDir"],
        exit_code=(lenient(exit_of, None, row["ExitCode"]) or (0, 0))[0],
    )
    return Accounted(
        job,
        hosts,
        time_of(row["Eligible"]),
        held_back=row["Reason"] not in ("", "None", "Priority", "Resources"),
        constrained=bool(row["Constraints"]),
    )


@dataclass(frozen=True, slots=True)
class Use:
    """What the steps of a job used together: CPU-seconds, MiB; None = not known.

    Attributes:
        nodes: on which programs ran. seen: whether accounting saw all of them.
    """

    cpu: float | None = None
    memory: float | None = None
    nodes: int | None = None
    seen: bool = False

    @classmethod
    def of(cls, steps: Sequence[Mapping[str, str]], nodes: int, seconds: float, total_cpu: str) -> Use:
        """Return the use of all steps of a job that had so many nodes for so many seconds."""
        found = [_Step.of(step) for step in steps]
        memory = _most_together(found)
        sampled = sum(step.cpu for step in found)
        cpu = max(sampled, seconds_of(total_cpu) or 0.0)
        # Slurm shows 00:00:00 also where it counts nothing.
        known = seconds > 0 and (cpu > 0 or bool(memory))
        extern = [step for step in found if step.extern]
        worked = [step for step in found if not step.extern]
        logged_in = any(step.memory > _EXTERN_MIB or step.cpu > _EXTERN_CPU for step in extern)
        hosts = {host for step in (worked if not logged_in else found) for host in step.hosts}
        if len(hosts) < nodes and not extern:
            return cls()
        return cls(cpu if known else None, memory or None, len(hosts) or None, seen=True)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step: begin and end, MiB at most, CPU-seconds of the last sample."""

    start: float
    end: float
    memory: float
    cpu: float
    hosts: tuple[str, ...]
    extern: bool

    @classmethod
    def of(cls, row: Mapping[str, str]) -> _Step:
        tres = tres_of(row["TRESUsageInTot"])
        tasks = max(1, lenient(int, 1, row["NTasks"]))
        # The sum of each task's most; without it, as many times the most of one.
        memory = max(mib(tres.get("mem", "")) or 0.0, mib(row["MaxRSS"]) or 0.0)
        if "mem" not in tres:
            memory *= tasks
        return cls(
            lenient(time_of, 0.0, row["Start"]),
            lenient(time_of, 0.0, row["End"]) or float("inf"),
            memory,
            seconds_of(tres.get("cpu", "")) or 0.0,
            _hosts(row["NodeList"]),
            row["JobIDRaw"].endswith(".extern"),
        )


def _hosts(text: str) -> tuple[str, ...]:
    """Return the names in a host list; () where there are none, or it cannot be read."""
    nothing: tuple[str, ...] = ()
    return nothing if text in ("", "None assigned") else lenient(hosts_of, nothing, text)


def _most_together(steps: Sequence[_Step]) -> float:
    """Return the most memory of steps that ran at the same time."""
    begins = {step.start for step in steps}
    return max((sum(s.memory for s in steps if s.start <= at < max(s.end, s.start + 1)) for at in begins), default=0.0)
