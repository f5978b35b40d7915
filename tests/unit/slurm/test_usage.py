"""Answers of sacct as GPU time: recorded ones of two releases to the second, and odd ones whole or not at all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from forged_slurm import CUT, ForgedSlurm

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.cluster.tres import typed_gpus_of_tres
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.command import Commands
from carme_hub.slurm.usage import FIELDS, UsageReader, read

#: Recorded before Reservation was asked for, and those of whole days before Suspended: these columns are empty there.
GOLDEN = Path(__file__).parent / "golden"
HEADER = CUT.join(FIELDS) + CUT + "\n"
NOON = 1795219200.0  # 2026-11-21, UTC

#: GPU-seconds by job name, counted by hand from the recorded answers.
SECONDS = {
    "22.05": {
        "preempted": 8,
        "suspended": 9,
        "resized": 2 * 1 + 8,
        "requeued": 1 + 1 + 3,
        "plain": 2,
        "mixed": 3,
        "het": 2 + 2 * 2,
        "srun": 1,
        "salloc": 1,
        "far": 1,
        "array": 3,
        "lost": 1,
        "moved": 1,
        "urgent": 2,
        "open": 25,
    },
    "24.11": {
        "preempted": 8,
        "suspended": 10,
        "resized": 2 * 2 + 8,
        "requeued": 2 + 2 + 4,
        "plain": 3,
        "mixed": 6,
        "het": 3 + 2 * 3,
        "srun": 2,
        "salloc": 1,
        "far": 2,
        "array": 5,
        "lost": 2,
        "moved": 2,
        "urgent": 2,
        "open": 1,
    },
}


def row(**changes: str) -> str:
    """Return one line of sacct: a job of alice's with two GPUs that took 100 s, but for the changes."""
    known = {
        "JobIDRaw": "7",
        "JobID": "7",
        "User": "alice",
        "Account": "science",
        "Partition": "main",
        "QOS": "normal",
        "State": "COMPLETED",
        "Submit": "1795219200",
        "Start": "1795219210",
        "End": "1795219310",
        "AllocTRES": "billing=1,cpu=1,gres/gpu:a100=2,gres/gpu=2,mem=512M,node=1",
        "NodeList": "node1",
        "TimelimitRaw": "60",
        "Suspended": "00:00:00",
        "ExitCode": "0:0",
        "Reservation": "",
        "JobName": "train",
        **changes,
    }
    return CUT.join(known.values()) + CUT + "\n"


def one(**changes: str) -> object:
    return read(HEADER + row(**changes), CUT)


@pytest.mark.parametrize("release", SECONDS)
def test_recorded_answers_are_read_to_the_second(release: str) -> None:
    found = Counter[str]()
    for used in read((GOLDEN / f"sacct-{release}.txt").read_text(), "@golden@"):
        assert used.phase is Phase.TERMINAL
        found[used.name] += used.seconds(0) * sum(gpus.count for gpus in used.gpus)
    assert found == SECONDS[release]


def test_a_record_is_read_with_all_its_words() -> None:
    [used] = read(HEADER + row(JobIDRaw="18", JobID="17_3", QOS="short", JobName="a|b\n7|c", ExitCode="3:0"), CUT)
    assert (used.job_id, used.shown_id, used.name, used.user, used.account) == (
        18,
        "17_3",
        "a|b\n7|c",
        "alice",
        "science",
    )
    assert (used.partition, used.qos, used.nodes, used.time_limit) == ("main", "short", "node1", 3600)
    assert (used.submitted, used.start, used.end, used.exit_code) == (NOON, NOON + 10, NOON + 110, (3, 0))


@pytest.mark.parametrize("name", ["", "carme-0f9a1c2b3d4e5f60-0", "maint 2, “odd”|name"])
def test_the_reservation_of_a_job_is_read_as_it_is(name: str) -> None:
    assert read(HEADER + row(Reservation=name), CUT)[0].reservation == name


@pytest.mark.parametrize("limit", ["UNLIMITED", "Partition_Limit", ""])
def test_no_time_limit_is_none(limit: str) -> None:
    assert read(HEADER + row(TimelimitRaw=limit), CUT)[0].time_limit == 0


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("00:00:00", 0), ("00:05:07", 307), ("1-02:03:04", 93_784), ("05:07", 307), ("05:07.250", 307)],
)
def test_suspended_time_is_read_to_the_second(said: str, seconds: int) -> None:
    assert read(HEADER + row(Suspended=said), CUT)[0].suspended == seconds


