"""A request that could reach what it must not, or that a runtime could read otherwise, is refused with the reason."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from carme_hub.containers import check
from carme_hub.containers.images import read_image, write_image
from carme_hub.containers.runtime import Bind, ContainerRequest, Image
from carme_hub.errors import ContainerError

FINE = ContainerRequest(
    Image("lab", "/store/lab"), ("true",), home="/home/alice", session_folder="/home/alice/.carme/s"
)


def test_a_plain_request_passes() -> None:
    check.check(FINE)


@pytest.mark.parametrize(
    "path",
    [
        *("", "relative", "//etc", "/a/../etc", "/a//b", "/a/", "/a:/b", "/a,b", "/a b", "/a\nb", "/a\0b", "/a'b"),
        *('/a"b', "/a$b", "/a`b", "/a\\b", "/a/./b"),
    ],
)
@pytest.mark.parametrize("where", ["source", "destination", "home", "workdir", "image", "session_folder"])
def test_paths_that_could_be_read_otherwise_are_refused(path: str, where: str) -> None:
    if where == "workdir" and not path:
        return  # means the home
    changes: dict[str, Any] = {
        "source": {"binds": (Bind(path, "/data"),)},
        "destination": {"binds": (Bind("/data", path),)},
        "home": {"home": path},
        "workdir": {"workdir": path},
        "image": {"image": Image("lab", path)},
        "session_folder": {"session_folder": path},
    }[where]
    with pytest.raises(ContainerError):
        check.check(dataclasses.replace(FINE, **changes))


@pytest.mark.parametrize("source", ["/", "/etc", "/etc/shadow", "/root/x", "/proc", "/dev/sda", "/run/munge", "/sys"])
def test_sources_that_are_never_bound(source: str) -> None:
    with pytest.raises(ContainerError, match="never bound"):
        check.check(dataclasses.replace(FINE, binds=(Bind(source, "/data"),)))


@pytest.mark.parametrize("destination", ["/", "/usr", "/usr/lib/x", "/etc/passwd", "/bin", "/lib64", "/dev/x", "/proc"])
def test_destinations_that_nothing_is_bound_over(destination: str) -> None:
    with pytest.raises(ContainerError, match="bound over"):
        check.check(dataclasses.replace(FINE, binds=(Bind("/data", destination),)))


def test_a_name_that_only_begins_like_a_forbidden_one_is_fine() -> None:
    check.check(dataclasses.replace(FINE, binds=(Bind("/etcetera", "/user"), Bind("/runs", "/library"))))


@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "APPTAINER_BIND"),
        *("APPTAINERENV_X", "SINGULARITY_BIND", "ENROOT_ROOTFS_WRITABLE", "BWRAP_X", "1X", "A B", "A=B", "", "A\n"),
        *("JUPYTERHUB_API_TOKEN", "CARME_DATA", "SLURM_JWT"),
    ],
)
def test_variables_that_steer_the_runtime_or_are_secret_are_refused(name: str) -> None:
    with pytest.raises(ContainerError):
        check.check(dataclasses.replace(FINE, environ={name: "x"}))
    with pytest.raises(ContainerError):
        check.check(dataclasses.replace(FINE, pass_env=(name,)))


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "JUPYTERHUB_USER", "CARME_SESSION", "PATH", "HOME"])
def test_people_may_not_set_what_is_the_hubs_or_slurms(name: str) -> None:
    check.check_environ({name: "x"})
    with pytest.raises(ContainerError, match=name):
        check.check_user_environ({name: "x"})
    check.check_user_environ({"MY_SETTING": "x"})


def test_binds_must_be_under_what_the_site_allows() -> None:
    check.check_allowed([Bind("/scratch/alice", "/scratch")], ["/home", "/scratch"])
    with pytest.raises(ContainerError, match="/home, /scratch"):
        check.check_allowed([Bind("/scratch2/alice", "/scratch")], ["/home", "/scratch"])
    with pytest.raises(ContainerError, match="no folder"):
        check.check_allowed([Bind("/scratch/alice", "/scratch")], [])


@pytest.mark.parametrize("reference", ["", "-v/:/x", "a b", "a\nb", "../x", "a,b"])
def test_odd_references_are_refused(reference: str) -> None:
    with pytest.raises(ContainerError, match="reference"):
        check.check(dataclasses.replace(FINE, image=Image("lab", reference, "ref")))


@pytest.mark.parametrize("argv", [(), ("--bind", "/"), ("a\0b",)])
def test_commands_that_a_runtime_could_take_for_options_are_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(ContainerError, match="command"):
        check.check(dataclasses.replace(FINE, argv=argv))


def test_an_image_folder_says_what_it_is(tmp_path: Path) -> None:
    write_image(tmp_path, name="lab", description="For labs", base="host", more={"packages": ["jupyterlab"]})
    assert read_image(tmp_path) == Image("lab", str(tmp_path), "dir", "For labs", "host")
    assert json.loads((tmp_path / "image.json").read_text())["packages"] == ["jupyterlab"]
    more = {"torch": ["torch==2.13"], "horovod": "", "mpi": [["mpi4py"], "x"]}
    write_image(tmp_path, name="train", description="", base="own", more=more)
    assert read_image(tmp_path).provides == ("torchrun", "mpi")


@pytest.mark.parametrize("text", ["", "[]", '{"format": "tape"}', '{"format": "dir", "base": "moon"}'])
def test_a_folder_that_is_no_image_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "image.json").write_text(text)
    with pytest.raises(ContainerError, match="image"):
        read_image(tmp_path)
