"""Packages that are installed in a session are found by its Python and by its ranks: a real pip, a real environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from carme_hub.node import packages, program

MINOR = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    """Write a wheel with one module, which knows its version."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:VERSION.title\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for path, text in files.items():
            file.writestr(path, text)
        file.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD")))


class Environment:
    """An image's environment whose Python has pip, and a session that uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.layer, self.wheels = folder, folder / "session" / "packages", folder / "wheels"
        self.site = folder / "venv" / "lib" / MINOR / "site-packages"
        self.site.mkdir(parents=True)
        (folder / "venv" / "bin").mkdir()
        self.python = folder / "venv" / "bin" / "python"
        self.python.symlink_to(os.path.realpath(sys.executable))
        (folder / "venv" / "pyvenv.cfg").write_text(f"home = {Path(os.path.realpath(sys.executable)).parent}\n")
        (self.site / "carme_packages.py").write_text(program("packages"))
        (self.site / "carme-packages.pth").write_text("import carme_packages\n")
        (self.site / "pip").symlink_to(Path(sysconfig.get_path("purelib")) / "pip")
        wheel(self.wheels, "carme_first", "1.0")
        self.pip("install", "carme_first==1.0", session=False)
        assert (self.site / "carme_first.py").exists()

    def run(self, *argv: str, session: bool = True) -> subprocess.CompletedProcess[str]:
        own = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        environ = own | ({"CARME_PACKAGES": str(self.layer)} if session else {})
        return subprocess.run([self.python, *argv], env=environ, capture_output=True, text=True, check=False)

    def pip(self, *argv: str, session: bool = True) -> str:
        place = ("--no-index", f"--find-links={self.wheels}")
        done = self.run("-m", "pip", "--no-cache-dir", *argv, *place, session=session)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def versions(self, *names: str) -> list[str]:
        """Return the versions that Python finds in this session, as a rank would."""
        code = f"import {', '.join(names)}; print({', '.join(f'{name}.VERSION' for name in names)})"
        done = self.run("-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("image"))


def test_a_package_goes_to_the_session_and_what_the_image_has_is_not_installed_again(image: Environment) -> None:
    wheel(image.wheels, "carme_second", "1.0", "carme_first")
    said = image.pip("install", "carme_second")
    assert "Requirement already satisfied: carme_first" in said
    assert image.versions("carme_first", "carme_second") == ["1.0", "1.0"]
    assert (image.layer / "lib" / MINOR / "site-packages" / "carme_second.py").exists()
    assert (image.layer / "bin" / "carme_second").exists()
    assert not (image.site / "carme_second.py").exists()
    assert image.run("-c", "import carme_second", session=False).returncode != 0


def test_another_version_of_what_the_image_has_comes_first_and_the_images_stays(image: Environment) -> None:
    wheel(image.wheels, "carme_first", "2.0")
    assert "outside environment" in image.pip("install", "--upgrade", "carme_first==2.0")
    assert image.versions("carme_first") == ["2.0"]
    assert (image.site / "carme_first.py").read_text() == "VERSION = '1.0'\n"
    done = image.run("-m", "pip", "uninstall", "--yes", "carme_first")
    assert done.returncode == 0, done.stderr
    assert image.versions("carme_first") == ["1.0"]


def test_user_means_the_session_too_and_says_so(image: Environment) -> None:
    wheel(image.wheels, "carme_third", "1.0")
    assert "[carme] --user: the packages go to this session" in image.pip("install", "--user", "carme_third")
    assert image.versions("carme_third") == ["1.0"]


def test_another_place_is_respected(image: Environment, tmp_path: Path) -> None:
    wheel(image.wheels, "carme_fourth", "1.0")
    image.pip("install", f"--target={tmp_path}", "carme_fourth")
    assert (tmp_path / "carme_fourth.py").exists()
    assert not (image.layer / "lib" / MINOR / "site-packages" / "carme_fourth.py").exists()


@pytest.mark.parametrize("command", ["install", "global"])
def test_a_place_in_pips_own_settings_is_respected(image: Environment, tmp_path: Path, command: str) -> None:
    wheel(image.wheels, "carme_sixth", "1.0")
    settings = image.folder / ".config" / "pip" / "pip.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f"[{command}]\ntarget = {tmp_path}\n")
    try:
        image.pip("install", "carme_sixth")
    finally:
        settings.unlink()
    assert (tmp_path / "carme_sixth.py").exists()
    assert not (image.layer / "lib" / MINOR / "site-packages" / "carme_sixth.py").exists()


def test_a_kernel_that_runs_already_finds_what_is_installed_later(image: Environment) -> None:
    wheel(image.wheels, "carme_fifth", "1.0")
    install = ["-m", "pip", "install", "--no-index", f"--find-links={image.wheels}", "carme_fifth"]
    code = (
        "import subprocess, sys\n"
        "try: import carme_fifth\nexcept ImportError: pass\nelse: raise SystemExit('it is there')\n"
        f"subprocess.run([sys.executable, *{install!r}], check=True, stdout=subprocess.DEVNULL)\n"
        "import carme_fifth; print(carme_fifth.VERSION)\n"
    )
    done = image.run("-c", code)
    assert done.stdout.strip() == "1.0", done.stderr


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ("python -m pip install x", True),
        ("python /opt/venv/bin/pip install x", True),
        ("python /opt/venv/bin/pip3.11 install --user x", True),
        ("python -I -m pip install x", True),
        ("python -W error -s -m pip install x", True),
        ("python -c pip install x", False),
        ("python -m pip install --target /x x", False),
        ("python -m pip install --prefix=/x x", False),
        ("python -m pip list", False),
        ("python train.py install", False),
        ("python", False),
    ],
)
def test_only_pip_install_without_a_place_is_directed(argv: str, found: bool) -> None:
    assert packages.chooses_no_place(packages.pip_words(argv.split())) is found


def test_outside_of_a_session_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.path)
    for folder in ("", "relative/folder", "/proc/nowhere"):
        monkeypatch.setenv("CARME_PACKAGES", folder)
        packages.main()
    assert sys.path == before
