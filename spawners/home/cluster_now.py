"""The cluster in a few lines: free GPUs by type, the queue for them, what frees up when, nodes out of service. Pure.

No job of others is named, so it is the same for everybody, whatever PrivateData hides.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from carme_hub.domain.cluster.node_reasons import UPDATE, plain_reason
from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.sessions.availability import Cluster, TypeCount
from carme_hub.spawners.form.durations import clock

#: Why nothing can start on a node, in words, by Slurm's flags of its state (sinfo(1)); the first that fits.
_FLAGS = (
    ("in maintenance", frozenset({"maint", "maintenance"})),
    ("drained", frozenset({"drain", "drained", "draining"})),
    ("reserved", frozenset({"reserved"})),
)
_DOWN, _UPDATED = "down", "being updated"
#: Nodes of which the page says why nothing can start there; of more it says only how many they are.
_MOST_REASONS = 5


@dataclass(frozen=True, slots=True)
class TypeNow:
    """GPUs of one type, or CPUs where there are no GPUs: what they are called, how many, and a sentence on the rest."""

    what: str
    total: int
    free: int
    said: str


@dataclass(frozen=True, slots=True)
class ClusterNow:
    """What the page says of the cluster. ``problem``: why it may be out of date, or is not known."""

    rows: tuple[TypeNow, ...] = ()
    nodes: str = ""
    problem: str = ""


def cluster_now(cluster: Cluster, now: float, *, virtual: bool) -> ClusterNow:
    """Return what is free, waits and frees up.

    Args:
        virtual: the GPUs are a sandbox's virtual GPUs, and are called so.
    """
    if not cluster.known:
        return ClusterNow(problem="What is free is not known: Slurm does not answer.")
    found = cluster.partition_nodes("")
    rows = tuple(
        _row(cluster, f"{'virtual ' if virtual else ''}{type}", type, count, now)
        for type, count in sorted(found.gpus.items())
        if count.total
    )
    problem = ""
    if cluster.silent_since:
        problem = f"Slurm does not answer; this was so at {clock(cluster.seen, now)}."
    return ClusterNow(rows or (_row(cluster, "CPUs", "", found.cpus, now),), _nodes(cluster), problem)


def _row(cluster: Cluster, what: str, type: str, count: TypeCount, now: float) -> TypeNow:
    parts = []
    if waiting := cluster.queued(type):
        parts.append(f"{waiting} {'job waits' if waiting == 1 else 'jobs wait'}")
    ends = [(max(end, now), some) for each in cluster.ends(type).values() for end, some in each] if type else []
    if ends and count.free < count.total - count.down:
        first = min(end for end, _ in ends)
        more = sum(some for end, some in ends if end == first)
        parts.append(f"{more} more by {clock(first, now)} at the latest")
    if count.down:
        parts.append(f"{count.down} on nodes where nothing can start")
    sentence = "; ".join(parts)
    return TypeNow(what, count.total, count.free, f"{sentence}." if sentence else "")


def _nodes(cluster: Cluster) -> str:
    """Return the nodes on which nothing can start, as sentences; "" = all are in service."""
    out = [(node, _why_out(node)) for node in cluster.nodes if not node.usable]
    counts = Counter(why for _, why in out)
    parts = [f"{counts[why]} {why}" for why in (*(why for why, _ in _FLAGS), _UPDATED, _DOWN) if counts[why]]
    if not parts:
        return ""
    known = [(node.name, plain_reason(node.reason)) for node, why in out if why != _UPDATED]
    reasons = [f"{name}: {words}." for name, words in known if words]
    more = len(reasons) - _MOST_REASONS
    said = [*reasons[:_MOST_REASONS], *([f"And {more} more."] if more > 0 else [])]
    return " ".join([f"Of {len(cluster.nodes)} nodes: {', '.join(parts)}.", *said])


def _why_out(node: Node) -> str:
    why = next((why for why, flags in _FLAGS if flags & node.flags), _DOWN)
    return _UPDATED if why != _DOWN and node.reason.startswith(UPDATE) else why
