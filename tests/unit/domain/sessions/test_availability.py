"""Free counts, expected starts and smaller choices are true for the look they are made from."""

from __future__ import annotations

import pytest

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus, Node
from carme_hub.domain.sessions.availability import Cluster, Suggestion, estimate_start, sentence, suggest_smaller
from carme_hub.domain.sessions.profile_choice import parse_profiles
from carme_hub.domain.sessions.session import Request

NOW = 1_000_000.0
GIB = 1024
PROFILE = parse_profiles(
    [
        {
            "display_name": "GPU",
            "gpus": {"types": ["a100", "h100"], "max": 8},
            "cpus": {"max": 64, "default": 4},
            "memory_gib": {"max": 512, "default": 16},
        }
    ]
)[0]


def node(
    name: str, used: int = 0, *, type: str = "a100", gpus: int = 4, cpus_used: int = 0, usable: bool = True
) -> Node:
    return Node(name, "mixed", usable, ("gpu",), 64, cpus_used, 512 * GIB, 0, {type: gpus}, {type: used})


def want(count: int, type: str = "a100", cpus: int = 4, memory: int = 16, partition: str = "gpu") -> Request:
    gpus = Gpus(type, count) if count else NO_GPUS
    return Request("gpu", "base", gpus, cpus, memory * GIB, partition=partition)


def running(id: int, node: str, count: int, end: float, type: str = "a100") -> Job:
    return Job(id, "j", "u", "RUNNING", Phase.ACTIVE, nodes=(node,), partition="gpu", end=end, gpus=Gpus(type, count))


def waiting(id: int, reason: str = "Resources", type: str = "a100") -> Job:
    return Job(id, "j", "u", "PENDING", Phase.WAITING, reason, partition="gpu", gpus=Gpus(type, 2))


def said(cluster: Cluster, request: Request, virtual: bool = False) -> str:
    clock = {NOW + 3600: "in an hour", NOW + 60: "in a minute", NOW - 60: "a minute ago"}
    seen = estimate_start(cluster, request, NOW)
    return sentence(cluster, request, seen, lambda t: clock.get(t, str(t)), virtual=virtual)


def test_free_gpus_start_now() -> None:
    cluster = Cluster([node("n1", 3), node("n2", 2)], seen=NOW)
    assert said(cluster, want(2)) == "3 of 8 a100 free; starts now"
    assert said(cluster, want(2), virtual=True) == "3 of 8 virtual a100 free; starts now"
    assert estimate_start(cluster, want(2), NOW).largest == 2


def test_a_cpu_profile_counts_cpus() -> None:
    assert said(Cluster([node("n1", cpus_used=16)], seen=NOW), want(0)) == "48 of 64 CPUs free; starts now"


def test_jobs_in_line_take_back_the_promise() -> None:
    cluster = Cluster([node("n1", 2)], [waiting(1), waiting(2, "JobHeldUser"), waiting(3, type="h100")], seen=NOW)
    assert said(cluster, want(1)) == "2 of 4 a100 free; 1 job is in line for a100, so it may wait a little"
    assert not estimate_start(cluster, want(1), NOW).starts_now


def test_the_expected_start_is_when_the_first_node_gives_back_enough() -> None:
    jobs = [running(1, "n1", 1, NOW + 60), running(2, "n1", 3, NOW + 7200), running(3, "n2", 4, NOW + 3600)]
    cluster = Cluster([node("n1", 4), node("n2", 4)], jobs, seen=NOW)
    assert said(cluster, want(1)) == "0 of 8 a100 free; expected start in a minute"
    assert said(cluster, want(2)) == "0 of 8 a100 free; expected start in an hour"


def test_with_jobs_ahead_the_expected_start_is_only_the_earliest() -> None:
    cluster = Cluster([node("n1", 4)], [running(1, "n1", 4, NOW + 3600), waiting(2), waiting(3)], seen=NOW)
    expected = "0 of 4 a100 free; 2 jobs are ahead of you; expected start not before in an hour"
    assert said(cluster, want(1)) == expected