def test_a_recorded_job_stood_still_for_as_long_as_slurm_says() -> None:
    [used] = read((GOLDEN / "sacct-22.05-suspended.txt").read_text(), "@golden@")
    assert (used.state, used.seconds(0), used.suspended) == ("CANCELLED by 2001", 9, 8)


@pytest.mark.parametrize("said", ["", "INVALID", "-00:05:00", "soon", "1:2:3:4"])
def test_a_suspended_time_that_makes_no_sense_is_none(said: str) -> None:
    assert read(HEADER + row(Suspended=said), CUT)[0].suspended == 0


def test_times_are_read_where_slurm_prints_no_epoch_seconds() -> None:
    [used] = read(HEADER + row(Submit="2026-11-21T00:00:00", Start="2026-11-21T00:00:10", End="Unknown"), CUT)
    assert (used.submitted, used.start, used.end) == (NOON, NOON + 10, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"AllocTRES": "billing=1,cpu=1,mem=512M,node=1"},
        {"AllocTRES": "", "State": "PENDING", "Start": "Unknown", "End": "Unknown"},
        {"AllocTRES": "", "State": "CANCELLED by 1000", "Start": "None"},
        {"State": "CANCELLED by 1000", "NodeList": "None assigned", "Start": "1795219310"},
        {"State": "PENDING", "Start": "Unknown", "End": "Unknown"},
    ],
)
def test_without_gpus_or_nodes_or_a_start_there_is_no_use(changes: dict[str, str]) -> None:
    assert one(**changes) == ()


@pytest.mark.parametrize(
    ("state", "end", "phase"),
    [
        ("COMPLETED", "Unknown", Phase.ENDING),
        ("RUNNING", "Unknown", Phase.ACTIVE),
        ("SUSPENDED", "Unknown", Phase.ACTIVE),
        ("RESIZING", "1795219310", Phase.TERMINAL),
        ("REQUEUED", "1795219310", Phase.TERMINAL),
        ("BANANA", "1795219310", Phase.TERMINAL),
        ("BANANA", "Unknown", Phase.UNKNOWN),
    ],
)
def test_only_an_end_ends_an_incarnation(state: str, end: str, phase: Phase) -> None:
    [used] = read(HEADER + row(State=state, End=end), CUT)
    assert used.phase is phase
    assert bool(used.end) is (phase is Phase.TERMINAL)


def test_a_clock_that_stepped_back_is_shown_as_it_is() -> None:
    assert read(HEADER + row(End="1795219205"), CUT)[0].seconds(0) == -5


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=1,gres/gpu=2", (Gpus("gpu", 2),)),
        ("gres/gpu=3,gres/gpu:a100=1", (Gpus("a100", 1), Gpus("gpu", 2))),
        ("gres/gpu:h100=2,gres/gpu:a100=1", (Gpus("a100", 1), Gpus("h100", 2))),
        ("gres/gpu=4,gres/gpu:1g.10gb=3,gres/gpu:3g.40gb=1", (Gpus("1g.10gb", 3), Gpus("3g.40gb", 1))),
        ("gres/gpu=0", ()),
        ("billing=1,cpu=1,gres/shard=2,mem=50M", (Gpus("shard", 2),)),
        ("gres/gpu=0,gres/shard=2", (Gpus("shard", 2),)),
        ("gres/shard:a100=2,gres/shard=2", (Gpus("shard", 2),)),
        ("gres/shard:a100=2", (Gpus("shard", 2),)),
        ("gres/gpu:a100=4,gres/gpu=4,gres/shard=16", (Gpus("a100", 4),)),
        ("gres/shard=0", ()),
    ],
)
def test_gpus_of_every_type_and_shards_are_counted_once(tres: str, gpus: tuple[Gpus, ...]) -> None:
    assert typed_gpus_of_tres(tres) == gpus


@pytest.fixture
def reader(commands: Commands) -> UsageReader:
    return UsageReader(commands)


ODD: dict[str, dict[str, object]] = {
    "slurmdbd is down": {"err": "sacct: error: _open_persist_conn: failed to open persistent connection", "code": 1},
    "error words with exit status 0": {"out": HEADER + row(), "err": "sacct: error: Problem getting jobs: timeout"},
    "empty success": {},
    "half a line": {"out": HEADER + row() + row()[:50]},
    "a field too few": {"out": HEADER + row().replace(CUT + "science", "", 1)},
    "no header": {"out": row()},
    "a job id that is none": {"out": HEADER + row(JobIDRaw="7.batch")},
    "a time that is none": {"out": HEADER + row(End="soon")},
    "no submit time": {"out": HEADER + row(Submit="Unknown")},
    "a count that is none": {"out": HEADER + row(AllocTRES="gres/gpu=many")},
    "one bad record among good ones": {"out": HEADER + row() + row(JobIDRaw="8", Start="?")},
}


