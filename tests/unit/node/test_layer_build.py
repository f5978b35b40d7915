"""The program of a build's job: packages of a real pip, complete or not there at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_packages import MINOR, Environment, wheel

from carme_hub.containers.build.job import BuildWork
from carme_hub.domain.images.builds import Build

ID = "11111111-1111-4111-8111-111111111111"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    found = Environment(tmp_path_factory.mktemp("base"))
    wheel(found.wheels, "carme_tool", "2.0", "carme_first>=1.5")
    wheel(found.wheels, "carme_first", "1.5")
    return found


def run(
    base: Environment,
    folder: Path,
    text: str,
    size: int = 1 << 30,
    remove: tuple[str, ...] = (),
    id: str = ID,
    below: str = "",
    layer: str = "",
) -> str:
    """Build in a home; return the log, with the exit status as its last line. ``layer``: of the base image."""
    build = Build(id, "alice", "tools", "default", "sha256:" + "1" * 64, text=text)
    other = Build(below, "alice", "lower", "default") if below else None
    place = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(base.wheels), "PIP_NO_CACHE_DIR": "1"}
    work = BuildWork(build, size, place, remove, other)
    session, home = folder / "session", folder / "home"
    for each in (session, home):
        each.mkdir(exist_ok=True)
    for name, file in work.files().items():
        (session / name).write_text(str(file["text"]))
    argv = [str(base.python), *work.argv(str(session))[1:]]
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", "CARME_PACKAGES": work.packages(str(home))}
    environ |= {"CARME_LAYER": layer, "PYTHONUSERBASE": layer} if layer else {}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    return f"{done.stdout}{done.stderr}\nstatus {done.returncode}"


def test_the_packages_of_the_layer_come_before_those_of_the_base(base: Environment, tmp_path: Path) -> None:
    old = tmp_path / "home/.carme/images" / ID.replace("1", "2")
    old.mkdir(parents=True)
    said = run(base, tmp_path, "carme_tool\n", remove=(old.name, "../../.ssh"))
    assert said.endswith("status 0"), said
    assert "carme_tool 2.0" in said
    layer = tmp_path / "home/.carme/images" / ID
    about = json.loads((layer / "image.json").read_text())
    assert about["packages"] == {"carme-first": "1.5", "carme-tool": "2.0"} or set(about["packages"].values()) == {
        "1.5",
        "2.0",
    }
    assert not old.exists()
    assert [each.name for each in layer.parent.iterdir()] == [ID], "nothing half made"
    assert (base.site / "carme_first.py").read_text() == "VERSION = '1.0'\n", "the base is as it was"
    session = {"HOME": "/", "CARME_LAYER": str(layer), "CARME_PACKAGES": str(tmp_path / "own")}
    code = "import carme_first, carme_tool; print(carme_first.VERSION, carme_tool.VERSION)"
    found = subprocess.run([base.python, "-c", code], env=session, capture_output=True, text=True, check=True).stdout
    assert found == "1.5 2.0\n"
    own = tmp_path / "own/lib" / MINOR / "site-packages"
    (own / "carme_tool.py").write_text("VERSION = '3.0'\n")
    found = subprocess.run([base.python, "-c", code], env=session, capture_output=True, text=True, check=True).stdout
    assert found == "1.5 3.0\n", "what is installed in the session comes first"


def versions(base: Environment, layers: str) -> str:
    """Return what a session with these layers imports."""
    code = "import carme_first, carme_tool; print(carme_first.VERSION, carme_tool.VERSION)"
    environ = {"HOME": "/", "CARME_LAYER": layers, "PYTHONUSERBASE": layers.partition(":")[0]}
    return subprocess.run([base.python, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout


def test_an_image_on_top_of_ones_own_begins_with_its_files_and_changes_none_of_them(
    base: Environment, tmp_path: Path
) -> None:
    assert run(base, tmp_path, "carme_tool\n").endswith("status 0")
    upper_id = ID.replace("1", "3")
    wheel(base.wheels, "carme_tool", "2.5", "carme_first>=1.5")
    try:
        said = run(base, tmp_path, "carme_tool==2.5\n", id=upper_id, below=ID)
        assert said.endswith("status 0"), said
    finally:
        (base.wheels / "carme_tool-2.5-py3-none-any.whl").unlink()
    assert "it begins with the packages of your image lower" in said
    lower, upper = (tmp_path / "home/.carme/images" / each for each in (ID, upper_id))
    shared = f"lib/{MINOR}/site-packages/carme_first.py"
    assert (lower / shared).samefile(upper / shared), "files are shared"
    assert json.loads((lower / "image.json").read_text())["id"] == ID
    assert json.loads((upper / "image.json").read_text())["id"] == upper_id
    assert versions(base, str(lower)) == "1.5 2.0\n"
    assert versions(base, str(upper)) == "1.5 2.5\n"
    said = run(base, tmp_path, "carme_tool\n", id=ID.replace("1", "4"), below=ID.replace("1", "9"))
    assert said.endswith("status 69"), said
    assert "is not there any more" in said
    assert sorted(each.name for each in upper.parent.iterdir()) == [ID, upper_id], "nothing half made"


def test_the_layers_of_the_base_are_below_and_stay_as_they_are(base: Environment, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    assert run(base, tmp_path / "store", "carme_first==1.5\n").endswith("status 0")
    lower = tmp_path / "store/home/.carme/images" / ID
    said = run(base, tmp_path, "carme_tool\n", layer=str(lower))
    assert said.endswith("status 0"), said
    upper = tmp_path / "home/.carme/images" / ID
    assert set(json.loads((upper / "image.json").read_text())["packages"].values()) == {"2.0"}, "the rest is below"
    assert versions(base, f"{upper}:{lower}") == "1.5 2.0\n"
    wheel(base.wheels, "carme_first", "1.7")
    try:
        again = ID.replace("1", "5")
        assert run(base, tmp_path, "carme_tool\ncarme_first==1.7\n", layer=str(lower), id=again).endswith("status 0")
    finally:
        (base.wheels / "carme_first-1.7-py3-none-any.whl").unlink()
    assert versions(base, f"{upper.with_name(again)}:{lower}") == "1.7 2.0\n", "the upper one comes first"
    assert versions(base, f"{upper}:{lower}") == "1.5 2.0\n"


@pytest.mark.parametrize(
    ("text", "size", "status", "said"),
    [
        ("carme_missing\n", 1 << 30, 1, "pip did not install the packages"),
        ("carme_tool\n", 2000, 65, "take more than the 0 MiB"),
    ],
)
def test_what_cannot_be_built_leaves_nothing(
    base: Environment, tmp_path: Path, text: str, size: int, status: int, said: str
) -> None:
    log = run(base, tmp_path, text, size)
    assert log.endswith(f"status {status}"), log
    assert said in log
    assert list((tmp_path / "home/.carme/images").iterdir()) == []


def test_a_base_whose_python_looks_nowhere_else_is_refused(base: Environment, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    (bare / "bin").mkdir(parents=True)
    site = bare / "lib" / MINOR / "site-packages"
    site.mkdir(parents=True)
    (bare / "bin/python").symlink_to(os.path.realpath(sys.executable))
    (bare / "pyvenv.cfg").write_text(
        f"{(base.folder / 'venv/pyvenv.cfg').read_text()}include-system-site-packages = false\n"
    )
    (site / "pip").symlink_to((base.site / "pip").resolve())
    other = Environment.__new__(Environment)
    other.python, other.wheels = bare / "bin/python", base.wheels
    log = run(other, tmp_path, "carme_tool\n")
    assert log.endswith("status 66"), log
    assert "virtual environment without carme_packages" in log
