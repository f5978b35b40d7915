"""An evil image tree is harmless after hardening, and one that leads out of itself is refused."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from carme_hub.containers.harden import add_mount_points, harden
from carme_hub.errors import ContainerError

ME = os.getuid()
ROOT = ME == 0


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    tree = tmp_path / "evil"
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/lib").mkdir()
    (tree / "etc").mkdir()
    for name, mode in {
        "su": 0o4755,
        "wall": 0o2755,
        "both": 0o6777,
        "plain": 0o755,
        "open": 0o666,
        "mine": 0o600,
    }.items():
        file = tree / "usr/bin" / name
        file.write_text(name)
        if ROOT:
            os.chown(file, 12345 if name == "plain" else 0, 0)
        file.chmod(mode)
    (tree / "usr/lib").chmod(0o1777)
    ping = tree / "usr/bin/ping"
    ping.write_text("ping")
    if ROOT:  # cap_net_raw+ep
        os.setxattr(ping, "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
        os.mknod(tree / "disk", 0o666 | stat.S_IFBLK, os.makedev(253, 0))
    os.mkfifo(tree / "pipe")
    here = socket.socket(socket.AF_UNIX)
    here.bind(str(tree / "sock"))
    here.close()
    (tree / "bin").symlink_to("usr/bin")
    (tree / "lib").symlink_to("/usr/lib")
    (tree / "etc/mtab").symlink_to("../proc/self/mounts")
    (tree / "usr/lib/absolute").symlink_to("/etc/passwd")
    return tree


def everything(tree: Path) -> list[Path]:
    return [tree, *tree.rglob("*")]


def test_nothing_dangerous_is_left(evil: Path) -> None:
    report = harden(evil, owner=ME)
    for path in everything(evil):
        state = path.lstat()
        assert stat.S_IFMT(state.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK), path
        assert (state.st_uid, state.st_gid) == (ME, ME), path
        if not path.is_symlink():
            assert not stat.S_IMODE(state.st_mode) & 0o7022, path
            assert os.listxattr(path) == [], path
    assert report.counts["setuid or setgid taken away"] == 3
    assert report.counts["device, pipe or socket removed"] == (3 if ROOT else 2)
    assert "/usr/bin/su" in report.examples["setuid or setgid taken away"]
    assert "setuid" in str(report)


def test_what_is_harmless_stays(evil: Path) -> None:
    harden(evil, owner=ME)
    assert (evil / "usr/bin/plain").read_text() == "plain"
    assert stat.S_IMODE((evil / "usr/bin/plain").stat().st_mode) == 0o755
    assert stat.S_IMODE((evil / "usr/bin/mine").stat().st_mode) == 0o600
    assert (evil / "bin").readlink() == Path("usr/bin")
    assert (evil / "etc/mtab").readlink() == Path("../proc/self/mounts")


def test_absolute_links_lead_into_the_image_also_from_outside(evil: Path) -> None:
    (evil / "etc/passwd").write_text("image's own")
    harden(evil, owner=ME)
    assert (evil / "lib").resolve() == evil / "usr/lib"
    assert (evil / "usr/lib/absolute").read_text() == "image's own"


def test_a_second_time_finds_nothing(evil: Path) -> None:
    harden(evil, owner=ME)
    assert str(harden(evil, owner=ME)) == "nothing to change"


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("opt", "/root"),
        ("opt", "../../../etc"),
        ("usr/lib/up", "../../../outside"),
        ("opt", "usr/lib/x/../../../../.."),
    ],
)
def test_names_that_lead_out_are_refused(evil: Path, name: str, target: str) -> None:
    (evil / name).symlink_to(target)
    with pytest.raises(ContainerError, match="lead out"):
        harden(evil, owner=ME)


def test_a_chain_of_links_that_leads_out_is_refused(evil: Path) -> None:
    (evil / "a/b/c").mkdir(parents=True)
    (evil / "short").symlink_to("a/b/c")
    (evil / "a/b/c/up").symlink_to("../../..")  # the image's root
    (evil / "opt").symlink_to("short/up/..")  # by its text inside, by its way outside
    with pytest.raises(ContainerError, match="lead out"):
        harden(evil, owner=ME)


def test_a_link_inside_that_leads_out_through_another_is_refused(evil: Path) -> None:
    (evil / "usr/deep/er").mkdir(parents=True)
    (evil / "usr/deep/er/root").symlink_to("/")
    (evil / "usr/share").mkdir()
    (evil / "usr/share/inside").symlink_to("../deep/er/root/../usr")  # as a session sees it: /usr
    with pytest.raises(ContainerError, match="/usr/share/inside"):
        harden(evil, owner=ME)
    (evil / "usr/share/inside").unlink()
    (evil / "usr/share/inside").symlink_to("../deep/er/../../share")
    harden(evil, owner=ME)


@pytest.mark.parametrize("name", ["opt", "usr/loop"])
def test_links_that_lead_to_themselves_are_no_reason_to_fail(evil: Path, name: str) -> None:
    (evil / name).symlink_to(Path(name).name)
    harden(evil, owner=ME)


@pytest.mark.parametrize("name", ["home", "etc", "var/tmp"])
def test_a_file_or_a_link_in_place_of_a_mount_point_is_refused(evil: Path, name: str) -> None:
    (evil / "etc").rename(evil / "usr/etc")
    (evil / "var").mkdir(exist_ok=True)
    (evil / name).write_text("no folder")
    with pytest.raises(ContainerError, match="of the image is not a folder"):
        add_mount_points(evil)
    (evil / name).unlink()
    (evil / name).symlink_to(Path(name).name)
    with pytest.raises(ContainerError, match="go elsewhere"):
        add_mount_points(evil)


def test_mount_points_are_made_and_links_in_their_place_refused(evil: Path) -> None:
    (evil / "etc/resolv.conf").symlink_to("/run/resolv.conf")
    harden(evil, owner=ME)
    add_mount_points(evil)
    assert (evil / "var/tmp").is_dir()
    assert (evil / "etc/resolv.conf").read_text() == ""
    assert not (evil / "etc/resolv.conf").is_symlink()
    (evil / "home").rmdir()
    (evil / "home").symlink_to("usr")
    with pytest.raises(ContainerError, match="go elsewhere"):
        add_mount_points(evil)
