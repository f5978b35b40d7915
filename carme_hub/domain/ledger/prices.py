"""Prices: a factor for GPU-seconds by GPU type, partition and QOS, in whole thousandths. Pure.

The three factors are multiplied; the default factor is 1. They come from the configuration, or from Slurm
(``slurm.billing``), where the price of a type may differ between partitions. Prices of whole GPUs must be exact; the
price of a shard, a fraction of a GPU, is rounded up to a thousandth. ``carme_hub.accounting`` calls this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

from carme_hub.domain.cluster.resources import SHARD, Node
from carme_hub.errors import ConfigError

from .entries import ONE

_DECIMAL = re.compile(r"([0-9]{1,9})(?:\.([0-9]*))?")
_KINDS = ("gpu", "partition", "qos")


def thousandths(value: object, what: str, *, round_up: bool = False) -> int:
    """Return a factor in thousandths from a text or a whole number: "2.5" is 2500, "1.000000" is 1000.

    Args:
        round_up: round further decimals up to a thousandth instead of refusing them.

    Raises:
        ConfigError: not a number, negative, or more than three decimals; the message names ``what``.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ConfigError(f'{what}: write {value!r} as a text, such as "2.5": a number with a point is not exact.')
    match = _DECIMAL.fullmatch(str(value).strip())
    if match is None:
        raise ConfigError(f"{what}: {value!r} is not a price. Write a number of 0 or more with at most three decimals.")
    decimals = (match[2] or "").rstrip("0")
    if len(decimals) > 3 and not round_up:
        raise ConfigError(f"{what}: {value!r} has more than three decimals, which the ledger cannot count exactly.")
    return int(match[1]) * ONE + int(decimals[:3].ljust(3, "0")) + (len(decimals) > 3)


@dataclass(frozen=True, slots=True)
class Prices:
    """Price factors in thousandths, 1000 = 1. Their products are exact; the product for a shard is rounded up.

    Attributes:
        gpu: by GPU type. partition: by partition. qos: by QOS, in lower case as Slurm keeps them.
        gpu_in: by partition, then by GPU type; it overrides ``gpu``.

    Raises:
        ConfigError: a factor is negative, or a product for whole GPUs has more than three decimals.
    """

    gpu: Mapping[str, int] = field(default_factory=dict)
    partition: Mapping[str, int] = field(default_factory=dict)
    qos: Mapping[str, int] = field(default_factory=dict)
    gpu_in: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        partitions = {*self.partition, *self.gpu_in, ""}
        types = {*self.gpu, *(type_ for weights in self.gpu_in.values() for type_ in weights), ""}
        for type_, partition, qos in product(sorted(types), sorted(partitions), sorted({*self.qos, ""})):
            factors = self._factors(type_, partition, qos)
            if min(factors) < 0:
                raise ConfigError(f"The price of {_named(type_, partition, qos)} is negative.")
            if type_ != SHARD and factors[0] * factors[1] * factors[2] % ONE**2:
                raise ConfigError(
                    f"The prices of {_named(type_, partition, qos)} multiply to more than three decimals, which the "
                    "ledger cannot count exactly. Choose rounder ones."
                )

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Prices:
        """Return prices from ``{"gpu": {"h100": "2.5"}, "partition": {…}, "qos": {…}}``.

        Raises:
            ConfigError: it has another shape, or a price that is not exact.
        """
        found: dict[str, dict[str, int]] = {}
        for kind, factors in config.items():
            if kind not in _KINDS:
                raise ConfigError(f"CarmeQuotas.prices: {kind!r} is not one of {', '.join(_KINDS)}.")
            if not isinstance(factors, Mapping):
                raise ConfigError(f'CarmeQuotas.prices: {kind!r} holds names and factors, as {{"a100": "2.5"}}.')
            found[kind] = {
                str(name): thousandths(
                    value, f"CarmeQuotas.prices, {kind} {name}", round_up=(kind, name) == ("gpu", SHARD)
                )
                for name, value in factors.items()
            }
        qos: dict[str, int] = {}
        for name, factor in found.get("qos", {}).items():
            if name.lower() in qos:
                raise ConfigError(f"CarmeQuotas.prices: qos names {name.lower()} twice; Slurm ignores case.")
            qos[name.lower()] = factor
        return cls(found.get("gpu", {}), found.get("partition", {}), qos)

    def factor(self, gpu_type: str, partition: str = "", qos: str = "") -> int:
        """Return the price of one second of one GPU of a type, in thousandths."""
        type_, where, quality = self._factors(gpu_type, partition, qos)
        return -(-type_ * where * quality // ONE**2)

    def shard_factor(self, parts: Mapping[str, Mapping[str, int]], partition: str = "", qos: str = "") -> int:
        """Return the price of one second of one shard in thousandths: the configured one, or derived and rounded up.

        Args:
            parts: the result of ``shard_parts``. If it is empty, a shard without a price costs 1 like other types.
        """
        here = parts.get(partition) or parts.get("", {})
        if not here or SHARD in self.gpu or SHARD in self.gpu_in.get(partition, {}):
            return self.factor(SHARD, partition, qos)
        return max(-(-part * self.factor(type_, partition, qos) // ONE) for type_, part in here.items())

    def lowest_factor(self, gpu_types: Iterable[str]) -> int:
        """Return the lowest factor of any of the types in any partition and QOS, in thousandths."""
        places = tuple(product({*self.partition, *self.gpu_in, ""}, {*self.qos, ""}))
        kinds = {*gpu_types} or {""}
        return min(self.factor(type_, *place) for place in places for type_ in kinds)

    def _factors(self, gpu_type: str, partition: str, qos: str) -> tuple[int, int, int]:
        here = self.gpu_in.get(partition, {}).get(gpu_type)
        return (
            self.gpu.get(gpu_type, ONE) if here is None else here,
            self.partition.get(partition, ONE),
            self.qos.get(qos.lower(), ONE),
        )


def shard_parts(nodes: Iterable[Node]) -> dict[str, dict[str, int]]:
    """Return by partition and GPU type which fraction of a GPU a shard is, in thousandths, rounded up, at most 1000.

    The partition "" is the whole cluster. If nodes differ, the largest fraction counts.
    """
    found: dict[str, dict[str, int]] = {}
    for node in nodes:
        for of, shards in node.shards.items():
            # Untyped shards are spread over all GPUs of the node.
            gpus = {of: node.gpus[of]} if of in node.gpus else node.gpus
            if not shards or not gpus:
                continue
            part = min(ONE, -(-sum(gpus.values()) * ONE // shards))
            for partition, type_ in product(("", *node.partitions), gpus):
                known = found.setdefault(partition, {})
                known[type_] = max(part, known.get(type_, 0))
    return found


def _named(gpu_type: str, partition: str, qos: str) -> str:
    known = (("GPU type", gpu_type), ("partition", partition), ("QOS", qos))
    return ", ".join(f"{kind} {name}" for kind, name in known if name) or "any GPU"
