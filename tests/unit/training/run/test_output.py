"""Lines of all ranks come through one pipe, and each is kept in its rank's log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carme_hub.training.run import output
from carme_hub.training.run.output import Output, Reader, parse_task_failure


def read(folder: Path, text: bytes) -> tuple[Output, list[str]]:
    """Take a pipe with this text apart."""
    out, said = Output(folder), list[str]()
    reading, writing = os.pipe()
    reader = Reader(reading, out.write, said.append)
    reader.start()
    os.write(writing, text)
    os.close(writing)
    reader.join(5)
    return out, said


def test_each_rank_has_its_lines_and_slurm_its_own(tmp_path: Path) -> None:
    text = b" 0: one\n10:   two\n 0: \nsrun: error: n2: task 3: Exited with exit code 7\n 0: 3: no label\n\xff\n"
    out, said = read(tmp_path, text)
    out.close()
    assert (tmp_path / "rank-0.log").read_text() == "one\n\n3: no label\n"
    assert (tmp_path / "rank-10.log").read_text() == "  two\n"
    assert (tmp_path / "rank-0.log").stat().st_mode & 0o777 == 0o600
    assert said == ["srun: error: n2: task 3: Exited with exit code 7", "�"]
    assert out.newest(0) == ["one", "", "3: no label"]
    assert out.newest(7) == []


def test_a_bar_that_goes_back_to_the_beginning_of_its_line_is_what_it_is_at_last(tmp_path: Path) -> None:
    out, _ = read(tmp_path, b"0: 10%\r50%\r90%\n0: \r95%\n0: \r100%\r\n")
    assert out.newest(0) == ["90%", "95%", "100%"]


def test_a_log_that_is_full_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_LOG_BYTES", 20)
    out = Output(tmp_path)
    for number in range(10):
        out.write(0, b"line %d" % number)
    out.close()
    assert (tmp_path / "rank-0.log").read_text() == "line 0\nline 1\n[carme] the log is full; no more is kept\n"
    assert out.newest(0)[-1] == "line 9"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("srun: error: node2: task 3: Exited with exit code 7", (3, "Exited with exit code 7")),
        ("srun: error: node[1-2]: tasks 0-1,4: Killed", (0, "Killed")),
        ("srun: error: node1: tasks [5,7]: Segmentation fault (core dumped)", (5, "Segmentation fault (core dumped)")),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", None),
        ("slurmstepd: error: *** STEP 5.3 ON node1 CANCELLED AT 2026-11-22T12:00:00 ***", None),
    ],
)
def test_slurms_word_on_a_task_that_ended(line: str, found: tuple[int, str] | None) -> None:
    assert parse_task_failure(line) == found
