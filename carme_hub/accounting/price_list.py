"""What GPU time costs now: from the settings, or from Slurm, read by the service and handed to the hub as a note."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from carme_hub.domain.cluster.resources import SHARD
from carme_hub.domain.ledger.entries import ONE
from carme_hub.domain.ledger.prices import Prices
from carme_hub.errors import Refused

from .ledger import Ledger
from .settings import CarmeQuotas

#: The note that holds the prices which were last read from Slurm.
PRICES = "prices"
#: The note that holds what part of a GPU a shard is, as the nodes last said.
SHARDS = "shards"


class NoPrice(Refused):
    """Prices come from Slurm, and Slurm has not said any yet."""

    reason = "no-price"


class PriceList:
    """The prices in force; ``factor`` is what the ledger asks."""

    def __init__(self, settings: CarmeQuotas) -> None:
        self.from_slurm = settings.prices_from == "slurm"
        self._prices = None if self.from_slurm else Prices.from_config(settings.prices)
        #: What part of a GPU a shard is, as ``shard_parts`` returns it; empty while no node has said it.
        self.shards: Mapping[str, Mapping[str, int]] = {}

    @property
    def names_shards(self) -> bool:
        """Return whether the site names the price of a shard for all partitions; nothing is drawn then."""
        return self._prices is not None and SHARD in self._prices.gpu

    def factor(self, gpu_type: str, partition: str = "", qos: str = "") -> int:
        """Return the price of one second of one GPU of that type, in thousandths.

        Raises:
            NoPrice: it is not known yet.
        """
        if self._prices is None:
            raise NoPrice(
                "The price of GPU time is not known yet: the quotas service has not read it from Slurm. "
                "Try again in a minute, or tell an administrator."
            )
        if gpu_type == SHARD:
            return self._prices.of_shard(self.shards, partition, qos)
        return self._prices.factor(gpu_type, partition, qos)

    def least(self, gpu_types: Iterable[str]) -> int:
        """Return the lowest factor that any of the types has anywhere, in thousandths; 1000 while none is known."""
        return self._prices.least(gpu_types) if self._prices is not None else ONE

    async def load(self, ledger: Ledger) -> None:
        """Take what the service has last noted; the settings' own prices stay as they are."""
        if self.from_slurm:
            note = await ledger.note(PRICES)
            self._prices = _read(note.value) if note is not None else self._prices
        if not self.names_shards:
            note = await ledger.note(SHARDS)
            self.shards = note.value if note is not None else self.shards

    async def store(self, ledger: Ledger, prices: Prices) -> None:
        """Put prices in force that Slurm has just said, and note them where they differ from the last ones."""
        if prices != self._prices:
            note = await ledger.note(PRICES)
            if note is None or _read(note.value) != prices:
                await ledger.add_note(PRICES, asdict(prices))
        self._prices = prices

    async def store_shards(self, ledger: Ledger, parts: Mapping[str, Mapping[str, int]]) -> None:
        """Put in force what part of a GPU a shard is, and note it where it differs; what is empty says nothing."""
        if parts and parts != self.shards:
            note = await ledger.note(SHARDS)
            if note is None or note.value != parts:
                await ledger.add_note(SHARDS, parts)
            self.shards = parts


def _read(value: Mapping[str, Any]) -> Prices:
    return Prices(**value)
