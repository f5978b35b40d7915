"""The workers of a run whose number changes: where each is, and which of them are the next to come and to go. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carme_hub.training.conductor.step import StartedStep
    from carme_hub.training.session.step_broker import Allocation


@dataclass(frozen=True, slots=True)
class Seat:
    """Room for one worker: a node, and which of its GPUs. ``companion`` "" = in the session's own job."""

    node: str
    local: int
    companion: str = ""


@dataclass(slots=True)
class Member:
    """One worker that was started.

    Attributes:
        number: of its log; others may have had it before. leaving: when it was told to go, 0 = it was not.
        out_of_time: whether that was because its companion ends.
    """

    name: str
    number: int
    seat: Seat
    handle: StartedStep
    started: float
    leaving: float = 0.0
    out_of_time: bool = False


@dataclass(slots=True)
class Share:
    """A companion with one worker.

    Attributes:
        number: of its worker to be, -1 = that is among those who come or are there.
        allocation: what it has, when it runs. said: why it waits.
    """

    id: str
    number: int
    said: str = ""
    allocation: Allocation | None = None


@dataclass(slots=True)
class Workers:
    """Who is there and who is to come.

    Args:
        seats: of the session's own job.
    """

    seats: Sequence[Seat] = ()
    members: dict[str, Member] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)
    coming: list[tuple[float, int, Seat]] = field(default_factory=list)  # from when on, number, where
    lives: dict[int, int] = field(default_factory=dict)

    def numbers(self) -> list[int]:
        """Return the numbers of all that are there or to come, but for those who leave."""
        found = {each.number for each in self.members.values() if not each.leaving}
        found |= {number for _, number, _ in self.coming}
        found |= {each.number for each in self.shares.values() if each.number >= 0}
        return sorted(found)

    def free_number(self) -> int:
        """Return the lowest number that nobody has."""
        taken = {each.number for each in self.members.values()} | {each.number for each in self.shares.values()}
        taken |= {number for _, number, _ in self.coming}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def free_seats(self) -> list[Seat]:
        """Return the session's own seats where nobody is."""
        taken = {each.seat for each in self.members.values()} | {seat for _, _, seat in self.coming}
        return [seat for seat in self.seats if seat not in taken]

    def to_leave(self, count: int) -> tuple[list[Share], list[Member]]:
        """Return who goes when so many are given back: who waits, the newest companions, then the session's own."""
        waiting = [each for each in reversed(self.shares.values()) if each.number >= 0][:count]
        there = [each for each in self.members.values() if not each.leaving]
        there.sort(key=lambda each: (bool(each.seat.companion), each.started, each.number), reverse=True)
        return waiting, there[: count - len(waiting)]

    def withdraw(self, count: int) -> int:
        """Do without some that were to be started, the last ones; return how many. Their companions stay."""
        taken = min(count, len(self.coming))
        del self.coming[len(self.coming) - taken :]
        return taken

    def beside(self, seat: Seat) -> int:
        """Return how many workers share the processors that a seat's job has on its node, itself among them."""
        return 1 if seat.companion else max(1, sum(each.node == seat.node for each in self.seats))

    def own(self) -> int:
        """Return how many workers are in the session's own job."""
        return sum(not each.seat.companion for each in self.members.values())

    def alone_in(self, companion: str) -> bool:
        """Return whether nobody is in a companion, or about to be."""
        return not any(each.seat.companion == companion for each in self.members.values()) and not any(
            seat.companion == companion for _, _, seat in self.coming
        )


def seats_of(nodes: Sequence[str], gpus: int, gpus_per_task: int, ranks: int) -> list[Seat]:
    """Return the seats of the session's own job.

    Args:
        gpus: of each node. ranks: that were asked for; without GPUs there is a seat for each of them and no more, so
            that more of them mean more processors too.
    """
    each = gpus // gpus_per_task if gpus_per_task else -(-ranks // len(nodes))
    found = [Seat(node, local) for node in nodes for local in range(each)]
    return found if gpus_per_task else found[:ranks]


def cpus_each(cpus: int, nodes: int, seats: int) -> int:
    """Return the processors of each seat, and of each companion, of a session that has so many on each node."""
    return max(1, cpus * nodes // max(1, seats))


def nodes_of(members: Iterable[Member]) -> list[str]:
    """Return the nodes of workers, each once."""
    return sorted({each.seat.node for each in members})
