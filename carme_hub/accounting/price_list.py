"""Prices of GPU time in force: from the settings, or from Slurm.

The quotas service reads Slurm's prices and stores them as a note of the ledger; the hub loads the note.
"""

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

#: Name of the note with the prices that were last read from Slurm.
PRICES = "prices"
#: Name of the note with the part of a GPU that a shard is, as the nodes last reported it.
SHARDS = "shards"


class NoPrice(Refused):
    """Prices come from Slurm, and have not been read yet."""

    reason = "no-price"


class PriceList:
    """The prices in force; the ledger calls ``factor``."""

    def __init__(self, settings: CarmeQuotas) -> None:
        self.from_slurm = settings.prices_from == "slurm"
        self._prices = None if self.from_slurm else Prices.from_config(settings.prices)
        #: Part of a GPU that a shard is, as ``shard_parts`` returns it; empty while no node has reported it.
        self.shards: Mapping[str, Mapping[str, int]] = {}

    @property
    def has_shard_price(self) -> bool:
        """Return whether the settings have a price for shards; then it is not computed from the nodes."""
        return self._prices is not None and SHARD in self._prices.gpu

    def factor(self, gpu_type: str, partition: str = "", qos: str = "") -> int:
        """Return the price of one second of one GPU of that type, in thousandths.

        Raises:
            NoPrice: the price is not known yet.
        """
        if self._prices is None:
            raise NoPrice(
                "The price of GPU time is not known yet: the quotas service has not read it from Slurm. "
                "Try again in a minute, or tell an administrator."
            )
        if gpu_type == SHARD:
            return self._prices.shard_factor(self.shards, partition, qos)
        return self._prices.factor(gpu_type, partition, qos)

    def lowest_factor(self, gpu_types: Iterable[str]) -> int:
        """Return the lowest factor that any of the types has anywhere, in thousandths; 1000 while none is known."""
        return self._prices.lowest_factor(gpu_types) if self._prices is not None else ONE

    async def load(self, ledger: Ledger) -> None:
        """Load the service's last notes; prices of the settings stay as they are."""
        if self.from_slurm:
            note = await ledger.note(PRICES)
            self._prices = _read(note.value) if note is not None else self._prices
        if not self.has_shard_price:
            note = await ledger.note(SHARDS)
            self.shards = note.value if note is not None else self.shards

    async def store(self, ledger: Ledger, prices: Prices) -> None:
        """Put prices just read from Slurm in force, and add a note if they differ from the last ones."""
        if prices != self._prices:
            note = await ledger.note(PRICES)
            if note is None or _read(note.value) != prices:
                await ledger.add_note(PRICES, asdict(prices))
        self._prices = prices

    async def store_shards(self, ledger: Ledger, parts: Mapping[str, Mapping[str, int]]) -> None:
        """Put the parts of a GPU that shards are in force, and add a note if they differ; empty ones are ignored."""
        if parts and parts != self.shards:
            note = await ledger.note(SHARDS)
            if note is None or note.value != parts:
                await ledger.add_note(SHARDS, parts)
            self.shards = parts


def _read(value: Mapping[str, Any]) -> Prices:
    return Prices(**value)