@pytest.mark.parametrize("kind", ODD)
async def test_an_odd_answer_is_no_answer(kind: str, reader: UsageReader, forged: ForgedSlurm) -> None:
    forged.say("sacct", **ODD[kind])  # type: ignore[arg-type]
    with pytest.raises(SlurmUnreachable):
        await reader.usage(NOON, NOON + 3600)


async def test_a_month_is_asked_for_day_by_day_and_each_job_comes_once(
    reader: UsageReader, forged: ForgedSlurm
) -> None:
    forged.say("sacct", HEADER + row() + row(Submit="1795219900", Start="1795219901", End="1795219902"))
    found = await reader.usage(NOON, NOON + 30 * 86400)
    assert [used.submitted for used in found] == [NOON, NOON + 700]
    calls = forged.calls("sacct")
    assert len(calls) == 30
    assert "--starttime=2026-11-21T00:00:00 --endtime=2026-11-22T00:00:01" in calls[0]
    assert "--starttime=2026-12-20T00:00:00 --endtime=2026-12-21T00:00:01" in calls[-1]


async def test_since_ever_is_few_questions_where_nothing_was(reader: UsageReader, forged: ForgedSlurm) -> None:
    forged.say("sacct", HEADER)
    assert await reader.usage(0) == ()
    assert len(forged.calls("sacct")) < 250


async def test_what_was_asked_later_replaces_what_was_known(commands: Commands, forged: ForgedSlurm) -> None:
    first = HEADER + row(State="RUNNING", End="Unknown")
    forged.say("sacct", first)
    reader = UsageReader(commands, slice_seconds=100)
    assert [u.end for u in await reader.usage(NOON, NOON + 100)] == [0]
    (forged.prefix / "sacct" / "second").write_text(HEADER + row())
    forged.say("sacct", first, after=f"cp {forged.prefix}/sacct/second {forged.prefix}/sacct/out")
    assert [u.end for u in await reader.usage(NOON, NOON + 150)] == [NOON + 110]


async def test_an_answer_that_is_too_long_is_asked_for_in_parts(forged: ForgedSlurm) -> None:
    many = "".join(row(JobIDRaw=str(n)) for n in range(2000))
    whole = "case \"$*\" in *11-22T00:00:01*) printf '%0400000d' 0;; esac"
    forged.say("sacct", HEADER + many[: len(many) // 2], before=whole)
    reader = UsageReader(Commands(prefix=str(forged.prefix), max_bytes=300_000))
    with pytest.raises(SlurmUnreachable, match="longer than"):
        await reader.usage(NOON, NOON + 86400)  # even ten minutes of it
    assert 8 < len(forged.calls("sacct")) < 30
    forged.say("sacct", HEADER + row(), before=f"[ $(wc -l < {forged.prefix}/sacct/sacct.calls) -gt 1 ] || {whole}")
    (forged.prefix / "sacct/sacct.calls").unlink()
    assert len(await reader.usage(NOON, NOON + 86400)) == 1
    assert len(forged.calls("sacct")) == 3


async def test_the_window_and_what_still_runs(reader: UsageReader, forged: ForgedSlurm) -> None:
    running = row(JobIDRaw="8", State="RUNNING", End="Unknown")
    later = row(JobIDRaw="9", Start="1795226400", End="1795226500")
    forged.say("sacct", HEADER + row() + running + later)
    ids = [
        [u.job_id for u in await reader.usage(start, NOON + 3600, running=kept)]
        for start, kept in ((NOON, True), (NOON, False), (NOON + 110, True), (NOON + 111, True))
    ]
    assert ids == [[7, 8], [7], [7, 8], [8]]


async def test_the_question_is_for_all_users_in_utc_and_for_the_accounts_asked(
    reader: UsageReader, forged: ForgedSlurm
) -> None:
    forged.say("sacct", HEADER, before=f'echo "$TZ $SLURM_TIME_FORMAT" > {forged.prefix}/zone')
    await reader.usage(NOON, NOON + 60, accounts=["physics", "teaching"])
    [call] = forged.calls("sacct")
    for word in ("--duplicates", "--allocations", "--allusers", "--accounts=physics,teaching"):
        assert word in call
    assert (forged.prefix / "zone").read_text() == "UTC %s\n"
