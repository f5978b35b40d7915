"""The output of a job is found by Slurm's name of it, read as the user, and shown as plain text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from forged_jobs import ARRAY, BOBS, RUNS, TASK, WAITS, HubWithJobs, SlurmThatActs

from carme_hub.domain.cluster.own_jobs.targets import Target
from carme_hub.errors import SlurmUnreachable
from carme_hub.spawners.jobs import output
from carme_hub.spawners.jobs.output import NoOutput, Outputs, plain

PATH = "/home/alice/slurm-5.out"


@pytest.fixture
def slurm() -> SlurmThatActs:
    found = SlurmThatActs(RUNS, WAITS, TASK, ARRAY, BOBS)
    found.files[PATH] = b"step 1\nstep 2\n"
    return found


@pytest.fixture
def hub(slurm: SlurmThatActs) -> Any:
    return HubWithJobs(slurm)


async def test_a_part_is_read_as_the_user(hub: Any, slurm: SlurmThatActs) -> None:
    outputs = Outputs()
    place = await outputs.place(hub, "alice", Target(5), "output")
    assert (place.path, place.guessed) == (PATH, False)
    part = await outputs.part(hub, "alice", place, offset=7, length=4)
    assert (part.text, part.offset, part.end, part.size) == ("step", 7, 11, 14)
    assert slurm.asked[-1].startswith("alice ")
    task = await outputs.place(hub, "alice", Target(7, "1"), "error")
    assert task.path == "/home/alice/slurm-7_1.out"


async def test_the_end_of_a_file_begins_with_a_whole_line(hub: Any) -> None:
    outputs = Outputs()
    place = await outputs.place(hub, "alice", Target(5), "output")
    part = await outputs.part(hub, "alice", place, offset=-9)
    assert (part.text, part.offset, part.end) == ("step 2\n", 7, 14)


async def test_a_page_that_follows_a_file_does_not_ask_slurm_again(hub: Any, slurm: SlurmThatActs) -> None:
    outputs = Outputs()
    for _ in range(5):
        await outputs.place(hub, "alice", Target(5), "output")
    assert slurm.asked.count("details") == 1


async def test_nobody_finds_the_output_of_somebody_elses_job(hub: Any, slurm: SlurmThatActs) -> None:
    outputs = Outputs()
    slurm.files["/home/bob/slurm-9.out"] = b"secret"
    with pytest.raises(NoOutput, match="no such job of yours"):
        await outputs.place(hub, "alice", Target(9), "output")
    await outputs.place(hub, "bob", Target(9), "output")
    with pytest.raises(NoOutput, match="no such job of yours"):
        await outputs.place(hub, "alice", Target(9), "output")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("denied", "may not read"),
        ("not-regular", "no regular file"),
        ("no-helper", "In a terminal: less /home/alice"),
        ("unreadable", "cannot be read"),
    ],
)
async def test_why_a_file_is_not_shown_is_said(hub: Any, slurm: SlurmThatActs, reason: str, words: str) -> None:
    slurm.unreadable[PATH] = reason
    outputs = Outputs()
    place = await outputs.place(hub, "alice", Target(5), "output")
    with pytest.raises(NoOutput, match=words):
        await outputs.part(hub, "alice", place, offset=0)


async def test_a_job_that_waits_an_array_and_one_that_is_forgotten(hub: Any, slurm: SlurmThatActs) -> None:
    outputs = Outputs()
    waits = await outputs.place(hub, "alice", Target(6), "output")
    with pytest.raises(NoOutput, match="the job has not started"):
        await outputs.part(hub, "alice", waits, offset=0)
    with pytest.raises(NoOutput, match="Each task of an array"):
        await outputs.place(hub, "alice", Target(7), "output")
    past = await outputs.place(hub, "alice", Target(20), "output")
    assert (past.path, past.guessed) == ("/home/alice/slurm-20.out", True)
    with pytest.raises(NoOutput, match="the one it has by default"):
        await outputs.part(hub, "alice", past, offset=0)
    slurm.records = [replace(slurm.records[0], submit_line="srun hostname")]
    with pytest.raises(NoOutput, match="srun or salloc"):
        await Outputs().place(hub, "alice", Target(20), "output")


async def test_lines_are_found_and_a_download_is_the_whole_file(
    hub: Any, slurm: SlurmThatActs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PIECE", 5)
    outputs = Outputs()
    place = await outputs.place(hub, "alice", Target(5), "output")
    found = await outputs.find(hub, "alice", place, "2")
    assert ([text for _, text in found.lines], found.count) == (["step 2"], 1)
    assert b"".join([piece async for piece in outputs.pieces(hub, "alice", place)]) == slurm.files[PATH]
    monkeypatch.setattr(output, "DOWNLOAD", 10)
    assert b"".join([piece async for piece in outputs.pieces(hub, "alice", place)]) == slurm.files[PATH][:10]


async def test_a_file_that_is_replaced_during_a_download_is_not_half_of_each(
    hub: Any, slurm: SlurmThatActs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PIECE", 5)
    outputs = Outputs()
    place = await outputs.place(hub, "alice", Target(5), "output")
    read = slurm.file
    count = iter(range(9))

    async def replaced(user: str, request: Any) -> Any:
        about, raw = await read(user, request)
        return {**about, "inode": 7 + next(count)}, raw

    monkeypatch.setattr(slurm, "file", replaced)
    with pytest.raises(NoOutput, match="replaced meanwhile"):
        assert [piece async for piece in outputs.pieces(hub, "alice", place)]


async def test_silence_is_no_answer(hub: Any, slurm: SlurmThatActs) -> None:
    slurm.silent = True
    with pytest.raises(SlurmUnreachable):
        await Outputs().place(hub, "alice", Target(5), "output")


def test_colours_and_overwritten_progress_bars_are_left_out() -> None:
    assert plain("\x1b[31mred\x1b[0m\n 10 %\r 20 %\r\nend\x07\x1b]0;title\x07") == "red\n 20 %\nend"
    assert plain("a\r\nb\x00") == "a\nb"
