"""Slurm's nodes and jobs in its last answers, and the GPUs that can be booked; one query serves all callers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from carme_hub.booking.calendar import Supply
from carme_hub.domain.calendar.bookable_nodes import inventory_of, occupied_by_others
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation
from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.sessions.profile import Profile
from carme_hub.errors import SlurmError, SlurmUnreachable
from carme_hub.services.slurm_by_hub import SlurmByHub

#: Seconds for which an answer is used again: each booking triggers a pass, and not each of them must ask Slurm.
MAX_AGE = 5.0


@dataclass(frozen=True, slots=True)
class Offer:
    """The part of the cluster that can be booked.

    Attributes:
        partitions: partitions whose nodes can be booked, () = all. by_node: whether Slurm reserves whole nodes only.
        licenses: the license that counts each GPU type, {} = by nodes; with licenses, other types cannot be booked.
        shards_kept_off: see ``inventory_of``. back_in: seconds after which an unavailable node is expected back.
        profiles: the site's profiles by slug, None if they are not known.
    """

    partitions: Collection[str] = ()
    by_node: bool = False
    shards_kept_off: bool = False
    back_in: int = 3600
    licenses: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, Profile] | None = None


class SlurmView:
    """Slurm's nodes and jobs in its last answers, which stay while Slurm does not answer.

    Args:
        there: returns Slurm's reservations in its last answer, None before the first.
        ours: returns the stems of the names of those that are bookings.
        share: returns the percent of each GPU type that may be booked at one time.
        not_counted: returns the GPU types that cannot be booked now, since Slurm lacks their license.
        default_partition: returns the partition of jobs that name none; without it, they may go to any.
        nodes_age: returns the age in seconds of the nodes' answer when it came: the hub may have cached it.
    """

    def __init__(
        self,
        slurm: SlurmByHub,
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
        #: Slurm's default partition, "" while it is not known.
        self._default_partition = ""
        self.nodes: tuple[Node, ...] = ()
        self.jobs: Snapshot | None = None
        #: Time of the nodes' answer; 0 = never.
        self.at = 0.0
        #: Why Slurm's state is unknown now, "" while it is known.
        self.silent = "Slurm has not been asked yet."

    @property
    def known(self) -> bool:
        """Whether Slurm has ever listed its nodes."""
        return self.at > 0

    async def look(self) -> None:
        """Ask Slurm for nodes and jobs, unless the last answer is fresh; without an answer the last one stays."""
        if not self.silent and 0 <= self._clock() - self.at < MAX_AGE:
            return
        found = await asyncio.gather(self._slurm.nodes(), self._slurm.snapshot(), return_exceptions=True)
        nodes, jobs = found
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, SlurmError):
                raise each
        wrong = next((str(each) for each in found if isinstance(each, BaseException)), "")
        if wrong and not self.silent:
            self._log.warning("Slurm's nodes and jobs could not be read; the last answer stays: %s", wrong)
        self.silent = wrong
        if not isinstance(nodes, BaseException):
            self.nodes, self.at = tuple(node for node in nodes if node.gpus), self._clock() - self._nodes_age()
        self.jobs = None if isinstance(jobs, BaseException) else jobs
        if not wrong:
            await self._look_at_default()

    async def _look_at_default(self) -> None:
        """Ask Slurm for its default partition: sessions of profiles without a partition start there."""
        if self._default is not None and self.offer.profiles:
            with contextlib.suppress(SlurmError):  # the last answer stays
                self._default_partition = await self._default()

    def _partitions(self, node: Node) -> Collection[str]:
        unnamed = ("",) if not self._default_partition or self._default_partition in node.partitions else ()
        return (*node.partitions, *unnamed)

    def nodes_now(self) -> tuple[Node, ...] | None:
        """Return the nodes, None if they are not known now."""
        return None if self.silent or not self.known else self.nodes

    def supply(self) -> Supply:
        """Return the GPUs that can be booked.

        Raises:
            SlurmUnreachable: Slurm has never answered, so nothing can be booked.
        """
        there = self._there()
        if not self.known or there is None:
            raise SlurmUnreachable(self.silent or "Slurm has not listed its reservations yet.")
        offer, now = self.offer, int(self._clock())
        wanted, stems = set(offer.partitions), set(self._ours())
        ours = {each.name for each in there if each.stem in stems}
        nodes = [node for node in self.nodes if not wanted or wanted & set(node.partitions)]
        inventory = inventory_of(nodes, shards_kept_off=offer.shards_kept_off)
        if offer.licenses:
            # Licenses reserve no nodes, so booking a whole node would not keep shards off.
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
