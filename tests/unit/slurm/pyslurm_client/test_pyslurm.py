"""Whatever pyslurm and libslurm do, the hub goes on: it hears no answer, and asks anew in a new process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from forged_pyslurm import JOB, RECORD, ForgedPyslurm
from forged_slurm import ForgedSlurm

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.liveness import Accounting, History, Liveness, Observation, judge
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.command import AnswerTooLong, Commands
from carme_hub.slurm.pyslurm.client import ReservationsNative, SlurmNative
from carme_hub.slurm.pyslurm.process import NativeProcess
from carme_hub.slurm.submit.submitters import DirectSubmitter
from carme_hub.slurm.watcher import SlurmWatcher, WatcherSettings

FAULTS = {
    "silent": "no answer in",
    "crash": "ended with -11",
    "fatal": "Could not establish a configuration source",
    "Unable to contact slurm controller (connect failure)": "Unable to contact slurm controller",
}


@pytest_asyncio.fixture
async def asking(forged: ForgedSlurm) -> AsyncIterator[Callable[..., SlurmNative]]:
    """Makes a client with limits of its own."""
    made: list[SlurmNative] = []

    def make(**limits: float) -> SlurmNative:
        commands = Commands(prefix=str(forged.prefix), **{"timeout": 60.0, **limits})  # type: ignore[arg-type]
        controller, accounting = NativeProcess(commands), NativeProcess(commands)
        made.append(
            SlurmNative(
                cluster="lab",
                commands=commands,
                submitter=DirectSubmitter(commands),
                controller=controller,
                accounting=accounting,
            )
        )
        return made[-1]

    yield make
    for client in made:
        await client.close()


async def test_a_job_has_everything_of_a_job(asking: Callable[..., SlurmNative], library: ForgedPyslurm) -> None:
    library.say(jobs=[JOB])
    found = (await asking().snapshot()).jobs[7]
    assert (found.name, found.user, found.state, found.phase) == ("carme-0f9a", "root", "RUNNING", Phase.ACTIVE)
    assert (found.nodes, found.gpus, found.time_limit) == (("node1", "node2"), Gpus("a100", 2), 60)
    assert (found.submitted, found.exit_code, found.reason) == (1795229612.0, None, "")


async def test_what_others_write_into_their_jobs_blinds_nobody(
    asking: Callable[..., SlurmNative], library: ForgedPyslurm
) -> None:
    odd = {
        "name": {"bytes": "78ff"},
        "user_id": 4000000000,
        "allocated_nodes": "node[1-",
        "state": "PENDING",
        "time_limit": None,
        "priority": "UNLIMITED",
        "allocated_tres": None,
        "gres_per_node": None,
    }
    library.say(jobs=[JOB, {**JOB, **odd, "id": 8}, {k: v for k, v in JOB.items() if k != "partition"} | {"id": 9}])
    jobs = (await asking().snapshot()).jobs
    assert (jobs[8].name, jobs[8].user, jobs[8].nodes, jobs[8].priority) == (
        "x\N{REPLACEMENT CHARACTER}",
        "4000000000",
        (),
        0,
    )
    assert jobs[9].partition == ""
    library.say(jobs=[JOB, {**JOB, "id": 8, "state": None}])  # but each must say which job it is, and how it stands
    with pytest.raises(SlurmUnreachable):
        await asking().snapshot()


async def test_find_believes_name_and_user_only(asking: Callable[..., SlurmNative], library: ForgedPyslurm) -> None:
    library.say(jobs=[JOB, {**JOB, "id": 6, "user_id": 1}, {**JOB, "id": 5, "name": "x"}])
    assert [job.id for job in await asking().find("carme-0f9a", "root")] == [7]


async def test_every_incarnation_is_in_the_records(asking: Callable[..., SlurmNative], library: ForgedPyslurm) -> None:
    again = {**RECORD, "submit_time": 1795229650, "state": "CANCELLED", "cancelled_by": "root"}
    third = {**RECORD, "submit_time": 1795229700, "state": "PENDING", "end_time": None, "start_time": None}
    library.say(records=[RECORD, again, third, {**RECORD, "id": 9, "user_id": 1}, {**RECORD, "name": "other"}])
    found = await asking().records("carme-0f9a", "root", 1795229612.0)
    assert [(r.submitted, r.state) for r in found] == [
        (1795229612.0, "REQUEUED"),
        (1795229650.0, "CANCELLED by 0"),
        (1795229700.0, "PENDING"),
    ]
    assert await asking().records("carme-none", "root", 0.0) == ()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("when", ["start", "jobs"])
async def test_no_fault_of_the_library_ends_a_session(
    fault: str, when: str, asking: Callable[..., SlurmNative], library: ForgedPyslurm
) -> None:
    library.say(jobs=[JOB])
    client = asking(timeout=2.0 if fault == "silent" else 60.0)
    watcher = SlurmWatcher(client, WatcherSettings(fast_interval=0.01, slow_interval=0.01))
    seen: list[Observation] = []
    watcher.subscribe(
        lambda snapshot, error: seen.append(
            Observation.of(snapshot, "carme-0f9a", "root") if snapshot else Observation.failed(1.0, 1.0, error)
        )
    )
    library.fail(when, fault)
    await watcher._poll()
    await watcher._poll()
    assert len(seen) == 2
    assert FAULTS[fault] in watcher.health.error
    verdict = judge(History.of(seen), now=0.0, accounting=Accounting(float("inf"), ()), end_mark=True)
    assert verdict.liveness is Liveness.UNKNOWN
    library.say(jobs=[JOB])
    await watcher._poll()
    assert watcher.health.ok


async def test_the_loop_goes_on_while_the_library_waits_and_accounting_keeps_nobody_from_the_queue(
    asking: Callable[..., SlurmNative], library: ForgedPyslurm
) -> None:
    library.say(jobs=[JOB])
    library.fail("records", "silent")
    client = asking(timeout=3.0)
    waiting = asyncio.create_task(client.records("carme-0f9a", "root", 0.0))
    assert list((await client.snapshot()).jobs) == [7]
    assert not waiting.done()
    with pytest.raises(SlurmUnreachable, match="no answer in"):
        await waiting


async def test_a_process_that_was_waited_for_in_vain_is_killed(
    asking: Callable[..., SlurmNative], library: ForgedPyslurm
) -> None:
    library.say(jobs=[JOB])
    client = asking(timeout=2.0)
    await client.snapshot()
    first = client._controller.pid
    await client.snapshot()
    assert client._controller.pid == first  # one process for all questions
    library.fail("jobs", "silent")
    with pytest.raises(SlurmUnreachable):
        await client.snapshot()
    assert first is not None
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


async def test_a_process_makes_way_for_a_new_one_before_what_it_loses_counts(
    asking: Callable[..., SlurmNative], library: ForgedPyslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.slurm.pyslurm.process._QUESTIONS", 2)
    library.say(jobs=[JOB])
    client = asking()
    seen = [(list((await client.snapshot()).jobs), client._controller.pid is None) for _ in range(4)]
    assert seen == [([7], False), ([7], True), ([7], False), ([7], True)]


async def test_a_question_that_is_given_up_leaves_no_answer_to_the_next(
    asking: Callable[..., SlurmNative], library: ForgedPyslurm
) -> None:
    library.say(jobs=[JOB], reservations=[])
    client = asking()
    await client.snapshot()
    asked = asyncio.create_task(client.snapshot())
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    library.say(jobs=[])
    assert (await client.snapshot()).jobs == {}


async def test_an_answer_that_is_too_long_is_not_read(
    asking: Callable[..., SlurmNative], library: ForgedPyslurm
) -> None:
    library.say(jobs=[{**JOB, "id": number} for number in range(100)])
    with pytest.raises(AnswerTooLong):
        await asking(max_bytes=1000).snapshot()


async def test_slurm_that_is_upgraded_below_a_hub_that_goes_on_is_not_asked(
    asking: Callable[..., SlurmNative], library: ForgedPyslurm, forged: ForgedSlurm
) -> None:
    library.say(jobs=[JOB])
    client = asking()
    await client.snapshot()
    forged.release("26.05.3")
    library.fail("jobs", "Zero Bytes were transmitted or received")
    for words in ("Zero Bytes", r"pyslurm 25.11 fits Slurm 25.11 only, and the commands here are of Slurm 26.05"):
        with pytest.raises(SlurmUnreachable, match=words):
            await client.snapshot()


async def test_what_pyslurm_does_not_show_is_asked_of_the_commands(
    asking: Callable[..., SlurmNative], library: ForgedPyslurm, forged: ForgedSlurm
) -> None:
    node = {
        "name": "node1",
        "configured_gres": {"gpu:a100": 4, "shard:a100": 16},
        "allocated_tres": {"cpu": 1, "gres/shard": 1},
    }
    forged.release(
        "25.11.7",
        "NodeName=node1 CPUAlloc=1 CPUTot=8 Gres=gpu:a100:4,shard:a100:16 "
        "GresUsed=gpu:a100:0(IDX:N/A),shard:a100:1(1/4,0/4,0/4,0/4) RealMemory=1 AllocMem=0 State=MIXED Partitions=p\n",
    )
    library.say(nodes=[node], tracked=["cpu", "gres/gpu", "gres/gpu:a100", "gres/shard"])
    client = asking()
    assert (await client.nodes())[0].gpus_used == {"a100": 1}
    library.say(nodes=[{**node, "allocated_tres": {"cpu": 1}}], tracked=["cpu"])  # GPUs in use would look free
    assert (await client.nodes())[0].gpus_used == {"a100": 1}
    forged.release("25.11.7", "No reservations in the system\n")
    library.say(reservations=[{"name": "later", "flags": {"flags": None}}])
    assert await ReservationsNative(client._commands, client._controller).show() == ()
