"""Read prices from Slurm: ``TRESBillingWeights`` of partitions and ``UsageFactor`` of QOS.

Slurm adds up all matching weights (seen: ``gres/gpu=1.5,gres/gpu:a100=2.25`` bills 3.75 for each a100 and 1.5 for each
other GPU), and so do we; only the weights of GPUs count here. Slurm rounds a job's billing down to a whole number (7.5
to 7), we do not. With ``PriorityFlags=MAX_TRES`` Slurm uses the largest weight instead of the sum. A GPU type without a
matching weight in a partition costs 1 there, as does everything without weights. Shards have a weight of their own,
``gres/shard``, rounded up to a thousandth; weights of shards by GPU type (``gres/shard:a100``) are ignored, since the
ledger has no types of shards. ``carme_hub.accounting.price_list`` calls this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from carme_hub.domain.cluster.resources import SHARD
from carme_hub.domain.cluster.tres import ANY_TYPE
from carme_hub.domain.ledger.entries import ONE
from carme_hub.domain.ledger.prices import Prices, thousandths
from carme_hub.errors import SlurmUnreachable

from .command import Answer, Commands

_SHARDS = f"gres/{SHARD}"
_WORD = re.compile(r"(?:^|\s)(PartitionName|TRESBillingWeights)=(\S*)")


class BillingReader:
    """Reads prices from Slurm."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def prices(self, gpu_types: Iterable[str]) -> Prices:
        """Return the prices of these GPU types in every partition and QOS.

        Raises:
            SlurmUnreachable: Slurm gave no answer, or one that cannot be parsed.
            ConfigError: a weight of GPUs, a factor, or a product of them has more than three decimals.
        """
        partitions = await self._ask("scontrol", "show", "partition", "--oneliner")
        config = await self._ask("scontrol", "show", "config")
        qos = await self._ask("sacctmgr", "--readonly", "--parsable2", "show", "qos", "format=Name,UsageFactor")
        if qos.err.strip():  # with slurmdbd down it exits with 0
            raise SlurmUnreachable(f"sacctmgr: {qos.message}")
        flags = re.search(r"^PriorityFlags\s*=(.*)$", config.out, re.MULTILINE)
        if flags is None:
            raise SlurmUnreachable("scontrol: the configuration cannot be understood")
        largest = "MAX_TRES" in flags[1].upper().replace(",", " ").split()
        return Prices(gpu_in=weights_of(partitions.out, set(gpu_types), largest=largest), qos=factors_of(qos.out))

    async def _ask(self, name: str, *args: str) -> Answer:
        answer = await self._commands.query(name, *args)
        if answer.code != 0 or answer.reports_error:
            raise SlurmUnreachable(f"{name}: {answer.message}")
        return answer


def weights_of(text: str, gpu_types: set[str], *, largest: bool = False) -> dict[str, dict[str, int]]:
    """Return thousandths by partition and GPU type, from ``scontrol show partition --oneliner``.

    Args:
        gpu_types: the cluster's GPU types. largest: use the largest matching weight instead of the sum.
    """
    found: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        words = dict(_WORD.findall(line))
        if not line.strip():
            continue
        if "PartitionName" not in words:
            raise SlurmUnreachable(f"scontrol: a partition cannot be understood: {line[:80]!r}")
        name = words["PartitionName"]
        weights = _weights(words.get("TRESBillingWeights", ""), name)
        for type_ in gpu_types | {ANY_TYPE}:
            fitting = [weights[one] for one in ("gres/gpu", f"gres/gpu:{type_}") if one in weights]
            if fitting:
                found.setdefault(name, {})[type_] = max(fitting) if largest else sum(fitting)
        if _SHARDS in weights:
            found.setdefault(name, {})[SHARD] = weights[_SHARDS]
    return found


def factors_of(text: str) -> dict[str, int]:
    """Return thousandths of QOS with a factor other than 1, from ``sacctmgr -P show qos format=Name,UsageFactor``."""
    lines = text.split("\n")
    if lines.pop() or not lines or lines[0].lower() != "name|usagefactor":
        raise SlurmUnreachable("sacctmgr: the QOS cannot be understood")
    found = {}
    for line in lines[1:]:
        name, cut, value = line.rpartition("|")
        if not cut:
            raise SlurmUnreachable(f"sacctmgr: a QOS cannot be understood: {line[:80]!r}")
        found[name] = thousandths(value or "1", f"UsageFactor of QOS {name}")
    return {name: factor for name, factor in found.items() if factor != ONE}


def _weights(text: str, partition: str) -> Mapping[str, int]:
    """Return the weights of GPUs and shards by TRES name: ``gres/gpu``, ``gres/gpu:TYPE`` and ``gres/shard``."""
    found = {}
    for part in text.split(",") if text not in ("", "(null)") else ():
        name, _, value = part.partition("=")
        kind, colon, type_ = name.partition(":")
        kind = kind.lower()
        if kind == "gres/gpu" or (kind, type_) == (_SHARDS, ""):
            what = f"TRESBillingWeights of partition {partition}, {name}"
            found[kind + colon + type_] = thousandths(value, what, round_up=kind == _SHARDS)
    return found
