"""Folders of somebody who leaves: listed, moved as a whole or not at all, and never deleted."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from leaving_user import Leaving
from traitlets.config import Config

from carme_hub.cli.base import UsageError
from carme_hub.cli.users import folders
from carme_hub.cli.users.folders import Folders, archive_of, folders_of


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    found = tmp_path / "archive"
    found.mkdir()
    return found


def test_folders_are_moved_with_their_whole_path_once(leaving: Leaving, archive: Path) -> None:
    (leaving.home / "work").mkdir()
    (leaving.home / "work" / "paper.tex").write_text("text")
    there = archive / "alice" / leaving.home.relative_to("/")
    more = ("--yes", "--archive", str(archive), "--all-jobs")
    assert leaving.run(*more)[0] == 0
    assert (there / "work" / "paper.tex").read_text() == "text"
    assert not leaving.home.exists()
    assert (archive / "alice").stat().st_mode & 0o777 == 0o700
    assert leaving.run(*more)[0] == 0
    assert (there / "work" / "paper.tex").read_text() == "text"


def test_folders_stay_while_jobs_may_use_them(leaving: Leaving, archive: Path) -> None:
    parts = leaving.parts("--yes", "--archive", str(archive))
    assert (parts["folders"]["state"], parts["jobs"]["state"]) == ("left", "done")
    assert "1 jobs of the user are left" in parts["folders"]["words"]
    assert leaving.home.is_dir()


def test_what_is_there_already_is_not_replaced(leaving: Leaving, archive: Path) -> None:
    there = archive / "alice" / leaving.home.relative_to("/")
    (there / "old").mkdir(parents=True)
    parts = leaving.parts("--yes", "--archive", str(archive), "--all-jobs")
    assert "is there already" in parts["folders"]["words"]
    assert leaving.home.is_dir()
    assert [each.name for each in there.iterdir()] == ["old"]


async def test_another_file_system_is_for_people(
    leaving: Leaving, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(_self: Path, _target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "rename", rename)
    part = Folders("alice", [leaving.home], archive, lambda: 0)
    with pytest.raises(Exception, match="on another file system"):
        await part.end(await part.look())
    assert leaving.home.is_dir()


async def test_links_and_folders_of_others_are_left_alone(
    leaving: Leaving, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, other = tmp_path / "scratch" / "alice", tmp_path / "other" / "alice"
    link.parent.mkdir()
    link.symlink_to(leaving.home)
    other.mkdir(parents=True)
    monkeypatch.setattr(folders, "_owner", lambda _user, _uid: "bob")
    part = Folders("alice", [link, other, tmp_path / "none"], archive, lambda: 0)
    assert [(item.id, item.kept) for item in await part.look()] == [
        (str(link), "no folder; look at it yourself"),
        (str(other), "it belongs to bob; look at it yourself"),
    ]


def test_a_folder_is_the_users_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    me = pwd.getpwuid(os.getuid())
    assert (folders._owner(me.pw_name, me.pw_uid) == "") == bool(me.pw_uid), "nothing of root's is anybody's"
    assert folders._owner(me.pw_name, 54321) == "the user with the number 54321"
    assert folders._owner("no-such-user", 0) == "root"
    assert folders._owner("no-such-user", 54321) == "", "a number that nobody has any more"


def test_where_folders_of_a_user_may_be(leaving: Leaving, tmp_path: Path) -> None:
    config = Config()
    config.SlurmContainerSpawner.container_binds = [("/scratch", "/scratch", "rw"), ("/data", "/data", "ro"), "/opt"]
    found = folders_of("alice", config, ["/work/alice/", str(leaving.home / "inside")])
    assert found == [leaving.home, Path("/scratch/alice"), Path("/work/alice")]
    for word in ("work/alice", "/home", "/"):
        with pytest.raises(UsageError, match="--folder"):
            folders_of("alice", config, [word])
    with pytest.raises(UsageError, match="no such folder"):
        archive_of(str(tmp_path / "none"), found)
    (leaving.home / "inside").mkdir()
    for inside in (leaving.home, leaving.home / "inside"):
        with pytest.raises(UsageError, match="inside a folder"):
            archive_of(str(inside), found)
    assert archive_of("", found) is None
