"""A real Slurm's accounting of every way to hold GPUs, and that we read the same seconds from it."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from slurm_parts import CommandsOfTheHub, StartLost, requeue, starts

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.usage import Usage
from carme_hub.sandbox import Cluster
from carme_hub.sandbox.sandbox import Sandbox
from carme_hub.sandbox.slurm.hostname import as_localhost
from carme_hub.slurm.usage import UsageReader

_SLEEP = "#!/bin/sh\nsleep {}\n"


@dataclass
class RecordedDay:
    """The jobs of the test: job ids by their case, and the start time; and the name of the one that was requeued."""

    began: float
    jobs: dict[str, int] = field(default_factory=dict)
    requeued: str = "requeued"


@pytest.fixture(scope="module")
def day(cluster: Cluster) -> Iterator[RecordedDay]:
    """A busy half minute: each kind of job that accounting records differently."""
    Sandbox(cluster.state).up()
    cluster.cancel_all()
    cluster.wait_for(lambda: not cluster.squeue("-t", "PD,R,S,CG,CF"))
    cluster.run("sacctmgr", "-i", "add", "qos", "lowly", check=False)
    cluster.run("sacctmgr", "-i", "modify", "qos", "short", "set", "preempt=lowly")
    cluster.run("sacctmgr", "-i", "modify", "account", "physics", "set", "qos+=lowly")
    time.sleep(2)  # what ended before is not of this day
    try:
        yield _busy(cluster)
    finally:
        cluster.cancel_all()
        cluster.run("sacctmgr", "-i", "modify", "account", "physics", "set", "qos-=lowly")
        cluster.run("sacctmgr", "-i", "modify", "qos", "short", "set", "preempt=")
        cluster.run("sacctmgr", "-i", "delete", "qos", "lowly")
        Sandbox(cluster.state).up()


def _busy(cluster: Cluster) -> RecordedDay:
    day = RecordedDay(began=time.time())

    def batch(label: str, seconds: int, *options: str) -> int:
        script = _SLEEP.format(seconds)
        day.jobs[label] = cluster.sbatch("-J", label, "--mem=50", *options, user="alice", script=script)
        return day.jobs[label]

    preempted = batch("preempted", 600, "--gres=gpu:3g.40gb:1", "--qos=lowly", "--requeue")
    suspended = batch("suspended", 600, "--gres=gpu:a100:1", "-w", "node1")
    resized = batch("resized", 600, "-N2", "--gres=gpu:a100:1")
    again = batch("requeued", 600, "--gres=gpu:a100:1", "--requeue")
    batch("plain", 2, "--gres=gpu:a100:1")
    batch("array", 1, "--gres=gpu:a100:1", "--array=1-3%2")
    batch("shards", 2, "--gres=shard:3", "-w", "node2")
    batch("mixed", 1, "--gres=gpu:1g.10gb:2,gpu:3g.40gb:1")
    batch("none", 1)
    batch("het", 2, "--gres=gpu:a100:1", ":", "--mem=50", "--gres=gpu:h100:2")
    words = ["--gres=gpu:1g.10gb:1", "--mem=50"]
    with ExitStack() as open_:
        for argv in (["srun", "-J", "srun", *words], ["salloc", "-J", "salloc", *words]):
            open_.enter_context(_as_alice(cluster, *argv, "sleep", "1"))
        far = ["env", "TZ=Pacific/Chatham", "LC_ALL=C.UTF-8", "sleep", "1"]
        open_.enter_context(_as_alice(cluster, "srun", "-J", "far", *words, *far, TZ="Pacific/Chatham"))
    cluster.wait_job(resized, "RUNNING")
    waits = batch("cancelled", 9, "--gres=gpu:a100:4", "-w", "node1")
    cluster.run("scontrol", "suspend", str(suspended))
    cluster.run("scontrol", "update", f"jobid={resized}", "NumNodes=1", user="alice")
    again = _requeued(cluster, day, again, batch)
    cluster.wait_for(lambda: not cluster.squeue("-t", "PD,R,CG", "--name=mixed,het"))
    lost, moved = (batch(n, 600, "--gres=gpu:h100:1", o) for n, o in (("lost", "--no-requeue"), ("moved", "--requeue")))
    batch("urgent", 1, "--gres=gpu:3g.40gb:2", "--qos=short")
    for job in (lost, moved):
        cluster.wait_job(job, "RUNNING")
    cluster.wait_for(lambda: all(starts(cluster, job) == 1 for job in (lost, moved)), within=60)
    time.sleep(1.2)
    cluster.run("scontrol", "update", "nodename=node4", "state=down", "reason=a test")
    cluster.wait_job(moved, "PENDING")
    cluster.run("scontrol", "update", "nodename=node4", "state=resume", check=False)  # it may be back by itself
    cluster.run("scontrol", "resume", str(suspended))
    cluster.wait_job(preempted, "PENDING")
    cluster.wait_for(lambda: not cluster.squeue("-t", "PD,R,CG", "--name=urgent"))
    for job in (again, moved, preempted, waits, suspended, resized):
        cluster.run("scancel", str(job), user="alice")
    batch("open", 300, "--gres=gpu:a100:1")
    cluster.wait_job(day.jobs["open"], "RUNNING")
    cluster.wait_for(lambda: len(cluster.squeue("-t", "PD,R,S,CG")) == 1)
    cluster.wait_for(lambda: starts(cluster, day.jobs["open"]) == 1, within=60)
    cluster.wait_for(lambda: _open(cluster, day) == {"open"} and _known(cluster, day) >= set(day.jobs), within=120)
    return day


def _requeued(cluster: Cluster, day: RecordedDay, job: int, batch: Callable[..., int]) -> int:
    """Have a job run four times; another one where accounting has lost a start of it, as it can on a busy machine."""
    for attempt in range(2, 5):
        cluster.wait_job(job, "RUNNING")
        try:
            for incarnation in (1, 2, 3):
                requeue(cluster, job, "alice", incarnation)
            return job
        except StartLost:
            cluster.run("scancel", str(job), user="alice")
            day.requeued = f"requeued-{attempt}"
            job = batch(day.requeued, 600, "--gres=gpu:a100:1", "--requeue")
    raise AssertionError("accounting loses a start of each job that is requeued")


def _as_alice(cluster: Cluster, *argv: str, **environ: str) -> subprocess.Popen[bytes]:
    known = cluster.environment("alice")
    with as_localhost():
        return subprocess.Popen(
            [cluster.command(argv[0]), *argv[1:]],
            env={**known, **environ},
            user="alice",
            group="alice",
            extra_groups=[],
            cwd=known["HOME"],
            stderr=subprocess.DEVNULL,
        )


def _sacct(cluster: Cluster, day: RecordedDay, fields: str) -> list[list[str]]:
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(day.began))
    text = cluster.run("sacct", "-DXanP", "-S", since, "-o", fields).stdout
    return [line.split("|") for line in text.splitlines()]


def _open(cluster: Cluster, day: RecordedDay) -> set[str]:
    return {name for name, end in _sacct(cluster, day, "JobName,End") if end == "Unknown"}


def _known(cluster: Cluster, day: RecordedDay) -> set[str]:
    return {name for (name,) in _sacct(cluster, day, "JobName")}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def used(cluster: Cluster, day: RecordedDay) -> AsyncIterator[tuple[Usage, ...]]:
    yield await UsageReader(CommandsOfTheHub(cluster)).usage(day.began)


def _of(used: tuple[Usage, ...], name: str) -> list[Usage]:
    return [one for one in used if one.name == name]


def _taken(used: list[Usage]) -> int:
    return sum(one.seconds(0) * gpus.count for one in used for gpus in one.gpus)


def test_every_ended_record_is_the_seconds_that_slurm_counted_itself(
    cluster: Cluster, day: RecordedDay, used: tuple[Usage, ...]
) -> None:
    ours = Counter[tuple[int, str]]()
    for one in used:
        if one.end and one.name != "resized":
            ours[one.job_id, one.name] += one.seconds(0) * sum(gpus.count for gpus in one.gpus)
    theirs = Counter[tuple[int, str]]()
    for number, name, end, elapsed, pause, tres in _sacct(
        cluster, day, "JobIDRaw,JobName,End,ElapsedRaw,Suspended,AllocTRES"
    ):
        gpus = re.search(r"gres/(?:gpu|shard)=(\d+)", tres)
        if gpus and end != "Unknown" and name != "resized":
            minutes, seconds = pause.split(":")[-2:]
            theirs[int(number), name] += (int(elapsed) + 60 * int(minutes) + int(seconds)) * int(gpus[1])
    assert ours == theirs
    assert ours.total() == theirs.total() > 30


def test_each_kind_of_job_has_its_own_records(used: tuple[Usage, ...], day: RecordedDay) -> None:
    assert {one.name for one in used} == set(day.jobs) - {"none", "cancelled"} | {"srun", "salloc", "far"}
    assert [u.gpus for u in _of(used, "plain")] == [(Gpus("a100", 1),)]
    assert [u.gpus for u in _of(used, "mixed")] == [(Gpus("1g.10gb", 2), Gpus("3g.40gb", 1))]
    assert [u.gpus for u in _of(used, "shards")] == [(Gpus("shard", 3),)]
    assert {(u.shown_id, u.gpus) for u in _of(used, "het")} == {
        (f"{day.jobs['het']}+0", (Gpus("a100", 1),)),
        (f"{day.jobs['het']}+1", (Gpus("h100", 2),)),
    }
    assert {u.shown_id for u in _of(used, "array")} == {f"{day.jobs['array']}_{n}" for n in (1, 2, 3)}
    assert len({u.job_id for u in _of(used, "array")}) == 3
    assert {(u.user, u.account, u.partition) for u in used} == {("alice", "physics", "interactive")}
    assert {u.qos for u in _of(used, "urgent")} == {"short"}


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("requeued", ["REQUEUED", "REQUEUED", "REQUEUED", "CANCELLED"]),
        ("lost", ["NODE_FAIL"]),
        ("moved", ["NODE_FAIL"]),
        ("preempted", ["PREEMPTED"]),
        ("suspended", ["CANCELLED"]),
        ("resized", ["RESIZING", "CANCELLED"]),
    ],
)
def test_every_incarnation_is_recorded_and_ended(
    name: str, states: list[str], used: tuple[Usage, ...], day: RecordedDay
) -> None:
    found = _of(used, day.requeued if name == "requeued" else name)
    assert [u.state.split()[0] for u in found] == states
    assert len({u.submitted for u in found}) == len(states)
    assert all(u.phase is Phase.TERMINAL and u.end >= u.start >= u.submitted for u in found)


def test_a_job_that_released_a_node_is_counted_once(used: tuple[Usage, ...]) -> None:
    first, second = _of(used, "resized")
    assert (first.gpus, second.gpus) == ((Gpus("a100", 2),), (Gpus("a100", 1),))
    assert second.start == first.end
    assert _taken([first, second]) == int(first.end - first.start) * 2 + int(second.end - first.end)


def test_a_suspended_job_keeps_its_gpus_and_pays_for_them(
    cluster: Cluster, day: RecordedDay, used: tuple[Usage, ...]
) -> None:
    [one] = _of(used, "suspended")
    [elapsed] = [int(row[1]) for row in _sacct(cluster, day, "JobName,ElapsedRaw") if row[0] == "suspended"]
    assert _taken([one]) > elapsed


def test_times_are_utc_whatever_the_zone_of_the_job_or_of_the_reader(day: RecordedDay, used: tuple[Usage, ...]) -> None:
    [far] = _of(used, "far")
    assert day.began - 2 <= far.submitted <= far.start <= far.end <= time.time() + 2


async def test_running_jobs_are_read_only_on_request(cluster: Cluster, day: RecordedDay) -> None:
    reader = UsageReader(CommandsOfTheHub(cluster))
    [one] = _of(await reader.usage(day.began), "open")
    assert (one.phase, one.end) == (Phase.ACTIVE, 0)
    assert 0 <= one.seconds(time.time()) <= time.time() - day.began + 1
    assert not _of(await reader.usage(day.began, running=False), "open")


async def test_slices_and_windows_change_only_the_range(
    cluster: Cluster, day: RecordedDay, used: tuple[Usage, ...]
) -> None:
    fine = UsageReader(CommandsOfTheHub(cluster), slice_seconds=5)
    assert await fine.usage(day.began, time.time()) == used
    assert set(used) <= set(await UsageReader(CommandsOfTheHub(cluster)).usage(day.began - 4e7))
    middle = sorted(u.start for u in used)[len(used) // 2]
    expected = [u for u in used if u.start <= middle and (not u.end or u.end >= middle)]
    assert [u for u in await fine.usage(middle, middle) if u in used] == expected
    assert await fine.usage(day.began, accounts=["physics", "teaching"]) == used
    assert await fine.usage(day.began, accounts=["teaching"]) == ()
