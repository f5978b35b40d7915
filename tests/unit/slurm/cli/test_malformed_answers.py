"""Twenty-eight real and plausible answers of squeue: none of them ends a session (stock spawners drop it in most)."""

from __future__ import annotations

import pytest
from forged_slurm import QUEUE_HEADER, RECORD_HEADER, ForgedSlurm, queue_row, record_row

from carme_hub.domain.sessions.liveness import Accounting, History, Liveness, Observation, judge
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.command import Commands
from carme_hub.slurm.watcher import SlurmWatcher, WatcherSettings

NAME, USER = "carme-0f9a", "alice"
_WORDS = "slurm_load_jobs error: "

#: What squeue says: stdout, stderr, exit status, and what the shim does before or after.
ANSWERS: dict[str, dict[str, object]] = {
    "connect failure": {"err": _WORDS + "Unable to contact slurm controller (connect failure)", "code": 1},
    "receive failure": {"err": _WORDS + "Unable to contact slurm controller (receive failure)", "code": 1},
    "socket timed out": {"err": _WORDS + "Socket timed out on send/recv operation", "code": 1},
    "zero bytes": {"err": _WORDS + "Zero Bytes were transmitted or received", "code": 1},
    "insane length": {"err": _WORDS + "Insane message length", "code": 1},
    "munge dead": {
        "err": "squeue: error: Munge encode failed: …\n" + _WORDS + "Protocol authentication error",
        "code": 1,
    },
    "no configuration": {"err": "squeue: fatal: Could not establish a configuration source", "code": 1},
    "standby": {"err": _WORDS + "Slurm backup controller in standby mode", "code": 1},
    "invalid job id": {"err": _WORDS + "Invalid job id specified", "code": 1},
    "unseen words": {"err": "squeue: the moon is full", "code": 7},
    "failure without words": {"code": 1},
    "killed by a signal": {"after": "kill -9 $$"},
    "failure after a good answer": {"out": QUEUE_HEADER, "code": 1},
    "error words with exit status 0": {"out": QUEUE_HEADER, "err": "squeue: error: something", "code": 0},
    "empty success": {},
    "a line break": {"out": "\n"},
    "another header": {"out": "JOBID|NAME\n"},
    "JSON": {"out": '{"jobs": [], "errors": [{"error_number": 1800}]}'},
    "half a header": {"out": QUEUE_HEADER[:60]},
    "half a line": {"out": QUEUE_HEADER + queue_row(JOBID="1") + queue_row()[:70]},
    "a field too few": {"out": QUEUE_HEADER + queue_row().replace("\x02science", "", 1)},
    "10 MB of junk": {"out": "x" * 10_500_000},
    "10 MB that begins well": {"out": QUEUE_HEADER + queue_row(NAME="y" * 400) * 18_000},
    "bad UTF-8": {"out": b"\xff\xfe\x00" * 100},
    "bad UTF-8 after a good header": {"out": QUEUE_HEADER.encode() + b"\xff\xfe\x00" * 100},
    "bad UTF-8 within the header": {"out": b"\xff" + QUEUE_HEADER.encode()},
    "a state nobody knows": {"out": QUEUE_HEADER + queue_row(STATE="BANANA")},
    "a number that is none": {"out": QUEUE_HEADER + queue_row(JOBID="seven")},
    "slow": {"out": QUEUE_HEADER, "before": "sleep 60"},
    "slow, with a child that holds the pipe": {"out": QUEUE_HEADER, "before": "sleep 60 & sleep 60"},
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_no_odd_answer_ends_a_session(kind: str, forged: ForgedSlurm) -> None:
    commands = Commands(prefix=str(forged.prefix), timeout=0.4 if kind.startswith("slow") else 60.0)
    client = SlurmCli(cluster="lab", commands=commands, submitter=None)  # type: ignore[arg-type]
    forged.say("squeue", **ANSWERS[kind])  # type: ignore[arg-type]
    watcher = SlurmWatcher(client, WatcherSettings(fast_interval=0.01, slow_interval=0.01))
    seen: list[Observation] = []
    watcher.subscribe(
        lambda snapshot, error: seen.append(
            Observation.of(snapshot, NAME, USER) if snapshot else Observation.failed(len(seen), len(seen), error)
        )
    )
    await watcher._poll()
    await watcher._poll()
    assert len(seen) == 2
    # Even if accounting lied, and whatever was known before.
    ended = Accounting(float("inf"), ())
    verdict = judge(History.of(seen), now=0.0, accounting=ended, end_mark=True)
    assert verdict.liveness is not Liveness.GONE
    assert verdict.liveness is Liveness.UNKNOWN
    assert watcher.health.ok is (kind == "a state nobody knows")


async def test_a_name_that_looks_like_a_line_forges_nothing(client: SlurmCli, forged: ForgedSlurm) -> None:
    forgery = queue_row(JOBID="99", NAME=NAME, STATE="COMPLETED").replace("\x02", "|").replace("\x03", "|")
    forged.say("squeue", QUEUE_HEADER + queue_row(JOBID="8", USER="mallory", NAME="x\n" + forgery) + queue_row())
    snapshot = await client.snapshot()
    assert sorted(snapshot.jobs) == [7, 8]
    assert [job.state for job in snapshot.named(NAME, USER)] == ["RUNNING"]


async def test_the_separator_is_new_for_every_question(client: SlurmCli, forged: ForgedSlurm) -> None:
    forged.say("squeue", QUEUE_HEADER)
    await client.snapshot()
    await client.snapshot()
    assert len(set(forged.calls("squeue"))) == 2


@pytest.mark.parametrize(
    "answer",
    [
        {"err": "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection", "code": 1},
        {"err": "sacct: error: Problem talking to the database", "code": 0, "out": RECORD_HEADER},
        {},
        {"out": RECORD_HEADER + record_row()[:40]},
        {"out": "JobIDRaw|State|\n"},
        {"out": b"\xc3\x28"},
    ],
)
async def test_an_odd_answer_of_accounting_is_no_answer(
    answer: dict[str, object], client: SlurmCli, forged: ForgedSlurm
) -> None:
    forged.say("sacct", **answer)  # type: ignore[arg-type]
    with pytest.raises(SlurmUnreachable):
        await client.records(NAME, USER, 0.0)


async def test_sacctmgr_that_exits_with_0_while_its_database_is_down_is_no_answer(
    client: SlurmCli, forged: ForgedSlurm
) -> None:
    forged.say("sacctmgr", err="sacctmgr: error: _open_persist_conn: failed to open persistent connection")
    with pytest.raises(SlurmUnreachable):
        await client.associations()
    forged.say("sacctmgr")
    with pytest.raises(SlurmUnreachable):
        await client.associations()


async def test_nodes_cut_short_are_no_answer(client: SlurmCli, forged: ForgedSlurm) -> None:
    for out in ("", "NodeName=node1 CPUAlloc=0 CPUTot=4 State=IDLE", "No nodes in the system\n"):
        forged.say("scontrol", out)
        with pytest.raises(SlurmUnreachable):
            await client.nodes()
