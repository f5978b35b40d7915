"""The page says what is free, waits and frees up, and which nodes are out of service; never more than it knows."""

from __future__ import annotations

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.home.cluster_now import ClusterNow, TypeNow, cluster_now

NOW = 1_800_000_000.0
HOUR = 3600.0


def node(name: str, used: int = 0, *flags: str, state: str = "mixed", type: str = "a100") -> Node:
    usable = not flags and state == "mixed"
    return Node(name, state, usable, gpus={type: 4}, gpus_used={type: used}, cpus=8, flags=frozenset(flags))


def job(id: int, gpus: int, hours: float = 0.0, *nodes: str) -> Job:
    if not hours:
        return Job(
            id, "x", "bob", "PENDING", Phase.WAITING, reason="Priority", gpus=Gpus("a100", gpus), partition="gpu"
        )
    start = NOW - HOUR
    limit = int((hours + 1) * 60)
    return Job(
        id, "x", "bob", "RUNNING", Phase.ACTIVE, nodes=nodes, start=start, time_limit=limit, end=start + 60 * limit,
        gpus=Gpus("a100", gpus),
    )  # fmt: skip


def seen(nodes: list[Node], *jobs: Job, virtual: bool = False, silent: float = 0.0) -> ClusterNow:
    return cluster_now(Cluster(nodes, jobs, seen=NOW - 60, silent_since=silent), NOW, virtual=virtual)


def test_each_type_has_what_is_free_the_queue_and_the_next_end() -> None:
    jobs = [job(1, 4, 1, "n1"), job(2, 2, 2, "n2"), job(3, 8), job(4, 1)]
    [row] = seen([node("n1", 4), node("n2", 2)], *jobs).rows
    assert (row.what, row.free, row.total) == ("a100", 2, 8)
    assert row.said == f"2 jobs wait; 4 more by {clock(NOW + HOUR, NOW)} at the latest."


def test_types_are_sorted_and_a_quiet_one_says_nothing_more() -> None:
    rows = seen([node("n2", type="v100"), node("n1")]).rows
    assert rows == (TypeNow("a100", 4, 4, ""), TypeNow("v100", 4, 4, ""))
    assert seen([node("n1")], virtual=True).rows[0].what == "virtual a100"


def test_nodes_out_of_service_are_counted_by_why() -> None:
    nodes = [
        *(node("n1"), node("n2", 0, "drain"), node("n3", 0, "drain", "maintenance"), node("n4", state="down")),
        *(node("n5", 0, "reserved"), node("n6", 0, "drain", state="down")),
    ]
    found = seen(nodes, job(1, 1))
    assert found.nodes == "Of 6 nodes: 1 in maintenance, 2 drained, 1 reserved, 1 down."
    assert found.rows[0].said == "1 job waits; 20 on nodes where nothing can start."
    assert seen([node("n1")]).nodes == ""


def test_why_a_node_is_out_is_told_in_plain_words() -> None:
    def out(name: str, reason: str) -> Node:
        return Node(name, "idle", False, flags=frozenset({"drain"}), reason=reason)

    nodes = [node("n1"), out("n2", "carme-health: GPU 3 is lost"), out("n3", "carme-update: Kernel (ada)")]
    found = seen([*nodes, out("n4", "Bob broke a fan (ada)")]).nodes
    assert found == "Of 4 nodes: 2 drained, 1 being updated. n2: GPU 3 is lost."
    many = seen([out(f"n{number}", "Not responding") for number in range(8)]).nodes
    assert many.endswith("n4: it does not answer Slurm. And 3 more.")


def test_what_is_old_or_not_known_is_said_so() -> None:
    old = seen([node("n1", 1)], silent=NOW - 30)
    assert old.problem == f"Slurm does not answer; this was so at {clock(NOW - 60, NOW)}."
    assert old.rows[0].free == 3
    never = cluster_now(Cluster(), NOW, virtual=False)
    assert (never.rows, never.problem) == ((), "What is free is not known: Slurm does not answer.")


def test_a_cluster_without_gpus_has_its_cpus() -> None:
    found = seen([Node("n1", "mixed", True, cpus=8, cpus_used=3)])
    assert found.rows == (TypeNow("CPUs", 8, 5, ""),)
