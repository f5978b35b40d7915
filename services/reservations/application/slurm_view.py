"""What this service last saw of Slurm: nodes, jobs, and so what can be booked; one question of each kind for all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from carme_hub.booking.calendar import Supply
from carme_hub.domain.calendar.bookable_nodes import inventory_of, occupied_by_others
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation
from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.sessions.profile import Profile
from carme_hub.errors import SlurmError, SlurmUnreachable

#: Seconds for which an answer is used again: who books makes a pass at once, and Slurm need not be asked each time.
MAX_AGE = 5.0


class Slurm(Protocol):
    """What is asked of Slurm; ``SlurmError`` where it is not known."""

    async def snapshot(self) -> Snapshot:
        """Return the jobs that are on nodes or name a reservation, and perhaps others."""
        ...

    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes."""
        ...


@dataclass(frozen=True, slots=True)
class Offer:
    """What of the cluster is offered.

    Attributes:
        partitions: whose nodes can be booked, () = all. by_node: whether Slurm keeps whole nodes only.
        licenses: the licence by which each GPU type is kept, {} = by nodes; other types cannot be booked then.
        shards_kept_off: see ``inventory_of``. back_in: seconds after which a node that is out is taken to be back.
        profiles: of the site, by slug, None where they are not known.
    """

    partitions: Collection[str] = ()
    by_node: bool = False
    shards_kept_off: bool = False
    back_in: int = 3600
    licenses: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, Profile] | None = None


class SlurmView:
    """Slurm's nodes and jobs, as of the last look; what was last seen stays while Slurm is silent.

    Args:
        there: Slurm's reservations as last seen, None before that.
        ours: what the names of those that are bookings begin with.
        share: percent of each GPU type that may be booked at one moment.
        not_counted: GPU types that cannot be booked now, since Slurm lacks their licence.
        default_partition: asks Slurm where jobs go that name none; without it, anywhere.
        nodes_age: seconds that the nodes' answer was old when it came: the hub may have asked for it.
    """

    def __init__(
        self,
        slurm: Slurm,
        offer: Offer,
        *,
        clock: Callable[[], float],
        there: Callable[[], Sequence[SlurmReservation] | None],
        ours: Callable[[], Collection[str]],
        share: Callable[[], int],
        not_counted: Callable[[], Collection[str]] = tuple,
        default_partition: Callable[[], Awaitable[str]] | None = None,
        nodes_age: Callable[[], float] = float,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self.offer = offer
        self._slurm, self._clock, self._log = slurm, clock, log
        self._there, self._ours, self._share, self._not_counted = there, ours, share, not_counted
        self._default, self._nodes_age = default_partition, nodes_age
        #: Slurm's default partition, "" while that is not known.
        self._default_partition = ""
        self.nodes: tuple[Node, ...] = ()
        self.jobs: Snapshot | None = None
        #: When the nodes were seen; 0 = never.
        self.at = 0.0
        #: Why Slurm is not known now, "" while it is.
        self.silent = "Slurm has not been asked yet."

    @property
    def known(self) -> bool:
        """Whether Slurm has ever said which nodes there are."""
        return self.at > 0

    async def look(self) -> None:
        """Ask Slurm for nodes and jobs, unless it was asked a moment ago; what it does not say stays as it was."""
        if not self.silent and 0 <= self._clock() - self.at < MAX_AGE:
            return
        found = await asyncio.gather(self._slurm.nodes(), self._slurm.snapshot(), return_exceptions=True)
        nodes, jobs = found
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, SlurmError):
                raise each
        wrong = next((str(each) for each in found if isinstance(each, BaseException)), "")
        if wrong and not self.silent:
            self._log.warning("Slurm does not say which nodes and jobs there are; what was last seen stays: %s", wrong)
        self.silent = wrong
        if not isinstance(nodes, BaseException):
            self.nodes, self.at = tuple(node for node in nodes if node.gpus), self._clock() - self._nodes_age()
        self.jobs = None if isinstance(jobs, BaseException) else jobs
        if not wrong:
            await self._look_at_default()

    async def _look_at_default(self) -> None:
        """Ask to which partition the sessions of profiles go that name none."""
        if self._default is not None and self.offer.profiles:
            with contextlib.suppress(SlurmError):  # what was last seen stays
                self._default_partition = await self._default()

    def _partitions(self, node: Node) -> Collection[str]:
        unnamed = ("",) if not self._default_partition or self._default_partition in node.partitions else ()
        return (*node.partitions, *unnamed)

    def nodes_now(self) -> tuple[Node, ...] | None:
        """Return the nodes, None where Slurm does not say now."""
        return None if self.silent or not self.known else self.nodes

    def supply(self) -> Supply:
        """Return what can be booked.

        Raises:
            SlurmUnreachable: nothing was ever seen, so nothing can be promised.
        """
        there = self._there()
        if not self.known or there is None:
            raise SlurmUnreachable(self.silent or "Slurm has not said yet which reservations there are.")
        offer, now = self.offer, int(self._clock())
        wanted, stems = set(offer.partitions), set(self._ours())
        ours = {each.name for each in there if each.stem in stems}
        nodes = [node for node in self.nodes if not wanted or wanted & set(node.partitions)]
        inventory = inventory_of(nodes, shards_kept_off=offer.shards_kept_off)
        if offer.licenses:
            # No node is reserved, so it would keep no shards off to take one whole.
            types = offer.licenses.keys() - self._not_counted()
            inventory = tuple(replace(item, exclusive=False) for item in inventory if item.type in types)
        return Supply(
            inventory,
            occupied_by_others(nodes, there, ours=ours, now=now, back_in=offer.back_in),
            by_node=offer.by_node,
            share=self._share(),
            by_license=bool(offer.licenses),
            profiles=offer.profiles,
            partitions={node.name: self._partitions(node) for node in nodes},
        )
