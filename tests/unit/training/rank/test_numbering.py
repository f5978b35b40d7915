"""Every task of a step knows its place, also where nodes have unequal numbers of tasks."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.training.rank.numbering import NoStep, Rank, parse_tasks, rank_from_environ, remove_slurm


def environ(number: int, local: int, node: int, tasks: str = "2(x2),1") -> dict[str, str]:
    return {
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURMD_NODENAME": f"node{node + 1}",
    }


def test_the_last_task_of_an_uneven_step() -> None:
    assert rank_from_environ(environ(4, 0, 2)) == Rank(4, 5, 0, 1, 2, 3, "node3", 2, 3)
    assert rank_from_environ(environ(3, 1, 1)) == Rank(3, 5, 1, 2, 1, 2, "node2", 1, 3)


PARTS = ((2,), (2, 1))


@pytest.mark.parametrize(
    ("number", "local", "node", "tasks", "slot", "found"),
    [
        (0, 0, 0, "2", "r0", Rank(0, 5, 0, 2, 0, 3, "node1", 0, 3, "r0")),
        (1, 1, 0, "2", "r0", Rank(1, 5, 1, 2, 0, 2, "node1", 0, 3, "r0")),
        (0, 0, 0, "2,1", "r2", Rank(2, 5, 0, 2, 1, 3, "node1", 1, 3, "r2")),  # Slurm has put both jobs on one node
        (1, 1, 0, "2,1", "r2", Rank(3, 5, 1, 2, 1, 2, "node1", 1, 3, "r2")),
        (2, 0, 1, "2,1", "r2", Rank(4, 5, 0, 1, 2, 3, "node2", 2, 3, "r2")),
    ],
)
def test_the_ranks_of_two_steps_are_numbered_as_those_of_one(
    number: int, local: int, node: int, tasks: str, slot: str, found: Rank
) -> None:
    place = rank_from_environ(environ(number, local, node, tasks) | {"CARME_SLOT": slot}, PARTS)
    assert place == found
    assert place.for_horovod("a", 1)["HOROVOD_HOSTNAME"] == f"{found.node}-{slot}"


def test_nccl_takes_the_ranks_of_two_jobs_for_those_of_two_nodes() -> None:
    both = rank_from_environ(environ(0, 0, 0, "2,1") | {"CARME_SLOT": "r2"}, PARTS)
    assert both.for_torch("10.0.0.1", 29500, "run-1")["NCCL_HOSTID"] == "node1-r2"
    assert "NCCL_HOSTID" not in rank_from_environ(environ(0, 0, 0)).for_torch("10.0.0.1", 29500, "run-1")


def test_slurm_may_put_the_tasks_of_a_step_the_other_way_round() -> None:
    place = rank_from_environ(environ(1, 0, 1, "1,2") | {"CARME_SLOT": "r2"}, PARTS)
    assert place == Rank(3, 5, 0, 2, 2, 3, "node2", 2, 3, "r2")


@pytest.mark.parametrize(("tasks", "slot"), [("2", ""), ("2", "r1"), ("2", "r2"), ("2,1", "r0"), ("1,1", "r2")])
def test_a_step_that_the_run_does_not_have_is_said(tasks: str, slot: str) -> None:
    with pytest.raises(NoStep, match=r"is no step of this run, which has \(\(2,\), \(2, 1\)\)"):
        rank_from_environ(environ(0, 0, 0, tasks) | {"CARME_SLOT": slot}, PARTS)


def test_horovod_is_told_its_place_and_where_the_others_are() -> None:
    said = rank_from_environ(environ(3, 1, 1)).for_horovod("10.0.0.1:4711/secret", 4711, interface="ib0")
    assert (said["HOROVOD_RANK"], said["HOROVOD_SIZE"]) == ("3", "5")
    assert (said["HOROVOD_CROSS_RANK"], said["HOROVOD_CROSS_SIZE"]) == ("1", "2")
    assert (said["HOROVOD_GLOO_RENDEZVOUS_ADDR"], said["HOROVOD_GLOO_IFACE"]) == ("10.0.0.1:4711/secret", "ib0")
    assert "HOROVOD_GLOO_IFACE" not in rank_from_environ(environ(0, 0, 0)).for_horovod("a", 1)


def test_a_rank_has_the_variables_that_torchrun_gives_its_workers() -> None:
    assert rank_from_environ(environ(3, 1, 1)).for_torch("10.0.0.1", 29500, "run-1") == {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "NODE_RANK": "1",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "5",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "run-1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def test_a_rank_keeps_no_variable_of_slurm_but_those_of_a_job_array() -> None:
    mine = {"SLURM_ARRAY_TASK_ID": "7", "HOME": "/home/a", "MY_SLURM": "x"}
    every = {**environ(3, 1, 1), "SLURM_NTASKS": "5", "SLURM_JOB_ID": "9", "SRUN_DEBUG": "3", **mine}
    remove_slurm(every)
    assert every == mine


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_the_ranks_of_a_step_agree_with_each_other(tasks: list[int]) -> None:
    text, first, found = ",".join(map(str, tasks)), 0, []
    for node, count in enumerate(tasks):
        found += [rank_from_environ(environ(first + local, local, node, text)) for local in range(count)]
        first += count
    assert [each.number for each in found] == list(range(sum(tasks)))
    for local in range(max(tasks)):
        column = [each for each in found if each.local == local]
        # Who shares a local number forms one ring over the nodes, without a gap.
        assert [each.cross for each in column] == list(range(len(column)))
        assert {each.cross_size for each in column} == {len(column)}
    assert all(a.number < b.number for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"SLURM_PROCID": ""}, "SLURM_PROCID is not set"),
        ({"SLURM_LOCALID": "-1"}, "SLURM_LOCALID='-1'"),
        ({"SLURM_NODEID": "3"}, "number 0 of node 3"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x"}, "2(x2),1"),
        ({"SLURMD_NODENAME": ""}, "SLURMD_NODENAME"),
    ],
)
def test_what_is_no_task_of_a_step_is_named(wrong: dict[str, str], named: str) -> None:
    with pytest.raises(NoStep, match=re.escape(named)):
        rank_from_environ(environ(4, 0, 2) | wrong)


def test_nodes_with_the_same_number_of_tasks_are_told_together() -> None:
    assert parse_tasks("2(x2),1") == (2, 2, 1)
