"""How full a shared folder is: by its quota, its growth, what a job has counted, and its file system."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig.databases import database_url, engine, one_postgres
from sqlalchemy import Engine

from carme_hub.disk.folders import FolderDisk, quotas_of
from carme_hub.disk.readers import READERS
from carme_hub.domain.disk_use import DAY
from carme_hub.domain.folders.folder import Folder, FolderState, Member, MemberState, OwnerKind, SubjectKind
from carme_hub.domain.folders.jobs import FolderJob, JobKind, JobState
from carme_hub.errors import ConfigError
from carme_hub.folders.program import FolderError
from carme_hub.folders.settings import CarmeFolders
from carme_hub.store.folders.jobs import FolderJobStore
from carme_hub.store.folders.store import Event, FolderStore

__all__ = ["database_url", "engine", "one_postgres"]
NOW = 1_800_000_000.0
GIB = 1 << 30
FOLDER = Folder(
    *("0123456789ab", "sun", "genomes", OwnerKind.USER, "ann", "projects", "ann", NOW), state=FolderState.READY
)
#: Recorded of xfs_quota 6.1: blocks of 1 KiB, then files.
XFS = "#500001  {used}  0  {limit}  00 [--------]  12  0  0  00 [--------]\n"


class Disk:
    """What asks, and a command that answers as a test says."""

    def __init__(self, engine: Engine, place: Path, **settings: Any) -> None:
        self.place, self.now, self.project = place, NOW, 500_001
        prefix = [sys.executable, str(place / "forged"), str(place)]
        quotas = {"projects": {"reader": "xfs", "prefix": prefix}}
        self.settings = CarmeFolders(roots={"projects": str(place)}, **{"disk_quotas": quotas, **settings})
        (place / "forged").write_text(
            "import pathlib, sys\nplace = pathlib.Path(sys.argv[1])\n"
            "(place / 'asked').open('a').write(' '.join(sys.argv[2:]) + '\\n')\nprint((place / 'answer').read_text())\n"
        )
        self.store = FolderJobStore(engine, "sun")
        FolderStore(engine, "sun").create(
            FOLDER,
            Member(0, FOLDER.id, SubjectKind.USER, "ann", "rw", MemberState.ACCEPTED, "ann", NOW),
            Event(NOW, "ann", "created"),
            lambda _own: None,
        )
        self.answers(GIB)
        self.reads = self.again()

    def again(self) -> FolderDisk:
        """Return a reader that remembers nothing."""
        self.reads = FolderDisk(self.settings, self.store, self.project_of, logging.getLogger("disk"), lambda: self.now)
        return self.reads

    async def project_of(self, _root: str, _id: str) -> int:
        """Return the folder's project id as carme-folders says it."""
        if self.project < 0:
            raise FolderError("no answer", "unknown")
        return self.project

    def answers(self, used: int, limit: int = 10 * GIB) -> None:
        """Let the quota say so, in bytes."""
        (self.place / "answer").write_text(XFS.format(used=used >> 10, limit=limit >> 10))


@pytest.fixture
def disk(engine: Engine, tmp_path: Path) -> Disk:
    return Disk(engine, tmp_path)


async def test_the_quota_of_a_folder_is_asked_by_its_project_id(disk: Disk) -> None:
    view = await disk.reads.view(FOLDER)
    own, whole = view.places or ()
    assert (own.use.path, own.use.used, own.use.limit, own.use.files) == ("/shared/genomes", GIB, 10 * GIB, 12)
    assert (whole.use.path, whole.use.shared) == (str(disk.place), True)
    asked = (disk.place / "asked").read_text()
    assert "report -p" in asked
    assert asked.count("\n") == 1
    await disk.reads.view(FOLDER)
    assert (disk.place / "asked").read_text() == asked, "an answer is used again for a while"


