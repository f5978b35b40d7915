"""What may be asked for beside a session, and when several nodes of it would be there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.companions import (
    CompanionRequest,
    NoCompanion,
    companion_start,
    describe_companion,
    gpus_of_one_node,
    request_for,
)
from carme_hub.domain.sessions.profile import GpuLimit, Limit, Profile
from carme_hub.domain.sessions.session import Request
from carme_hub.domain.staging.entries import run_folder

A100 = Profile(
    "a100",
    "A100",
    gpus=GpuLimit({"a100": 4}, Limit(1, 4, 1), "a100"),
    cpus=Limit(1, 8, 2),
    memory_gib=Limit(2, 16, 4),
    time_minutes=Limit(5, 480, 60),
    partition="gpu",
)
PARENT = Request(
    "a100",
    "training",
    Gpus("a100", 1),
    cpus=4,
    memory_mib=8192,
    time_limit=120,
    account="physics",
    partition="gpu",
    qos="high",
    reservation="course",
    nice=60,
)
NOW = 1000.0


def asked(wish: CompanionRequest, profile: Profile = A100, parent: Request = PARENT, left: int = 90) -> Request:
    return request_for(wish, parent, profile, minutes_left=left, most_nodes=4)


def test_it_is_as_its_session_but_for_its_size_and_its_time() -> None:
    found = asked(CompanionRequest(nodes=2, gpus=4, minutes=30, name="run1"))
    size = {"nodes": 2, "gpus": Gpus("a100", 4), "cpus": 8, "memory_mib": 16384}
    assert found == replace(PARENT, **size, time_limit=30, nice=0, purpose="run1")  # type: ignore[arg-type]
    assert asked(CompanionRequest(gpus=1)).time_limit == 90
    assert asked(CompanionRequest(gpus=1, minutes=500)).time_limit == 90  # it ends with its session
    assert found.on_one_node().gpus == Gpus("a100", 2)


def test_cpus_and_memory_are_what_the_profile_gives_that_is_enough() -> None:
    steps = replace(A100, cpus=Limit(2, 8, 2, (2, 4, 8)), memory_gib=Limit(4, 16, 4))
    found = asked(CompanionRequest(gpus=1, cpus=3, memory_mib=1025), steps)
    assert (found.cpus, found.memory_mib) == (4, 4096)
    assert asked(CompanionRequest(gpus=1, memory_mib=5000)).memory_mib == 5 * 1024


@pytest.mark.parametrize(
    ("own", "nodes", "gpus", "found"),
    [
        (1, 1, 1, (4, 8192)),
        (1, 2, 2, (4, 8192)),  # two nodes, each as the session's
        (1, 1, 2, (8, 16384)),
        (1, 1, 4, (8, 16384)),  # the profile gives no more
        (4, 4, 4, (1, 2048)),
        (4, 1, 3, (3, 6144)),
    ],
)
def test_cpus_and_memory_are_in_proportion_to_the_gpus_of_a_node(
    own: int, nodes: int, gpus: int, found: tuple[int, int]
) -> None:
    request = asked(CompanionRequest(nodes=nodes, gpus=gpus), parent=replace(PARENT, gpus=Gpus("a100", own)))
    assert (request.cpus, request.memory_mib) == found


def test_one_node_may_have_what_the_profile_allows_of_the_sessions_type() -> None:
    assert gpus_of_one_node(PARENT, A100) == (1, 2, 3, 4)
    steps = replace(A100, gpus=GpuLimit({"a100": 4, "h100": 2}, Limit(1, 8, 1, (1, 2, 4, 8)), "a100"))
    assert gpus_of_one_node(PARENT, steps) == (1, 2, 4)
    assert gpus_of_one_node(replace(PARENT, gpus=Gpus("h100", 1)), steps) == (1, 2)
    assert gpus_of_one_node(PARENT, replace(A100, gpus=None)) == ()


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (CompanionRequest(nodes=0), "1 to 4 nodes here; you asked for 0"),
        (CompanionRequest(nodes=5, gpus=5), "1 to 4 nodes here; you asked for 5"),
        (CompanionRequest(nodes=2, gpus=3), "not the same number on each of 2 nodes. Ask for 2 or 4."),
        (CompanionRequest(nodes=2, gpus=1), "Ask for 2 or 2."),
        (CompanionRequest(nodes=2, gpus=10), "“A100” gives 1 to 4 a100 on each node; you asked for 5"),
        (CompanionRequest(nodes=2), "“A100” gives 1 to 4 a100 on each node; you asked for 0"),
        (CompanionRequest(gpus=1, cpus=9), "“A100” gives 8 CPUs on each node at most; you asked for 9"),
        (
            CompanionRequest(gpus=1, memory_mib=16385),
            "“A100” gives 16 GiB of memory on each node at most; you asked for 17",
        ),
    ],
)
def test_what_the_profile_does_not_give_on_a_node_is_refused(wish: CompanionRequest, words: str) -> None:
    with pytest.raises(NoCompanion, match=words.replace(".", r"\.")):
        asked(wish)


def test_a_profile_without_gpus_gives_none_and_one_that_may_give_none_gives_nodes_alone() -> None:
    plain, parent = replace(A100, gpus=None), replace(PARENT, gpus=Gpus())
    with pytest.raises(NoCompanion, match="gives no GPU"):
        asked(CompanionRequest(gpus=1), plain, parent)
    assert asked(CompanionRequest(nodes=2), plain, parent).gpus == Gpus()
    maybe = replace(A100, gpus=GpuLimit({"a100": 4}, Limit(0, 4, 1), "a100"))
    assert asked(CompanionRequest(nodes=2), maybe, parent).gpus == Gpus()
    assert asked(CompanionRequest(nodes=2, gpus=2), maybe, parent).gpus == Gpus("a100", 2)


def test_a_session_whose_time_is_over_gets_none() -> None:
    with pytest.raises(NoCompanion, match="nearly over"):
        asked(CompanionRequest(gpus=1), left=0)


# -- when it starts ---------------------------------------------------------------------------------------------------


def node(name: str, used: int = 0, **more: object) -> Node:
    fine = Node(name, "idle", True, ("gpu",), 16, 0, 65536, 0, {"a100": 4}, {"a100": used})
    return replace(fine, **more)  # type: ignore[arg-type]


def job(nodes: tuple[str, ...], gpus: int, end: float) -> Job:
    return Job(1, "x", "bob", "RUNNING", Phase.ACTIVE, nodes=nodes, partition="gpu", end=end, gpus=Gpus("a100", gpus))


def start(cluster: Cluster, nodes: int = 2, gpus: int = 4) -> tuple[str, bool, float, bool]:
    request = replace(PARENT, nodes=nodes, gpus=Gpus("a100", gpus))
    found = companion_start(cluster, request, NOW, lambda at: f"at {at:.0f}")
    return found.text, found.now, found.expected, found.never


def test_it_starts_now_where_enough_nodes_are_free_and_nobody_is_in_line() -> None:
    two = [node("n1"), node("n2")]
    said = "2 nodes are free with 2 × a100, 4 CPUs and 8 GiB"
    assert start(Cluster(two, seen=NOW)) == (f"{said}; starts now", True, NOW, False)
    line = Job(9, "y", "bob", "PENDING", Phase.WAITING, "Resources", partition="gpu", gpus=Gpus("a100", 8))
    said, now, *_ = start(Cluster(two, [line], seen=NOW))
    assert not now
    assert "others are in line" in said


def test_it_waits_for_the_node_that_is_free_last_of_those_it_needs() -> None:
    nodes = [node("n1", 4), node("n2", 4), node("n3", 4)]
    jobs = [job(("n1",), 4, 5000.0), job(("n2",), 4, 3000.0), job(("n3",), 4, 4000.0)]
    said, now, expected, never = start(Cluster(nodes, jobs, seen=NOW))
    assert (now, expected, never) == (False, 4000.0, False)
    assert said == "no node is free with 2 × a100, 4 CPUs and 8 GiB; expected start at 4000"
    # One job over two nodes gives both back at once.
    both = [node("n1", 4), node("n2", 4)]
    assert start(Cluster(both, [job(("n1", "n2"), 8, 3000.0)], seen=NOW))[2] == 3000.0


def test_nobody_knows_when_where_it_is_not_known_of_a_node_that_is_needed() -> None:
    nodes = [node("n1"), node("n2", 4)]
    assert start(Cluster(nodes, seen=NOW)) == (
        "1 node is free with 2 × a100, 4 CPUs and 8 GiB; it will wait in the queue",
        False,
        0.0,
        False,
    )


@pytest.mark.parametrize(("there", "count"), [([], "no node"), (["n1"], "only 1 node"), (["n1", "n2"], "only 2 nodes")])
def test_what_can_never_start_is_said(there: list[str], count: str) -> None:
    elsewhere = node("n9", partitions=("cpu",))
    small = node("n8", gpus={"a100": 1})
    said, _, _, never = start(Cluster([elsewhere, small, *map(node, there)], seen=NOW), nodes=3, gpus=6)
    assert never
    assert said == f"{count} of this partition could ever give 2 × a100, 4 CPUs and 8 GiB, and 3 are asked for"
    down = [node(f"n{at}", usable=False, state="down") for at in range(3)]
    assert not start(Cluster(down, seen=NOW), nodes=3, gpus=6)[3]  # they may come back


def test_of_a_silent_slurm_nothing_is_promised_and_nothing_refused() -> None:
    for cluster in (Cluster(), Cluster([node("n1")], seen=500.0, silent_since=900.0)):
        _, now, expected, never = start(cluster, nodes=3, gpus=6)
        assert (now, expected, never) == (False, 0.0, False)


def test_nodes_that_it_must_not_get_do_not_count() -> None:
    assert asked(CompanionRequest(gpus=1, exclude="n1,n2")).exclude == "n1,n2"
    cluster = Cluster([node("n1"), node("n2"), node("n3", 4)], [job(("n3",), 4, 3000.0)], seen=NOW)
    for nodes, excluded, found in (
        (1, "n1", (True, NOW, False)),
        (1, "n1,n2", (False, 3000.0, False)),
        (1, "n1,n2,n3", (False, 0.0, True)),
        (2, "n9", (True, NOW, False)),
        (2, "n2", (False, 3000.0, False)),
        (2, "n1,n2", (False, 0.0, True)),
    ):
        request = replace(PARENT, nodes=nodes, gpus=Gpus("a100", nodes), exclude=excluded)
        start = companion_start(cluster, request, NOW, str)
        assert (start.now, start.expected, start.never) == found, (nodes, excluded)


def test_one_node_is_said_as_on_the_form() -> None:
    assert start(Cluster([node("n1")], seen=NOW), nodes=1, gpus=2)[0] == "4 of 4 a100 free; starts now"
    assert start(Cluster([node("n1", gpus={"a100": 1})], seen=NOW), nodes=1, gpus=2)[3]


def test_it_is_shown_in_words() -> None:
    assert (
        describe_companion(replace(PARENT, nodes=2, gpus=Gpus("a100", 4), purpose="run1"))
        == "2 nodes more for run1, 4 × a100"
    )
    assert describe_companion(replace(PARENT, gpus=Gpus()), virtual=True) == "1 node more"


STAGE = {
    "in": [{"source": "s3:b/set", "target": "data"}],
    "out": [{"source": "run", "target": "s3:b/results"}],
    "scratch_gib": 20,
}


def test_nodes_of_a_run_copy_what_the_session_does_with_a_folder_of_the_run() -> None:
    staged = replace(PARENT, stage=STAGE)
    assert asked(CompanionRequest(gpus=1, name="run1", stage=True), parent=staged).stage == {**STAGE, "run": "run1"}
    batch = CompanionRequest(gpus=1, minutes=30, run="night-7", name="night-7", python="/usr/bin/python3", stage=True)
    assert asked(batch, parent=staged).stage == {**STAGE, "run": "night-7"}
    assert asked(CompanionRequest(gpus=1, name="run1"), parent=staged).stage == {}
    results = {**STAGE, "in": []}
    found = asked(CompanionRequest(gpus=1, stage=True), parent=replace(PARENT, stage=results)).stage
    assert found == {**results, "run": "run"}
    with pytest.raises(NoCompanion, match="copies no data to its node or from it"):
        asked(CompanionRequest(gpus=1, stage=True))


@pytest.mark.parametrize(
    ("name", "folder"),
    [("my run: 2", "my-run--2"), ("../..", "run"), ("", "run"), (".x/y", "x-y"), ("a" * 99, "a" * 64)],
)
def test_folder_of_a_run_is_one_name_whatever_the_run_is_called(name: str, folder: str) -> None:
    assert run_folder(name) == folder
