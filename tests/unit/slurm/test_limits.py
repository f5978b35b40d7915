"""Limits as sacctmgr prints them, and what it says when it refuses."""

from __future__ import annotations

import pytest
from forged_slurm import ForgedSlurm

from carme_hub.domain.quotas.slurm_limits import AdminLevel, Change, Entity
from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.slurm import limits
from carme_hub.slurm.command import Commands
from carme_hub.slurm.limits import LimitsWriter, script

QOS = (
    "Name|Flags|GrpTRES|GrpTRESMins|MaxTRES|MaxTRESPU|MaxJobsPU|MaxWall\n"
    "normal|||||||\n"
    "carme-physics|DenyOnLimit,NoDecay||gres/gpu=2|gres/gpu=1|gres/gpu:h100=0,gres/gpu=2|2|1-01:00:00\n"
)
TRES = "Type|Name\ncpu|\ngres|gpu\ngres|gpu:a100\n"
ASSOCIATIONS = "".join(
    "|".join(words) + "\n"
    for words in (
        ["Account", "User", "Partition", *limits._OF_ASSOCIATIONS],
        ["root", *[""] * 8, "normal", ""],
        ["physics", "", "", "cpu=100,gres/gpu=4", "", "", "", "3", "02:00:00", "short,normal", "normal"],
        ["physics", "alice", *[""] * 9],
        ["physics", "bob", "night", "", "gres/gpu=100", *[""] * 4, "x", ""],
    )
)


#: The QOS that each may use, with what is inherited; the column before them is the partition's.
MAY_USE = "Account|User|Partition|QOS\nroot|||normal\nphysics|||short,normal\nphysics|alice||short,normal\n"


def say(
    forged: ForgedSlurm,
    qos: str = QOS,
    tres: str = TRES,
    associations: str = ASSOCIATIONS,
    may_use: str = MAY_USE,
) -> None:
    forged.say("sacctmgr")
    for name, text in (("qos", qos), ("tres", tres), ("assoc", associations), ("assoc-may", may_use)):
        (forged.prefix / name).write_text(text)
    choose = '[ "$4" = assoc ] && [ "$7" != WOPLimits ] && set -- 1 2 3 assoc-may; '
    answer = f'for w in qos tres assoc assoc-may; do [ "$4" = $w ] && cat {forged.prefix}/$w; done'
    forged.say("sacctmgr", before=choose + answer)


@pytest.fixture
def writer(commands: Commands) -> LimitsWriter:
    return LimitsWriter(commands, "ada")


async def test_limits_are_read_by_tres_in_minutes_and_sorted(writer: LimitsWriter, forged: ForgedSlurm) -> None:
    say(forged)
    state = await writer.state()
    assert state.tres == {"cpu", "gres/gpu", "gres/gpu:a100"}
    assert state.limits == {
        (Entity.QOS, "normal"): {"Name": "yes"},
        (Entity.QOS, "carme-physics"): {
            "Name": "yes",
            "Flags/DenyOnLimit": "yes",
            "Flags/NoDecay": "yes",
            "GrpTRESMins/gres/gpu": "2",
            "MaxTRES/gres/gpu": "1",
            "MaxTRESPerUser/gres/gpu:h100": "0",
            "MaxTRESPerUser/gres/gpu": "2",
            "MaxJobsPerUser": "2",
            "MaxWall": "1500",
        },
        (Entity.ACCOUNT, "root"): {"QOS": "normal"},
        (Entity.ACCOUNT, "physics"): {
            "GrpTRES/cpu": "100",
            "GrpTRES/gres/gpu": "4",
            "MaxJobs": "3",
            "MaxWall": "120",
            "QOS": "normal,short",
            "DefaultQOS": "normal",
        },
        (Entity.USER, "physics/alice"): {},
        (Entity.USER, "physics/bob/night"): {"GrpTRESMins/gres/gpu": "100", "QOS": "x"},
    }
    assert state.value((Entity.USER, "physics/alice"), "QOS") == ""
    assert state.value((Entity.USER, "physics/alice"), "QOS/short") == "yes"  # inherited
    assert state.value((Entity.USER, "physics/alice"), "QOS/low") == ""


@pytest.mark.parametrize(
    "odd",
    [
        {"qos": ""},
        {"qos": "Name|Flags\n"},
        {"associations": ASSOCIATIONS[:-4]},
        {"associations": ASSOCIATIONS.replace("02:00:00", "soon")},
        {"associations": ASSOCIATIONS.replace("gres/gpu=100", "many")},
        {"tres": "cpu\n"},
        {"may_use": "Account|User|Partition|QOS\nroot|||nor"},
    ],
)
async def test_an_odd_answer_is_no_answer(odd: dict[str, str], writer: LimitsWriter, forged: ForgedSlurm) -> None:
    say(forged, **odd)
    with pytest.raises(SlurmUnreachable):
        await writer.state()


async def test_no_database_is_no_answer(writer: LimitsWriter, forged: ForgedSlurm) -> None:
    forged.say("sacctmgr", QOS, err="sacctmgr: Connection refused")
    with pytest.raises(SlurmUnreachable):
        await writer.state()


OURS = Change(Entity.USER, "physics/bob", "MaxJobs", "", "3")
THEIRS = Change(Entity.QOS, "o'neill", "MaxWall", "", "60", AdminLevel.ADMINISTRATOR)


async def test_an_operator_makes_an_operators_changes_only(writer: LimitsWriter, forged: ForgedSlurm) -> None:
    say(forged, associations=ASSOCIATIONS + "|".join(["physics", "bob", *[""] * 5, "3", *[""] * 3]) + "\n")
    assert await writer.apply([OURS, THEIRS]) == (OURS,)
    [change] = [call for call in forged.calls("sacctmgr") if "modify" in call]
    assert change == "-i modify user where name=bob account=physics cluster=ada set MaxJobs=3"
    assert script([OURS, THEIRS], "ada") == """sacctmgr -i modify qos where 'name=o'"'"'neill' set MaxWall=60\n"""
    assert script([OURS], "ada") == ""


@pytest.mark.parametrize(
    ("out", "err", "error"),
    [
        (" Nothing modified\n", "", SlurmRejected),
        ("", "sacctmgr: error: Your user doesn't have privilege to perform this action", SlurmRejected),
        ("", "sacctmgr: error: slurmdbd: Connection refused", SlurmUnreachable),
    ],
)
async def test_a_refusal_is_told_from_silence(
    out: str, err: str, error: type[Exception], writer: LimitsWriter, forged: ForgedSlurm
) -> None:
    forged.say("sacctmgr", out, err=err, code=1)
    with pytest.raises(error):
        await writer.apply([OURS])


async def test_what_is_not_seen_to_be_made_is_not_taken_for_made(writer: LimitsWriter, forged: ForgedSlurm) -> None:
    say(forged)  # exit status 0, and bob has no limit
    assert await writer.apply([OURS]) == ()
    assert await writer.apply([]) == ()
