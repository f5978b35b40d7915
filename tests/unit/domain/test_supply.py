"""What can be booked is what Slurm has, less what others keep and what is out of order."""

from __future__ import annotations

from carme_hub.domain.capacity import Spot, Taken
from carme_hub.domain.periods import Period
from carme_hub.domain.resources import Node
from carme_hub.domain.slurm_reservations import SlurmReservation
from carme_hub.domain.supply import spots_of, taken_by_others

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


def taken(*reservations: SlurmReservation, ours: tuple[str, ...] = ()) -> set[Taken]:
    found = taken_by_others(NODES, reservations, ours=ours, now=100, back_in=900)
    out = {Taken(Period(100, 1000), "n3"), Taken(Period(100, 1000), "n4")}
    assert out <= set(found), "what is drained or down is out for a while"
    return set(found) - out


def test_gpus_and_the_cpus_that_go_with_each() -> None:
    assert spots_of(NODES[:2]) == (Spot("n1", "a100", 4, 8), Spot("n2", "1g.10gb", 7, 3), Spot("n2", "3g.40gb", 2, 3))
    assert spots_of(NODES[4:]) == ()


def test_a_node_that_is_only_reserved_is_not_out_of_order() -> None:
    assert taken() == set()


def test_whole_nodes_and_maintenance_take_all() -> None:
    assert taken(by_hand("n1", "n2", cpus=62)) == {Taken(LATER, "n1"), Taken(LATER, "n2")}
    assert taken(by_hand("n1", cpus=2, flag="MAINT")) == {Taken(LATER, "n1")}


def test_single_gpus_take_as_many_of_each_node_as_they_may_be() -> None:
    assert taken(by_hand("n1", "n2", cpus=6, gpus={"a100": 6})) == {Taken(LATER, "n1", "a100", 4)}


def test_cores_alone_take_no_gpu_and_what_is_ours_is_counted_elsewhere() -> None:
    assert taken(by_hand("n1", cpus=2)) == set()
    assert taken(by_hand("n1", cpus=32), ours=("root_1",)) == set()
    assert taken(by_hand("gone", cpus=32)) == set()
