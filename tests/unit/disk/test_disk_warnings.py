"""What is said of a place that fills up: before writes fail, in words, and with how long it takes; kept by the day."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from carme_hub.disk.view import DiskUse, DiskView, as_json
from carme_hub.domain.disk_use import DAY, Sample, Use, days_left, growth, warning
from carme_hub.store.disk.samples import DiskUseStore
from carme_hub.store.disk.tables import disk_folders, disk_sample

GIB, NOW = 1024**3, 1_795_000_000.0


@pytest.mark.parametrize(
    ("use", "rate", "level", "text"),
    [
        (Use("/home/a", 5 * GIB, limit=10 * GIB), None, "", ""),
        (Use("/home/a", 5 * GIB), 9 * GIB, "", ""),
        (Use("/home/a", 5 * GIB, limit=10 * GIB), GIB, "", ""),
        (
            *(Use("/home/a", 9 * GIB, limit=10 * GIB), None, "warning"),
            "/home/a is 90 % full. 9.0 GiB used of 10 GiB.",
        ),
        (
            *(Use("/home/a", 5 * GIB, limit=10 * GIB), 2.5 * GIB, "warning"),
            "/home/a is 50 % full. 5.0 GiB used of 10 GiB. At its growth it is full in about 2 days.",
        ),
        (
            *(Use("/home/a", 10 * GIB, limit=10 * GIB), GIB, "danger"),
            "/home/a is full: no space left of 10 GiB. Writing fails until you remove files.",
        ),
        (
            *(Use("/home/a", 1, limit=10, files=1000, file_limit=1000), None, "danger"),
            "/home/a is full: no files left of 1,000 files. Writing fails until you remove files.",
        ),
        (
            *(Use("/home/a", 11 * GIB, soft=10 * GIB, limit=20 * GIB, grace_ends=NOW + 2 * DAY), None, "warning"),
            "/home/a is above its limit: writing fails in about 2 days. 11 GiB used of 10 GiB.",
        ),
        (
            *(Use("/home/a", 11 * GIB, soft=10 * GIB, limit=20 * GIB, grace_ends=NOW), None, "danger"),
            "/home/a has been above its limit for too long: writing fails. 11 GiB used of 10 GiB.",
        ),
        (
            *(Use("/home", 95 * GIB, limit=100 * GIB, shared=True), None, "warning"),
            "The file system of /home is 95 % full. 95 GiB used of 100 GiB.",
        ),
        (
            *(Use("/p", 1, limit=100, files=95, file_limit=100), None, "warning"),
            "/p is 95 % full. 1 B used of 100 B, 95 of 100 files.",
        ),
    ],
)
def test_a_warning_comes_before_writes_fail_and_says_why(use: Use, rate: float | None, level: str, text: str) -> None:
    found = warning(use, rate, NOW)
    assert (found.level, found.text) == (level, text) if level else found is None


def samples(*gib: float) -> list[Sample]:
    return [Sample(NOW - (len(gib) - 1 - i) * DAY, int(each * GIB)) for i, each in enumerate(gib)]


def test_growth_is_known_after_a_day_and_forgets_old_days() -> None:
    assert growth(samples(1), NOW) is None
    assert growth([Sample(NOW - 3600, 1), Sample(NOW, 9)], NOW) is None
    assert growth(samples(1, 2, 3), NOW) == pytest.approx(GIB)
    assert growth([Sample(NOW - 40 * DAY, 50 * GIB), *samples(1, 2)], NOW) == pytest.approx(GIB)
    assert growth(samples(3, 2, 1), NOW) == pytest.approx(-GIB)
    assert days_left(Use("/", 5, limit=5), 1.0) is None
    assert days_left(Use("/", 5, limit=15), 2.0) == 5


@pytest.fixture
def store(tmp_path: Path) -> DiskUseStore:
    engine = create_engine(f"sqlite:///{tmp_path}/use.sqlite")
    disk_sample.create(engine)
    disk_folders.create(engine)
    return DiskUseStore(engine, "here")


def test_one_sample_a_day_is_kept_for_two_months(store: DiskUseStore) -> None:
    for day in range(80):
        store.put("alice", NOW + day * DAY, [Use("/home/alice", day), Use("/home", 5, shared=True)])
    store.put("alice", NOW + 79 * DAY + 60, [Use("/home/alice", 1000)])
    store.put("bob", NOW, [Use("/home/bob", 7)])
    found = store.of("alice")
    assert list(found) == ["/home/alice"]
    assert (len(found["/home/alice"]), found["/home/alice"][-1]) == (61, Sample(NOW + 79 * DAY + 60, 1000))


class ReaderThatSays:
    """Answers with what it was given."""

    is_configured = True

    def __init__(self, uses: Sequence[Use] | None) -> None:
        self.uses = uses

    async def usage(self, _user: str, _within: float | None = None) -> Sequence[Use] | None:
        return self.uses


async def test_where_no_quota_says_it_the_measured_home_stands_among_the_places_and_grows(
    store: DiskUseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskUse(store, lambda: (), logging.getLogger("test"))
    everybodys = Use("/home", 5, limit=10, shared=True)
    disk.reader = ReaderThatSays([everybodys])  # type: ignore[assignment]
    for day in range(4):
        monkeypatch.setattr("carme_hub.disk.view.time.time", lambda day=day: NOW + day * DAY)
        for root in ("/home/alice", f"/whatever/{day}"):  # a session may send anything, and fills no table with it
            found = {"root": root, "bytes": (1 + day) * GIB, "files": 7, "complete": True, "folders": []}
            await disk.keep("alice", found)
    await disk.keep("alice", {**found, "bytes": GIB, "complete": False})  # says nothing of growth
    assert {path: len(kept) for path, kept in store.of("alice").items()} == {"": 4}
    shared, home = as_json(await disk.view("alice"))["places"]
    assert (shared["path"], shared["measured"]) == ("/home", None)
    assert (home["path"], home["used_bytes"], home["limit_bytes"]) == ("/whatever/3", GIB, None)
    assert (home["growth_bytes_per_day"], home["measured"]) == (GIB, NOW + 3 * DAY)
    disk.reader = ReaderThatSays([everybodys, Use("/home/alice", 5)])  # type: ignore[assignment]
    assert [each.use.path for each in (await disk.view("alice")).places or ()] == ["/home", "/home/alice"]


async def test_one_user_whom_nothing_can_be_asked_of_ends_nobody_elses_samples(store: DiskUseStore) -> None:
    asked: list[str] = []

    class Failing(ReaderThatSays):
        async def usage(self, user: str, _within: float | None = None) -> Sequence[Use] | None:
            asked.append(user)
            raise ValueError(user)

    disk = DiskUse(store, lambda: {"bob", "alice"}, logging.getLogger("test"))
    disk.start(Failing(None))  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        while len(asked) < 2:
            await asyncio.sleep(0)
    await disk.stop()
    assert asked == ["alice", "bob"]


async def test_a_view_has_growth_warnings_and_the_largest_folders(
    store: DiskUseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.disk.view.time.time", lambda: NOW)
    for day in range(5):
        store.put("alice", NOW - (4 - day) * DAY, [Use("/home/alice", (5 + day) * GIB)])
    value = {"root": "/home/alice", "bytes": 9 * GIB, "files": 10, "complete": True, "folders": []}
    store.put_folders("alice", NOW - 60, value)
    disk = DiskUse(store, lambda: (), logging.getLogger("test"))
    disk.reader = ReaderThatSays([Use("/home/alice", 9 * GIB, limit=11 * GIB)])  # type: ignore[assignment]
    view = await disk.view("alice")
    told = as_json(view)
    assert told["places"][0]["growth_bytes_per_day"] == GIB
    assert told["places"][0]["full_in_seconds"] == 2 * DAY
    assert "full in about 2 days" in view.warnings[0].text
    assert (told["measured"], told["folders"]) == (NOW - 60, value)
    disk.reader = ReaderThatSays(None)  # type: ignore[assignment]
    assert as_json(await disk.view("alice"))["places"] is None
    assert DiskView().warnings == []
