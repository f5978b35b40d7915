"""What accounting has of one job: incarnations with their steps, and an answer that is none proves nothing."""

from __future__ import annotations

import pytest
from forged_slurm import CUT, ForgedSlurm

from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.cli.history import FIELDS, history
from carme_hub.slurm.command import Commands

HEADER = CUT.join(FIELDS) + CUT + "\n"


def row(**changes: str) -> str:
    values = dict.fromkeys(FIELDS, "")
    values |= {"JobIDRaw": "7", "JobName": "carme-0f9a", "User": "alice", "State": "COMPLETED", "Submit": "1000"}
    values |= {
        "Start": "1010",
        "End": "1100",
        "NodeList": "node[1-2]",
        "ExitCode": "0:0",
        "TimelimitRaw": "60",
        **changes,
    }
    return CUT.join(values.values()) + CUT + "\n"


@pytest.fixture
def forged(tmp_path_factory: pytest.TempPathFactory) -> ForgedSlurm:
    return ForgedSlurm(tmp_path_factory.mktemp("slurm"))


@pytest.fixture
def commands(forged: ForgedSlurm) -> Commands:
    return Commands(prefix=str(forged.prefix), timeout=20.0)


async def test_each_incarnation_has_its_steps(forged: ForgedSlurm, commands: Commands) -> None:
    steps = row(JobIDRaw="7.batch", JobName="batch", User="", State="FAILED", ExitCode="9:0", NodeList="node1")
    again = row(State="REQUEUED", Submit="990", Start="995", End="999", NodeList="None assigned")
    forged.say(
        "sacct", HEADER + row(Partition="gpu", QOS="normal") + steps + again + row(JobIDRaw="8", JobName="other")
    )
    first, last = await history(commands, name="carme-0f9a", since=1000.0)
    assert (first.record.state, first.record.nodes, first.steps) == ("REQUEUED", (), ())
    assert (last.partition, last.qos, last.minutes) == ("gpu", "normal", 60)
    assert last.record.nodes == ("node1", "node2")
    [step] = last.steps
    assert (step.id, step.state, step.exit_code, step.nodes) == ("batch", "FAILED", (9, 0), ("node1",))
    [asked] = forged.calls("sacct")
    assert "--duplicates" in asked
    assert "--name=carme-0f9a" in asked
    assert [each.record.id for each in await history(commands, job=8)] == [8]
    assert "--jobs=8" in forged.calls("sacct")[-1]


@pytest.mark.parametrize("out", ["", "Slurm accounting storage is disabled\n", HEADER[:-4], HEADER + row()[:-5]])
async def test_an_answer_that_is_none_proves_nothing(forged: ForgedSlurm, commands: Commands, out: str) -> None:
    forged.say("sacct", out)
    with pytest.raises(SlurmUnreachable):
        await history(commands, name="carme-0f9a")
    forged.say("sacct", HEADER, err="sacct: error: slurm_persist_conn_open: failed\n")
    with pytest.raises(SlurmUnreachable, match="failed"):
        await history(commands, job=7)
