"""The state of a Git repository is recorded with what was changed in it, without a password, and never fails a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from carme_hub.training.records import source


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "src/train.py").write_text("lr = 1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    git(folder, "remote", "add", "origin", "https://me:secret@example.org/a/b.git")
    return folder


def test_a_clean_repository_is_its_commit(repository: Path) -> None:
    state, diff = source.git_state(repository / "src")
    assert (state["folder"], state["branch"], state["changed"], diff) == (str(repository), "main", [], b"")
    assert len(state["commit"]) == 40
    assert state["remote"] == "https://example.org/a/b.git"


def test_what_is_changed_is_recorded_beside_its_commit(repository: Path) -> None:
    (repository / "src/train.py").write_text("lr = 2\n")
    (repository / "new file.py").write_text("x")
    state, diff = source.git_state(repository)
    assert state["changed"] == ["src/train.py", "new file.py"]
    assert b"-lr = 1\n+lr = 2\n" in diff
    assert not state["diff_cut"]


def test_a_renamed_file_has_its_new_name(repository: Path) -> None:
    git(repository, "mv", "src/train.py", "src/main.py")
    (repository / "other.py").touch()
    assert source.git_state(repository)[0]["changed"] == ["src/main.py", "other.py"]


def test_what_git_does_not_say_in_time_is_unknown_and_not_clean(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_text('#!/bin/sh\ncase "$*" in *status*) exec sleep 60;; esac\nexec /usr/bin/git "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:/usr/bin:/bin")
    monkeypatch.setattr(source, "GIT_TIMEOUT", 1.5)
    state, diff = source.git_state(repository)
    assert (len(state["commit"]), state["changed"], diff) == (40, None, b"")


def test_a_home_that_is_a_repository_is_not_looked_through(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "src/train.py").write_text("lr = 2\n")
    monkeypatch.setenv("HOME", str(repository))
    state, diff = source.git_state(repository / "src")
    assert (len(state["commit"]), state["changed"], diff) == (40, None, b"")


def test_a_large_diff_is_cut_and_says_so(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_DIFF_BYTES", 50)
    (repository / "src/train.py").write_text("lr = 2\n" * 100)
    state, diff = source.git_state(repository)
    assert (len(diff), state["diff_cut"]) == (50, True)


def test_without_a_repository_a_commit_or_git_there_is_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert source.git_state(tmp_path) == ({}, b"")
    git(tmp_path, "init", "-q", "-b", "main")
    state, diff = source.git_state(tmp_path)
    assert (state["commit"], state["branch"], diff) == ("", "main", b"")
    monkeypatch.setenv("PATH", "/nowhere")
    assert source.git_state(tmp_path) == ({}, b"")


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("https://token@example.org/a", "https://example.org/a"),
        ("ssh://git@example.org:22/a", "ssh://example.org:22/a"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("/srv/git/a", "/srv/git/a"),
        ("https://[bad", ""),
        ("", ""),
    ],
)
def test_an_address_has_no_password(address: str, kept: str) -> None:
    assert source.without_password(address) == kept


def test_packages_have_their_versions() -> None:
    found = source.packages()
    assert found["pytest"] == pytest.__version__
    assert list(found) == sorted(found)


def test_a_damaged_package_is_left_out_and_the_first_of_two_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, fields in (
        ("first/Some_Thing-2.0", "Metadata-Version: 2.1\nName: Some_Thing\nVersion: 2.0\n\nVersion: of a text\n"),
        ("first/half-1.0", "Metadata-Version: 2.1\nName: half\n\nVersion: of a text\n"),
        ("first/empty-1.0", ""),
        ("second/some_thing-1.0", "Metadata-Version: 2.1\nName: some-thing\nVersion: 1.0\n"),
    ):
        place = tmp_path / f"{folder}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(fields)
    (tmp_path / "first" / "no_metadata-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert source.packages() == {"some-thing": "2.0"}
