"""A smaller job could have started when a node really had room for it, and never where somebody was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.activity.vacancy import Room, Taken, first_start

NODES = {"n1": Room(4, 16, 64), "n2": Room(2, 16, 64)}


def test_it_starts_when_a_gpu_becomes_free_for_long_enough() -> None:
    taken = [
        Taken("n1", 0, 100, Room(4, 8, 8)),
        Taken("n2", 0, 50, Room(1, 8, 8)),
        Taken("n2", 0, 90, Room(1, 8, 8)),
        Taken("n2", 60, 500, Room(1, 8, 8)),
    ]
    assert first_start(Room(1, 4, 4), NODES, taken, 0, 200, 10) == 50
    assert first_start(Room(1, 4, 4), NODES, taken, 0, 200, 11) == 90
    assert first_start(Room(2, 4, 4), NODES, taken, 0, 200, 11) == 100
    assert first_start(Room(2, 4, 4), NODES, taken, 0, 80, 11) is None


def test_what_was_free_from_the_beginning_is_free_at_once() -> None:
    assert first_start(Room(1, 1, 1), NODES, [], 7, 100, 10) == 7


def test_a_node_that_was_out_of_service_has_no_room() -> None:
    down = [Taken("n1", 0, 80, None), Taken("n2", 0, float("inf"), None)]
    assert first_start(Room(), NODES, down, 0, 100, 10) == 80


def test_a_job_that_no_node_holds_never_starts() -> None:
    assert first_start(Room(5, 1, 1), NODES, [], 0, 100, 1) is None


TAKEN = st.builds(
    lambda node, start, lasts, gpus: Taken(node, start, start + lasts, None if gpus == 3 else Room(gpus, gpus, gpus)),
    st.sampled_from(["n1", "n2"]),
    st.integers(0, 30),
    st.integers(1, 20),
    st.integers(0, 3),
)


@given(st.lists(TAKEN, max_size=8), st.integers(0, 4), st.integers(1, 15))
def test_it_is_the_first_moment_that_trying_every_moment_finds(taken: list[Taken], gpus: int, lasts: int) -> None:
    wanted, until = Room(gpus, 1, 1), 40

    def fits(node: str, start: int) -> bool:
        for at in range(start, start + lasts):
            met = [each for each in taken if each.node == node and each.start <= at < each.end]
            if any(each.room is None for each in met):
                return False
            left = NODES[node].gpus - sum(each.room.gpus for each in met if each.room is not None)
            if left < gpus:
                return False
        return True

    found = [at for at in range(until) if any(fits(node, at) for node in NODES)]
    assert first_start(wanted, NODES, taken, 0, until, lasts) == (found[0] if found else None)
