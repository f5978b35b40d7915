"""The Slurm client over pyslurm: the same values as by the commands, without a process for each query.

pyslurm reads jobs, nodes, reservations and accounting records in two processes of their own (``server.py``), so that a
database that does not answer does not block queries of the queue. The commands still do what pyslurm does not show, or
shows less exactly: associations (it has no coordinators), nodes with shards in use, GPU time to charge (it drops
incarnations), and whether a controller answers (its query would wait behind others). They also submit, cancel and
change time limits, which run as the job's user or need the checks of the commands.

Three values are less exact than those of the commands of 25.11 (all seen): pyslurm subtracts 128 from an exit status of
128 and more; reservations lack flags that the library has no name for (REPLACE, TIME_FLOAT), none of which we use; GPUs
requested by ``--gpus`` or per task have the types that AccountingStorageTRES names.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation
from carme_hub.domain.cluster.jobs import Job, JobRecord, Phase, Snapshot
from carme_hub.domain.cluster.node_reasons import bare_reason
from carme_hub.domain.cluster.resources import NO_GPUS, SHARD, Node
from carme_hub.domain.cluster.tres import gpus_of_gres, gpus_of_tres, hosts_of, job_gpus, phase_of, typed_gpus_of_tres
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm import reservations as by_command
from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.cli.parse import node_state
from carme_hub.slurm.cli.queue_rows import lenient
from carme_hub.slurm.command import Commands
from carme_hub.slurm.submit.submitters import Submitter

from .process import NativeProcess, NotAvailable, check

__all__ = ["ReservationsNative", "SlurmNative", "check"]

log = logging.getLogger("carme_hub")
_T = TypeVar("_T")
#: More rows than this are parsed in a thread, so that the event loop does not wait.
_MANY = 500
#: scontrol's names of reservation flags, if they differ from pyslurm's.
_FLAGS = {
    "MAINTENANCE": "MAINT",
    "IGNORE_RUNNING_JOBS": "IGNORE_JOBS",
    "STATIC_NODES": "STATIC",
    "PARTITION_NODES_ONLY": "PART_NODES",
    "USER_DELETION": "USER_DELETE",
    "PURGE": "PURGE_COMP",
    "SPECIFIC_NODES": "SPEC_NODES",
    "NO_JOB_HOLD_AFTER_END": "NO_HOLD_JOBS_AFTER_END",
}


class SlurmNative(SlurmCli):
    """The ``SlurmClient`` over pyslurm, and over the commands for everything else.

    Args:
        controller: the process that queries slurmctld. accounting: the process that queries slurmdbd.
    """

    def __init__(
        self,
        *,
        cluster: str,
        commands: Commands,
        submitter: Submitter,
        controller: NativeProcess,
        accounting: NativeProcess,
        tail_command: tuple[str, ...] = (),
    ) -> None:
        super().__init__(cluster=cluster, commands=commands, submitter=submitter, tail_command=tail_command)
        self._controller = controller
        self._accounting = accounting
        self._logged: set[str] = set()

    async def snapshot(self) -> Snapshot:
        """Return all jobs of all users, including those that ended within MinJobAge, from one query."""
        asked = time.monotonic()
        rows = await self._controller.ask("jobs")
        found = await _read(_job, rows)
        return Snapshot(asked, time.monotonic(), {job.id: job for job in found})

    async def find(self, name: str, user: str) -> tuple[Job, ...]:
        """Return the jobs of that name and user that the controller knows, including ended ones, oldest first."""
        found = await _read(_job, await self._controller.ask("jobs", name=name, user=user))
        return tuple(sorted(found, key=lambda job: (job.submitted, job.id)))

    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes; through scontrol if pyslurm does not show which GPUs are in use."""
        try:
            rows = await self._controller.ask("nodes")
        except NotAvailable as why:
            if str(why) not in self._logged:
                self._logged.add(str(why))
                log.info("Nodes are read through scontrol, since pyslurm does not show their GPUs: %s", why)
            return await super().nodes()
        found = await _read(_node, rows)
        if not found:
            raise SlurmUnreachable("pyslurm: no node in the answer")
        return found

    async def records(self, name: str, user: str, since: float) -> tuple[JobRecord, ...]:
        """Return every incarnation in accounting of jobs of that name and user, eligible since then (epoch)."""
        return await _read(_record, await self._accounting.ask("records", name=name, user=user, since=since))

    async def close(self) -> None:
        """End both processes, and close the submitter."""
        await self._controller.close()
        await self._accounting.close()
        await super().close()


class ReservationsNative(by_command.ReservationsCli):
    """Reads reservations through pyslurm, and writes them through scontrol."""

    def __init__(self, commands: Commands, controller: NativeProcess) -> None:
        super().__init__(commands)
        self._controller = controller

    async def show(self) -> tuple[SlurmReservation, ...]:
        """Return all reservations; through scontrol if pyslurm cannot read a flag."""
        try:
            rows = await self._controller.ask("reservations")
        except NotAvailable:
            return await super().show()
        return await _read(_reservation, rows)

    async def close(self) -> None:
        """End the process; the next query starts another one."""
        await self._controller.close()


