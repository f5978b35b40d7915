"""Companions: more nodes for a running session, as a job of their own. What may be requested, and when it starts. Pure.

Slurm cannot expand a job that has GPUs, so a session that needs more gets a second job. It has the same user, account,
partition, image and reservation, and ends with its session. The limits of the profile apply to each of its nodes.
A *batch job* is requested in the same way: it conducts a run by itself, for a time of its own, and outlives its
session.
``carme_hub.spawners.companions`` calls this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from carme_hub.domain.cluster.resources import NO_GPUS, Gpus
from carme_hub.domain.staging.entries import RUN, run_folder
from carme_hub.errors import Refused

from .availability import Cluster, estimate_start, sentence
from .profile import Limit, Profile
from .session import Request

#: Minutes that a batch job gets beyond the time of its run, for its containers to start; within the profile's maximum.
BATCH_START_MINUTES = 2


class NoCompanion(Refused):
    """The session cannot have such a companion."""

    reason = "companion-not-allowed"


@dataclass(frozen=True, slots=True)
class CompanionRequest:
    """A request for a companion.

    Attributes:
        gpus: in total, the same number on each node. cpus, memory_mib: on each node; 0 = the session's, in proportion
            to the GPUs of a node.
        minutes: 0 = for the rest of the session's time. name: a short purpose.
        exclude: names of nodes that it must not get, separated by commas.
        run: id of the run that a batch job conducts, "" for a companion. python: path of the Python in the image that
            conducts it. requeue: whether another job continues the run where its time was too short.
        replaces: id of a companion that this one is opened for, and that was given back; its hold counts no more.
        stage: whether each of its nodes gets the data that the session had copied to its own, and has its results
            copied to the session's targets, into a folder of the run and the node.
    """

    nodes: int = 1
    gpus: int = 0
    cpus: int = 0
    memory_mib: int = 0
    minutes: int = 0
    name: str = ""
    exclude: str = ""
    run: str = ""
    python: str = ""
    requeue: bool = False
    replaces: str = ""
    stage: bool = False


@dataclass(frozen=True, slots=True)
class CompanionStart:
    """When a companion would start: as text, whether that is now, and the expected time (0 = unknown).

    Attributes:
        never: the nodes of the partition can never take it. known: whether Slurm has said what is free.
    """

    text: str
    now: bool = False
    expected: float = 0.0
    never: bool = False
    known: bool = True


def request_for(
    companion: CompanionRequest, parent: Request, profile: Profile, *, minutes_left: int, most_nodes: int
) -> Request:
    """Return the request for a companion: the session's request with changed resources.

    CPUs and memory are rounded up to what the profile allows. Those in proportion never exceed what it allows.

    Args:
        minutes_left: of the session's time; of a batch job, the most that the profile gives. most_nodes: limit for one
            companion.

    Raises:
        NoCompanion: the companion is not allowed; the message names the limit.
    """
    if not 1 <= companion.nodes <= most_nodes:
        kind = "A batch job" if companion.run else "A companion"
        raise NoCompanion(f"{kind} has 1 to {most_nodes} nodes here; you asked for {companion.nodes}.")
    if companion.run and not 1 <= companion.minutes <= minutes_left:
        asked = f"; you asked for {companion.minutes}" if companion.minutes else ". Say how long, as with --time 2h"
        raise NoCompanion(f"“{profile.display_name}” gives a batch job 1 to {minutes_left} minutes{asked}.")
    minutes = companion.minutes + (BATCH_START_MINUTES if companion.run else 0)
    if minutes_left < 1:
        raise NoCompanion("The session's time is nearly over. Give it more time first.")
    own = parent.on_one_node().gpus.count
    share = Fraction(companion.gpus // companion.nodes or own, own) if own else Fraction(1)
    cpus = companion.cpus or min(ceil(parent.cpus * share), profile.cpus.max)
    memory = companion.memory_mib or min(ceil(parent.memory_mib * share), 1024 * profile.memory_gib.max)
    return replace(
        parent,
        nodes=companion.nodes,
        gpus=_gpus(companion, parent, profile),
        cpus=_at_least(profile, profile.cpus, cpus, "CPUs"),
        memory_mib=1024 * _at_least(profile, profile.memory_gib, -(-memory // 1024), "GiB of memory"),
        time_limit=min(minutes or minutes_left, minutes_left),
        nice=0,
        purpose=companion.name,
        exclude=companion.exclude,
        node="",
        batch=companion.run,
        python=companion.python,
        requeue=companion.requeue,
        reservation="" if companion.run else parent.reservation,  # which may end before the job begins
        stage=_stage(companion, parent),
    )


def _stage(companion: CompanionRequest, parent: Request) -> dict[str, object]:
    """Return what is copied to and from its nodes: as for the session, with a folder of the run for results."""
    if not companion.stage:
        return {}
    if not any(parent.stage.get(way) for way in ("in", "out", "mount")):
        raise NoCompanion("--stage: your session copies no data to its node or from it. Start one that does.")
    return {**parent.stage, RUN: run_folder(companion.run or companion.name)}


def gpus_of_one_node(parent: Request, profile: Profile) -> tuple[int, ...]:
    """Return how many GPUs one node of a companion may have: every allowed number; () = the profile gives none."""
    if profile.gpus is None:
        return ()
    most = profile.gpus.most(parent.gpus.type or profile.gpus.default_type)
    return tuple(count for count in range(1, most + 1) if profile.gpus.count.allows(count))


def _gpus(companion: CompanionRequest, parent: Request, profile: Profile) -> Gpus:
    limit, name = profile.gpus, profile.display_name
    if limit is None:
        if companion.gpus:
            raise NoCompanion(f"“{name}” gives no GPU. Start a session with a profile that does.")
        return NO_GPUS
    type = parent.gpus.type or limit.default_type
    each, rest = divmod(companion.gpus, companion.nodes)
    if rest:
        raise NoCompanion(
            f"{companion.gpus} GPUs are not the same number on each of {companion.nodes} nodes. "
            f"Ask for {each * companion.nodes or companion.nodes} or {(each + 1) * companion.nodes}."
        )
    if not limit.count.allows(each) or each > limit.most(type):
        raise NoCompanion(
            f"“{name}” gives {_range(limit.count, limit.most(type))} {type} on each node; you asked for {each}."
        )
    return Gpus(type, companion.gpus) if companion.gpus else NO_GPUS


def _at_least(profile: Profile, limit: Limit, wanted: int, unit: str) -> int:
    """Return the smallest allowed number that is at least ``wanted``."""
    if limit.choices:
        enough = [choice for choice in limit.choices if choice >= wanted]
        if enough:
            return min(enough)
    elif wanted <= limit.max:
        return max(wanted, limit.min)
    raise NoCompanion(
        f"“{profile.display_name}” gives {limit.max} {unit} on each node at most; you asked for {wanted}."
    )


def _range(limit: Limit, most: int) -> str:
    if limit.choices:
        return "one of " + ", ".join(str(choice) for choice in limit.choices if choice <= most)
    return f"{limit.min} to {most}" if limit.min < most else f"{most}"


def companion_start(
    cluster: Cluster, request: Request, now: float, clock: Callable[[float], str], *, virtual: bool = False
) -> CompanionStart:
    """Return when the nodes for a request would be available, as far as one snapshot can tell.

    Args:
        clock: formats UTC epoch seconds for people.
        virtual: the GPUs are virtual GPUs of the sandbox, and are labelled as such.
    """
    cluster = cluster.without(request.exclude)
    one = request.on_one_node()
    if request.nodes == 1 or not cluster.known or cluster.silent_since:
        seen = estimate_start(cluster, one, now)
        known = cluster.known and not cluster.silent_since
        return CompanionStart(
            sentence(cluster, one, seen, clock, virtual=virtual),
            now=known and seen.starts_now,
            expected=seen.expected if known else 0.0,
            never=known and not seen.possible,
            known=known,
        )
    nodes = cluster.partition_nodes(request.partition).nodes
    each = [estimate_start(cluster.only(node.name), replace(one, partition=""), now) for node in nodes]
    fit, possible = sum(seen.fits for seen in each), sum(seen.possible for seen in each)
    what = _size(one, virtual)
    if possible < request.nodes:
        where = " of this partition" if request.partition else ""
        count = "no node" if not possible else "only 1 node" if possible == 1 else f"only {possible} nodes"
        return CompanionStart(f"{count}{where} could ever give {what}, and {request.nodes} are asked for", never=True)
    ahead = cluster.waiting(request)
    start = f"{_nodes(fit)} free with {what}"
    if fit >= request.nodes:
        if not ahead:
            return CompanionStart(f"{start}; starts now", now=True, expected=now)
        return CompanionStart(f"{start}; others are in line for the same, so it may wait a little", expected=now)
    # By then enough nodes will have freed their GPUs; nodes without a known time do not count.
    ends = sorted(seen.expected for seen in each if seen.expected)
    if len(ends) < request.nodes:
        return CompanionStart(f"{start}; it will wait in the queue")
    expected = ends[request.nodes - 1]
    return CompanionStart(
        f"{start}; expected start {'not before ' if ahead else ''}{clock(expected)}", expected=expected
    )


def _nodes(count: int) -> str:
    return {0: "no node is", 1: "1 node is"}.get(count, f"{count} nodes are")


def _size(request: Request, virtual: bool) -> str:
    cpus = "1 CPU" if request.cpus == 1 else f"{request.cpus} CPUs"
    rest = f"{cpus} and {request.memory_mib // 1024} GiB"
    if not request.gpus:
        return rest
    return f"{request.gpus.count} × {'virtual ' if virtual else ''}{request.gpus.type}, {rest}"


def describe_companion(request: Request, *, virtual: bool = False) -> str:
    """Return a description of a companion: ``2 nodes more for training, 4 × a100``; or of a batch job."""
    gpus = f", {request.gpus.count} × {'virtual ' if virtual else ''}{request.gpus.type}" if request.gpus else ""
    if request.batch:
        return f"{request.batch}: {'1 node' if request.nodes == 1 else f'{request.nodes} nodes'}{gpus}"
    nodes = "1 node more" if request.nodes == 1 else f"{request.nodes} nodes more"
    what = f" for {request.purpose}" if request.purpose else ""
    return f"{nodes}{what}{gpus}"
