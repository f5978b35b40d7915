"""What jobs had and when nodes were out of service is read whole or not at all; parts of nodes are rounded up."""

from __future__ import annotations

import math

import pytest
from forged_slurm import CUT, ForgedSlurm

from carme_hub.domain.activity.vacancy import Room, Taken
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.command import Commands
from carme_hub.slurm.past_use import JOB_FIELDS, PastUseReader, read_jobs, read_periods

TRES = "billing=8,cpu=8,gres/gpu:a100=3,gres/gpu=3,mem=33G,node=2"


def jobs_answer(*rows: tuple[str, ...]) -> str:
    return "".join(CUT.join(row) + CUT + "\n" for row in (JOB_FIELDS, *rows))


def test_a_job_on_two_nodes_had_half_of_it_on_each_rounded_up() -> None:
    [job] = read_jobs(jobs_answer(("7", "90", "100", "Unknown", "n[1-2]", TRES)), CUT)
    assert (job.start, job.end) == (100, math.inf)
    assert job.taken("a100") == [Taken(name, 100, math.inf, Room(2, 4, 16_896)) for name in ("n1", "n2")]
    assert job.taken("h100")[0].room == Room(0, 4, 16_896)
    assert job.taken("")[0].room == Room(0, 4, 16_896)


def test_gpus_without_a_type_may_be_of_any_and_shards_take_gpus() -> None:
    rows = [("7", "90", "100", "200", "n1", f"cpu=1,mem=1G,{what}") for what in ("gres/gpu=2", "gres/shard=2")]
    assert [job.taken("a100")[0].room for job in read_jobs(jobs_answer(*rows), CUT)] == [Room(2, 1, 1024)] * 2


def test_jobs_that_had_nothing_are_left_out() -> None:
    rows = [("7", "90", "Unknown", "200", "None assigned", ""), ("8", "90", "100", "100", "None assigned", TRES)]
    assert read_jobs(jobs_answer(*rows), CUT) == ()


def test_nodes_that_were_down_or_reserved_were_out_of_service() -> None:
    assert read_periods("n1|100|200\n|50|60\nn[2-3]|300|Unknown\n") == (
        Taken("n1", 100, 200, None),
        Taken("n2", 300, math.inf, None),
        Taken("n3", 300, math.inf, None),
    )


async def test_it_asks_for_the_time_in_between(forged: ForgedSlurm, commands: Commands) -> None:
    forged.say("sacct", jobs_answer(("7", "90", "100", "200", "n1", TRES)))
    forged.say("sacctmgr", "n1|100|200\n")
    reader = PastUseReader(commands)
    assert [job.job_id for job in await reader.jobs(50, 150)] == [7]
    assert len(await reader.out_of_service(50, 150)) == 2
    events, reserved = forged.calls("sacctmgr")
    assert "show event start=1970-01-01T00:00:50 end=1970-01-01T00:02:30" in events
    assert "show reservation start=1970-01-01T00:00:50" in reserved


@pytest.mark.parametrize("text", ["n1|soon|200\n", "n1|100\n"])
async def test_half_an_answer_of_sacctmgr_is_none(forged: ForgedSlurm, commands: Commands, text: str) -> None:
    forged.say("sacctmgr", text)
    with pytest.raises(SlurmUnreachable, match="cannot be understood"):
        await PastUseReader(commands).out_of_service(50, 150)
