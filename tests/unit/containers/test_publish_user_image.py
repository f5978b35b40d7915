"""What a user has built becomes an image of the store as any other would: hostile until it is hardened."""

from __future__ import annotations

import json
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carme_hub.containers.build import take as taking
from carme_hub.containers.build.publish import PublishOptions, publish
from carme_hub.containers.build.scan import NotAllowed
from carme_hub.containers.images import pinned, read_image
from carme_hub.containers.store import add_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.check import check_image_files
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.domain.images.builds import Build
from carme_hub.errors import ContainerError

ID = "11111111-1111-4111-8111-111111111111"
SITE = "lib/python3.11/site-packages"


class Place:
    """A store with one base image, and the home of a user without rights with one build."""

    def __init__(self, folder: Path) -> None:
        self.store, self.home = folder / "store", folder / "home"
        self.store.mkdir(mode=0o755)
        system = folder / "system"
        (system / "usr/bin").mkdir(parents=True)
        (system / "usr/bin/tool").write_text("tool")
        (system / "opt").mkdir()
        add_image(system, self.store, "base")
        self.digest = json.loads((self.store / "base/image.json").read_text())["digest"]
        self.layer = self.home / ".carme/images" / ID
        (self.layer / SITE / "rich-14.0.dist-info").mkdir(parents=True)
        (self.layer / SITE / "rich.py").write_text("VERSION = '14.0'\n")
        (self.layer / SITE / "rich/dev").mkdir(parents=True)
        (self.layer / SITE / "rich/dev/tools.py").write_text("")
        (self.layer / SITE / "rich-14.0.dist-info/METADATA").write_text("Name: rich\nVersion: 14.0\nLicense: MIT\n\n")
        (self.layer / "bin").mkdir()
        (self.layer / "image.json").write_text('{"name": "usurped", "layer": "/etc"}')
        self.layer.chmod(0o700)
        self.build = Build(ID, "nobody", "tools", "base", self.digest, text="rich==14.0\n", description="Colours")

    def give(self) -> None:
        """Give the home to its user."""
        if os.geteuid() == 0:
            entry = pwd.getpwnam("nobody")
            for path in (self.home, *self.home.rglob("*")):
                os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)

    def publish(self, **options: Any) -> Path:
        """Publish the build."""
        self.give()
        said: list[str] = []
        path = publish(self.build, self.store, PublishOptions(progress=said.append, **options))
        self.said = said
        return path

    def is_clean(self) -> bool:
        """Return whether the store has nothing but the base."""
        names = [path.name for path in self.store.iterdir() if not path.name.startswith(".")]
        return (
            names == ["base"]
            and not list(self.store.glob(".adding*"))
            and len(list(self.store.glob(".digests/*"))) == 1
        )


def of_user(home: Path) -> Callable[[str], Any]:
    """Return who a user is, whose home is that of the test."""
    real = pwd.getpwnam("nobody")

    def of_test(user: str) -> Any:
        uid = real.pw_uid if os.geteuid() == 0 else os.getuid()
        return SimpleNamespace(pw_name=user, pw_uid=uid, pw_gid=real.pw_gid, pw_dir=str(home))

    return of_test


@pytest.fixture
def place(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    found = Place(open_path)
    monkeypatch.setattr(taking, "pwd", SimpleNamespace(getpwnam=of_user(found.home)))
    return found


def test_it_is_the_base_with_the_packages_on_top(place: Place) -> None:
    base = place.store / "base/usr/bin/tool"
    image = place.publish()
    assert (image / "usr/bin/tool").stat().st_ino == base.stat().st_ino, "files of the base are shared"
    assert (image / "opt/carme/layer" / SITE / "rich.py").read_text() == "VERSION = '14.0'\n"
    assert (image / "opt/carme/layer" / SITE / "rich/dev/tools.py").is_file()
    assert not (image / "opt/carme/layer/image.json").exists()
    read = read_image(image)
    assert (read.name, read.description, read.layer) == ("tools", "Colours", "/opt/carme/layer")
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
    assert pinned(read).layer == "/opt/carme/layer"
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
        ("echo broken >&2; exit 7", ContainerError, "failed with 7: broken"),
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
    assert place.is_clean()
