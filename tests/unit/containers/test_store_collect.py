"""What stays in an image store and what goes; what a killed attempt leaves; SIF files; names of sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest
from rig.foreign_images import SYSTEM, Entry, layer, write_layout

from carme_hub.containers.store.add import add_image, update_image
from carme_hub.containers.store.collect import collect, pin, pin_reason, unpin
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.containers.store.recipe import about
from carme_hub.containers.store.source import parse_source
from carme_hub.errors import ContainerError

BASE = layer(SYSTEM)


def add(store: Path, name: str, text: bytes) -> str:
    """Add an image with this text in it, or let the name stand for it; return its digest."""
    layout = store.parent / f"layout-{name}"
    shutil.rmtree(layout, ignore_errors=True)
    write_layout(layout, BASE, layer((Entry("usr/text", text),)))
    if (store / name).is_symlink():
        update_image(store, name)
    else:
        add_image(f"oci:{layout}", store, name)
    return str(about(store / name)["digest"])


def kept(store: Path, in_use: dict[str, str] | None = None, **more: object) -> dict[str, str]:
    """Return the digests of a dry run with why each stays, "" = it goes."""
    options: dict[str, object] = {"keep_days": 0, **more}
    found = collect(StoreFolder(store), in_use or {}, dry_run=True, **options)  # type: ignore[arg-type]
    return {each.digest: each.kept for each in found.images}


def test_an_image_goes_only_when_nothing_names_it(store: Path) -> None:
    old, new = add(store, "lab", b"old"), add(store, "lab", b"new")
    assert kept(store) == {old: "", new: "lab stands for it"}
    # Each of these keeps it.
    assert kept(store, {old: "session 1 of alice has it"})[old] == "session 1 of alice has it"
    assert "a session runs with lab" in kept(store, names_in_use={"lab"})[old]
    assert "7.0 days more" in kept(store, keep_days=7)[old]
    folder = StoreFolder(store)
    pin(folder, folder.find(old), "for the paper")
    assert kept(store)[old].endswith("for the paper")
    unpin(folder, folder.find(old))
    with pytest.raises(ContainerError, match="not pinned"):
        unpin(folder, folder.find(old))
    # A dry run has removed nothing.
    assert sorted(each.name for each in folder.images()) == sorted(each.replace(":", "-") for each in (old, new))
    done = collect(folder, {}, keep_days=0, dry_run=False)
    assert [each.digest for each in done.gone] == [old]
    assert [each.name for each in folder.images()] == [new.replace(":", "-")]
    # The base layer stays, and the layer, configuration and manifest of the old one went.
    blobs = {path.name for path in folder.blobs.iterdir()}
    assert len(blobs) == 2 + 1 + 1
    assert {each.removeprefix("sha256:") for each in about(store / "lab")["layers"]} <= blobs


def test_a_name_that_is_removed_leaves_its_image_until_collect(store: Path) -> None:
    digest = add(store, "lab", b"text")
    folder = StoreFolder(store)
    folder.forget("lab")
    assert folder.names() == []
    assert kept(store, keep_days=7)[digest].startswith("named until lately")
    collect(folder, {}, keep_days=0, dry_run=False)
    assert folder.images() == []
    assert list(folder.blobs.iterdir()) == []
    with pytest.raises(ContainerError, match="not a name"):
        folder.forget("lab")


def test_a_pin_that_cannot_be_read_is_a_pin(store: Path) -> None:
    add(store, "lab", b"text")
    folder = StoreFolder(store)
    image = folder.find("lab")
    pin(folder, image, "why")
    (folder.pins / f"{image.name}.json").write_text("{")
    assert pin_reason(folder, image) == "pinned"


def test_a_link_that_moved_before_the_machine_died_is_what_the_name_stands_for(store: Path) -> None:
    old, new = add(store, "lab", b"old"), add(store, "lab", b"new")
    (store / "lab").unlink()
    (store / "lab").symlink_to(f".digests/{old.replace(':', '-')}")
    named = StoreFolder(store).named("lab")
    assert named is not None
    assert (named.digest, new != old) == (old, True)


def test_an_attempt_that_was_killed_is_continued(store: Path) -> None:
    copied = store / ".adding-lab/layout/blobs/sha256"
    copied.mkdir(parents=True)
    good = hashlib.sha256(b"good").hexdigest()
    (copied / good).write_bytes(b"good")
    (copied / hashlib.sha256(b"bad").hexdigest()).write_bytes(b"half")
    (copied / hashlib.sha256(b"link").hexdigest()).symlink_to("/etc/passwd")
    (copied / "oci-put-blob123").write_bytes(b"half")
    os.mkfifo(copied / hashlib.sha256(b"pipe").hexdigest())
    add(store, "lab", b"text")
    blobs = {path.name for path in (store / ".blobs/sha256").iterdir()}
    assert good in blobs
    assert len(blobs) == 1 + 4
    assert not (store / ".adding-lab").exists()


def test_what_a_killed_attempt_left_goes_after_a_day_unless_it_is_at_work(store: Path) -> None:
    folder = StoreFolder(store)
    for name, age in {"old": 2, "new": 0, "busy": 2}.items():
        (store / f".adding-{name}/tree").mkdir(parents=True)
        os.utime(store / f".adding-{name}", (time.time() - age * 86_400,) * 2)
    with folder.locked("name-busy"):
        collect(folder, {}, dry_run=False)
    assert sorted(path.name for path in store.glob(".adding-*")) == [".adding-busy", ".adding-new"]


def sif(to: Path, squashfs: Path, *, system: int = 1, kind: int = 2, magic: bytes = b"SIF_MAGIC\0") -> Path:
    """Write a SIF file as Apptainer 1.4.5 does (`apptainer sif new`, `sif add`)."""
    content = squashfs.read_bytes()
    head = struct.pack("<32s10s3s3s16s8q", b"", magic, b"01\0", b"02\0", b"u" * 16, 1, 1, 47, 48, 4096, 28080, 32768, 1)
    extra = struct.pack("<ii3s", system, kind, b"02\0")
    entry = struct.pack(
        "<i?III7q128s384s", 0x4004, True, 1, 0xF0000001, 0, 32768, len(content), len(content), 1, 1, 0, 0, b"", extra
    )
    text = head.ljust(4096, b"\0") + entry
    to.write_bytes(text.ljust(32768, b"\0") + content)
    to.chmod(0o600)
    return to


def test_the_system_of_a_sif_file_is_unpacked(store: Path, tmp_path: Path) -> None:
    (tmp_path / "system/usr/bin").mkdir(parents=True)
    (tmp_path / "system/usr/bin/hi").write_text("hi")
    squashed = tmp_path / "system.sqfs"
    subprocess.run(["mksquashfs", tmp_path / "system", squashed, "-quiet", "-no-progress"], check=True)
    image = add_image(sif(tmp_path / "lab.sif", squashed), store, "lab")
    assert (image / "usr/bin/hi").read_text() == "hi"
    assert about(image)["digest"] == f"sha256:{hashlib.sha256((tmp_path / 'lab.sif').read_bytes()).hexdigest()}"
    for name, how in {"encrypted": {"system": 5}, "no system": {"kind": 3}, "not a SIF": {"magic": b"SIF"}}.items():
        with pytest.raises(ContainerError, match=r"SIF|system"):
            add_image(sif(tmp_path / f"{name}.sif", squashed, **how), store, "other")  # type: ignore[arg-type]
    cut = (tmp_path / "lab.sif").read_bytes()[:33000]
    (tmp_path / "cut.sif").write_bytes(cut)
    with pytest.raises(ContainerError, match="behind the end"):
        add_image(tmp_path / "cut.sif", store, "other")


D = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "kind", "location", "tag", "name"),
    [
        (
            "docker://nvcr.io/nvidia/pytorch:24.10-py3",
            "docker",
            "nvcr.io/nvidia/pytorch",
            "24.10-py3",
            "pytorch-24.10-py3",
        ),
        ("docker://ubuntu", "docker", "ubuntu", "", "ubuntu"),
        (f"docker://127.0.0.1:5000/a/b:c@{D}", "docker", "127.0.0.1:5000/a/b", "c", "b-c"),
        (f"docker://[::1]:5000/a@{D}", "docker", "[::1]:5000/a", "", "a"),
        ("oci:/srv/layout", "oci", "/srv/layout", "", "layout"),
        ("docker-archive:/srv/x.tar:site/lab:1", "docker-archive", "/srv/x.tar", "site/lab:1", "x-site-lab-1"),
    ],
)
def test_sources_are_read_as_they_are_written(text: str, kind: str, location: str, tag: str, name: str) -> None:
    source = parse_source(text)
    assert (source.kind, source.location, source.tag) == (kind, location, tag)
    assert str(source) == text
    assert source.default_name() == name
    assert source.is_loopback == (":5000" in text)


@pytest.mark.parametrize(
    "text",
    [
        *("docker://", "docker://user:pass@host/a", "docker://host/a:b:c", "docker://Host/UPPER", "docker://a/../b"),
        *("docker://a@sha256:12", "docker://--help", "docker://a b", "oci:", "s3://bucket/x", "containers-storage:x"),
        *("docker-daemon:x:1", "dir:/x", "oci:/x:a b", "docker://a\n/b", "/nowhere"),
    ],
)
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(ContainerError):
        parse_source(text)