def test_nobody_knows_when_an_endless_job_ends() -> None:
    cluster = Cluster([node("n1", 4)], [running(1, "n1", 4, 0)], seen=NOW)
    assert said(cluster, want(1)) == "0 of 4 a100 free; it will wait in the queue"


@pytest.mark.parametrize(
    ("cluster", "request_", "what"),
    [
        (Cluster([node("n1", 2), node("n2", 2)], seen=NOW), want(4), "4 of 8 a100 free, at most 2 on one node; it"),
        (Cluster([node("n1", 2, cpus_used=62)], seen=NOW), want(2), "2 of 4 a100 free, but without 4 CPUs and 16 GiB"),
        (
            Cluster([node("n1")], seen=NOW),
            want(8),
            "4 of 4 a100 free; no node of this partition has 8 of them, the most",
        ),
        (Cluster([node("n1")], seen=NOW), want(1, "h100"), "0 of 0 h100 free; no node of this partition has 1 of"),
        (Cluster([node("n1")], seen=NOW), want(1, cpus=128), "no node of this partition is large enough for 128 CPUs"),
        (Cluster([node("n1")], seen=NOW), want(1, partition="cpu"), "0 of 0 a100 free; no node"),
        (Cluster([node("n1", usable=False)], seen=NOW), want(1), "0 of 4 a100 free, 4 on nodes that are down; it will"),
        (Cluster(), want(1), "How many a100 are free is not known right now"),
        (
            Cluster([node("n1", 1)], seen=NOW - 60, silent_since=NOW - 30),
            want(1),
            "3 of 4 a100 were free at a minute ago",
        ),
    ],
)
def test_what_stands_in_the_way_is_said(cluster: Cluster, request_: Request, what: str) -> None:
    assert said(cluster, request_).startswith(what) or what in said(cluster, request_)


@pytest.mark.parametrize(
    ("nodes", "request_", "expected"),
    [
        ([node("n1")], want(4), None),
        ([node("n1", 2)], want(4), Suggestion({"gpus": 2}, "2 × a100")),
        ([node("n1", cpus_used=60)], want(2, cpus=32), Suggestion({"cpus": 4}, "2 × a100, 4 CPUs")),
        (
            [node("n1", cpus_used=63)],
            want(2),
            Suggestion({"cpus": 1, "memory_gib": 1}, "2 × a100, 1 CPU, 1 GiB of memory"),
        ),
        ([node("n1", 4), node("h", type="h100")], want(2), Suggestion({"gpu_type": "h100"}, "2 × h100")),
        ([node("n1", 4), node("h", 3, type="h100")], want(2), Suggestion({"gpu_type": "h100", "gpus": 1}, "1 × h100")),
        ([node("n1", 4)], want(2), None),
        ([node("n1", cpus_used=60)], want(0, cpus=32), Suggestion({"cpus": 4}, "4 CPUs")),
    ],
)
def test_the_smaller_choice_is_the_nearest_one_that_fits(
    nodes: list[Node], request_: Request, expected: Suggestion | None
) -> None:
    assert suggest_smaller(Cluster(nodes, seen=NOW), PROFILE, request_) == expected


def test_nothing_is_suggested_from_what_is_not_known() -> None:
    assert suggest_smaller(Cluster([node("n1", 2)], seen=NOW, silent_since=NOW), PROFILE, want(4)) is None
    assert suggest_smaller(Cluster(), PROFILE, want(4)) is None


def test_what_an_administrator_fixed_is_not_suggested_away() -> None:
    entry = {"display_name": "P", "gpus": {"types": ["a100"], "max": 4}, "cpus": {"max": 64}}
    fixed = parse_profiles([{**entry, "slurm_override": {"gpus": 4, "gpu_type": "a100"}}])[0]
    assert suggest_smaller(Cluster([node("n1", 2)], seen=NOW), fixed, want(4)) is None
