"""Reservations as Slurm 22.05 and 24.11 print them, and what scontrol is told."""

from __future__ import annotations

import pytest
from forged_slurm import ForgedSlurm

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.slurm_reservations import Change, Create, Delete, SlurmReservation, Step
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.command import Commands
from carme_hub.slurm.reservations import argv, default_partition, licenses_in_slurm, read, reserves_gpus

#: Recorded on Slurm 22.05.8.
OLD = """\
ReservationName=t1 StartTime=1795308165 EndTime=1795311765 Duration=01:00:00 Nodes=node2 NodeCnt=1 CoreCnt=32 \
Features=(null) PartitionName=(null) Flags=SPEC_NODES,PURGE_COMP=00:05:00 TRES=cpu=32 Users=alice,bob Groups=(null) \
Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)
ReservationName=t2 StartTime=1795428000 EndTime=1795431600 Duration=01:00:00 Nodes=node[1,4] NodeCnt=2 CoreCnt=64 \
Features=(null) PartitionName=(null) Flags=SPEC_NODES TRES=cpu=64 Users=alice Groups=(null) Accounts=physics \
Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)
"""
#: Recorded on Slurm 24.11.5.
NEW = """\
ReservationName=m1 StartTime=1795306141 EndTime=1795309741 Duration=01:00:00 Nodes=node[1-2] NodeCnt=2 CoreCnt=6 \
Features=(null) PartitionName=interactive Flags=SPEC_NODES   NodeName=node1 CoreIDs=0-1,16-17   NodeName=node2 \
CoreIDs=0,16 TRES=cpu=6,gres/gpu:a100=5,gres/gpu=5 Users=(null) Groups=(null) Accounts=physics Licenses=(null) \
State=ACTIVE BurstBuffer=(null) MaxStartDelay=(null)
ReservationName=mnt StartTime=1795306145 EndTime=1795309745 Duration=01:00:00 Nodes=node4 NodeCnt=1 CoreCnt=32 \
Features=(null) PartitionName=interactive Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=32 Users=root Groups=(null) \
Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) MaxStartDelay=(null)
"""


#: Recorded on Slurm 22.05.8; 24.11.5 leaves out Watts.
COUNTED = """\
ReservationName=carme-1-0 StartTime=1795428000 EndTime=1795431600 Duration=01:00:00 Nodes=(null) NodeCnt=0 CoreCnt=0 \
Features=(null) PartitionName=(null) Flags=ANY_NODES TRES=(null) Users=alice Groups=(null) Accounts=physics \
Licenses=gpu_1g.10gb:2,gpu_a100 State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)
"""
LICENSES = """\
LicenseName=gpu_1g.10gb Total=7 Used=0 Free=7 Reserved=0 Remote=no
LicenseName=gpu_a100 Total=8 Used=5 Free=3 Reserved=4 Remote=no
"""


def names(*words: str) -> frozenset[str]:
    return frozenset(words)


def test_whole_nodes_on_22_05() -> None:
    purged = names("SPEC_NODES", "PURGE_COMP")
    assert read(OLD) == (
        SlurmReservation(
            "t1",
            Period(1795308165, 1795311765),
            names("node2"),
            {},
            32,
            names("alice", "bob"),
            names(),
            purged,
            "INACTIVE",
        ),
        SlurmReservation(
            *("t2", Period(1795428000, 1795431600), names("node1", "node4"), {}, 64, names("alice"), names("physics")),
            names("SPEC_NODES"),
            "INACTIVE",
        ),
    )


def test_single_gpus_and_maintenance_on_24_11() -> None:
    gpus, maintenance = read(NEW)
    assert (gpus.gpus, gpus.cpus, gpus.nodes, gpus.state) == ({"a100": 5}, 6, names("node1", "node2"), "ACTIVE")
    assert (gpus.users, gpus.accounts, gpus.maintenance) == (names(), names("physics"), False)
    assert (maintenance.maintenance, maintenance.gpus, maintenance.ours) == (True, {}, False)


def test_licences_are_of_no_nodes() -> None:
    (counted,) = read(COUNTED)
    assert (counted.licenses, counted.nodes, counted.gpus) == ({"gpu_1g.10gb": 2, "gpu_a100": 1}, names(), {})
    assert counted.flags == {"ANY_NODES"}


async def test_how_many_licences_slurm_has(commands: Commands, forged: ForgedSlurm) -> None:
    for said, found in ((LICENSES, {"gpu_1g.10gb": 7, "gpu_a100": 8}), ("No licenses configured in Slurm.\n", {})):
        forged.say("scontrol", said)
        assert await licenses_in_slurm(commands) == found
    forged.say("scontrol", "", code=1)
    with pytest.raises(SlurmUnreachable):
        await licenses_in_slurm(commands)


