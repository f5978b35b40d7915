"""Ranks are where srun puts them, and a companion is asked for only where the session's own job has no room."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.training.run.placement import (
    JobCapacity,
    Placement,
    companion_size,
    divide_ranks,
    fewest_nodes,
    place_ranks,
)
from carme_hub.training.run.run_options import RunOptions, from_json


@pytest.mark.parametrize(
    ("asked", "room", "found"),
    [
        # As many GPUs as there are; one each unless said.
        (RunOptions(2), JobCapacity(1, 2), Placement(2, 1, 1, companion=False)),
        (RunOptions(3), JobCapacity(1, 2), Placement(3, 2, 1, companion=True)),
        (RunOptions(4, gpus_per_task=2), JobCapacity(2, 4), Placement(4, 2, 2, companion=False)),
        (RunOptions(2, nodes=2), JobCapacity(1, 2), Placement(2, 2, 1, companion=True)),
        # Without GPUs processors are shared, by any number of ranks.
        (RunOptions(9), JobCapacity(1, 0), Placement(9, 1, 0, companion=False)),
        (RunOptions(9, gpus_per_task=0), JobCapacity(1, 2), Placement(9, 1, 0, companion=False)),
        (RunOptions(4, nodes=2), JobCapacity(1, 0), Placement(4, 2, 0, companion=True)),
        (RunOptions(2, gpus_per_task=1), JobCapacity(1, 0), Placement(2, 2, 1, companion=True)),
        # More CPUs for each rank than there are, and fewer GPUs on a node than there could be.
        (RunOptions(2, cpus_per_task=4), JobCapacity(1, 2, 8), Placement(2, 1, 1, companion=False)),
        (RunOptions(2, cpus_per_task=5), JobCapacity(1, 2, 8), Placement(2, 1, 1, companion=True)),
        (RunOptions(2, cpus_per_task=5), JobCapacity(1, 2), Placement(2, 1, 1, companion=False)),
        (RunOptions(4, gpus_per_node=2), JobCapacity(2, 4), Placement(4, 2, 1, companion=False)),
        (RunOptions(4, gpus_per_node=2), JobCapacity(1, 4), Placement(4, 2, 1, companion=True)),
    ],
)
def test_where_a_run_goes(asked: RunOptions, room: JobCapacity, found: Placement) -> None:
    assert place_ranks(asked, room) == found


@pytest.mark.parametrize(
    ("ranks", "each", "allowed", "most", "nodes"),
    [
        (3, 1, (1, 2, 3, 4), 0, 1),
        (4, 1, (1, 2, 3, 4), 2, 2),
        (8, 1, (1, 2, 3, 4), 0, 2),
        (5, 1, (1, 2, 3, 4), 0, 2),
        (3, 1, (1, 2, 4), 0, 2),
        (2, 3, (1, 2, 3, 4), 0, 2),
        (2, 8, (1, 2, 3, 4), 0, 0),
        (4, 1, (2, 4), 1, 0),
    ],
)
def test_the_fewest_nodes_are_those_whose_gpus_the_hub_gives(
    ranks: int, each: int, allowed: tuple[int, ...], most: int, nodes: int
) -> None:
    assert fewest_nodes(ranks, each, allowed, most) == nodes


@pytest.mark.parametrize(
    ("options", "room", "parts"),
    [
        # Ranks on each node: of the session's own job, and of the companion.
        (RunOptions(4), JobCapacity(1, 1), ([1], [3])),
        (RunOptions(5), JobCapacity(1, 1), ([1], [4])),
        (RunOptions(7), JobCapacity(1, 2), ([2], [3, 2])),  # six GPUs more in place of eight
        (RunOptions(8), JobCapacity(1, 4), ([4], [4])),
        (RunOptions(7), JobCapacity(2, 2), ([2, 2], [3])),
        (RunOptions(3, gpus_per_task=2), JobCapacity(1, 4), ([2], [1])),
        (RunOptions(4, gpus_per_node=2), JobCapacity(1, 4), ([2], [2])),
        (RunOptions(4, cpus_per_task=3), JobCapacity(1, 4, 8), ([2], [2])),
        # As many GPUs to request, or none in the session.
        (RunOptions(6), JobCapacity(1, 1), ([3, 3],)),
        (RunOptions(4, gpus_per_task=2), JobCapacity(1, 1), ([2, 2],)),
        (RunOptions(2, gpus_per_task=1), JobCapacity(1, 0), ([2],)),
        # All of them in the companion, as asked or because it cannot be otherwise.
        (RunOptions(4, only_companion=True), JobCapacity(1, 1), ([4],)),
        (RunOptions(4, backend="mpi"), JobCapacity(1, 1), ([4],)),
        (RunOptions(4, dry_run=True), JobCapacity(1, 1), ([4],)),
        (RunOptions(4, nodes=2), JobCapacity(1, 2), ([2, 2],)),
        (RunOptions(4, mem_per_gpu=1024), JobCapacity(1, 1), ([4],)),  # which the session may not have
    ],
)
def test_the_first_ranks_stay_in_the_session_where_that_saves_gpus(
    options: RunOptions, room: JobCapacity, parts: tuple[list[int], ...]
) -> None:
    chosen = divide_ranks(options, room, (1, 2, 3, 4))
    assert chosen is not None
    found = place_ranks(chosen, room)
    assert tuple(part.tasks() for part in found.parts) == parts
    assert found.companion
    assert found.size == options.ranks
    assert found.nodes == len(parts[-1])
    assert [found.node_of(rank) for rank in range(found.size)] == [
        node for node, tasks in enumerate(tasks for part in parts for tasks in part) for _ in range(tasks)
    ]
    # What is kept of the run says the same to its conductor.
    assert place_ranks(from_json(dataclasses.asdict(chosen)), room) == found


@pytest.mark.parametrize(
    ("options", "room", "parts"),
    [
        (RunOptions(2, nodes=2), JobCapacity(1, 1), ([1], [1])),
        (RunOptions(5, nodes=3), JobCapacity(1, 2), ([2], [2, 1])),
        (RunOptions(6, nodes=3), JobCapacity(2, 2), ([2, 2], [2])),
        (RunOptions(4, nodes=2, gpus_per_task=0), JobCapacity(1, 0), ([2], [2])),
        # The session has too few GPUs or CPUs for as many ranks as the other nodes get, or it cannot be otherwise.
        (RunOptions(4, nodes=2), JobCapacity(1, 1), ([2, 2],)),
        (RunOptions(2, nodes=2, cpus_per_task=9), JobCapacity(1, 1, 8), ([1, 1],)),
        (RunOptions(2, nodes=2, only_companion=True), JobCapacity(1, 1), ([1, 1],)),
        (RunOptions(2, nodes=2, mem_per_gpu=1024), JobCapacity(1, 1), ([1, 1],)),
        (RunOptions(2, nodes=2, backend="mpi"), JobCapacity(1, 1), ([1, 1],)),
    ],
)
def test_the_nodes_of_the_session_are_counted_in_where_the_hub_can_give_other_ones(
    options: RunOptions, room: JobCapacity, parts: tuple[list[int], ...]
) -> None:
    chosen = divide_ranks(options, room, (1, 2, 3, 4), other_nodes=True)
    assert chosen is not None
    found = place_ranks(chosen, room)
    assert tuple(part.tasks() for part in found.parts) == parts
    assert sum(part.nodes for part in found.parts) == options.nodes
    assert chosen.other_nodes is (len(parts) == 2)
    assert place_ranks(from_json(dataclasses.asdict(chosen)), room) == found
    assert divide_ranks(options, room, (1, 2, 3, 4)) == options  # an older hub cannot


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 3), st.integers(0, 4), st.sets(st.integers(1, 4)))
def test_no_division_requests_more_gpus_than_a_companion_alone(
    ranks: int, each: int, nodes: int, gpus: int, allowed: set[int]
) -> None:
    options, room = RunOptions(ranks, gpus_per_task=each), JobCapacity(nodes, gpus)
    if not place_ranks(options, room).companion or not allowed:
        return
    chosen = divide_ranks(options, room, sorted(allowed))
    alone = divide_ranks(dataclasses.replace(options, only_companion=True), room, sorted(allowed))
    if chosen is None:
        assert alone is None
        return
    found = place_ranks(chosen, room)
    assert found.size == ranks
    assert found.gpus_per_node in allowed
    assert found.own is None or (found.own.nodes <= nodes and found.own.gpus_per_node <= gpus)
    assert alone is None or found.gpus <= place_ranks(alone, room).gpus


def test_no_node_more_is_taken_to_save_a_gpu() -> None:
    chosen = divide_ranks(RunOptions(8), JobCapacity(1, 2), (1, 2, 4, 8))
    assert chosen is not None
    assert [part.tasks() for part in place_ranks(chosen, JobCapacity(1, 2)).parts] == [[8]]


def test_a_companion_has_what_was_asked_for_each_rank_and_gpu() -> None:
    options = RunOptions(6, nodes=2, cpus_per_task=3, mem_per_gpu=1024)
    found = companion_size(options, place_ranks(options, JobCapacity(1, 1)))
    assert found == {"nodes": 2, "gpus": 6, "cpus": 9, "memory_mib": 3072}


def test_a_companion_has_as_many_gpus_on_each_node() -> None:
    there = place_ranks(RunOptions(5), JobCapacity(1, 2))
    assert (there.nodes, there.per_node, there.gpus_per_node, there.gpus) == (3, 2, 2, 6)


@given(st.integers(1, 60), st.integers(1, 8))
def test_nodes_are_filled_one_after_the_other(ranks: int, nodes: int) -> None:
    there = Placement(ranks, min(nodes, ranks), 0, companion=False)
    found = [there.node_of(rank) for rank in range(ranks)]
    counts = [found.count(node) for node in range(there.nodes)]
    assert found == sorted(found)
    assert counts == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1
    assert max(counts) == there.per_node


@given(st.integers(1, 60), st.integers(0, 8), st.integers(0, 4), st.integers(1, 4), st.integers(0, 8))
def test_what_stays_in_the_session_fits(ranks: int, nodes: int, each: int, there: int, gpus: int) -> None:
    found = place_ranks(RunOptions(ranks, nodes=min(nodes, ranks), gpus_per_task=each), JobCapacity(there, gpus))
    assert found.companion or (found.nodes <= there and found.gpus_per_node <= gpus)
    assert found.per_node * found.nodes >= ranks