async def _read(read: Callable[..., _T], rows: Any) -> tuple[_T, ...]:
    """Parse all rows, or raise ``SlurmUnreachable``."""

    def all_of_them() -> tuple[_T, ...]:
        try:
            return tuple(read(*row) for row in rows)
        except (TypeError, ValueError, KeyError) as error:
            raise SlurmUnreachable(f"pyslurm: the answer cannot be understood: {error}") from error

    return await asyncio.to_thread(all_of_them) if len(rows) > _MANY else all_of_them()


def _job(
    id: int,
    name: str,
    user: str,
    state: str,
    reason: str | None,
    nodes: str | None,
    partition: str | None,
    account: str | None,
    priority: int | str | None,
    submitted: int,
    start: int | None,
    end: int | None,
    time_limit: int | None,
    tres: str,
    per_node: str,
    number: int | None,
    exit: Sequence[int | None],
    restarts: int | None,
    reservation: str | None,
) -> Job:
    phase = phase_of(state)
    if time_limit is None and end and end > time.time():
        end = None  # a job without a limit; squeue shows NONE
    return Job(
        id=id,
        name=name,
        user=user,
        state=state,
        phase=phase,
        reason="" if reason in (None, "None") else reason,
        nodes=lenient(hosts_of, (), nodes or ""),
        partition=partition or "",
        account=account or "",
        priority=priority if isinstance(priority, int) else 0,
        submitted=_time(submitted),
        start=_time(start),
        end=_time(end),
        time_limit=time_limit or 0,
        gpus=lenient(job_gpus, NO_GPUS, tres, per_node, "", "", number or 1),
        exit_code=_exit(exit) if phase is Phase.TERMINAL else None,
        restarts=restarts or 0,
        reservation=reservation or "",
    )


def _record(
    id: int,
    name: str,
    user: str,
    state: str,
    submitted: int,
    start: int | None,
    end: int | None,
    nodes: str | None,
    account: str | None,
    tres: str,
    exit: Sequence[int | None],
) -> JobRecord:
    return JobRecord(
        id=id,
        name=name,
        user=user,
        state=state,
        phase=phase_of(state),
        submitted=_time(submitted),
        start=_time(start),
        end=_time(end),
        nodes=() if nodes == "None assigned" else lenient(hosts_of, (), nodes or ""),
        account=account or "",
        gpus=lenient(gpus_of_tres, NO_GPUS, tres),
        exit_code=_exit(exit),
    )


def _node(
    name: str,
    state: str,
    partitions: Sequence[str],
    cpus: int,
    cpus_used: int,
    memory: int,
    memory_used: int,
    gres: str,
    tres: str,
    address: str | None,
    reason: str | None,
) -> Node:
    base, usable, flags = node_state(state)
    gpus = gpus_of_gres(gres)
    return Node(
        name=name,
        state="mixed" if base == "idle" and tres else base,  # as scontrol shows it; pyslurm considers only CPUs
        usable=usable,
        partitions=tuple(partitions),
        cpus=cpus,
        cpus_used=cpus_used,
        memory_mib=memory,
        memory_used_mib=memory_used,
        gpus=gpus,
        gpus_used=_in_use(gpus, tres),
        address=address or name,
        shards=gpus_of_gres(gres, SHARD),
        flags=flags,
        reason=bare_reason(reason or ""),
    )


def _in_use(gpus: dict[str, int], tres: str) -> dict[str, int]:
    """Return the GPUs in use by type. If TRES name no type, the node has only one (see ``NotAvailable``)."""
    used = {held.type: held.count for held in typed_gpus_of_tres(tres)}
    if len(gpus) == 1 and used:
        return {next(iter(gpus)): sum(used.values())}
    return used


def _reservation(
    name: str,
    start: int,
    end: int,
    nodes: str | None,
    tres: str,
    users: Sequence[str],
    accounts: Sequence[str],
    flags: Sequence[str],
    active: bool,
    licenses: Sequence[str],
) -> SlurmReservation:
    cpus = dict(part.partition("=")[::2] for part in tres.split(",")).get("cpu", "0")
    return SlurmReservation(
        name=name,
        period=Period(start, end),
        nodes=frozenset(hosts_of(nodes or "")),
        gpus={gpus.type: gpus.count for gpus in typed_gpus_of_tres(tres)},
        cpus=int(cpus),
        users=frozenset(users),
        accounts=frozenset(accounts),
        flags=frozenset(_FLAGS.get(flag, flag) for flag in flags) - {"NO"},
        state="ACTIVE" if active else "INACTIVE",
        licenses=dict(map(by_command.license_of, licenses)),
    )


def _time(at: int | None) -> float:
    return float(at or 0)


def _exit(said: Sequence[int | None]) -> tuple[int, int] | None:
    status, number = said
    return None if status is None or number is None else (status, number)