async def test_where_jobs_go_that_name_no_partition(commands: Commands, forged: ForgedSlurm) -> None:
    batch = "PartitionName=batch AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL   AllocNodes=ALL Default=NO QoS=N/A\n"
    usual = batch.replace("batch", "interactive").replace("Default=NO", "Default=YES")
    for said, found in ((batch + usual, "interactive"), (batch, ""), ("", "")):
        forged.say("scontrol", said)
        assert await default_partition(commands) == found
    forged.say("scontrol", "", code=1)
    with pytest.raises(SlurmUnreachable):
        await default_partition(commands)


def test_no_reservation_is_an_answer_and_silence_is_none() -> None:
    assert read("No reservations in the system\n") == ()
    for text in ("", "\n", "slurm_load_reservations error", OLD.replace("StartTime", "Start"), OLD[:40]):
        with pytest.raises(SlurmUnreachable):
            read(text)
    with pytest.raises(SlurmUnreachable, match="cannot be understood"):
        read(OLD + NEW.replace("EndTime=1795309741", "EndTime=1"))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Delete("carme-1"), ["delete", "ReservationName=carme-1"]),
        (
            Create(
                SlurmReservation(
                    *("carme-1", Period(1795428000, 1795431600), names("node2", "node1")),
                    *({}, 0, names("bob", "alice"), names("physics"), names("MAINT", "IGNORE_JOBS")),
                )
            ),
            [
                *("create", "reservation", "ReservationName=carme-1"),
                *("StartTime=2026-11-23T10:00:00", "EndTime=2026-11-23T11:00:00", "Nodes=node1,node2"),
                *("Users=alice,bob", "Accounts=physics", "Flags=IGNORE_JOBS,MAINT"),
            ],
        ),
        (
            Create(
                SlurmReservation("c", Period(1795428000, 1795431600), names("n"), {"a100": 2}, 8, names(), names("a"))
            ),
            [
                *("create", "reservation", "ReservationName=c", "StartTime=2026-11-23T10:00:00"),
                *("EndTime=2026-11-23T11:00:00", "Nodes=n", "TRES=cpu=8,gres/gpu:a100=2", "Accounts=a"),
            ],
        ),
        (
            Create(
                SlurmReservation(
                    *("c", Period(1795428000, 1795431600), names(), {}, 0, names("b"), names("a"), names("ANY_NODES")),
                    licenses={"gpu_a100": 4},
                )
            ),
            [
                *("create", "reservation", "ReservationName=c", "StartTime=2026-11-23T10:00:00"),
                *("EndTime=2026-11-23T11:00:00", "Licenses=gpu_a100:4", "Users=b", "Accounts=a", "Flags=ANY_NODES"),
            ],
        ),
        (Change("c", licenses={"gpu_a100": 2}), ["update", "ReservationName=c", "Licenses=gpu_a100:2"]),
        (Change("c", None, names("bob"), names()), ["update", "ReservationName=c", "Users=bob", "Accounts="]),
        (
            Change("c", Period(1795428000, 1795431600)),
            ["update", "ReservationName=c", "StartTime=2026-11-23T10:00:00", "EndTime=2026-11-23T11:00:00"],
        ),
    ],
)
def test_what_scontrol_is_told(step: Step, words: list[str]) -> None:
    assert argv(step) == words


@pytest.mark.parametrize(
    ("said", "gpus"),
    [
        ("slurm-wlm 22.05.8\n", False),
        ("slurm 23.11.10\n", False),
        ("slurm 24.05.4\n", False),
        ("slurm 24.11.5\n", True),
        ("slurm-wlm 25.11.0-0rc1\n", True),
    ],
)
async def test_which_slurm_reserves_single_gpus(commands: Commands, forged: ForgedSlurm, said: str, gpus: bool) -> None:
    forged.say("scontrol", said)
    assert await reserves_gpus(commands) is gpus
    assert forged.calls("scontrol") == ["--version"]


@pytest.mark.parametrize(("said", "code"), [("", 0), ("scontrol of another kind", 0), ("slurm 24.11.5\n", 1)])
async def test_what_is_no_release_is_not_known(commands: Commands, forged: ForgedSlurm, said: str, code: int) -> None:
    forged.say("scontrol", said, code=code)
    with pytest.raises(SlurmUnreachable, match="--version"):
        await reserves_gpus(commands)
