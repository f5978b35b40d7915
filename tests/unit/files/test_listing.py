"""What the page lists: bounded, whatever a folder has, and times that no calendar has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carme_hub.files import listing as module
from carme_hub.files import page
from carme_hub.files.listing import listing, time_text


def test_pages_of_a_folder_follow_each_other_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for target in (module, page):
        monkeypatch.setattr(target, "MOST_ENTRIES", 4)
        monkeypatch.setattr(target, "MOST_REACHED", 8)
    for number in range(11):
        (tmp_path / f"{number:02}").touch()
    (tmp_path / "folder").mkdir()
    first, second = listing(tmp_path), listing(tmp_path, 4)
    assert [row.name for row in first.rows] == ["folder", "00", "01", "02"]
    assert [row.name for row in second.rows] == ["03", "04", "05", "06"]
    assert (first.count, second.count, listing(tmp_path, 10**9).first) == (12, 12, 4)
    assert ">After<" in page.render(first, "/", [tmp_path], "")
    last = page.render(second, "/", [tmp_path], "")
    assert ">After<" not in last
    assert "shows the first 8 only" in last


@pytest.mark.parametrize("seconds", [1e18, -1e18, float("inf"), float("nan")])
def test_a_time_beyond_the_calendar_is_left_out(seconds: float) -> None:
    assert time_text(seconds) == ""
    assert time_text(0) == "1970-01-01 00:00"


def test_a_file_of_the_far_future_does_not_hide_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.utime(tmp_path / "file", (2**40, 2**40))  # file systems have different last seconds
    assert ">file</a>" in page.render(listing(tmp_path), "/", [tmp_path], "")
