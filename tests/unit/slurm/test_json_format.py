"""Jobs and nodes come to the hub's services as the hub has read them, whole or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.json_format import (
    jobs_from_json,
    jobs_to_json,
    matters_to_bookings,
    nodes_from_json,
    nodes_to_json,
)

RUNNING = Job(
    id=7,
    name="carme-x",
    user="alice",
    state="RUNNING",
    phase=Phase.ACTIVE,
    nodes=("n1", "n2"),
    submitted=1.5,
    start=2.0,
    end=99.0,
    time_limit=60,
    gpus=Gpus("a100", 2),
    reservation="a,b",
)
ENDED = Job(8, "x", "bob", "FAILED", Phase.TERMINAL, exit_code=(1, 15), restarts=2, priority=3, account="physics")
ODD = Job(9, "\N{REPLACEMENT CHARACTER}", "bob", "NEW_WORD", Phase.UNKNOWN, reason="Priority", partition="gpu")
NODE = Node(
    *("n1", "mixed", True, ("gpu", "all"), 64, 32, 1024, 512, {"a100": 4}, {"a100": 1}, "10.0.0.1", {"a100": 8}),
    frozenset({"drain", "reserved"}),
)


def over_the_wire(said: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(said)))


def test_jobs_arrive_as_they_were() -> None:
    assert jobs_from_json(over_the_wire(jobs_to_json([RUNNING, ENDED, ODD]))) == {7: RUNNING, 8: ENDED, 9: ODD}


def test_nodes_arrive_as_they_were() -> None:
    assert nodes_from_json(over_the_wire(nodes_to_json([NODE, Node("n2", "idle", False)]))) == (
        NODE,
        Node("n2", "idle", False),
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda said: said.update(fields=[*said["fields"], "new"]),
        lambda said: said["rows"][0].pop(),
        lambda said: said["rows"][0].__setitem__(4, "no such phase"),
        lambda said: said["rows"].append(None),
        lambda said: said.pop("rows"),
    ],
)
def test_what_cannot_be_understood_is_no_answer(spoil: Any) -> None:
    said = over_the_wire(jobs_to_json([RUNNING]))
    spoil(said)
    with pytest.raises(SlurmUnreachable):
        jobs_from_json(said)


def test_a_calendar_is_told_of_what_is_on_nodes_or_in_a_reservation() -> None:
    waiting = Job(1, "x", "bob", "PENDING", Phase.WAITING)
    told = [
        *(RUNNING, ODD, Job(2, "x", "bob", "PENDING", Phase.WAITING, reservation="course")),
        Job(3, "x", "bob", "COMPLETED", Phase.TERMINAL, nodes=("n1",), reservation="course"),
        Job(4, "x", "bob", "CONFIGURING", Phase.WAITING, nodes=("n1",)),
        Job(5, "x", "bob", "COMPLETING", Phase.ENDING, nodes=("n1",)),
    ]
    ended = Job(6, "x", "bob", "COMPLETED", Phase.TERMINAL, nodes=("n1",))
    assert [job for job in [waiting, *told, ended] if matters_to_bookings(job)] == told
