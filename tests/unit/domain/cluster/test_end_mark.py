"""The last line of a job's log is its end mark, and only for that job."""

from __future__ import annotations

import pytest

from carme_hub.domain.cluster.end_mark import EndMark, end_mark

LINE = "[carme] ended with exit status 143 (job 17)"


@pytest.mark.parametrize("log", [LINE, f"much\nbefore\n{LINE}\n", f"{LINE}\n\n"])
def test_the_last_line_counts(log: str) -> None:
    assert end_mark(log, 17) == EndMark(143, 17)


@pytest.mark.parametrize(
    "log",
    ["", "\n", f"{LINE}\nmore", f"x {LINE}", f"{LINE} x", LINE.replace("143", "x"), LINE.replace("17", "18")],
)
def test_nothing_else_does(log: str) -> None:
    assert end_mark(log, 17) is None
