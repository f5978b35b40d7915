"""What can be booked is what Slurm has, less what others keep and what is out of order."""

from __future__ import annotations

from carme_hub.domain.calendar.bookable_nodes import inventory_of, occupied_by_jobs, occupied_by_others
from carme_hub.domain.calendar.capacity import Capacity, GpuInventory, Need, OccupiedGpus
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation
from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import SHARD, Gpus, Node
from carme_hub.domain.cluster.tres import ANY_TYPE

NODES = (
    Node("n1", "idle", True, cpus=32, gpus={"a100": 4}),
    Node("n2", "mixed", False, cpus=30, gpus={"1g.10gb": 7, "3g.40gb": 2}, flags=frozenset({"reserved"})),
    Node("n3", "idle", False, cpus=32, gpus={"a100": 4}, flags=frozenset({"drain"})),
    Node("n4", "down", False, cpus=32, gpus={"a100": 4}),
    Node("login", "idle", True, cpus=8),
)
LATER = Period(5000, 6000)


def by_hand(
    *nodes: str, cpus: int = 0, gpus: dict[str, int] | None = None, flag: str = "SPEC_NODES"
) -> SlurmReservation:
    return SlurmReservation("root_1", LATER, frozenset(nodes), gpus or {}, cpus, flags=frozenset({flag}))


def taken(*reservations: SlurmReservation, ours: tuple[str, ...] = ()) -> set[OccupiedGpus]:
    found = occupied_by_others(NODES, reservations, ours=ours, now=100, back_in=900)
    out = {OccupiedGpus(Period(100, 1800), "n3"), OccupiedGpus(Period(100, 1800), "n4")}
    assert out <= set(found), "what is drained or down is out for a while"
    return set(found) - out


def test_a_node_is_back_at_a_quarter_of_an_hour_so_that_what_is_offered_from_then_on_stays() -> None:
    def back(now: int) -> set[int]:
        return {each.period.end for each in occupied_by_others(NODES, (), ours=(), now=now, back_in=3600)}

    assert back(900) == back(1) == {4500}
    assert back(901) == {5400}


def test_gpus_and_the_cpus_that_go_with_each() -> None:
    assert inventory_of(NODES[:2]) == (
        GpuInventory("n1", "a100", 4, 8),
        GpuInventory("n2", "1g.10gb", 7, 3),
        GpuInventory("n2", "3g.40gb", 2, 3),
    )
    assert inventory_of(NODES[4:]) == ()


def test_a_node_that_is_only_reserved_is_not_out_of_order() -> None:
    assert taken() == set()


def test_whole_nodes_and_maintenance_take_all() -> None:
    assert taken(by_hand("n1", "n2", cpus=62)) == {OccupiedGpus(LATER, "n1"), OccupiedGpus(LATER, "n2")}
    assert taken(by_hand("n1", cpus=2, flag="MAINT")) == {OccupiedGpus(LATER, "n1")}


def test_single_gpus_take_as_many_of_each_node_as_they_may_be() -> None:
    assert taken(by_hand("n1", "n2", cpus=6, gpus={"a100": 6})) == {OccupiedGpus(LATER, "n1", "a100", 4)}


def test_cores_alone_take_no_gpu_and_what_is_ours_is_counted_elsewhere() -> None:
    assert taken(by_hand("n1", cpus=2)) == set()
    assert taken(by_hand("n1", cpus=32), ours=("root_1",)) == set()
    assert taken(by_hand("gone", cpus=32)) == set()


def test_a_node_with_shards_is_booked_whole_and_after_the_others() -> None:
    nodes = [Node(f"n{n}", "idle", True, cpus=8, gpus={"a100": 4}, shards={"a100": 16 * (n == 1)}) for n in (1, 2)]
    nodes[1] = Node("n2", "idle", True, cpus=8, gpus={"a100": 4})
    when = Period(0, 60)
    taken: list[OccupiedGpus] = []
    for node, count, whole in (("n2", 2, False), ("n2", 2, False), ("n1", 4, True)):
        found = Capacity(inventory_of(nodes), taken).place(Need("a100", 1, 2), when)
        assert found is not None
        assert [(place.node, place.count, place.whole) for place in found] == [(node, count, whole)]
        taken += [place.occupied(when) for place in found]
    assert Capacity(inventory_of(nodes), taken).place(Need("a100", 1), when) is None
    assert not any(item.exclusive for item in inventory_of(nodes, shards_kept_off=True))


def test_what_running_jobs_have_of_each_node_until_their_limit() -> None:
    nodes = {"n1": Node("n1", "mixed", True, gpus={"a100": 4}, shards={"a100": 16}), "n2": NODES[1]}

    def held(gpus: Gpus, *on: str, end: float = 900.0, phase: Phase = Phase.ACTIVE) -> list[tuple[object, ...]]:
        job = Job(7, "train", "bob", "RUNNING", phase, nodes=on, end=end, gpus=gpus)
        taken = occupied_by_jobs([job], nodes, 500)
        assert all(each.period == Period(500, int(end)) and not each.booked for each in taken) or end != 900.0
        return [(each.node, each.type, each.count) for each in taken]

    assert held(Gpus("a100", 3), "n1") == [("n1", "a100", 3)]
    assert held(Gpus("3g.40gb", 3), "n2", "elsewhere") == [("n2", "3g.40gb", 2)]
    assert held(Gpus(ANY_TYPE, 2), "n1") == [("n1", "a100", 2)]
    assert held(Gpus(SHARD, 5), "n1") == [("n1", "a100", 2)]
    assert held(Gpus("a100", 2), "n1", phase=Phase.ENDING) == []
    for gpus, node in ((Gpus(), "n1"), (Gpus(ANY_TYPE, 2), "n2"), (Gpus("h100", 1), "n1")):
        ((_, type, count),) = held(gpus, node)
        assert (type not in nodes[node].gpus, count) == (True, 1), "in the way of who wants the whole node, no more"
    ((past,), (endless,)) = (occupied_by_jobs([Job(1, "a", "b", "c", Phase.ACTIVE, nodes=("n1",), end=end)], nodes, 500)
                             for end in (400.0, 0.0))  # fmt: skip
    assert (past.period.end, endless.period.length > 10 * 365 * 86_400) == (501, True)
