"""Uploads into folders in which others may write, too: nobody leads them elsewhere, or makes a look at them endless."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from carme_hub.files import uploads
from carme_hub.files.places import NotPossible
from carme_hub.files.tus import cancel
from carme_hub.files.uploads import KEPT_SECONDS, Upload, UploadFolder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    found = tmp_path / "shared"
    found.mkdir()
    (tmp_path / "private").mkdir()
    return found


def exchange(shared: Path) -> None:
    """Put a link to a folder of the user into the place of a folder, as whoever may write to the one above can."""
    (shared / "album").rename(shared / "away")
    (shared / "album").symlink_to(shared.parent / "private")


def test_a_folder_that_is_exchanged_for_a_link_while_it_is_entered_leads_nowhere(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = os.open

    def then_exchanged(path: Any, flags: int, *args: Any, **more: Any) -> int:
        fd = stock(path, flags, *args, **more)
        if path == "album":
            exchange(shared)
        return fd

    monkeypatch.setattr(os, "open", then_exchanged)
    with UploadFolder(shared, ("album", "2026")) as opened:
        opened.create("config", 3)
    assert list((shared.parent / "private").iterdir()) == []
    assert len(list((shared / "away/2026").iterdir())) == 2


def test_a_folder_that_is_exchanged_for_a_link_before_the_upload_begins_leads_nowhere(shared: Path) -> None:
    with UploadFolder(shared, ("album",)) as opened:
        exchange(shared)
        opened.create("config", 3)
    assert list((shared.parent / "private").iterdir()) == []
    with pytest.raises(NotPossible), UploadFolder(shared, ("album",)):
        pass


def test_folders_on_the_way_are_closed_again(shared: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with UploadFolder(shared, ("a", "b", "c")) as opened:
        assert opened.folder == shared / "a/b/c"
    (shared / "file").touch()
    with pytest.raises(NotPossible), UploadFolder(shared, ("file", "x")):
        pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_look_at_a_folder_ends_whatever_number_of_uploads_others_pretend(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MOST_FOUND", 3)
    for number in range(9):
        (shared / f".{number:032x}.carme-upload").touch()
    with UploadFolder(shared) as opened:
        assert len(opened._ids()) == 3


def test_an_upload_of_the_future_expires_as_others_do(shared: Path) -> None:
    with UploadFolder(shared) as opened:
        upload = opened.create("x", 5)
        for each in shared.iterdir():
            os.utime(each, (2**34, 2**34))
        found: Upload = opened.find(upload.id)
    assert found.expires <= time.time() + KEPT_SECONDS
    cancel(found.address)
    assert list(shared.iterdir()) == []
