"""How far a rolling update has come: the stage of each node, and which nodes may begin. Pure.

A node goes ``waiting`` → ``draining`` → ``emptying`` → ``updating`` → ``checking`` → ``resuming`` → ``done``. It ends
as ``failed``, and stays drained, where the command or the check fails; and as ``left``, in service as before, where it
was not empty in time, or somebody else had drained it. Whoever acts stores the stage first, so that the same command
goes on there after a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from typing import Any

from carme_hub.errors import ConfigError

from .plan import Group, Plan


class Stage(Enum):
    """Where a node is."""

    WAITING = "waiting"
    DRAINING = "draining"
    EMPTYING = "emptying"
    UPDATING = "updating"
    CHECKING = "checking"
    RESUMING = "resuming"
    DONE = "done"
    FAILED = "failed"
    LEFT = "left"


ENDED = frozenset({Stage.DONE, Stage.FAILED, Stage.LEFT})
#: Stages in which nothing was done on the node but to drain it, so that it can be resumed as it is.
UNTOUCHED = frozenset({Stage.DRAINING, Stage.EMPTYING})


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """One node.

    Attributes:
        at: since when it is in its stage, UTC epoch seconds. then: the stage after ``resuming``.
        drained, deadline: when it was drained, and by when it must be empty; 0 = it was not.
        message, reservation: ids of what users were sent, and of the maintenance in the calendar; "" = none yet,
            "none" = none is needed, "asked" = it was asked for, and it is not known what came of it.
        stopped, resumed: when its sessions were stopped at the deadline, and when it was resumed.
        run: the folder of its command or check.
        words: what there is to say of it. left: its failure no longer counts, since an administrator said so.
    """

    node: str
    group: str
    stage: Stage = Stage.WAITING
    at: float = 0.0
    then: Stage = Stage.DONE
    drained: float = 0.0
    deadline: float = 0.0
    message: str = ""
    reservation: str = ""
    stopped: float = 0.0
    resumed: float = 0.0
    run: str = ""
    words: str = ""
    left: bool = False

    def to(self, stage: Stage, now: float, words: str = "", **changes: Any) -> NodeProgress:
        """Return it in another stage."""
        return replace(self, stage=stage, at=now, words=words, **changes)


@dataclass(frozen=True, slots=True)
class Progress:
    """An update. ``began``: UTC epoch seconds. ``nodes``: by name, in the order in which their turn comes."""

    title: str
    began: float
    nodes: Mapping[str, NodeProgress] = field(default_factory=dict)

    def of(self, *stages: Stage) -> list[NodeProgress]:
        """Return the nodes in these stages."""
        return [each for each in self.nodes.values() if each.stage in stages]

    @property
    def active(self) -> list[NodeProgress]:
        """The nodes that are out of service because of it, or about to be."""
        return [each for each in self.nodes.values() if each.stage not in ENDED and each.stage is not Stage.WAITING]

    @property
    def failures(self) -> list[NodeProgress]:
        """The nodes that failed and that count."""
        return [each for each in self.of(Stage.FAILED) if not each.left]

    def with_node(self, one: NodeProgress) -> Progress:
        """Return it with another state of a node."""
        return replace(self, nodes={**self.nodes, one.node: one})

    def is_stopped(self, plan: Plan) -> bool:
        """Return whether more nodes have failed than the plan allows."""
        return len(self.failures) > plan.stop_after


def begin(plan: Plan, now: float) -> Progress:
    """Return the progress of an update that begins."""
    nodes = {node: NodeProgress(node, group.name, at=now) for group in plan.groups for node in group.nodes}
    return Progress(plan.title, now, nodes)


def continued(plan: Plan, earlier: Progress) -> Progress:
    """Return the progress under a plan that may have changed since: what has ended stays, new nodes wait.

    Raises:
        ConfigError: a node that is out of service because of it is not in the plan any more.
    """
    fresh = begin(plan, earlier.began)
    missing = [each.node for each in earlier.active if each.node not in fresh.nodes]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)}: the update is there at the moment, so the plan must still have it. "
            "Put it back, or end the update with --abort."
        )
    known = {name: replace(earlier.nodes.get(name, one), group=one.group) for name, one in fresh.nodes.items()}
    return replace(fresh, nodes=known)


def retried(progress: Progress, now: float) -> Progress:
    """Return the progress in which failed and left nodes wait again."""
    nodes = {
        name: NodeProgress(name, one.group, at=now) if one.stage in (Stage.FAILED, Stage.LEFT) else one
        for name, one in progress.nodes.items()
    }
    return replace(progress, nodes=nodes)


def accepted(progress: Progress) -> Progress:
    """Return the progress in which the failures so far do not count; the nodes stay as they are."""
    nodes = {name: replace(one, left=one.stage is Stage.FAILED) for name, one in progress.nodes.items()}
    return replace(progress, nodes=nodes)


def may_begin(plan: Plan, progress: Progress) -> list[NodeProgress]:
    """Return the nodes that may begin now: of the first group that has not ended, and never more than it allows."""
    if progress.is_stopped(plan):
        return []
    for group in plan.groups:
        mine = [progress.nodes[name] for name in group.nodes]
        if any(each.stage not in ENDED for each in mine):
            return _of_group(group, mine)
    return []


def _of_group(group: Group, nodes: list[NodeProgress]) -> list[NodeProgress]:
    out = sum(each.stage is not Stage.WAITING and each.stage not in ENDED for each in nodes)
    waiting = [each for each in nodes if each.stage is Stage.WAITING]
    return waiting[: max(0, group.at_once - out)]


def summary(progress: Progress) -> str:
    """Return how many nodes are where, as a sentence."""
    counts = Counter(each.stage for each in progress.nodes.values())
    parts = [f"{counts[stage]} {stage.value}" for stage in Stage if counts[stage]]
    return f"{len(progress.nodes)} nodes: {', '.join(parts)}."


# -- as JSON ----------------------------------------------------------------------------------------------------------


def to_json(progress: Progress) -> dict[str, Any]:
    """Return it as plain JSON."""
    nodes = [
        {name: value.value if isinstance(value, Stage) else value for name, value in asdict(one).items()}
        for one in progress.nodes.values()
    ]
    return {"version": 1, "title": progress.title, "began": progress.began, "nodes": nodes}


def from_json(document: Any) -> Progress:
    """Return the progress of a document of ``to_json``; raise ``ConfigError`` where it is none."""
    try:
        if document["version"] != 1:
            raise ValueError(f"version {document['version']}")
        rows = [_node(row) for row in document["nodes"]]
        return Progress(str(document["title"]), float(document["began"]), {one.node: one for one in rows})
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"it is not the progress of an update: {error}") from error


def _node(row: Mapping[str, Any]) -> NodeProgress:
    known = {each.name for each in fields(NodeProgress)}
    if set(row) - known:
        raise ValueError(f"unknown: {', '.join(sorted(set(row) - known))}")
    return NodeProgress(**{**row, "stage": Stage(row["stage"]), "then": Stage(row["then"])})
