"""What a user has built becomes an image of the store as any other would: hostile until it is hardened."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rig.user_images import ID, SITE, Place

from carme_hub.containers.build import publish as publishing
from carme_hub.containers.build import take as taking
from carme_hub.containers.build.publish import (
    PublishOptions,
    publish,
)
from carme_hub.containers.build.scan import NotAllowed
from carme_hub.containers.images import pinned, read_image
from carme_hub.containers.store import add_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.check import check_image_files
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.containers.store.process import Steps
from carme_hub.domain.images.builds import Build
from carme_hub.errors import ContainerError, ContainerUnavailable


def test_it_is_the_base_with_the_packages_on_top(place: Place) -> None:
    base = place.store / "base/usr/bin/tool"
    image = place.publish()
    assert (image / "usr/bin/tool").stat().st_ino == base.stat().st_ino, "files of the base are shared"
    assert (image / "opt/carme/layer" / SITE / "rich.py").read_text() == "VERSION = '14.0'\n"
    assert (image / "opt/carme/layer" / SITE / "rich/dev/tools.py").is_file()
    assert not (image / "opt/carme/layer/image.json").exists()
    read = read_image(image)
    assert (read.name, read.description, read.layers) == ("tools", "Colours", ("/opt/carme/layer",))
    about = json.loads((image / "image.json").read_text())
    assert about["packages"]["python"] == {"rich": "14.0"}
    assert (about["who"], about["labels"]["carme.base"]) == ("nobody", place.digest)
    assert about["requirements"] == "rich==14.0\n"
    assert json.loads((place.store / "base/image.json").read_text())["digest"] == place.digest
    assert list(check_image_files(StoreFolder(place.store), image.resolve())) == []
    owned = {path.lstat().st_uid for path in (image, *image.rglob("*"))}
    assert owned == {os.getuid()}
    assert all(path.stat().st_mode & 0o005 for path in (image / "opt").rglob("*")), (
        "users can read what was theirs alone"
    )
    assert pinned(read).layers == ("/opt/carme/layer",)
    [parts] = (place.store / ".parts").iterdir()
    assert json.loads(parts.read_text())["bomFormat"] == "CycloneDX"
    assert "Not scanned: CarmeImages.scan names no command" in place.said


def test_hostile_files_reach_nothing(place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of root")
    (place.layer / SITE / "su").write_text("su")
    (place.layer / SITE / "su").chmod(0o6755)
    (place.layer / SITE / "link").symlink_to(secret)
    os.mkfifo(place.layer / SITE / "pipe")
    (place.layer / "usr").mkdir()
    (place.layer / "usr/evil").write_text("over the base")
    (place.layer / SITE / "a\nname").write_text("")
    (place.layer / "lib/out").symlink_to("../../../etc/passwd")
    with pytest.raises(ContainerError, match="lead out"):
        place.publish()
    assert place.is_clean()
    (place.layer / "lib/out").unlink()
    image = place.publish()
    layer = image / "opt/carme/layer"
    assert stat.S_IMODE((layer / SITE / "su").stat().st_mode) == 0o755
    assert not (layer / SITE / "pipe").exists()
    assert not (layer / "usr").exists()
    assert not (image / "usr/evil").exists()
    assert "of root" not in "".join(each.read_text() for each in layer.rglob("*") if each.is_file())


def test_a_folder_that_is_a_link_elsewhere_is_read_as_its_user(place: Place, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "lib").mkdir()
    (private / "lib/secret").write_text("of root")
    place.give()
    place.layer.rename(place.home / "moved")
    place.layer.symlink_to(private)
    if os.geteuid() == 0:
        with pytest.raises(ContainerError, match="cannot be read as nobody"):
            publish(place.build, place.store, PublishOptions())
        assert place.is_clean()


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        ("echo 'CVE-2026-1: rich 14.0'; exit 1", NotAllowed, "refuses it: CVE-2026-1: rich 14.0"),
        ("echo broken >&2; exit 2", ContainerUnavailable, "failed with 2: broken"),
        ("grep -q pkg:pypi/rich@14.0 && test -d $0/opt/carme/layer", None, ""),
    ],
)
def test_the_scan_sees_the_parts_and_has_the_last_word(
    place: Place, script: str, error: type[Exception] | None, said: str
) -> None:
    command = ("/bin/sh", "-c", script)
    if error is None:
        assert place.publish(scan=command).exists()
        return
    with pytest.raises(error, match=said):
        place.publish(scan=command)
    assert place.is_clean()


def test_what_is_too_large_or_on_no_digest_is_not_published(place: Place) -> None:
    (place.layer / SITE / "large").write_bytes(b"0" * (2 << 20))
    with pytest.raises(ContainerError, match="GiB"):
        place.publish(bounds=Bounds(1 << 20))
    assert place.is_clean()
    place.build = Build(ID, "nobody", "tools", "base")
    with pytest.raises(ContainerError, match="has no digest"):
        place.publish()
    place.build = Build(ID, "nobody", "base", "base", place.digest)
    with pytest.raises(ContainerError, match="exists already"):
        place.publish()
    place.build = Build("../../root", "nobody", "tools", "base", place.digest)
    with pytest.raises(ContainerError, match="not the id of a build"):
        place.publish()
    assert place.is_clean()


@pytest.mark.parametrize("base", ["without a folder", "with a link"])
def test_a_base_without_opt_is_no_hindrance_and_a_link_there_is_not_followed(
    place: Place, tmp_path: Path, base: str
) -> None:
    system = tmp_path / "other"
    (system / "usr/bin").mkdir(parents=True)
    if base == "with a link":
        (system / "opt").mkdir()
        (system / "opt/carme").symlink_to("../usr")
    add_image(system, place.store, "other")
    digest = json.loads((place.store / "other/image.json").read_text())["digest"]
    place.build = replace(place.build, base="other", base_digest=digest)
    if base == "with a link":
        with pytest.raises(ContainerError, match="has something at /opt/carme/layer"):
            place.publish()
    else:
        assert (place.publish() / "opt/carme/layer" / SITE / "rich.py").is_file()


def test_the_same_packages_on_the_same_base_are_the_same_image(place: Place) -> None:
    first = place.publish().resolve()
    (place.store / "tools").unlink()
    assert place.publish().resolve() == first


def test_a_program_that_its_user_stops_holds_nobody_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "_TAR", ("sh", "-c", "yes wrong | head -c 300000 >&2; kill -STOP $$", "tar"))
    with pytest.raises(ContainerError, match="more than"):
        place.publish(bounds=Bounds(seconds=1.0))
    monkeypatch.setattr(taking, "_SILENT", 0.5)
    with pytest.raises(ContainerUnavailable, match="stands still: nothing has come"):
        place.publish()
    # Stopped between its last byte and its end, where nobody reads from it any more.
    monkeypatch.setattr(taking, "_TAR", ("sh", "-c", "exec >&- 2>&-; kill -STOP $$", "tar"))
    with pytest.raises(ContainerUnavailable, match="does not end"):
        place.publish()
    monkeypatch.setattr(taking, "_TAR", ("sh", "-c", "while echo slow; do sleep 0.1; done", "tar"))
    monkeypatch.setattr(taking, "_GRACE", 0.5)
    with pytest.raises(ContainerUnavailable, match="is too slow: 0 MiB in"):
        place.publish()
    assert place.is_clean()


def test_a_full_disk_while_it_is_taken_ends_a_program_that_its_user_has_stopped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "_TAR", ("sh", "-c", "head -c 100000 /dev/zero; kill -STOP $$", "tar"))
    place.give()
    with pytest.raises(OSError, match="No space left"):
        place.publish(bounds=BoundsOfAFullDisk())


class BoundsOfAFullDisk(Bounds):
    """Where the first bytes are counted, they cannot be written."""

    def check_size(self, size: int, what: str) -> None:
        raise OSError(28, "No space left on device")


def test_a_user_whom_the_directory_does_not_name_now_is_no_fault_of_the_image(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_user: str) -> Any:
        raise KeyError

    monkeypatch.setattr(taking, "pwd", SimpleNamespace(getpwnam=silent))
    with pytest.raises(ContainerUnavailable, match="or its directory does not answer"):
        place.publish()
    place.store.rename(place.store.with_name("away"))
    with pytest.raises(ContainerUnavailable, match="cannot be used"):
        publish(place.build, place.store, PublishOptions())
    place.store.mkdir(mode=0o755)
    with pytest.raises(ContainerUnavailable, match="is not in"):
        publish(place.build, place.store, PublishOptions())


def test_one_who_is_not_root_reads_no_files_of_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(pw_uid=4712, pw_gid=4712, pw_dir=str(place.home))
    monkeypatch.setattr(taking, "pwd", SimpleNamespace(getpwnam=lambda _: other))
    monkeypatch.setattr(taking.os, "geteuid", lambda: 4711)
    with pytest.raises(ContainerUnavailable, match="only root can read"):
        taking.take("nobody", ID, place.home / "x.tar", Bounds())


def test_what_a_user_may_not_build_is_not_published_either(place: Place) -> None:
    with (place.layer / SITE / "sparse").open("wb") as file:
        file.truncate(200 << 20)
    with pytest.raises(ContainerError, match="has more than"):
        place.publish(layer_bytes=1 << 20)
    assert place.is_clean()


def test_a_file_that_takes_hours_to_compile_holds_nobody_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_for_hours(_tree: Path, steps: Steps) -> None:
        steps.run(["sleep", "30"])

    monkeypatch.setattr(publishing, "compile_python", compile_for_hours)
    monkeypatch.setattr(publishing, "COMPILE_SECONDS", 0.5)
    with pytest.raises(ContainerError, match="it took more than"):
        place.publish()
    assert place.is_clean()


def test_what_a_scan_prints_is_shown_as_one_line_that_moves_no_cursor(place: Place) -> None:
    with pytest.raises(NotAllowed) as error:
        place.publish(scan=("/bin/sh", "-c", r"printf '\033[2Jwiped\n'; exit 1"))
    assert str(error.value) == "the scan refuses it: \\x1b[2Jwiped"


def test_a_link_whose_name_is_no_utf8_is_said_in_words_that_can_be_sent(place: Place) -> None:
    (place.layer / SITE / os.fsdecode(b"\xff\n\xe2\x80\xae")).symlink_to("../../../../../etc/passwd")
    with pytest.raises(ContainerError, match="lead out") as error:
        place.publish()
    assert "/\\udcff\\n\\u202e ->" in str(error.value)
    str(error.value).encode()
