"""The program of a build with packages of conda: a real solver, and a channel that the test makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from rig.conda_channel import PLACEHOLDER, Channel

from carme_hub.containers.build.conda import CondaWork
from carme_hub.containers.build.relocate import relocate_tree
from carme_hub.domain.images.builds import Build
from carme_hub.domain.images.conda import parse_environment

ID = "11111111-1111-4111-8111-111111111111"
TOOL = f"#!{PLACEHOLDER}/bin/python\nimport carme_pure, sys\nprint('tool', carme_pure.VERSION, sys.prefix)\n"


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Channel:
    folder = tmp_path_factory.mktemp("conda")
    site = folder / "site"
    (site / "ipykernel").mkdir(parents=True)
    (site / "ipykernel/__init__.py").write_text("")
    (site / "pip").symlink_to(Path(sysconfig.get_path("purelib")) / "pip")
    found = Channel(folder / "channel")
    found.add_python(site=str(site), python=os.path.realpath(sys.executable))
    library = {"bin/carme-tool": TOOL, "lib/carme.bin": b"\0" + PLACEHOLDER.encode() + b"/lib\0end"}
    found.add("carme-lib", "1.5", library, depends=("python",))
    found.add("carme-gpu", "1.0", {"lib/gpu.txt": "gpu"}, depends=("python", "__cuda >=12"))
    pure = {"site-packages/carme_pure.py": "VERSION = '2.0'\n"}
    found.add("carme-pure", "2.0", pure, depends=("carme-lib >=1",), python=True)
    return found


def run(channel: Channel, folder: Path, dependencies: list[Any], size: int = 1 << 30, **environ_of_site: str) -> str:
    """Build in a home; return the log, with the exit status as its last line."""
    channels = {"ours": channel.address}
    text = parse_environment({"dependencies": dependencies}, channels).text()
    build = Build(ID, "alice", "tools", "default", "sha256:" + "1" * 64, kind="conda", text=text)
    work = CondaWork(build, size, {"PIP_NO_INDEX": "1", **environ_of_site}, (), channels=channels)
    session, home = folder / "session", folder / "home"
    for each in (session, home):
        each.mkdir(exist_ok=True)
    for name, file in work.files().items():
        (session / name).write_text(str(file["text"]))
    argv = [sys.executable, *work.argv(str(session))[1:]]
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", "CARME_PACKAGES": work.packages(str(home))}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    return f"{done.stdout}{done.stderr}\nstatus {done.returncode}"


def test_an_environment_is_a_kernel_that_has_our_runs_and_can_be_moved(channel: Channel, tmp_path: Path) -> None:
    said = run(channel, tmp_path, ["python", "carme-pure>=1"])
    assert said.endswith("status 0"), said
    assert "carme-lib 1.5" in said
    images = tmp_path / "home/.carme/images"
    assert [each.name for each in images.iterdir()] == [ID], "nothing half made"
    layer = images / ID
    assert not layer.is_symlink()
    prefix = str(layer / "conda")
    about = json.loads((layer / "image.json").read_text())
    assert (about["kind"], about["packages"]["carme-pure"]) == ("conda", "2.0")
    kernel = json.loads((layer / "share/jupyter/kernels/conda-tools/kernel.json").read_text())
    assert kernel["argv"][0] == f"{prefix}/bin/python"
    assert kernel["argv"][-2:] == ["--ext", "carme_hub.training"]
    assert kernel["env"]["CONDA_PREFIX"] == prefix
    found = subprocess.run([f"{prefix}/bin/carme-tool"], capture_output=True, text=True, check=True).stdout
    assert found == f"tool 2.0 {prefix}\n"
    code = "import carme_hub.training, carme_packages; print(carme_hub.__file__)"
    argv = [kernel["argv"][0], "-P", "-c", code]
    own = subprocess.run(argv, env={"HOME": "/"}, capture_output=True, text=True, check=True)
    assert own.stdout.startswith(prefix)

    moved = tmp_path / "moved"
    layer.rename(moved)
    assert relocate_tree(str(moved), os.fsencode(layer), os.fsencode(moved))
    found = subprocess.run([moved / "conda/bin/carme-tool"], capture_output=True, text=True, check=True).stdout
    assert found == f"tool 2.0 {moved}/conda\n"
    binary = (moved / "conda/lib/carme.bin").read_bytes()
    assert binary.startswith(b"\0" + os.fsencode(moved) + b"/conda/lib\0")
    assert binary.endswith(b"\0end")


def test_a_node_without_a_gpu_builds_for_those_that_have_one_where_the_site_says_so(
    channel: Channel, tmp_path: Path
) -> None:
    assert "__cuda" in run(channel, tmp_path, ["python", "carme-gpu"], CONDA_OVERRIDE_CUDA="11.8")
    assert run(channel, tmp_path, ["python", "carme-gpu"], CONDA_OVERRIDE_CUDA="12.4").endswith("status 0")


@pytest.mark.parametrize(
    ("dependencies", "size", "said"),
    [
        (["python", "carme-missing"], 1 << 30, "the packages of conda were not installed"),
        (["python", "carme-pure=9"], 1 << 30, "carme-pure"),
        (["python", "carme-pure"], 500, "take more than the 0 MiB"),
        (["python", "pip", "carme-pure", {"pip": ["carme_nowhere"]}], 1 << 30, "pip did not install its part"),
    ],
)
def test_what_cannot_be_built_leaves_nothing(
    channel: Channel, tmp_path: Path, dependencies: list[Any], size: int, said: str
) -> None:
    log = run(channel, tmp_path, dependencies, size)
    assert not log.endswith("status 0"), log
    assert said in log
    assert list((tmp_path / "home/.carme/images").iterdir()) == []
