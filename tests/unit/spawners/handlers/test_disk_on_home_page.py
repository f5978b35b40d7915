"""The home page says how full a visitor's places are, and warns before writes fail; sessions send what they found."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader
from pydantic import ValidationError

from carme_hub.disk.view import DiskView, PlaceView
from carme_hub.domain.disk_use import Use, warning
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.disk import MAX_FOLDERS, Folders
from carme_hub.spawners.handlers.home.disk import ShownDisk, shown
from carme_hub.spawners.handlers.pages import templates_path

GIB, NOW = 1024**3, 1_795_000_000.0


def view(*uses: Use, growth: float | None = None, **more: Any) -> DiskView:
    places = [PlaceView(use, growth, None, warning(use, growth, NOW)) for use in uses]
    return DiskView(places, **more)


def page(disk: ShownDisk) -> str:
    environment = Environment(loader=FileSystemLoader(templates_path()), autoescape=True)
    parts = [environment.get_template(name).render(disk=disk) for name in ("carme_disk.html", "carme_disk_places.html")]
    return " ".join("".join(parts).split())


def test_places_have_words_a_bar_and_their_growth() -> None:
    found = shown(view(Use("/home/<a>", 5 * GIB, limit=20 * GIB, files=10, file_limit=1000), growth=GIB), NOW)
    assert [each.text for each in found.places] == [
        "5.0 GiB used of 20 GiB, 10 of 1,000 files; it grows by 1.0 GiB a day."
    ]
    text = page(found)
    assert "/home/&lt;a&gt;" in text
    assert 'value="25"' in text
    assert "alert" not in text


def test_a_home_that_a_session_has_measured_says_when() -> None:
    found = shown(DiskView([PlaceView(Use("/home/a", 5 * GIB, files=7), GIB, None, None, NOW - 60)]), NOW)
    assert [each.text for each in found.places] == [
        f"5.0 GiB used, measured {clock(NOW - 60, NOW)}; it grows by 1.0 GiB a day."
    ]


def test_a_place_that_is_nearly_full_warns_above_all_else() -> None:
    text = page(shown(view(Use("/home/a", 19 * GIB, limit=20 * GIB), Use("/scratch/a", 10, limit=10)), NOW))
    assert text.index("/scratch/a is full: no space left of 10 B") < text.index("/home/a is 95 % full.")
    assert 'alert alert-danger" role="status"' in text
    assert "carme-disk-near" in text


def test_what_is_not_known_is_said_and_nothing_is_shown_where_nothing_is_read() -> None:
    assert "is not known at the moment" in page(shown(DiskView(None), NOW))
    assert page(shown(DiskView(()), NOW)).strip() == ""
    assert page(ShownDisk()).strip() == ""


def test_the_largest_folders_are_named_with_when_they_were_measured() -> None:
    folders = [{"path": f"data/{n}", "bytes": (20 - n) * GIB, "files": 1000} for n in range(20)]
    value = {"root": "/home/a", "bytes": GIB, "files": 1, "complete": False, "folders": folders}
    text = page(shown(DiskView((), NOW - 60, value), NOW))
    assert "data/0</span>: 20 GiB in 1,000 files" in text
    assert "data/5" not in text
    assert "Not all folders could be measured." in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes": -1},
        {"bytes": 2**63},
        {"folders": [{"path": "x", "bytes": 1, "files": 1}] * (MAX_FOLDERS + 1)},
        {"folders": [{"path": "", "bytes": 1, "files": 1}]},
        {"root": "x" * 1001},
        {"more": 1},
    ],
)
def test_what_is_no_list_of_folders_is_refused(wrong: dict[str, Any]) -> None:
    plain = {"root": "/home/a", "bytes": 1, "files": 1, "complete": True, "folders": []}
    assert Folders.model_validate(plain).bytes == 1
    with pytest.raises(ValidationError):
        Folders.model_validate({**plain, **wrong})
