"""Hostile images: nothing of them reaches the host, the store keeps nothing half made, and no bound is passed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import tarfile
import threading
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rig.foreign_images import SYSTEM, Entry, below, folder, hard_link, layer, link, write_layout

from carme_hub.containers.store.add import AddOptions, add_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.check import check_image_files
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.containers.store.process import Steps
from carme_hub.errors import ContainerError

SETUID_ROOT = "security.capability"
#: A capability as the kernel keeps it (version 2, cap_dac_override, permitted and effective).
CAPABILITY = "\x01\x00\x00\x02\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"


@pytest.fixture
def victim(open_path: Path) -> Path:
    """A file of the host beside the store, which anybody may read; ``untouched`` looks at it."""
    (open_path / "victim").write_text("of the host")
    (open_path / "victim").chmod(0o666)
    return open_path / "victim"


def untouched(victim: Path) -> None:
    state = victim.stat()
    assert victim.read_text() == "of the host"
    assert (stat.S_IMODE(state.st_mode), state.st_nlink, state.st_uid) == (0o666, 1, os.getuid())
    assert sorted(path.name for path in victim.parent.iterdir()) == ["layout", "store", "victim"]


def add(store: Path, *layers: Sequence[Entry], bounds: Bounds | None = None) -> Path:
    write_layout(store.parent / "layout", layer(SYSTEM), *(layer(each) for each in layers))
    return add_image(f"oci:{store.parent}/layout", store, "lab", options=AddOptions(bounds=bounds or Bounds()))


def refused(store: Path, *layers: Sequence[Entry], bounds: Bounds | None = None) -> str:
    """Add an image that is refused; return why. Nothing of it is left."""
    with pytest.raises(ContainerError) as error:
        add(store, *layers, bounds=bounds)
    assert sorted(path.name for path in store.iterdir() if path.name not in (".blobs", ".locks")) == []
    return str(error.value)


#: Layers that may be refused or added, but never leave the tree: what each would write or read outside.
ESCAPES: dict[str, list[Entry]] = {
    "dots": [Entry("../../../../victim", b"changed"), Entry("usr/../../../../../victim", b"changed")],
    "absolute": [Entry("/tmp/carme-escaped", b"changed")],
    "a file through a link": [link("usr/out", "../../../.."), Entry("usr/out/victim", b"changed")],
    "a file through an absolute link": [link("usr/out", "@PARENT@"), Entry("usr/out/victim", b"changed")],
    "a folder that becomes a link": [folder("usr/x"), link("usr/x", "@PARENT@"), Entry("usr/x/victim", b"changed")],
    "a link to a file": [link("usr/v", "@VICTIM@"), Entry("usr/v", b"changed")],
    "a hard link": [hard_link("usr/v", "@VICTIM@"), Entry("usr/v", b"changed")],
    "a hard link with dots": [hard_link("usr/v", "../../../../victim")],
    "a hard link through a link": [link("usr/out", "@PARENT@"), hard_link("usr/v", "usr/out/victim")],
    "a whiteout through a link": [link("usr/out", "@PARENT@"), Entry("usr/out/.wh.victim")],
    "an opaque whiteout through a link": [link("usr/out", "@PARENT@"), Entry("usr/out/.wh..wh..opq")],
    "a whiteout with dots": [Entry("usr/../../../../.wh.victim"), Entry("usr/.wh...")],
    "a mode through a link": [
        link("usr/out", "@PARENT@"),
        folder("usr/out", mode=0o777),
        folder("usr/out/store", 0o777),
    ],
}


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_is_written_read_or_removed_beside_the_tree(store: Path, victim: Path, name: str) -> None:
    def real(text: str) -> str:
        return text.replace("@VICTIM@", str(victim)).replace("@PARENT@", str(victim.parent))

    entries = [
        Entry(each.name, each.content, each.kind, each.mode, real(each.target), each.pax) for each in ESCAPES[name]
    ]
    store_mode = stat.S_IMODE(store.stat().st_mode)
    for layers in ([entries], [entries[:1], entries[1:]]):  # in one layer, and in one over the other
        try:
            image = add(store, *(each for each in layers if each))
        except ContainerError:
            assert not (store / "lab").exists()
        else:
            inside = below(image.resolve())
            found = [path for path, state in inside.items() if state.st_ino == victim.stat().st_ino]
            assert found == []
            for path, state in inside.items():
                if stat.S_ISLNK(state.st_mode):
                    assert not (image / path).readlink().is_absolute(), path
            (store / "lab").unlink()
            os.system(f"rm -rf {store}/.digests {store}/.names")
        untouched(victim)
        assert stat.S_IMODE(store.stat().st_mode) == store_mode
        assert not Path("/tmp/carme-escaped").exists()


def test_devices_pipes_setuid_and_capabilities_are_taken_away(store: Path, victim: Path) -> None:
    image = add(
        store,
        [
            Entry("usr/bin/su", b"su", mode=0o6755, pax={f"SCHILY.xattr.{SETUID_ROOT}": CAPABILITY}),
            Entry("usr/bin/mem", kind=tarfile.CHRTYPE, mode=0o666),
            Entry("usr/bin/disk", kind=tarfile.BLKTYPE, mode=0o666),
            Entry("usr/pipe", kind=tarfile.FIFOTYPE, mode=0o666),
            folder("usr/drop", mode=0o7777),
        ],
    ).resolve()
    states = below(image)
    for path, state in states.items():
        assert stat.S_IFMT(state.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK), path
        assert state.st_uid == os.getuid()
        if not stat.S_ISLNK(state.st_mode):
            assert not stat.S_IMODE(state.st_mode) & 0o7022, path
            assert os.listxattr(image / path) == []
    assert "usr/bin/su" in states
    untouched(victim)


def test_names_with_anything_in_them_stay_names(store: Path, victim: Path) -> None:
    names = [
        "usr/new\nline",
        "usr/\x1b[2J",
        "usr/ -rf",
        "usr/-rf",
        "usr/a\\b",
        "usr/$(touch x)",
        "usr/Case",
        "usr/case",
    ]
    names += ["usr/" + "n" * 255, "usr/日本", "usr/image.json", "image.json", "image.yaml"]
    image = add(store, [Entry(name, name.encode()) for name in names]).resolve()
    for name in names[:-2]:
        assert (image / name).read_bytes() == name.encode()
    # Of the store, not of the image.
    assert '"digest"' in (image / "image.json").read_text()
    untouched(victim)


@pytest.mark.parametrize("name", ["image.json", "image.yaml", "image.files.gz"])
def test_no_link_redirects_the_stores_own_files(store: Path, victim: Path, name: str) -> None:
    try:
        image = add(store, [link(name, str(victim)), link("usr/rel", "../../../victim")])
    except ContainerError:
        image = None
    untouched(victim)
    assert image is None
    image = add(store, [link(name, "usr/bin/true")]).resolve()
    assert not (image / name).is_symlink()
    assert (image / "usr/bin/true").read_bytes() == b"#!/bin/sh\n"
    assert list(check_image_files(StoreFolder(store), image)) == []


@pytest.mark.parametrize("name", ["image.json", "image.files.gz"])
def test_the_python_of_an_image_cannot_redirect_them_either(
    store: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def compile_python(tree: Path, _: Steps) -> None:
        (tree / name).symlink_to("usr/bin/true")  # a file that it shares with the other image
        (tree / "etc/hosts").unlink()
        (tree / "etc/hosts").symlink_to("../usr/bin/true")

    first = add(store).resolve()
    monkeypatch.setattr("carme_hub.containers.store.add.compile_python", compile_python)
    write_layout(store.parent / "layout", layer(SYSTEM), layer([Entry("usr/more")]))
    second = add_image(f"oci:{store.parent}/layout", store, "hostile").resolve()
    assert (second / "usr/bin/true").stat().st_ino == (first / "usr/bin/true").stat().st_ino
    assert not (second / "etc/hosts").is_symlink()
    for image in (first, second):
        assert list(check_image_files(StoreFolder(store), image)) == []
    untouched(victim)


def test_a_bomb_is_refused_at_the_bound(store: Path, victim: Path) -> None:
    zeros = bytes(1 << 20)
    began = time.monotonic()
    many = [Entry(f"usr/zeros-{number}", zeros) for number in range(60)]
    said = refused(store, many, bounds=Bounds(size_bytes=8 << 20))
    assert "more than" in said
    said = refused(store, [Entry("usr/zeros", zeros * 60)], bounds=Bounds(size_bytes=8 << 20))
    assert "larger than" in said or "more than" in said or "file too large" in said.lower()
    assert time.monotonic() - began < 60
    untouched(victim)


def test_too_many_files_too_deep_folders_and_too_much_time_are_refused(store: Path, victim: Path) -> None:
    files = [Entry(f"usr/many/{number}") for number in range(3000)]
    assert "--max-files" in refused(store, files, bounds=Bounds(files=1000))
    deep = [folder("usr/" + "/".join("d" * (number + 1))) for number in range(250)]
    assert "deep" in refused(store, deep)
    assert "--max-minutes" in refused(store, bounds=Bounds(seconds=0.001))
    untouched(victim)


def test_a_tree_that_grows_is_stopped_while_it_grows(store: Path, tmp_path: Path) -> None:
    work = store / "work"
    (work / "tree").mkdir(parents=True)
    steps = Steps(work, Bounds(size_bytes=4 << 20))
    steps.give(work, work / "tree")
    grow = "i=0; while true; do i=$((i+1)); head -c 1000000 /dev/zero >tree/$i; sleep 0.01; done"
    with pytest.raises(ContainerError, match="--max-gib"):
        steps.run(["sh", "-c", f"cd {work}; {grow}"], tree=work / "tree")
    size = sum(state.st_size for state in below(work / "tree").values())
    time.sleep(0.3)
    assert sum(state.st_size for state in below(work / "tree").values()) == size  # nothing of it runs any more


def test_a_step_can_write_nothing_else_and_leaves_no_process(store: Path, victim: Path) -> None:
    work = store / "work"
    work.mkdir()
    steps = Steps(work, Bounds())
    steps.give(work)
    if not steps.confines:
        pytest.fail("bubblewrap does not work here for the account")
    code = f"echo changed >{victim}; (sleep 300 &) ; touch inside; cat /proc/net/tcp | wc -l; id -u"
    with pytest.raises(ContainerError, match="Read-only file system"):
        steps.run(["touch", "/var/tmp/carme-escaped"])
    assert steps.run(["cat", "/proc/self/oom_score_adj"]) == "1000\n"
    said = steps.run(["sh", "-c", f"{code} 2>/dev/null"]).split()
    assert (work / "inside").exists()
    assert said[-1] == ("65534" if os.getuid() == 0 else str(os.getuid()))
    (work / "inside").unlink()
    work.rmdir()
    (store.parent / "layout").mkdir()
    untouched(victim)


def test_nothing_writes_any_more_when_a_step_is_interrupted(store: Path) -> None:
    """The work folder is removed at once afterwards, and a file that came meanwhile would keep it."""
    many = "for at in $(seq 100); do (for i in $(seq 1000); do : >$at-$i; done; sleep 60) & done; wait"

    def interrupt() -> None:
        if list(islice(work.iterdir(), 100)):  # to read all of a folder that grows takes for ever
            raise KeyboardInterrupt

    for number in range(2):
        work = store / f"work-{number}"
        work.mkdir()
        steps = Steps(work, Bounds())
        steps.give(work)
        with pytest.raises(KeyboardInterrupt):
            steps.run(["sh", "-c", many], tick=interrupt)
        found = sum(1 for _ in work.iterdir())
        time.sleep(0.05)
        assert sum(1 for _ in work.iterdir()) == found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_step_that_is_interrupted_as_it_is_started_has_ended(
    store: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    started, popen, before = [], subprocess.Popen, signal.getsignal(number)

    def interrupted(*argv: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*argv, **options))
        signal.raise_signal(number)
        return started[-1]

    steps = Steps(store, Bounds())
    steps.give(store)
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            steps.run(["sleep", "60"], confine=False)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    [process] = started
    assert process.poll() == -signal.SIGKILL


@pytest.mark.skipif(os.getuid() != 0, reason="only the account has the bound")
def test_a_step_cannot_fill_the_machine_with_processes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carme_hub.containers.store.process._PROCESSES", 100)
    code = "for at in $(seq 400); do sleep 5 & done 2>&1; kill $(jobs -p)"
    steps = Steps(store, Bounds())
    assert steps.confines
    with pytest.raises(ContainerError, match=r"[Ff]ork"):
        steps.run(["sh", "-c", code])


def test_one_image_is_added_under_a_name_at_a_time(store: Path) -> None:
    write_layout(store.parent / "layout", layer(SYSTEM))
    results: list[object] = []

    def once() -> None:
        try:
            results.append(add_image(f"oci:{store.parent}/layout", store, "lab"))
        except ContainerError as error:
            results.append(str(error))

    threads = [threading.Thread(target=once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count(store / "lab") == 1
    assert all("works on" in str(each) or "exists already" in str(each) for each in results if each != store / "lab")


def test_a_program_that_is_not_installed_is_named(store: Path) -> None:
    with pytest.raises(ContainerError, match="no-such-program is not installed"):
        Steps(store, Bounds()).run(["no-such-program"])


def test_what_prints_without_end_is_ended(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carme_hub.containers.store.process._SAYS", 1 << 20)
    with pytest.raises(ContainerError, match="prints without end"):
        Steps(store, Bounds()).run(["yes"], confine=False)
