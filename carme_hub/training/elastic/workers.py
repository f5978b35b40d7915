"""The workers of an elastic run: their slots, and which of them start or leave next. No input or output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carme_hub.training.conductor.step import StartedStep
    from carme_hub.training.session.step_broker import Allocation


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A slot for one worker (as in Horovod): a node and its GPUs there. ``companion`` "" = in the session's own job."""

    node: str
    local: int
    companion: str = ""


@dataclass(slots=True)
class Worker:
    """One worker that was started.

    Attributes:
        number: of its log; an earlier worker may have had it. leaving: when it was told to leave, 0 = it was not.
        out_of_time: whether it leaves because its companion ends.
    """

    name: str
    number: int
    slot: WorkerSlot
    handle: StartedStep
    started: float
    leaving: float = 0.0
    out_of_time: bool = False


@dataclass(slots=True)
class WorkerCompanion:
    """A companion with one worker.

    Attributes:
        number: of the worker that it will get, -1 = that is in ``to_start`` or running.
        allocation: once it runs. message: why it waits.
    """

    id: str
    number: int
    message: str = ""
    allocation: Allocation | None = None


@dataclass(slots=True)
class Workers:
    """The workers that run, and those to be started.

    Args:
        slots: of the session's own job.
    """

    slots: Sequence[WorkerSlot] = ()
    members: dict[str, Worker] = field(default_factory=dict)
    companions: dict[str, WorkerCompanion] = field(default_factory=dict)
    to_start: list[tuple[float, int, WorkerSlot]] = field(default_factory=list)  # earliest time, number, slot
    starts: dict[int, int] = field(default_factory=dict)

    def numbers(self) -> list[int]:
        """Return the numbers of all workers that run or will start, without those that leave."""
        found = {each.number for each in self.members.values() if not each.leaving}
        found |= {number for _, number, _ in self.to_start}
        found |= {each.number for each in self.companions.values() if each.number >= 0}
        return sorted(found)

    def free_number(self) -> int:
        """Return the lowest free number."""
        taken = {each.number for each in self.members.values()} | {each.number for each in self.companions.values()}
        taken |= {number for _, number, _ in self.to_start}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def free_slots(self) -> list[WorkerSlot]:
        """Return the free slots of the session's own job."""
        taken = {each.slot for each in self.members.values()} | {slot for _, _, slot in self.to_start}
        return [slot for slot in self.slots if slot not in taken]

    def choose_leaving(self, count: int) -> tuple[list[WorkerCompanion], list[Worker]]:
        """Choose what to give back for so many ranks: pending companions, the newest ones, then the session's own."""
        waiting = [each for each in reversed(self.companions.values()) if each.number >= 0][:count]
        active = [each for each in self.members.values() if not each.leaving]
        active.sort(key=lambda each: (bool(each.slot.companion), each.started, each.number), reverse=True)
        return waiting, active[: count - len(waiting)]

    def withdraw(self, count: int) -> int:
        """Remove the last ones of the workers to be started; return how many. Their companions stay."""
        taken = min(count, len(self.to_start))
        del self.to_start[len(self.to_start) - taken :]
        return taken

    def beside(self, slot: WorkerSlot) -> int:
        """Return how many workers share the processors that a slot's job has on its node, this worker included."""
        return 1 if slot.companion else max(1, sum(each.node == slot.node for each in self.slots))

    def count_in_session(self) -> int:
        """Return how many workers are in the session's own job."""
        return sum(not each.slot.companion for each in self.members.values())

    def is_empty(self, companion: str) -> bool:
        """Return whether a companion has no worker, and gets none."""
        return not any(each.slot.companion == companion for each in self.members.values()) and not any(
            slot.companion == companion for _, _, slot in self.to_start
        )


def session_slots(nodes: Sequence[str], gpus: int, gpus_per_task: int, ranks: int) -> list[WorkerSlot]:
    """Return the slots of the session's own job.

    Args:
        gpus: of each node. ranks: as requested; without GPUs there are as many slots as ranks, so that more ranks get
            more processors too.
    """
    each = gpus // gpus_per_task if gpus_per_task else -(-ranks // len(nodes))
    found = [WorkerSlot(node, local) for node in nodes for local in range(each)]
    return found if gpus_per_task else found[:ranks]


def cpus_per_slot(cpus: int, nodes: int, slots: int) -> int:
    """Return the processors of each slot, and of each companion; ``cpus`` are those of the session on each node."""
    return max(1, cpus * nodes // max(1, slots))


def worker_nodes(members: Iterable[Worker]) -> list[str]:
    """Return the nodes of workers, each once."""
    return sorted({each.slot.node for each in members})