async def test_growth_is_known_after_days_and_a_full_folder_is_told_before(disk: Disk) -> None:
    for day in range(5):
        disk.answers(5 * GIB + day * GIB)
        view = await disk.again().view(FOLDER)
        disk.now += DAY
    own = (view.places or ())[0]
    assert round((own.growth or 0.0) / GIB, 2) == 1.0
    assert [each.text for each in view.warnings] == [
        "/shared/genomes is 90 % full. 9.0 GiB used of 10 GiB. At its growth it is full in about 1 day."
    ]
    assert disk.reads.known(FOLDER.id).warnings == view.warnings, "lists show it without asking"
    disk.answers(10 * GIB)
    [full] = (await disk.again().view(FOLDER)).warnings
    assert (full.level, "is full: no space left" in full.text) == ("danger", True)


@pytest.mark.parametrize("fault", ["no project id", "the program gives no answer", "no such quota"])
async def test_without_a_quota_a_jobs_count_and_the_file_system_are_left(disk: Disk, fault: str) -> None:
    match fault:
        case "no project id":
            disk.project = 0
        case "the program gives no answer":
            disk.project = -1
        case _:
            (disk.place / "answer").write_text("")
    [whole] = (await disk.reads.view(FOLDER)).places or ()
    assert whole.use.shared
    job = FolderJob("1" * 36, FOLDER.id, JobKind.MEASURE, "ann", NOW)
    disk.store.add(job)
    result = {"root": "/x", "bytes": GIB, "files": 3, "complete": True, "folders": []}
    disk.store.change(job.id, state=JobState.DONE, ended=NOW, result=result)
    counted, _ = (await disk.reads.view(FOLDER)).places or ()
    assert (counted.use.path, counted.use.used, counted.use.limit, counted.measured) == (
        *("/shared/genomes", GIB, None),
        NOW,
    )


async def test_each_folder_is_asked_for_once_a_day(disk: Disk) -> None:
    with_members = FolderStore(disk.store._engine, "sun").every()
    assert disk.store.samples(FOLDER.id) == []
    ready = [replace(one, folder=one.folder.replace(state=FolderState.READY)) for one in with_members]
    await disk.reads.look(ready)
    disk.now += 7200
    await disk.reads.look(ready)
    assert len((disk.place / "asked").read_text().splitlines()) == 1
    await disk.again().look(ready)
    assert len(disk.store.samples(FOLDER.id)) == 1
    assert disk.reads.known(FOLDER.id).places, "after a start lists know of it soon"
    disk.now += DAY
    await disk.again().look(ready)
    assert len(disk.store.samples(FOLDER.id)) == 2


def wrong(**entry: object) -> Callable[[], object]:
    return lambda: quotas_of(
        CarmeFolders(roots={"projects": "/srv"}, disk_quotas={"projects": {"reader": "xfs", **entry}})
    )


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"reader": "disk"}, "reader is one of"),
        ({"mount": "/srv"}, "'mount' is none of"),
        ({"of": "everybody"}, "of is one of user, group, project for xfs"),
        ({"prefix": "sudo"}, "prefix is a list of words"),
        ({"name": "{user}"}, "are all that can stand in braces"),
    ],
)
def test_an_entry_that_cannot_be_understood_is_named(entry: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=r"CarmeFolders\.disk_quotas, projects") as refused:
        wrong(**entry)()
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("reader", "words"),
    [
        ("lustre", ["lfs", "quota", "-q", "-p", "500001", "/srv"]),
        ("quota", ["quota", "-v", "-w", "-p", "--show-mntpoint", "--hide-device", "-P", "--", "500001"]),
        (
            "zfs",
            ["zfs", "get", "-H", "-p", "-o", "property,value", "used,quota,refquota,referenced", "/srv/0123456789ab"],
        ),
        ("btrfs", ["btrfs", "qgroup", "show", "-r", "-e", "--raw", "-f", "/srv/0123456789ab"]),
    ],
)
def test_each_reader_is_asked_for_the_folder(reader: str, words: list[str]) -> None:
    settings = CarmeFolders(roots={"projects": "/srv"}, disk_quotas={"projects": {"reader": reader}})
    question = quotas_of(settings)["projects"].question(FOLDER, f"/srv/{FOLDER.id}", 500_001)
    assert list(READERS[reader].argv(question)) == words
