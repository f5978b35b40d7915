"""Jobs that have ended say how, and what they used; accounting is asked only when something may have changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from forged_jobs import RECORD, RUNS, WAITS, HubWithJobs, SlurmThatActs

from carme_hub.domain.cluster.own_jobs.ended import EndedJob, folded
from carme_hub.spawners.handlers.home import ended
from carme_hub.spawners.handlers.home.ended import EndedLookup
from carme_hub.spawners.jobs.ended import EndedRow, as_json, ended_row

NOW = 4000.0


def test_a_row_says_how_it_ended_and_what_it_used() -> None:
    [row], left = ended_rows([RECORD], NOW, virtual=True)
    assert (row.id, row.label, row.ran, row.gpus, left) == ("20", "Completed", "1 hour", "1 × virtual a100", 0)
    assert "Memory: 1.0 GiB of 16 GiB at most." in row.used
    assert row.suggestion == "Ask for 2 GiB of memory: what it used at most, and a quarter more."
    assert row.log


def test_failures_are_said_and_never_called_a_session() -> None:
    ends = {
        "FAILED": (3, 0),
        "TIMEOUT": None,
        "OUT_OF_MEMORY": None,
        "CANCELLED by 1000": None,
        "NODE_FAIL": None,
        "DEADLINE": None,
    }
    found = {
        state: ended_rows([replace(RECORD, state=state, exit_code=code)], NOW)[0][0] for state, code in ends.items()
    }
    assert found["FAILED"].said == "Its exit code is 3."
    assert "time limit" in found["TIMEOUT"].said
    assert "memory" in found["OUT_OF_MEMORY"].said
    assert found["CANCELLED by 1000"].label == "Cancelled"
    assert not any("session" in row.said.lower() for row in found.values())
    [signalled], _ = ended_rows([replace(RECORD, state="FAILED", exit_code=(0, 9))], NOW)
    assert signalled.said == "It was ended by signal 9."


def test_an_array_is_one_row_and_the_hubs_own_jobs_have_cards() -> None:
    tasks = [replace(RECORD, id=30 + n, array=30, task=str(n), state="FAILED" if n else "COMPLETED") for n in range(3)]
    own = replace(RECORD, id=40, name="carme-0f9a")
    [row], _ = ended_rows([*tasks, own], NOW)
    assert (row.id, row.label, row.counts, row.log) == ("30", "Ended", "1 completed, 2 failed", False)


def ended_rows(jobs: list[EndedJob], now: float, *, virtual: bool = False) -> tuple[list[EndedRow], int]:
    groups, left = folded([job for job in jobs if not job.is_ours], 10)
    return [ended_row(some, now, virtual=virtual) for some in groups], left


async def test_accounting_is_asked_when_the_users_jobs_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended, "AT_LEAST", 0.0)
    slurm = SlurmThatActs(RUNS)
    hub: Any = HubWithJobs(slurm)
    hub.watcher.latest = slurm.snapshot()
    lookup = EndedLookup()
    for _ in range(3):
        assert (await lookup.for_user(hub, "alice")).groups == [[RECORD]]
    assert slurm.asked == ["ended"]
    slurm.jobs[WAITS.id] = WAITS
    hub.watcher.latest = slurm.snapshot()
    await asyncio.gather(*(lookup.for_user(hub, "alice") for _ in range(3)))
    assert slurm.asked == ["ended", "ended"]
    slurm.silent = True
    slurm.jobs.clear()
    hub.watcher.latest = slurm.snapshot()
    assert (await lookup.for_user(hub, "alice")).groups == [[RECORD]], "what is known from before is shown"
    assert (await lookup.for_user(hub, "bob")).groups == ()
    assert (await lookup.for_user(None, "alice")).groups == ()


async def test_a_page_does_not_wait_long_for_accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended, "PAGE_WAIT", 0.05)
    slurm = SlurmThatActs(RUNS)
    hub: Any = HubWithJobs(slurm)
    hub.watcher.latest = slurm.snapshot()
    answers = asyncio.Event()

    async def slow(user: str, since: float) -> tuple[EndedJob, ...]:
        await answers.wait()
        return (RECORD,)

    monkeypatch.setattr(slurm, "ended", slow)
    lookup = EndedLookup()
    assert (await lookup.for_user(hub, "alice")).groups == ()
    answers.set()
    await asyncio.sleep(0.05)
    assert (await lookup.for_user(hub, "alice")).groups == [[RECORD]]


def test_programs_read_it_and_unknown_is_null() -> None:
    found = as_json(replace(RECORD, cpu_seconds=None, peak_mib=None))
    assert (found["job"], found["cpus_used"], found["memory_used_mib"], found["used"]) == ("20", None, None, "")
    assert as_json(RECORD)["memory_used_mib"] == 1000
