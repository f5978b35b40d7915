"""A node is drained and resumed by one command with one name, and it is read again afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from forged_slurm import ForgedSlurm

from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import SlurmRejected
from carme_hub.slurm.command import Commands
from carme_hub.slurm.nodes import NodesCli


class ControllerThatShows:
    """Shows node1 with these flags."""

    def __init__(self, *flags: str) -> None:
        self.flags = frozenset(flags)

    async def nodes(self) -> tuple[Node, ...]:
        return (Node("node1", "idle", not self.flags, flags=self.flags),)


def control(forged: ForgedSlurm, client: Any, *command: str) -> NodesCli:
    return NodesCli(Commands(prefix=str(forged.prefix)), client, command)


@pytest.fixture
def forged(tmp_path: Any) -> ForgedSlurm:
    found = ForgedSlurm(tmp_path)
    found.say("scontrol")
    return found


async def test_a_drain_has_its_reason_as_one_argument(forged: ForgedSlurm) -> None:
    await control(forged, ControllerThatShows("drain")).drain("node1", "A fan fails; $(rm) (ada)")
    assert forged.calls("scontrol") == ["update NodeName=node1 State=DRAIN Reason=A fan fails; $(rm) (ada)"]


async def test_a_node_that_slurm_shows_as_before_was_not_changed(forged: ForgedSlurm) -> None:
    with pytest.raises(SlurmRejected, match="still shows node1 as it was"):
        await control(forged, ControllerThatShows()).drain("node1", "Fan")
    with pytest.raises(SlurmRejected, match="still shows node1 as drained"):
        await control(forged, ControllerThatShows("drain")).resume("node1")


@pytest.mark.parametrize("name", ["node[1-4]", "ALL,node1", "", "node1 State=DOWN", "-h"])
async def test_only_one_node_by_its_name_is_changed(forged: ForgedSlurm, name: str) -> None:
    with pytest.raises(SlurmRejected, match="is not the name of a node"):
        await control(forged, ControllerThatShows()).drain(name, "Fan")
    assert forged.calls("scontrol") == []


async def test_a_node_that_does_not_exist_is_named(forged: ForgedSlurm) -> None:
    with pytest.raises(SlurmRejected, match="There is no node node9"):
        await control(forged, ControllerThatShows()).resume("node9")


async def test_without_the_right_it_says_what_to_do(forged: ForgedSlurm) -> None:
    forged.say("scontrol", err="slurm_update error: Invalid user id\n", code=1)
    with pytest.raises(SlurmRejected, match=r"does not let the hub change nodes.*AdminLevel=Administrator"):
        await control(forged, ControllerThatShows()).drain("node1", "Fan")


async def test_a_site_may_name_another_command(forged: ForgedSlurm) -> None:
    forged.say("as-slurm")
    helper = str(forged.prefix / "bin" / "as-slurm")
    await control(forged, ControllerThatShows(), helper, "scontrol").resume("node1")
    assert forged.calls("as-slurm") == ["scontrol update NodeName=node1 State=RESUME"]
    assert forged.calls("scontrol") == []


def test_the_setting_is_passed_on() -> None:
    from carme_hub.slurm.settings import CarmeSlurm

    found = CarmeSlurm(node_command=["sudo", "scontrol"]).node_control(SimpleNamespace())  # type: ignore[arg-type]
    assert found._command == ("sudo", "scontrol")
